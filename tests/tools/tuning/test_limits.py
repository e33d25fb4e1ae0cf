import pytest
from made_up import gpu, trial
from tools.tuning.conftest import config

from dali_pipes.measure.figures import arm_figures
from dali_pipes.measure.worker_process import ArmError
from dali_pipes.tools.tuning.search import over_limit, ran_out_of_memory

OUT_OF_MEMORY = [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.",
    "RuntimeError: CUDA error: out of memory",
    "Can't allocate 129499136 bytes on device 0.",
    "CUDA allocation failed",
    "CUDA runtime API error cudaErrorMemoryAllocation (2):",
    "NVJPEG_STATUS_ALLOCATOR_FAILURE",
    "std::bad_alloc",
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 3.00 GiB for an array",
    "OSError: [Errno 12] Cannot allocate memory",
    "RuntimeError: DataLoader worker (pid 123) is killed by signal: Bus error. It is "
    "possible that dataloader's workers are out "
    "of shared memory. Please try to raise your shared memory limit.",
    "RuntimeError: DataLoader worker (pid(s) 1) is killed by signal: Killed.",
    "RuntimeError: unable to write to file </torch_12_34_0>: No space left on device (28)",
]


@pytest.mark.parametrize("wrote", OUT_OF_MEMORY)
def test_running_out_of_memory_is_seen_wherever_it_was_written(wrote):
    assert ran_out_of_memory(ArmError(f"arm x: {wrote}"))
    assert ran_out_of_memory(
        ArmError(
            "arm x: its process ended with status 1; the last it wrote:\n frames",
            f"{wrote}\nframes",
        )
    )


def test_a_process_that_the_kernel_ended():
    assert ran_out_of_memory(ArmError("arm x: its process ended with SIGKILL"))
    assert ran_out_of_memory(ArmError("arm x: its process ended with SIGBUS"))


@pytest.mark.parametrize(
    "wrote",
    [
        "the file is broken",
        "ended with status -11",
        "No space left on device: 'runs/x'",
        "status 1",
    ],
)
def test_other_failures_are_not_taken_for_it(wrote):
    assert not ran_out_of_memory(ArmError(f"arm x: {wrote}"))


def test_figures_and_limits():
    figures = arm_figures([trial("x", rate=1000, cpu=1.9, gpus=[[gpu()]] * 4)])
    assert figures["cpus"] == pytest.approx(1.9)
    assert (
        over_limit(config(max_cpus=2, max_memory_mib=800, max_gpu_memory_mib=4000), figures) is None
    )
    assert over_limit(config(max_cpus=1.5), figures) == "1.90 cores, more than max_cpus=1.5"
    assert over_limit(config(max_cpu_s_per_1000_images=1), figures).startswith(
        "1.90 CPU-s per 1,000 images"
    )
    assert (
        over_limit(config(max_gpu_memory_mib=3999), figures)
        == "4,000 MiB of GPU memory, more than max_gpu_memory_mib=3999"
    )
