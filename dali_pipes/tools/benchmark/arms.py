"""Which arms take part, and what each of them is to the others."""

import torch

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.registry import entry_of
from dali_pipes.measure.worker_process import ArmError
from dali_pipes.tools.benchmark.config import BenchmarkConfig

Arms = dict[str, LoaderConfig]


def skipped(config: BenchmarkConfig) -> dict[str, str]:
    """The arms that cannot run here, with the reason.

    Raises:
        ArmError: nothing is left to compare.
    """
    if torch.cuda.is_available():
        return {}
    without = [arm for arm in config.arms if config.loaders[arm].needs_gpu]
    if without and len(config.arms) - len(without) < 2:
        raise ArmError(f"{' and '.join(f'arm {arm}' for arm in without)}: no GPU here, and too few other arms to compare")
    return dict.fromkeys(without, "needs a GPU, and PyTorch sees none here")


def baseline(config: BenchmarkConfig, arms: Arms) -> str:
    """What the others are compared with: by default the first arm that makes its images."""
    makers = [arm for arm, loader in arms.items() if entry_of(loader).makes_images]
    return config.baseline if config.baseline in arms else [*makers, *arms][0]


def planning(arms: Arms) -> list[tuple[str, str]]:
    """A backend without the plan and the one that does the same by it, in like graphs: their ratio is what planning costs."""
    return [
        (native, planned)
        for native, one in arms.items()
        for planned, other in arms.items()
        if entry_of(one).planned_by == entry_of(other).name and _graph(one) == _graph(other)
    ]


def _graph(config: LoaderConfig) -> tuple[str, bool, bool]:
    return config.decodes_on, getattr(config, "fancy_upsampling", True), getattr(config, "graph_finishes", True)
