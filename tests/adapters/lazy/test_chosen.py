"""Lazy loaders that find out who makes their pictures fastest deliver what any other one does."""

import itertools
import json
import logging
import threading
from functools import partial

import numpy as np
import pytest
import torch
from lazy_programs import Pictures, batches_of, loader_of, seed_globals
from left_processes import children, wait_for_end
from switches import switch_every

import dali_pipes as dp
from dali_pipes.adapters.lazy.convert import from_torch
from dali_pipes.backends.dali.backend import DaliBackend

AUTO = dp.AutoConfig(num_threads=2)


@pytest.fixture
def switched(monkeypatch):
    return partial(switch_every, monkeypatch)


def assert_alike(one, other):
    """Equal labels, draws and random states, and pixels within the contract of docs/pixels.md."""
    assert len(one) == len(other) > 0
    for (batch, *states), (their_batch, *their_states) in zip(one, other, strict=True):
        assert states == their_states
        assert all(map(torch.equal, batch[1:], their_batch[1:]))
        # Normalize has divided by 2
        assert (batch[0] - their_batch[0]).abs().mean() * 255 * 2 <= 0.25


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batches", [1, 3])
def test_a_switch_changes_no_sample(files, switched, workers, batches):
    make = partial(loader_of, Pictures(files), shuffle=True, num_workers=workers)
    expected = batches_of(make(), 4)
    switched(batches)
    with from_torch(make(), AUTO) as loader:
        assert_alike(batches_of(loader, 4), expected)
        opened = loader._account.told.opened
        # some pictures waited, and others were made by the program
        assert 0 < loader.waited < 80 and opened < 80


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_begins_with_what_was_chosen(files, switched, workers):
    def make():
        return loader_of(Pictures(files), shuffle=True, num_workers=workers)

    switched(2)
    with from_torch(make(), AUTO, seed=3) as loader:
        batches = []
        for number, batch in enumerate(loader):
            batches.append([[each.clone() for each in batch]])
            if number == 2:
                state = json.loads(json.dumps(loader.state_dict()))
    assert state["loader"].startswith("the program")
    with from_torch(make(), AUTO, seed=3) as loader:
        loader.load_state_dict(state)
        assert str(loader._maker.chooser) == state["loader"]
        rest = [[[each.clone() for each in batch]] for batch in loader]
    assert_alike(rest, batches[3:])


def test_what_lost_gives_all_back(files):
    """Its threads, while the program's workers make pictures."""
    before, threads = children(), set(threading.enumerate())
    make = partial(loader_of, Pictures(files), num_workers=1, persistent_workers=True)
    seed_globals()
    with from_torch(make(), AUTO) as loader:
        list(loader)
        assert loader._executor._lines
        loader._maker.go_on_with("the program itself")
        waited = loader.waited
        loader._maker.chooser.choosing.is_decided = True
        for _ in range(3):
            list(loader)
        assert loader.waited <= waited + 20  # those that were under way
        assert loader._executor._lines is None and not loader._executor._earlier
        assert "closed" not in loader.explain()
    left = set(threading.enumerate()) - threads
    assert not [each for each in left if each.name.startswith("lazy")]
    wait_for_end(before)


def test_it_says_what_it_has_decided(files, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "dali_pipes")
    monkeypatch.setattr("dali_pipes.backends.auto.choosing.FIRST", 10)
    with from_torch(loader_of(Pictures(files), batch_size=2), AUTO) as loader:
        for _ in range(4):
            list(loader)
        text = loader.explain()
    (said,) = [each.message for each in caplog.records if each.message.startswith("auto: ")]
    assert "ms a step" in said and said.removeprefix("auto: ") in text


def test_fixed_keeps_the_likely_one(files, monkeypatch):
    monkeypatch.setattr("dali_pipes.backends.auto.choosing.FIRST", 10)
    monkeypatch.setattr("dali_pipes.backends.auto.choosing.MOST_LOST", 1e9)
    with from_torch(loader_of(Pictures(files)), AUTO) as loader:
        for _ in range(12):
            list(loader)
        assert loader._maker.chooser.choosing.tried
    fixed = dp.AutoConfig(num_threads=1, fixed=True)
    with from_torch(loader_of(Pictures(files)), fixed) as loader:
        for _ in range(12):
            list(loader)
        assert loader._maker.chooser.choosing.current == 0
        assert loader.waited >= 200


def test_the_program_itself_is_not_to_blame(files):
    """Of a backend that fails at batches that were sent to it before."""
    with from_torch(loader_of(Pictures(files)), AUTO) as loader:
        loader._maker.go_on_with("the program itself")
        next(batches := iter(loader))
        loader._executor.unusable = "OutOfMemoryError"
        next(batches)
        chooser = loader._maker.chooser
        assert chooser.current.config is None
        assert chooser.choosing.why == {0: "OutOfMemoryError"}


def test_without_dali_the_program_makes_its_pictures(files, monkeypatch):
    def missing(config):
        raise dp.ConfigError("DALI is not installed")

    monkeypatch.setattr("dali_pipes.adapters.lazy.compiler.executor.load_backend", missing)
    make = partial(loader_of, Pictures(files))
    expected = batches_of(make())
    with from_torch(make(), AUTO) as loader:
        found = batches_of(loader)
        assert "dali on the CPU cannot be used (DALI is not installed)" in loader.explain()
    assert all(
        np.array_equal(one[0][0], other[0][0]) for one, other in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("error", [dp.ConfigError, RuntimeError, MemoryError])
@pytest.mark.parametrize("when", ["it is built", "its second batch"])
def test_a_backend_that_fails_is_left_out(files, switched, monkeypatch, when, error):
    """While it is tried, and nobody waits for its trial to succeed."""
    make = partial(loader_of, Pictures(files), shuffle=True)
    expected = batches_of(make(), 4)
    if when == "it is built" and error is not dp.ConfigError:
        pytest.skip("backends refuse by this error")
    stream = DaliBackend.stream

    def refuses(self):
        raise error("no driver")

    def fails(self, planned):
        yield from itertools.islice(stream(self, planned), 1)
        raise error("no driver")

    if when == "it is built":
        monkeypatch.setattr(DaliBackend, "prepare", refuses)
    else:
        monkeypatch.setattr(DaliBackend, "stream", fails)
    with from_torch(make(), AUTO) as loader:
        assert_alike(batches_of(loader, 4), expected)
        text = loader.explain()
    assert "no driver" in text or error is RuntimeError


def test_collating_stays_in_the_workers(files, switched):
    """A switch between samples and their collate function is none of pixels that are looked at."""
    make = partial(loader_of, Pictures(files), num_workers=1, persistent_workers=True)
    switched(1)
    with from_torch(make(), AUTO, check=False) as loader:
        for _ in range(12):
            list(loader)
        assert not loader._program._flags[1]
        assert "looks at pixels" not in loader.explain()


def test_samples_are_compared_when_pictures_wait_again(files):
    with from_torch(loader_of(Pictures(files)), AUTO) as loader:
        loader._program.pause(True)
        list(loader)
        assert loader._account.told.compared == 0
        loader._program.pause(False)
        list(loader)
        assert loader._account.told.compared > 0
