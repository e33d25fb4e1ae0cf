"""What fails while pictures wait is done once more with true ones; files that cannot be read."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from lazy_programs import (
    CPU,
    Pictures,
    assert_equal,
    batches_of,
    copied,
    empty,
    garble,
    heard_of,
    loader_of,
    make_pictures,
    train_steps,
    truncate,
)
from PIL import Image
from torchvision.transforms import functional as F

from dali_pipes.adapters.lazy.loader import LazyLoader
from dali_pipes.adapters.lazy.state import PROCESS
from dali_pipes.adapters.lazy.tensors import lazy_of


@pytest.fixture
def own_files(tmp_path):
    """Twelve pictures that a test may break."""
    return make_pictures(tmp_path / "own", 12)


def assert_near(one, other):
    """As `assert_equal`, but a backend rounds floats in another way."""
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    elif isinstance(one, list):
        for first, second in zip(one, other, strict=True):
            assert_near(first, second)
    else:
        assert_equal(one, other)


def truly(own, **options):
    """Batches of a loader in which nothing waits."""
    with LazyLoader(own, check=False, **options) as loader:
        loader._program.give_up_all()
        found = batches_of(loader)
        assert not loader.waited
    return found


# What does not get along with things that wait


class Dislikes(Pictures):
    """Raises an error at what waits, which it alone would never do."""

    kind = "tensor"

    def __getitem__(self, at):
        with Image.open(self.files[at]) as file:
            picture = file.convert("RGB")
            if self.kind == "picture" and "_lazy" in vars(picture):
                raise TypeError("a picture that waits")
            tensor = self.transform(picture)
        if self.kind == "tensor" and lazy_of(tensor) is not None:
            raise TypeError("a tensor that waits")
        return tensor, at, float(torch.rand(()))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["tensor", "picture"])
def test_an_error_of_what_waits_is_mended_and_said(files, workers, kind):
    data = Dislikes(files)
    data.kind = kind

    def own():
        return loader_of(data, shuffle=True, num_workers=workers)

    expected = batches_of(own(), 2)
    with LazyLoader(own(), check=False) as loader:
        found, heard = heard_of(loader, 2)
        assert "with true pictures all is well" in loader.explain()
    assert_equal(found, expected)
    assert heard
    assert all(f"a {kind} that waits" in text for text in heard)
    end = {"tensor": "no tensor waits", "picture": "nothing waits"}[kind]
    assert any(text.endswith(end) for text in heard)
    # each worker may meet it before it knows of the others
    assert len(heard) <= {"tensor": 2, "picture": 4}[kind] * max(workers, 1)


class Brightened(Pictures):
    """Looks at the pixels of all pictures."""

    def __getitem__(self, at):
        tensor = super().__getitem__(at)[0]
        return tensor / tensor.mean().item(), at


@pytest.mark.parametrize("workers", [0, 1])
def test_where_the_program_looks_at_all_pixels_nothing_waits_any_more(files, workers):
    def own():
        return loader_of(Brightened(files * 20), num_workers=workers)

    with LazyLoader(own(), CPU, check=False) as loader:
        found, heard = heard_of(loader)
        opened = loader._account.told.opened
        assert_equal(found, batches_of(own()))
    assert len(heard) == 1 and heard[0].startswith("few pictures wait")
    assert 64 <= opened < len(files) * 20


@pytest.mark.parametrize("workers", [0, 1])
def test_what_was_looked_at_before_does_not_count(files, workers, monkeypatch):
    monkeypatch.setattr(PROCESS, "seen", Counter({"a line": 1000}))
    with LazyLoader(loader_of(Pictures(files), num_workers=workers), CPU, check=False) as loader:
        heard_of(loader)
        assert loader.waited == len(files) and not loader._account.told.seen


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_that_the_program_swallows_is_mended(files, monkeypatch, workers):
    from dali_pipes.adapters.lazy import recipes

    class Looks(Pictures):
        def __getitem__(self, at):
            tensor = super().__getitem__(at)[0]
            try:
                return tensor * float(tensor.mean()), at
            except RuntimeError:
                return torch.zeros(3, 16, 16), at

    def own():
        return loader_of(Looks(files), num_workers=workers)

    expected = batches_of(own())
    make = recipes.Recipe.make

    def fail(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recipes, "STEPS", {})
            try:
                return make(self)
            except KeyError as error:
                recipes.PROCESS.failed = RuntimeError("a row of the table is wrong")
                raise recipes.PROCESS.failed from error

    monkeypatch.setattr(recipes.Recipe, "make", fail)
    with LazyLoader(own(), check=False) as loader:
        found, heard = heard_of(loader)
    assert_equal(found, expected)
    assert "a row of the table is wrong" in heard[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_programs_own_error_is_raised_as_ever(files, workers):
    class Wrong(Pictures):
        def __getitem__(self, at):
            if at == 9:
                raise ZeroDivisionError("nine")
            return super().__getitem__(at)

    own = loader_of(Wrong(files), num_workers=workers)
    with LazyLoader(own, check=False) as loader:
        batches = iter(loader)
        assert len([next(batches) for _ in range(2)]) == 2
        with pytest.raises(ZeroDivisionError, match="nine") as raised:
            next(batches)
        told = "".join(getattr(raised.value, "__notes__", ())) + str(raised.value)
        assert "sample 9" in told
        assert "waits" not in loader.explain().partition("\n")[2]
        with pytest.raises(ZeroDivisionError):
            list(loader)


def test_kinds_are_given_up_for_one_loader_only(files):
    with (
        LazyLoader(loader_of(Dislikes(files)), check=False) as one,
        LazyLoader(loader_of(Pictures(files)), check=False) as other,
    ):
        _, heard = heard_of(one)
        assert heard
        assert len(list(other)) == 5
        assert other.waited == 20
    assert not PROCESS.off


# Files


class Tolerant(Pictures):
    """Takes the next picture in place of one that it cannot read."""

    def __getitem__(self, at):
        try:
            return super().__getitem__(at)
        except (OSError, SyntaxError):
            return self[(at + 1) % len(self)]


@pytest.mark.parametrize("config", [None, CPU], ids=["as noted", "dali"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("damage", [truncate, garble, empty])
def test_the_programs_own_except_works(own_files, damage, workers, config):
    def own():
        return loader_of(Tolerant(own_files, F.to_tensor), num_workers=workers)

    damage(own_files[5])
    expected = truly(own(), seed=3)
    assert expected[1][0][1].tolist() == [4, 6, 6, 7]
    with LazyLoader(own(), config, seed=3, check=False) as loader:
        found, heard = heard_of(loader)
    assert_near(found, expected)
    assert not heard  # all is as the program wants it
    assert loader.bad_samples == []


@pytest.mark.parametrize("workers", [0, 1])
def test_without_a_seed_other_samples_of_the_batch_stay(own_files, workers):
    def own():
        return loader_of(Tolerant(own_files), num_workers=workers)

    garble(own_files[5])
    expected = batches_of(own())
    with LazyLoader(own(), check=False) as loader:
        found, heard = heard_of(loader)
    # draws of the program's `except` come where they came: for a worker up to the end of the batch
    assert expected[1][0][1].tolist() == [4, 6, 6, 7]
    if workers:
        assert len(heard) == 1 and "not known in its worker" in heard[0]
    else:
        assert not heard
        assert_equal(found, expected)
    assert_equal([each[0] for each in found[:2]], [each[0] for each in expected[:2]])


@pytest.mark.parametrize("config", [None, CPU], ids=["as noted", "dali"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("damage", [truncate, garble, empty])
def test_a_bad_sample_is_named(own_files, damage, workers, config):
    damage(own_files[5])
    own = loader_of(Pictures(own_files), num_workers=workers)
    with pytest.raises((OSError, SyntaxError)) as theirs:
        list(own)
    with LazyLoader(own, config, check=False) as loader:
        batches = iter(loader)
        assert next(batches)[1].tolist() == [0, 1, 2, 3]
        with pytest.raises(type(theirs.value)) as ours:
            next(batches)
    told = "".join(getattr(ours.value, "__notes__", ())) + str(ours.value)
    assert "sample 5" in told
    assert own_files[5] in told


@pytest.mark.parametrize("config", [None, CPU], ids=["as noted", "dali"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("damage", [truncate, garble, empty])
def test_another_sample_takes_the_place_of_a_bad_one(own_files, damage, workers, config):
    def own():
        return loader_of(Pictures(own_files, F.to_tensor), num_workers=workers)

    expected = truly(own(), seed=3)
    damage(own_files[5])
    with LazyLoader(own(), config, seed=3, check=False, on_bad_sample="substitute") as loader:
        found, heard = heard_of(loader)
        ((index, file, error),) = loader.bad_samples
        assert "another sample took the place of 1" in loader.explain()
    assert (index, file) == (5, own_files[5])
    assert error
    assert len(heard) == 1
    assert own_files[5] in heard[0]

    batch = found[1][0]
    assert batch[1].tolist() in ([4, 4, 6, 7], [4, 6, 6, 7], [4, 7, 6, 7])
    good = [0, 2, 3]
    assert_near([each[good] for each in batch], [each[good] for each in expected[1][0]])
    assert_near([found[0], found[2]], [expected[0], expected[2]])


def test_a_batch_of_bad_samples_raises(own_files):
    for file in own_files[4:8]:
        truncate(file)
    own = loader_of(Pictures(own_files))
    with (
        LazyLoader(own, check=False, on_bad_sample="substitute") as loader,
        pytest.raises(OSError, match=r"(?i)truncated"),
    ):
        list(loader)


class Removes(Pictures):
    """Removes a file when it makes the sample after it."""

    def __getitem__(self, at):
        if at == 5:
            Path(self.files[4]).unlink()
        return super().__getitem__(at)


def test_a_file_that_is_gone_is_a_bad_sample(own_files, files):
    own = loader_of(Removes(own_files, F.to_tensor), num_workers=1)
    with (
        LazyLoader(own, check=False) as loader,
        pytest.raises(FileNotFoundError, match=r"004\.jpg"),
    ):
        list(loader)


def test_collating_is_done_once_more_as_well(files):
    def collate(samples):
        if any(lazy_of(sample[0]) is not None for sample in samples):
            raise TypeError("a tensor that waits")
        return torch.stack([sample[0] for sample in samples]), float(torch.rand(()))

    def own():
        return loader_of(Pictures(files), num_workers=1, collate_fn=collate)

    expected = batches_of(own())
    with LazyLoader(own(), check=False) as loader:
        found, heard = heard_of(loader)
    assert_equal(found, expected)
    assert "collate_fn" in heard[0]


def test_a_picture_that_is_broken_may_be_collated_first(own_files):
    """A collate function that looks at pixels finds a file that cannot be read."""

    def collate(samples):
        return torch.stack([each[0] - each[0].mean() for each in samples]), [
            each[1] for each in samples
        ]

    def own():
        return loader_of(Tolerant(own_files, train_steps()), num_workers=1, collate_fn=collate)

    truncate(own_files[1])
    expected = truly(own(), seed=2)
    with LazyLoader(own(), seed=2, check=False) as loader:
        found = batches_of(loader)
    assert_equal(copied(found), copied(expected))
