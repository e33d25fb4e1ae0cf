"""A user's own DataLoader, taken as it is."""

import re
from collections import UserDict
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from later import later
from planted import Samples, computing, loader
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from dali_pipes.tools.diagnosis.examination.budget import ProbeBudget
from dali_pipes.tools.diagnosis.examination.examination import examine
from dali_pipes.tools.diagnosis.programs.batches import count_items
from dali_pipes.tools.diagnosis.programs.dataloader import DataLoaderProgram, _rebuild

v2, datasets = later("torchvision.transforms.v2"), later("torchvision.datasets")


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(32.0))


def test_another_number_of_workers_changes_nothing_else():
    one = DataLoader(
        TensorDataset(torch.arange(10.0)),
        4,
        num_workers=0,
        drop_last=True,
        shuffle=True,
        collate_fn=len,
    )
    two = _rebuild(one, num_workers=2)
    assert (two.num_workers, two.prefetch_factor, two.collate_fn) == (
        2,
        2,
        len,
    ) and two.batch_sampler is one.batch_sampler
    assert list(two) == [4, 4]
    plain = _rebuild(DataLoader(Numbers(), None), num_workers=1)
    assert plain.batch_size is None and len(list(plain)) == 32
    assert _rebuild(DataLoader(Numbers(), 8), num_workers=0).batch_size == 8


def test_epochs_follow_each_other_and_their_starts_are_known():
    with DataLoaderProgram(
        loader(Samples(), workers=0, batch_size=100), computing(0)
    ).feed() as feed:
        starts = [(feed.starts_epoch(), next(feed.batches))[0] for _ in range(9)]
    assert starts == [True, False, False, False] * 2 + [True]


def test_batches_of_any_structure():
    program = DataLoaderProgram(
        DataLoader(TensorDataset(torch.zeros(8, 2), torch.zeros(8)), 4), computing(0)
    )
    batch = {"images": torch.zeros(4, 3), "more": [torch.zeros(4), torch.zeros(4, 1)]}
    assert program.count(batch) == 4 and program.concat([batch, batch])["more"][1].shape == (8, 1)
    with pytest.raises(TypeError, match="a batch holds a str"):
        program.concat([["a"], ["b"]])
    assert program.transfer_size() == (4 * 2 * 4 + 4 * 4, False)


@dataclass
class Fields:
    images: torch.Tensor


IMAGES = [torch.zeros(3, 64, 80) for _ in range(16)]


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(16, 3, 8, 8),
        np.zeros((16, 8, 8, 3)),  # NHWC
        (torch.zeros(16, 8, 8, 3), torch.zeros(16)),
        [torch.zeros(16, 3), torch.zeros(16)],
        (IMAGES, [{"boxes": torch.zeros(2, 4)}] * 16),  # of detection
        tuple(zip(*[(image, {"boxes": torch.zeros(2, 4)}) for image in IMAGES], strict=True)),
        UserDict(input_ids=torch.zeros(16, 8)),
        {"text": ["a"] * 16, "labels": torch.zeros(16)},
        Fields(torch.zeros(16, 8)),
        ([np.zeros(1)] * 16,),
        [np.zeros(5)] * 16,
        [{"image": IMAGES[0]}] * 16,
        SimpleNamespace(x=torch.zeros(16, 2)),
    ],
    ids=range(13),
)
def test_samples_of_a_batch_are_counted_in_any_layout(batch):
    assert count_items(batch) == count_items(batch, 16) == count_items(batch, 64) == 16


def test_a_length_that_is_the_batch_size_decides():
    # three targets of four samples
    assert count_items([torch.zeros(4), torch.zeros(4), torch.zeros(4)], 4) == 4
    assert count_items("none") == count_items(None) == count_items([torch.zeros(())]) == 1


@pytest.mark.slow
def test_what_from_torch_makes_of_it_is_tried(image_folder):
    """With their own transform: the batches are those that the step expects."""
    crop = v2.Compose(
        [v2.ToImage(), v2.RandomResizedCrop(64), v2.ToDtype(torch.float32, scale=True)]
    )
    images = datasets.ImageFolder(image_folder, crop)
    program = DataLoaderProgram(DataLoader(images, 8, num_workers=1, drop_last=True), computing(0))
    assert len(program.paths) == 37
    (fix,) = [fix for fix in program.fixes("prep-bound (CPU saturated)") if fix.program]
    assert "from_torch" in fix.what
    with fix.program.feed() as feed:
        images, labels = next(feed.batches)
        assert (
            tuple(images.shape) == (8, 3, 64, 64)
            and len(labels) == 8
            and fix.program.count((images, labels)) == 8
        )


@pytest.mark.parametrize("drop_last", [False, True])
def test_tensors_in_memory_are_tried_in_whole_batches_that_are_the_same(drop_last):
    data = Subset(TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10)), range(9))
    options = {"batch_size": 4, "shuffle": True, "drop_last": drop_last}
    loader = DataLoader(data, generator=torch.Generator().manual_seed(1), **options)
    program = DataLoaderProgram(loader, computing(0))
    assert not list(program._whole_batches("model-bound"))
    (fix,) = program._whole_batches("prep-bound (item by item)")
    loader.generator.manual_seed(1)
    expected = list(loader)
    loader.generator.manual_seed(1)
    whole = list(fix.program._loader)
    assert len(whole) == len(expected) == len(loader)
    for one, other in zip(whole, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    own = DataLoader(data, 4, collate_fn=len)
    assert not list(
        DataLoaderProgram(own, computing(0))._whole_batches("prep-bound (item by item)")
    )


def test_what_cannot_be_converted_is_not_promised():
    assert not list(
        DataLoaderProgram(loader(Samples()), computing(0)).fixes("prep-bound (CPU saturated)")
    )


@pytest.mark.parametrize(
    "samples", [["a.jpg"], [{"path": "a.jpg"}], [1, 2], torch.zeros(3), [("no/such.jpg", 0)], None]
)
def test_samples_of_another_kind_are_left_alone(samples):
    dataset = Samples()
    dataset.samples = samples
    program = DataLoaderProgram(loader(dataset), computing(0))
    assert not program.paths and not program.data_bytes


@pytest.mark.slow
def test_a_step_that_takes_no_larger_batch_and_a_fix_that_fails(monkeypatch):
    """The diagnosis stands without them."""

    def step(batch):
        if len(batch[0]) != 8:
            raise RuntimeError("only eight at a time")
        computing(0.001)(batch)

    def failing(*arguments):
        raise OSError("too many open files")

    for module in ("examination.gains", "fixes.prediction"):
        monkeypatch.setattr(f"dali_pipes.tools.diagnosis.{module}.gain_interval", failing)
    found = examine(
        DataLoaderProgram(loader(Samples(sleep=0.005), workers=1), step), ProbeBudget(1, 0.2)
    )
    assert found.one_off.larger_gain is None and found.fixes
    assert all("could not be tried: too many open files" in each.note for each in found.fixes)


def test_an_error_of_the_loader_comes_up():
    class Broken(Samples):
        def __getitem__(self, index):
            if index > 30:
                raise ValueError("sample 31 is broken")
            return super().__getitem__(index)

    with pytest.raises(ValueError, match="sample 31 is broken"):
        examine(DataLoaderProgram(loader(Broken(), workers=0), computing(0)), ProbeBudget(1, 0.1))


def of_many_files(tmp_path, count=50_000):
    """A data set of links of one file under many names, which are never made."""
    file = tmp_path / "a.jpg"
    file.write_bytes(bytes(1000))
    dataset = Samples()
    dataset.samples = [(str(file), 0)] * count
    return dataset


def test_a_million_files_are_not_looked_at_one_by_one(tmp_path, monkeypatch):
    """Nor by each program that is tried as a fix."""
    looked_at, stat = [], Path.stat

    def count(path, **options):
        looked_at.append(path)
        return stat(path, **options)

    dataset = of_many_files(tmp_path)
    monkeypatch.setattr(Path, "stat", count)
    program = DataLoaderProgram(loader(dataset), computing(0))
    program._fix_with("", num_workers=1)
    assert not looked_at

    assert program.data_bytes == 50_000 * 1000 and len(program.paths) == 50_000
    assert len(looked_at) <= 2001


@pytest.mark.parametrize(
    ("left", "cores", "expected"),
    [
        (2**50, 64, {64, 128}),
        (40 * 300 * 2**20, 8, {8, 32, 40}),
        (0, 4, {1}),
        (2**50, 2, {2, 8, 16}),
    ],
)
def test_workers_for_items_that_wait_are_as_many_as_fit(monkeypatch, left, cores, expected):
    """Not 8 times the cores whatever they are: 512 processes of 64."""
    home = "dali_pipes.tools.diagnosis.programs.dataloader"
    monkeypatch.setattr(f"{home}.memory_left", lambda: left)
    monkeypatch.setattr(f"{home}.available_cpus", lambda: cores)
    items = SimpleNamespace(blocked_s=0.9, seconds=1.0)
    figures = SimpleNamespace(start_share=0.0, model=1.0, together=0.5)
    fixes = DataLoaderProgram(loader(Samples(), workers=0), computing(0)).other_workers(
        figures, items
    )
    tried = {int(re.search(r"num_workers=(\d+)", fix.what)[1]): fix.why for fix in fixes}
    assert set(tried) == expected
    assert ("were not tried" in tried[max(tried)]) == (max(expected) < 8 * cores)


def test_the_size_of_a_batch_does_not_reset_the_iterator_in_use():
    persistent = DataLoader(Numbers(), 4, num_workers=1, persistent_workers=True)
    program = DataLoaderProgram(persistent, computing(0))
    with program.feed() as feed:
        first = next(feed.batches)
        assert program.transfer_size()[0] > 0
        second = next(feed.batches)
    assert [*first.tolist(), *second.tolist()] == list(range(8))
