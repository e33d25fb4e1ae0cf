"""Options of dali-pipes scan."""

from dataclasses import dataclass, field

from dali_pipes.data.config import SPLITS, DataConfig
from dali_pipes.data.scanning.headers import MAX_PIXELS, VERIFY, check_max_pixels
from dali_pipes.errors import check_choice, check_options, option


@dataclass(kw_only=True, slots=True)
class ScanConfig:
    """dali-pipes scan.

    Attributes:
        split: "train" or "val".
        verify: "header" reads headers only; "full" decodes every image, on all cores.
        max_pixels: images with more are not used.
        out: file for the manifest, NAME.arrow to be mapped or NAME.parquet; None: only the summary.
        picture: a PNG or SVG of what is there: classes, sizes, formats, chroma subsampling, orientation; None: no picture.
    """

    data: DataConfig = field(default_factory=DataConfig)
    split: str = option("train", check_choice, SPLITS)
    verify: str = option("header", check_choice, VERIFY)
    max_pixels: int = option(MAX_PIXELS, check_max_pixels)
    out: str | None = None
    picture: str | None = None

    def __post_init__(self) -> None:
        check_options(self)
