"""A loader that changes its backend while it trains delivers what any other one does."""

import gc
import itertools
import json
import logging
import os
import threading
from functools import partial

import pytest
import torch
from left_processes import children, wait_for_end
from switches import decide, switch_every

import dali_pipes as dp
from dali_pipes.backends.auto import backend as auto
from dali_pipes.backends.auto.choices import likely, list_choices
from dali_pipes.backends.torch.backend import TorchBackend

TRANSFORM = dp.TrainTransform(size=48)


@pytest.fixture
def switched(monkeypatch):
    return partial(switch_every, monkeypatch)


def loader_of(manifest, config=None, **options):
    options = {"batch_size": 4, "seed": 5, "device": "cpu"} | options
    config = config or dp.AutoConfig(num_threads=2)
    return dp.build_loader(manifest, config, transform=TRANSFORM, **options)


def epochs_of(loader, count=3):
    batches = []
    for _ in range(count):
        batches += [
            (batch.ids.clone(), batch.labels.clone(), batch.images.clone()) for batch in loader
        ]
    return batches


def assert_alike(one, other):
    """Equal samples, and pixels within the contract of docs/pixels.md."""
    assert len(one) == len(other)
    for (ids, labels, images), (their_ids, their_labels, their_images) in zip(
        one, other, strict=True
    ):
        assert torch.equal(ids, their_ids) and torch.equal(labels, their_labels)
        assert (images - their_images).abs().mean() * 255 * 0.25 <= 0.25


@pytest.mark.parametrize("batches", [1, 3, 7])
def test_a_switch_loses_and_repeats_no_sample(manifest, switched, batches):
    with loader_of(manifest, dp.TorchConfig(num_workers=1)) as fixed:
        expected = epochs_of(fixed)
    switched(batches)
    with loader_of(manifest) as loader:
        assert_alike(epochs_of(loader), expected)
        assert len(loader._work._backend._parts) == 2


@pytest.mark.parametrize("step", [1, 5])
def test_a_resume_goes_on_with_what_was_chosen(manifest, switched, step):
    switched(3)
    with loader_of(manifest) as loader:
        batches = []
        for number, batch in enumerate(loader):
            if number == step:
                state = json.loads(json.dumps(loader.state_dict()))
            if number >= step + 1:
                batches.append((batch.ids.clone(), batch.labels.clone(), batch.images.clone()))
    names = [choice.name for choice in list_choices(2, torch.device("cpu"))]
    assert state["loader"] in names
    assert (state["loader"] == names[0]) == (step < 2)
    with loader_of(manifest) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict()["loader"] == state["loader"]
        assert_alike(epochs_of(loader, 1), batches)


def test_ranks_switch_by_themselves_and_others_go_on(manifest, switched):
    """Two ranks that switch at other steps are stopped, and three go on."""

    def ids_of(config, count, batch_size, state=None, steps=None):
        found, states = [], []
        for index in range(count):
            switched(2 + index)
            options = {"rank": dp.Rank(index, count), "batch_size": batch_size}
            with loader_of(manifest, config, **options) as loader:
                if state:
                    loader.load_state_dict(state)
                found.append([batch.ids.tolist() for batch in itertools.islice(loader, steps)])
                states.append(loader.state_dict())
        together = zip(*found, strict=True)
        return [sorted(itertools.chain(*each)) for each in together], json.loads(
            json.dumps(states[0])
        )

    fixed, auto = dp.TorchConfig(num_workers=1), dp.AutoConfig(num_threads=1)
    (expected, _), (first, state) = ids_of(fixed, 2, 6), ids_of(auto, 2, 6, steps=1)
    rest, _ = ids_of(auto, 3, 4, state)
    assert first + rest == expected and len(rest) > 1


def test_a_bad_file_is_found_and_what_was_chosen_stays(scanned, switched):
    path = scanned.root / scanned.name(7)
    path.write_bytes(path.read_bytes()[:200])
    found = []
    for config in (dp.TorchConfig(num_workers=1), dp.AutoConfig(num_threads=2)):
        switched(5)
        options = {"on_bad_sample": "substitute", "max_bad_fraction": 0.1}
        with loader_of(scanned, config, **options) as loader:
            found.append((epochs_of(loader, 2), [each[:2] for each in loader.bad_samples]))
    assert_alike(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] and len(found[0][1]) == 1


def test_what_lost_gives_all_back(manifest, switched, monkeypatch):
    """Threads, processes and descriptors of the backend that is no longer used."""
    with loader_of(manifest) as loader:  # what libraries begin once
        epochs_of(loader, 1)
    gc.collect()
    before, threads = children(), threading.active_count()
    open_files = len(os.listdir("/proc/self/fd"))
    with loader_of(manifest) as loader:
        switched(5)
        epochs_of(loader, 2)
        assert len(loader._work._backend._parts) == 2
        decide(monkeypatch, 0)
        epochs_of(loader, 2)
        wait_for_end(before)
        assert list(loader._work._backend._parts) == ["dali on the CPU"]
    gc.collect()
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) <= open_files + 1


def test_it_says_what_it_has_decided(manifest, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "dali_pipes")
    monkeypatch.setattr("dali_pipes.backends.auto.choosing.FIRST", 10)
    with loader_of(manifest) as loader:
        epochs_of(loader, 10)
        text = loader.explain()
    (said,) = [each.message for each in caplog.records if each.message.startswith("auto: ")]
    assert "ms a step" in said and "waiting" in said
    assert said.removeprefix("auto: ") in text


def assert_nothing_failed(caplog):
    assert not [each.message for each in caplog.records if "failed" in each.message]


def test_a_choice_that_cannot_be_had_is_left_out_in_the_middle(
    manifest, switched, monkeypatch, caplog
):
    with loader_of(manifest) as fixed:
        expected = epochs_of(fixed)

    def refuse(config, job):
        if isinstance(config, dp.TorchConfig):
            raise dp.ConfigError("/dev/shm is too small")

    monkeypatch.setattr(auto, "refuse", refuse)
    switched(3, leads=False)
    with loader_of(manifest) as loader:
        assert_alike(epochs_of(loader), expected)
        assert "torch cannot be used (/dev/shm is too small)" in loader.explain()
    assert_nothing_failed(caplog)


@pytest.mark.parametrize(
    ("when", "error"),
    [
        ("it begins", dp.ConfigError),
        ("it begins", RuntimeError),
        ("its third batch", dp.ConfigError),
        ("its third batch", RuntimeError),
        ("its third batch", MemoryError),
    ],
)
def test_a_choice_that_fails_is_left_out(manifest, switched, monkeypatch, when, error):
    with loader_of(manifest) as fixed:
        expected = epochs_of(fixed)
    stream = TorchBackend.stream

    def fails(self, planned):
        if when == "it begins":
            next(planned)  # which the next one has to make
            raise error("no driver")
        return failing(stream(self, planned))

    def failing(batches):
        yield from itertools.islice(batches, 2)
        raise error("no driver")

    monkeypatch.setattr(TorchBackend, "stream", fails)
    switched(4, leads=False)
    with loader_of(manifest) as loader:
        assert_alike(epochs_of(loader), expected)
        assert "torch cannot be used" in loader.explain() and "no driver" in loader.explain()


def test_a_resume_where_what_was_chosen_cannot_be_had(manifest, monkeypatch):
    def refuse(config, job):
        if isinstance(config, dp.DaliConfig):
            raise dp.ConfigError("DALI is not installed")

    with loader_of(manifest) as loader:
        state = loader.state_dict()
        assert state["loader"] == "dali on the CPU"
        expected = epochs_of(loader, 1)
    monkeypatch.setattr(auto, "refuse", refuse)
    with loader_of(manifest) as loader:
        loader.load_state_dict(state)
        assert_alike(epochs_of(loader, 1), expected)


def test_sizes_that_change_with_the_epoch(manifest, switched):
    transform = dp.TrainTransform(sizes={0: 32, 1: 48, 2: 40})

    def sizes_of(config):
        options = {"transform": transform, "batch_size": 4, "seed": 5, "device": "cpu"}
        with dp.build_loader(manifest, config, **options) as loader:
            return [(batch.ids.tolist(), batch.images.shape) for _ in range(3) for batch in loader]

    expected = sizes_of(dp.TorchConfig(num_workers=1))
    switched(2)
    assert sizes_of(dp.AutoConfig(num_threads=1)) == expected


def test_what_was_learned_outlives_a_bad_file(scanned, switched):
    path = scanned.root / scanned.name(7)
    path.write_bytes(path.read_bytes()[:200])
    switched(3)
    options = {"on_bad_sample": "substitute", "max_bad_fraction": 0.1}
    with loader_of(scanned, **options) as loader:
        chooser = loader._work._backend.chooser
        epochs_of(loader, 2)
        assert loader.bad_samples and loader._work._backend.chooser is chooser


def test_fixed_keeps_the_likely_one(manifest, monkeypatch):
    monkeypatch.setattr("dali_pipes.backends.auto.choosing.FIRST", 10)
    monkeypatch.setattr("dali_pipes.backends.auto.choosing.MOST_LOST", 1e9)
    with loader_of(manifest) as loader:
        epochs_of(loader, 4)
        assert loader._work._backend.chooser.choosing.tried
    with loader_of(manifest, dp.AutoConfig(num_threads=1, fixed=True)) as loader:
        choosing = loader._work._backend.chooser.choosing
        epochs_of(loader, 4)
        assert choosing.current == 0 and not choosing.tried


def test_exact_is_refused_and_other_kinds_are_named():
    for value in (True, 1):
        with pytest.raises(dp.ConfigError, match="exact cannot be had with a loader that may"):
            dp.AutoConfig(exact=value)
    for value in (2, 0.5, 1.0, "true"):
        with pytest.raises(dp.ConfigError, match=f"exact is {value!r}; it takes True or False"):
            dp.AutoConfig(exact=value)


def test_what_a_choice_does_not_make_is_left_out(manifest, monkeypatch):
    def refuse(config, job):
        if isinstance(config, dp.DaliConfig):
            raise dp.ConfigError("DALI is not installed")

    monkeypatch.setattr(auto, "refuse", refuse)
    with loader_of(manifest) as loader:
        assert "dali on the CPU cannot be used (DALI is not installed)" in loader.explain()
        assert len(epochs_of(loader, 1)) == 9

    def refuse_all(config, job):
        raise dp.ConfigError(f"no {config.name}")

    monkeypatch.setattr(auto, "refuse", refuse_all)
    with pytest.raises(dp.ConfigError, match="no torch"):
        loader_of(manifest)


def test_the_likely_one_is_the_first_that_makes_the_images(manifest, monkeypatch):
    device, config = torch.device("cpu"), dp.AutoConfig(num_threads=2)

    def of(transform=TRANSFORM, images=manifest, **options):
        return type(likely(config, device, transform, images, **options))

    assert of() is dp.DaliConfig and of(learned="torch") is dp.TorchConfig
    assert of(learned="of another version") is dp.DaliConfig
    monkeypatch.setitem(vars(manifest), "has_wide", True)
    assert of() is of(learned="dali on the CPU") is dp.TorchConfig
    monkeypatch.undo()

    def missing(config):
        raise dp.ConfigError(f"no {config.name}")

    monkeypatch.setattr("dali_pipes.backends.auto.choices.load_backend", missing)
    with pytest.raises(dp.ConfigError, match="no dali"):
        of()
