"""What a loader does has its name in the traces of PyTorch's profiler and of NVTX, if it is asked
for.
"""

import multiprocessing
import os
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import dali_pipes as dp
from dali_pipes.system import traces
from dali_pipes.system.traces import PREFIX, SPANS, span

CONFIGS = {
    "dali": dp.DaliConfig(device="cpu", num_threads=1),
    "dali_graph": dp.DaliConfig(device="cpu", num_threads=1, resize="dali"),
    "torch": dp.TorchConfig(num_workers=0),
}
EVERYWHERE = {"plan", "decode", "targets", "mixing", "wait"}
IN_THIS_THREAD = {name: EVERYWHERE | ({"read"} if name == "torch" else set()) for name in CONFIGS}


def epoch(manifest, config, **options):
    mixing = dp.MixUp(num_classes=len(manifest.classes))
    with dp.build_loader(
        manifest,
        config,
        transform=dp.TrainTransform(size=32),
        batch_size=8,
        batch_transform=mixing,
        **options,
    ) as loader:
        return sum(1 for _ in loader)


def names(work):
    """Of the ranges of ours that the profiler has seen in this thread, and how often."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        work()
    ours = [each for each in profiled.key_averages() if each.key.startswith(PREFIX)]
    return {each.key.removeprefix(PREFIX): each.count for each in ours}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_parts_of_a_batch_have_their_names(manifest, name):
    with dp.trace():
        found = names(lambda: epoch(manifest, CONFIGS[name], device="cpu"))
    assert found.keys() == IN_THIS_THREAD[name] and set(SPANS) > found.keys()
    assert found["wait"] == found["mixing"] == 4


def test_nothing_has_a_name_unless_it_is_asked_for(manifest):
    assert names(lambda: epoch(manifest, CONFIGS["torch"])) == {}
    with dp.trace():
        pass
    assert names(lambda: epoch(manifest, CONFIGS["torch"])) == {} and span("wait") is span("plan")


@pytest.fixture
def nvtx(monkeypatch):
    """The ranges that are open, and all that were begun, with how many were open then."""
    is_open, begun = [], []
    calls = SimpleNamespace(
        range_push=lambda name: (
            begun.append((name.removeprefix(PREFIX), len(is_open))),
            is_open.append(name),
        ),
        range_pop=lambda: is_open.pop(),
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "nvtx", calls)
    return is_open, begun


def test_nvtx_has_the_same_ranges_one_within_the_other(nvtx):
    is_open, begun = nvtx
    with dp.trace(), pytest.raises(ValueError, match="of a step"), span("wait"), span("decode"):
        raise ValueError("of a step")
    assert is_open == [] and begun == [("wait", 0), ("decode", 1)]


def state(connection):
    connection.send(traces._is_on)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_know_whether_they_are_traced(context):
    def of_worker():
        ours, theirs = multiprocessing.Pipe()
        worker = multiprocessing.get_context(context).Process(target=state, args=(theirs,))
        worker.start()
        found = ours.recv()
        worker.join()
        return found

    with dp.trace():
        assert of_worker()
    assert not of_worker() and "DALI_PIPES_TRACE" not in os.environ
