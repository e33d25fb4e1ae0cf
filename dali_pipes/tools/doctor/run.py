"""Runs all checks of the doctor, one after the other, and prints what they find.

`all_checks` lists them in order. Those that a broken library may crash run in a child process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console

from dali_pipes.backends.dali.config import DaliOptions
from dali_pipes.data.images import open_images
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.system.child import ChildError, explain, in_child
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.cuda import install_cuda
from dali_pipes.system.progress import track
from dali_pipes.system.provenance import gpu_is_simulated
from dali_pipes.system.stdout import print_json
from dali_pipes.tools.doctor import images, machine, software
from dali_pipes.tools.doctor.config import DoctorConfig
from dali_pipes.tools.doctor.machine import CPU_LOADERS
from dali_pipes.tools.doctor.report import (
    FAILED,
    WARNING,
    Finding,
    ReportLine,
    as_json,
    can_train_on_gpu,
    print_lines,
)
from dali_pipes.tools.doctor.software import installed

CHILD = "dali_pipes.tools.doctor"  # its functions run in a separate process
DALI_NEEDS_IT = f"loader=dali needs it: {install_cuda()}. The loader torch works without it"
ON_GPU_ONLY = f"only checks and kernels on the GPU need it: {install_cuda()}"
BROKEN_DRIVER = f"the driver or the GPU is broken: dmesg, nvidia-smi -q. {CPU_LOADERS}"
WITHOUT_ENGINES = "DALI can do without: loader.hw_decoder_load=0"


def doctor(config: DoctorConfig) -> bool:
    """Runs all checks; prints tables to stderr and, unless stdout is a terminal, JSON to stdout.

    Returns:
        whether training on a GPU can work here.

    Raises:
        ConfigError, ManifestError: the images do not exist, or the loader is not DALI's.
    """
    if not isinstance(config.loader, DaliOptions):
        raise ConfigError(
            "the doctor tests DALI's decoding; choose loader=dali, dali_fastest or dali_cpu"
        )

    # without images the doctor looks at the machine alone
    named = (
        config.data.source(config.split)
        if config.data.root or config.data.train or config.data.val
        else None
    )
    manifest = open_images(config.data, config.split) if named else None

    lines = examine(all_checks(config, manifest), config.limit_s)
    print_lines(lines, Console(stderr=True, highlight=False))
    print_json(as_json(lines, installed()))
    return can_train_on_gpu(lines)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor.

    Attributes:
        look: the function that checks, without arguments; or "module:function", which is called in
            a separate process.
        remedy: what to do if it raises, crashes or hangs.
        broken: the status then.
        needs_gpu: skipped if `gate` has failed.
        gate: the check whether there is a GPU at all.
    """

    group: str
    name: str
    look: Callable[[], Finding] | str
    remedy: str = "this could not be checked; training may still work"
    broken: str = WARNING
    needs_gpu: bool = False
    gate: bool = False

    def run(self, limit_s: float) -> Finding:
        """Returns the finding; a separate process is ended after about `limit_s` seconds."""
        try:
            return (
                Finding(**in_child(self.look, limit_s).value)
                if isinstance(self.look, str)
                else self.look()
            )
        except ChildError as error:
            return Finding(self.broken, str(error), self.remedy)
        except Exception as error:
            # a broken library may raise anything, and the other checks go on
            return Finding(self.broken, explain(error), self.remedy)


def examine(checks: Sequence[Check], limit_s: float) -> list[ReportLine]:
    """Runs the checks; those that need a GPU are skipped after the check for one has failed."""
    lines, there_is_a_gpu = list[ReportLine](), True
    for check in track(checks, lambda check: f"{check.group}: {check.name}", len(checks)):
        if check.needs_gpu and not there_is_a_gpu:
            continue

        finding = check.run(limit_s)
        there_is_a_gpu &= not (check.gate and finding.status == FAILED)

        lines.append(ReportLine(check.group, check.name, finding))
    return lines


def all_checks(config: DoctorConfig, manifest: Manifest | None) -> list[Check]:
    """Lists the checks in the order in which they run and are shown."""
    # the groups, each with a table of its own
    software_, limits = (partial(Check, group) for group in ("software", "CPU and memory"))
    gpu = partial(Check, "GPU", needs_gpu=True)

    workers = available_cpus() if config.num_workers is None else config.num_workers
    decoding = config.loader, config.batch_size, config.limit_s, torch.device("cuda", 0)

    # checks that are named by a text run in a child process
    checks = [
        software_("Python", software.python_version),
        software_("PyTorch", software.pytorch),
        software_("one CUDA", software.one_cuda),
        software_("DALI", f"{CHILD}.decode:dali_on_cpu", DALI_NEEDS_IT, FAILED),
        software_("nvImageCodec", f"{CHILD}.software:nvimagecodec", ON_GPU_ONLY),
        software_("CuPy", f"{CHILD}.software:cupy_kernel", ON_GPU_ONLY),
        limits("CPU quota", machine.quota),
        limits("memory", machine.memory),
        limits("/dev/shm", partial(machine.shared_memory, workers, config.batch_size)),
        # the checks below it are skipped if there is no GPU
        Check(
            "GPU",
            "driver and GPUs",
            f"{CHILD}.machine:driver_and_gpus",
            BROKEN_DRIVER,
            FAILED,
            gate=True,
        ),
        Check("GPU", "simulated", software.simulated_gpu) if gpu_is_simulated() else None,
        gpu("DALI", partial(images.made_images, *decoding)),
        gpu("your images", partial(images.images_of, manifest, *decoding)) if manifest else None,
        gpu("JPEG engines", f"{CHILD}.decode:jpeg_engines", WITHOUT_ENGINES),
    ]
    return [check for check in checks if check]
