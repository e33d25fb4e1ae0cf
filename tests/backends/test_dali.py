import gc
import multiprocessing
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

import dali_pipes as dp
from dali_pipes.backends.backend import Job
from dali_pipes.backends.dali.backend import DaliBackend
from dali_pipes.system.nvml import WITH_UTILITY

CONFIG = dp.DaliConfig(device="cpu", num_threads=2)


def build(manifest):
    return dp.build_loader(manifest, CONFIG, transform=dp.TrainTransform(size=32), batch_size=8)


def test_a_forked_child_survives_a_pipeline_that_it_inherited_as_garbage(manifest):
    loader = build(manifest)
    next(iter(loader))
    loader._itself = loader
    gc.disable()
    try:
        del loader
        child = multiprocessing.get_context("fork").Process(target=gc.collect)
        child.start()
    finally:
        gc.enable()
    child.join(60)
    hangs = child.is_alive()
    child.kill()
    assert not hangs and child.exitcode == 0


def test_close_ends_all_threads(manifest):
    gc.collect()
    before = psutil.Process().num_threads()
    with build(manifest) as loader:
        next(iter(loader))
        during = psutil.Process().num_threads()
    assert during > before
    # a thread that was joined is there for the system a moment longer
    deadline = time.monotonic() + 60
    while psutil.Process().num_threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert psutil.Process().num_threads() <= before


def test_a_loop_that_is_left_in_each_epoch_keeps_the_threads_that_finish(manifest):
    """And the memory that they write into: to make both anew takes time."""

    def finishing():
        return {each.ident for each in threading.enumerate() if each.name.startswith("finish")}

    before, places = finishing(), []
    with build(manifest) as loader:
        for _ in range(4):
            for batch in loader:
                places.append(batch.images.data_ptr())
                break
            del batch
            places.append(frozenset(finishing() - before))
    assert len(set(places[1::2])) == 1 and len(places[1]) == CONFIG.num_threads
    assert len(set(places[::2])) < 4


def test_tensors_outlive_the_pipeline(manifest):
    with build(manifest) as loader:
        batches = list(loader)
        copies = [batch.images.clone() for batch in batches]
    with build(manifest) as other:
        list(other)
    assert all(torch.equal(batch.images, copy) for batch, copy in zip(batches, copies, strict=True))


@pytest.mark.parametrize("resize", ["torch", "dali"])
def test_all_its_threads_stay_on_the_cpus_that_are_given(manifest, resize):
    mine = os.sched_getaffinity(0)

    def threads():
        found = {}
        for task in Path("/proc/self/task").iterdir():
            # a thread of the test before may end just now
            with suppress(ProcessLookupError):
                found[int(task.name)] = os.sched_getaffinity(int(task.name))
        return found

    before = threads()
    config = dp.DaliConfig(device="cpu", cpus=str(min(mine)), resize=resize)
    with dp.build_loader(
        manifest, config, transform=dp.TrainTransform(size=32), batch_size=8
    ) as loader:
        next(iter(loader))
        new = {thread: cpus for thread, cpus in threads().items() if thread not in before}
    assert os.sched_getaffinity(0) == mine
    assert len(new) > 1 and set(map(frozenset, new.values())) == {frozenset({min(mine)})}


def test_where_it_decodes_is_decided_by_where_the_batches_arrive(manifest, monkeypatch):
    """Once, when it is built, and all that follows from it is of the same place."""
    transform = dp.TrainTransform(size=32)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    gpu = torch.device("cuda", 0)
    on_cpu = DaliBackend(Job(transform, manifest, 8, torch.device("cpu")), dp.DaliConfig())
    assert (
        on_cpu.device_id is None
        and on_cpu.config.decodes_on == "cpu"
        and not on_cpu.config.graph_finishes
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    on_gpu = DaliBackend(Job(transform, manifest, 8, gpu), dp.DaliConfig())
    assert on_gpu.device_id == 0 and on_gpu.config.decodes_on == "gpu"
    to_gpu = DaliBackend(Job(transform, manifest, 8, gpu), dp.DaliConfig(device="cpu"))
    assert to_gpu.device_id is None and to_gpu.config.decodes_on == "cpu"


NO_NVML = (
    "Error in MIXED operator: [/opt/dali/dali/util/nvml.h:64] nvmlInitChecked failed: NVML "
    "Shared Library couldn't be found"
)


def test_a_driver_without_nvml_is_named_with_what_it_takes(manifest, monkeypatch):
    """DALI's decoder pins its threads by NVML, which a container has with the capability utility
    only. No file is blamed.
    """

    def fail(*_):
        raise RuntimeError(NO_NVML)

    with build(manifest) as loader:
        monkeypatch.setattr(DaliBackend, "_start", fail)
        monkeypatch.setattr(
            "dali_pipes.loader.bad_samples.find_bad_samples",
            lambda *_: pytest.fail("files were looked at"),
        )
        with pytest.raises(dp.ConfigError, match=r"NVML") as error:
            next(iter(loader))
    assert WITH_UTILITY in str(error.value) and "nvmlInitChecked failed" in str(error.value)


def test_cpus_that_do_not_exist_are_refused(manifest):
    with pytest.raises(dp.ConfigError, match=r"DaliConfig\.cpus: '0-' is no list of CPUs"):
        dp.DaliConfig(cpus="0-")
    with (
        pytest.raises(dp.ConfigError, match="this process may use none of them"),
        dp.build_loader(
            manifest,
            dp.DaliConfig(device="cpu", cpus="4096"),
            transform=dp.TrainTransform(size=32),
            batch_size=8,
        ) as loader,
    ):
        next(iter(loader))
