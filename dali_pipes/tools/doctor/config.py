"""Options of scripts/doctor.py."""

from dataclasses import dataclass, field
from typing import Any

from dali_pipes.backends.config import DaliConfig
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import check_choice, check_min


@dataclass(kw_only=True, slots=True)
class DoctorConfig:
    """scripts/doctor.py.

    Attributes:
        data: images to decode; their storage is checked too. None: generated images are used, and storage is not checked.
        loader: the options to decode with: dali, dali_fastest, or a file that `dali-pipes tune` wrote; None: dali.
        split: "train" or "val".
        num_workers: worker processes for which memory and limits must be enough; None: the cores that this process may use.
        batch_size: images per batch on one GPU.
        images_per_s: the rate that the storage must reach.
        limit_s: seconds after which a check in a separate process is treated as hanging.
    """

    data: DataConfig = field(default_factory=DataConfig)
    loader: Any = None
    split: str = "train"
    num_workers: int | None = None
    batch_size: int = 256
    images_per_s: float = 1000.0
    limit_s: float = 120.0

    def __post_init__(self) -> None:
        self.loader = DaliConfig() if self.loader is None else self.loader
        check_choice("split", self.split, ("train", "val"))
        check_min("num_workers", self.num_workers, 0)
        check_min("batch_size", self.batch_size, 1)
        check_min("images_per_s", self.images_per_s, 0)
        check_min("limit_s", self.limit_s, 1)
