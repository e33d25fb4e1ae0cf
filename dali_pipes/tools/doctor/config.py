"""What scripts/doctor.py is told."""

from dataclasses import dataclass, field
from typing import Any

from dali_pipes.backends.config import DaliConfig
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import check_choice, check_min


@dataclass(kw_only=True, slots=True)
class DoctorConfig:
    """scripts/doctor.py.

    Attributes:
        data: images that are decoded, and whose storage is looked at; none: made images are, and storage is not.
        loader: whose options images are decoded with: dali, dali_fastest, one that `tune` wrote; None: dali.
        split: "train" or "val".
        num_workers: worker processes that memory and limits must suffice for; None: the cores that this process may use.
        batch_size: of one GPU.
        images_per_s: what the storage must give.
        limit_s: a check in a process of its own that takes longer hangs.
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
