"""The loop over a loader never makes the host wait for what is queued on the GPU.

Two witnesses. PyTorch's debug mode raises at whatever in PyTorch waits. The profiler sees every
call of the CUDA runtime, DALI's too: this thread must make none that waits for a whole stream or
device. One wait is DALI's own and allowed: its iterator hands a batch out when that batch is
finished, and waits for the event that says so. It holds up nothing but that batch; what training
has queued on its streams goes on meanwhile.
"""

import json
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from gpu_backends import GPU_BACKENDS, needs_cuda, simulated
from simulated_gpu.device import of_this_thread
from torch.profiler import ProfilerActivity, profile, record_function

import dali_pipes as dp
from dali_pipes.plan.steps.operations import OPS, TABLES

CONFIGS = {"dali_cpu": dp.DaliConfig(device="cpu"), **GPU_BACKENDS}
ON_GPU = needs_cuda(
    "dali_gpu",
    "dali_gpu_regions",
    "dali_cpu_to_gpu",
    "torch_to_gpu",
    "synthetic_on_gpu",
)
MARK = "the loop"
WAITS = {
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
}
every_loader = pytest.mark.parametrize("name", ["dali_cpu", *ON_GPU])


# every operation, which PyTorch makes on the GPU after DALI's graph
AUGMENT = [
    "TrivialAugmentWide",
    {"name": "RandAugment", "num_ops": 4},
    {"name": "AutoAugment", "equalize": "torchvision"},
    {"name": "ColorJitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
    {"name": "GaussianBlur", "kernel_size": 5},
    "RandomInvert",
    "TimmRandAugment",
]


def build(manifest, name, augment=()):
    transform = dp.TrainTransform(
        size=96, dtype="fp16", memory_format="channels_last", augment=list(augment)
    )
    return dp.build_loader(manifest, CONFIGS[name], transform=transform, batch_size=8)


def calls(trace):
    """How often the thread that set the mark called what of CUDA within it; `trace` is in Chrome's
    format.
    """
    (mark,) = (
        each
        for each in trace["traceEvents"]
        if each.get("name") == MARK and each.get("cat") == "user_annotation"
    )
    begin, end = mark["ts"], mark["ts"] + mark["dur"]
    return Counter(
        each["name"]
        for each in trace["traceEvents"]
        if each.get("cat") in ("cuda_runtime", "cuda_driver")
        and each["tid"] == mark["tid"]
        and begin <= each["ts"] < end
    )


def calls_during(work, folder):
    if simulated():  # without the library that the profiler asks
        before = of_this_thread()
        work()
        queued, waited = (now - then for now, then in zip(of_this_thread(), before, strict=True))
        return +Counter(cudaLaunchKernel=queued, cudaStreamSynchronize=waited)
    activities = [
        ProfilerActivity.CPU,
        *([ProfilerActivity.CUDA] if torch.cuda.is_available() else []),
    ]
    with profile(activities=activities, acc_events=True) as profiled, record_function(MARK):
        work()
    profiled.export_chrome_trace(str(folder / "trace.json"))
    return calls(json.loads((folder / "trace.json").read_text()))


@contextmanager
def waits_refused():
    """A block in which PyTorch raises where it would wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")


@every_loader
def test_nothing_in_pytorch_waits(manifest, name):
    with build(manifest, name) as loader:
        list(loader)  # what is made or copied once
        with waits_refused():
            batches = [batch for _ in range(3) for batch in loader]
    assert len(batches) == 12


@pytest.mark.parametrize("name", ["dali_cpu", *needs_cuda("dali_gpu")])
@pytest.mark.parametrize("erase", ["RandomErasing", "TimmRandomErasing"])
def test_no_operation_waits(manifest, name, erase):
    with build(manifest, name, [*AUGMENT, erase]) as loader:
        planned = [loader.plan.batch(*divmod(at, 4)) for at in range(4, 20)]
        list(loader)
        with waits_refused():
            assert len([batch for _ in range(4) for batch in loader]) == 16
    ops = np.concatenate([batch.augmentation.ops for batch in planned])
    # those of lazy pictures are drawn by no policy
    drawn = [op for op in OPS if op not in TABLES and not op.startswith(("Pillow", "OpenCv"))]
    assert len(np.unique(ops)) >= len(drawn) - 1


@pytest.mark.needs_cuda
def test_a_wait_in_pytorch_is_refused():
    with waits_refused(), pytest.raises(RuntimeError, match="synchronizing"):
        torch.ones(1, device="cuda").item()


@every_loader
def test_this_thread_never_waits_for_a_stream_or_the_device(manifest, name, tmp_path):
    with build(manifest, name) as loader:
        list(loader)
        found = calls_during(lambda: [list(loader) for _ in range(3)], tmp_path)
    assert not WAITS & found.keys(), found
    assert found or not torch.cuda.is_available(), "the profiler saw no call of CUDA"


@pytest.mark.needs_cuda
@pytest.mark.parametrize(
    "wait",
    [torch.cuda.synchronize, lambda: torch.ones(1, device="cuda").item()],
    ids=["device", "stream"],
)
def test_a_wait_would_be_seen(wait, tmp_path):
    wait()
    assert WAITS & calls_during(wait, tmp_path).keys()


def test_only_calls_of_this_thread_within_the_mark_count():
    def event(cat, name, tid, ts):
        return {"cat": cat, "name": name, "tid": tid, "ts": ts, "dur": 1}

    others = [
        event("cuda_runtime", "cudaStreamSynchronize", 2, 15),
        event("cuda_runtime", "cudaDeviceSynchronize", 1, 21),
        event("gpu_user_annotation", MARK, 7, 10),
        {"name": "process_name", "ph": "M", "tid": 1},
    ]
    mine = [
        event("cuda_runtime", "cudaLaunchKernel", 1, 11),
        event("cuda_driver", "cuStreamSynchronize", 1, 12),
    ]
    trace = {"traceEvents": [*others, {**event("user_annotation", MARK, 1, 10), "dur": 10}, *mine]}
    assert calls(trace) == {"cudaLaunchKernel": 1, "cuStreamSynchronize": 1}
