"""Options of scripts/gpu_check.sh."""

from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore

from dali_pipes.checks import check_choice, check_int, check_number
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ConfigError

GPU_CHECK_PARTS = (
    *(
        "probe",
        "grid",
        "loader",
        "doctor",
        "resnet50",
        "profile",
        "corun",
        "suite",
        "diagnose",
        "resnet18",
    ),
)


@dataclass(kw_only=True, slots=True)
class GpuCheckConfig:
    """scripts/gpu_check.sh. docs/gpu-check.md explains each part.

    Attributes:
        parts: the parts to run, in this order.
        minutes: time limit of all parts together; then the running part is ended, and the rest is
            skipped.
        batch_size: images per batch in every part.
        dry_run: runs every part on the CPU with little work, to test that they run at all.
        out: a new folder for gpu_check.json, gpu_check.md and details/.
        overrides: what was given on the command line.
    """

    data: DataConfig = field(default_factory=DataConfig)
    parts: list[str] = field(default_factory=lambda: list(GPU_CHECK_PARTS))
    minutes: float = 9.5
    batch_size: int = 256
    dry_run: bool = False
    out: str = "runs/gpu_check"
    overrides: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_number("minutes", self.minutes, 0)
        check_int("batch_size", self.batch_size, 1)
        if not self.parts or len(set(self.parts)) < len(self.parts):
            raise ConfigError(f"parts is {list(self.parts)}; name at least one, and each only once")
        for part in self.parts:
            check_choice("a part", part, GPU_CHECK_PARTS)


def register() -> None:
    """Makes the schema known to Hydra."""
    ConfigStore.instance().store(name="gpu_check_schema", node=GpuCheckConfig)
