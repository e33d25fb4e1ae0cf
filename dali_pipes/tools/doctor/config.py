"""Options of dali-pipes doctor."""

from dataclasses import dataclass, field
from typing import Any

from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.checks import check_choice, check_int, check_number
from dali_pipes.data.config import SPLITS, DataConfig
from dali_pipes.options import check_options, option


@dataclass(kw_only=True, slots=True)
class DoctorConfig:
    """dali-pipes doctor.

    Attributes:
        data: images to decode; None: generated images.
        loader: the options to decode with: dali, dali_fastest or dali_cpu; None: dali.
        split: "train" or "val".
        num_workers: worker processes for which shared memory must be enough; None: the cores
            that this process may use.
        batch_size: images per batch on one GPU.
        limit_s: seconds after which a check in a separate process is treated as hanging.
    """

    data: DataConfig = field(default_factory=DataConfig)
    loader: Any = None
    split: str = option("train", check_choice, SPLITS)
    num_workers: int | None = option(None, check_int, 0)
    batch_size: int = option(256, check_int, 1)
    limit_s: float = option(120.0, check_number, 1)

    def __post_init__(self) -> None:
        self.loader = DaliConfig() if self.loader is None else self.loader
        check_options(self)
