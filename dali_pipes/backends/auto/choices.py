"""Which loaders there are to choose from."""

import os
from typing import NamedTuple

import torch

from dali_pipes.backends.auto.config import AutoConfig
from dali_pipes.backends.backend import Job
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.needs import refuse_needs
from dali_pipes.backends.pixels.functions import check_functions
from dali_pipes.backends.registry import load_backend
from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.memory import check_fits, free_memory

# images a second that a GPU trains on and a core decodes, of 500 × 375 pixels, as on an H200
# (docs/benchmarks): with fewer cores for each GPU than the quotient, the GPU decodes
_CORES_OF_A_GPU = 12
_CPU_SHARE = 0.3


class LoaderChoice(NamedTuple):
    """A loader to choose.

    Attributes:
        name: as results and the log have it.
        config: its options, decided for this machine and this device. None: the workers of a
            program's own make the pictures.
        ahead: how many batches it makes ahead.
        takes_device: whether it works on the device that trains, which it may slow down without
            letting it wait.
    """

    name: str
    config: LoaderConfig | None
    ahead: int
    takes_device: bool = False


def list_choices(cores: int, device: torch.device) -> list[LoaderChoice]:
    """All of them, the likeliest first."""
    found: dict[str, LoaderConfig] = {
        "dali on the CPU": DaliConfig(device="cpu"),
        "torch": TorchConfig(decoder="auto"),
    }
    if device.type == "cuda":
        on_gpu: dict[str, LoaderConfig] = {
            "dali on the GPU": DaliConfig(device="gpu"),
            f"dali on the GPU, {_CPU_SHARE:.0%} on the CPU": DaliConfig(
                device="gpu", cpu_share=_CPU_SHARE
            ),
        }
        found = found | on_gpu if cores >= _CORES_OF_A_GPU else on_gpu | found
    decided = {name: config.on_cores(cores).on_device(device) for name, config in found.items()}
    return [
        LoaderChoice(name, config, config.concurrency.ahead, config.decodes_on == "gpu")
        for name, config in decided.items()
    ]


def likely(
    config: AutoConfig,
    device: torch.device,
    transform: Transform,
    images: Manifest,
    learned: str = "",
) -> LoaderConfig:
    """The options of the likeliest loader that makes these images.

    Args:
        learned: the name of the one that has been found to be best.

    Raises:
        ConfigError: none makes them.
    """
    choices = list_choices(config.on_cores().num_threads or 1, device)
    choices.sort(key=lambda choice: choice.name != learned)  # all others stay in their order
    why: ConfigError | None = None
    for found in [choice.config for choice in choices if choice.config]:
        try:
            backend = load_backend(found)
            check_functions(transform, backend.functions_on(found, device))
            refuse_needs(transform, images, backend.makes, type(found))
            return found
        except ConfigError as error:
            why = why or error
    assert why
    raise why


def refuse(config: LoaderConfig, job: Job) -> None:
    """Refuses a backend before it is built.

    Raises:
        ConfigError: a package or memory is missing, or a function cannot run there.
    """
    backend = load_backend(config)
    check_functions(job.transform, backend.functions_on(config, job.device))
    needs = backend.memory_needs(config, job.transform, job.batch_size, job.images.some_sizes)
    check_fits(list(needs), free_memory(int(os.environ.get("LOCAL_WORLD_SIZE", 1))))
