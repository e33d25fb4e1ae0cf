"""Every check: its group, its name, its function, and the meaning of its failure."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from dali_pipes.data.manifest import Manifest
from dali_pipes.system.child import ChildError, explain, in_child
from dali_pipes.system.cpus import available_cpus
from dali_pipes.tools.doctor import loading, machine, software, storage
from dali_pipes.tools.doctor.config import DoctorConfig
from dali_pipes.tools.doctor.finding import FAILED, WARNING, Finding
from dali_pipes.tools.doctor.software import SETUP

CHILD = "dali_pipes.tools.doctor"  # its functions run in a separate process


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the doctor.

    Attributes:
        look: a function without arguments, or "module:function" for one that is called in a separate process.
        broken: the status if it raises, crashes or hangs.
        remedy: what to do then.
        needs_gpu: skipped if `gate` has failed.
        gate: the check whether there is a GPU at all.
    """

    group: str
    name: str
    look: Callable[[], Finding] | str
    broken: str = WARNING
    remedy: str = "this could not be checked; training may still work"
    needs_gpu: bool = False
    gate: bool = False

    def run(self, limit_s: float) -> Finding:
        """The finding; it takes at most about `limit_s` seconds if it runs in a separate process."""
        try:
            return Finding(**in_child(self.look, limit_s).value) if isinstance(self.look, str) else self.look()
        except ChildError as error:
            return Finding(self.broken, str(error), self.remedy)
        except Exception as error:
            return Finding(self.broken, explain(error), self.remedy)


def all_checks(config: DoctorConfig, manifest: Manifest | None) -> list[Check]:
    """In the order in which they run and are shown."""
    return [*_software(), *_cpu_and_memory(config), *_storage(config, manifest), *_gpu(config, manifest)]


def _software() -> list[Check]:
    nothing_without = f"nothing works without it: {SETUP}"
    on_gpu_only = f"only checks and kernels on the GPU need it: {SETUP}"
    return [
        Check(group="software", name="Python", look=software.python_version),
        Check(group="software", name="PyTorch", look=software.pytorch),
        Check(group="software", name="one CUDA", look=software.one_cuda),
        Check(group="software", name="DALI", look=f"{CHILD}.decode:dali_on_cpu", broken=FAILED, remedy=nothing_without),
        Check(group="software", name="nvImageCodec", look=f"{CHILD}.nvimagecodec:nvimagecodec", remedy=on_gpu_only),
        Check(group="software", name="CuPy", look=f"{CHILD}.kernels:cupy_kernel", remedy=on_gpu_only),
    ]


def _cpu_and_memory(config: DoctorConfig) -> list[Check]:
    group, workers = "CPU and memory", available_cpus() if config.num_workers is None else config.num_workers
    return [
        Check(group=group, name="cores", look=machine.cores),
        Check(group=group, name="CPU quota", look=machine.quota),
        Check(group=group, name="memory", look=machine.memory),
        Check(group=group, name="/dev/shm", look=partial(machine.shared_memory, workers, config.batch_size)),
        Check(group=group, name="locked memory", look=machine.locked_memory),
        Check(group=group, name="open files", look=partial(machine.open_files, workers)),
    ]


def _storage(config: DoctorConfig, manifest: Manifest | None) -> list[Check]:
    if manifest is None:
        return [Check(group="storage", name="speed", look=storage.not_asked)]
    return [
        Check(group="storage", name="page cache", look=partial(storage.page_cache, manifest)),
        Check(group="storage", name="speed", look=partial(storage.storage_speed, manifest, config.images_per_s)),
    ]


def _gpu(config: DoctorConfig, manifest: Manifest | None) -> list[Check]:
    group = "GPU"
    broken_driver = "the driver or the GPU is broken: dmesg, nvidia-smi -q. CPU loaders work: loader=dali_cpu"
    engines = "DALI can do without: loader.hw_decoder_load=0"
    how = config.loader, config.batch_size, config.limit_s, torch.device("cuda", 0)
    yours = (
        [Check(group=group, name="your images", look=partial(loading.images_of, manifest, *how), needs_gpu=True)]
        if manifest
        else []
    )
    return [
        Check(
            group=group,
            name="driver and GPUs",
            look=f"{CHILD}.gpu:driver_and_gpus",
            broken=FAILED,
            remedy=broken_driver,
            gate=True,
        ),
        Check(group=group, name="DALI", look=partial(loading.made_images, *how), needs_gpu=True),
        *yours,
        Check(group=group, name="JPEG engines", look=f"{CHILD}.decode:jpeg_engines", remedy=engines, needs_gpu=True),
        Check(group=group, name="NVML", look=f"{CHILD}.gpu:nvml_figures", needs_gpu=True),
    ]
