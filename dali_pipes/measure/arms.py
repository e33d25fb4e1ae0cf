"""Which arms take part, and what each of them is to the others."""

import torch

from dali_pipes.backends.config import CachedConfig, DaliConfig, DaliNativeConfig, LoaderConfig, SyntheticConfig, needs_gpu
from dali_pipes.measure.config import BenchmarkConfig
from dali_pipes.measure.worker_process import ArmError

Arms = dict[str, LoaderConfig]


def skipped(config: BenchmarkConfig) -> dict[str, str]:
    """The arms that cannot run here, with the reason.

    Raises:
        ArmError: nothing is left to compare.
    """
    if torch.cuda.is_available():
        return {}
    without = [arm for arm in config.arms if needs_gpu(config.loaders[arm])]
    if without and len(config.arms) - len(without) < 2:
        raise ArmError(f"{' and '.join(f'arm {arm}' for arm in without)}: no GPU here, and too few other arms to compare")
    return dict.fromkeys(without, "needs a GPU, and PyTorch finds none here")


def follows_plan(config: LoaderConfig) -> bool:
    """Whether an arm's pixels can be compared; repeated batches and DALI's own reader are outside the plan."""
    return not isinstance(config, (CachedConfig, DaliNativeConfig, SyntheticConfig))


def baseline(config: BenchmarkConfig, arms: Arms) -> str:
    """What the others are compared with: by default the first arm that makes its images."""
    makers = [arm for arm, loader in arms.items() if not isinstance(loader, (CachedConfig, SyntheticConfig))]
    return config.baseline if config.baseline in arms else [*makers, *arms][0]


def planning(arms: Arms) -> list[tuple[str, str]]:
    """DALI without the plan and with it, on the same device and decoding alike: their ratio is what planning costs."""
    return [
        (native, planned)
        for native, one in arms.items()
        for planned, other in arms.items()
        if isinstance(one, DaliNativeConfig) and type(other) is DaliConfig and _decoding(one) == _decoding(other)
    ]


def on_cpu_for_want_of_gpu(arms: Arms) -> list[str]:
    return [
        arm
        for arm, config in arms.items()
        if isinstance(config, DaliConfig) and config.device == "auto" and _place(config) == "cpu"
    ]


def _decoding(config: DaliConfig) -> tuple[str, bool]:
    """On the CPU chroma upsampling is always the fancy one."""
    place = _place(config)
    return place, place == "cpu" or config.jpeg_fancy_upsampling


def _place(config: DaliConfig) -> str:
    return config.device if config.device != "auto" else "gpu" if torch.cuda.is_available() else "cpu"
