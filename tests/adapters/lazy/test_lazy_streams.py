"""Iterable data sets whose pictures wait."""

import io
import itertools
import json
import sqlite3
import tarfile
import warnings

import numpy as np
import pytest
import torch
from lazy_programs import (
    CPU,
    Pictures,
    Stream,
    assert_equal,
    assert_same_as_ever,
    batches_of,
    copied,
    garble,
    heard_of,
    loader_of,
    make_pictures,
    truncate,
)
from PIL import Image
from torch.utils.data import IterableDataset
from torchvision.transforms import functional as F

import dali_pipes as dp
from dali_pipes.adapters.lazy.convert import from_torch
from dali_pipes.adapters.lazy.loader import LazyLoader
from dali_pipes.adapters.lazy.tensors import lazy_of


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": None},
        {"drop_last": True, "batch_size": 3},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
    ],
    ids=str,
)
def test_batches_are_those_of_the_old_loader(files, options, check):
    assert_same_as_ever(lambda: loader_of(Stream(files), **options), epochs=2, check=check)


class Eager(IterableDataset):
    """Draws when `iter` is called, and keeps a file open while it is read."""

    def __init__(self, file):
        self.file = file

    def __iter__(self):
        self.first = float(torch.rand(()))
        self.opened = tarfile.open(self.file)  # noqa: SIM115  as programs do
        return self

    def __next__(self):
        member = self.opened.next()
        if member is None:
            self.opened.close()
            raise StopIteration
        data = self.opened.extractfile(member).read()
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        return F.to_tensor(picture), member.name, self.first, float(torch.rand(()))


@pytest.fixture
def tar(files, tmp_path):
    with tarfile.open(tmp_path / "pictures.tar", "w") as made:
        for number, file in enumerate(files):
            made.add(file, f"{number:03d}.jpg")
    return str(tmp_path / "pictures.tar")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_a_copy_also_reads_stays_in_its_place(tar, workers):
    assert_same_as_ever(lambda: loader_of(Eager(tar), num_workers=workers), epochs=2)


# With a seed


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}], ids=str)
def test_a_resume_runs_the_stream_from_its_start(files, options):
    def lazy():
        return LazyLoader(
            loader_of(Stream(files), batch_size=3, num_workers=2, **options), seed=5, check=False
        )

    with lazy() as loader:
        found, states = [], []
        for _ in range(2):
            for batch in loader:
                found.append(copied(batch))
                states.append(json.loads(json.dumps(loader.state_dict())))
        count = len(found) // 2
        assert found[0][2].tolist() != found[count][2].tolist()  # each epoch has its own numbers
        assert states[1]["samples"] == 6
        assert states[count - 1]["epoch"] == 0  # its end is not known before it is there

        loader.load_state_dict(states[count + 1])
        assert_equal(copied(list(loader)), found[count + 2 :])

    with lazy() as loader:
        loader.load_state_dict(states[1])
        assert_equal(copied(list(loader)), found[2:count])
        assert_equal(copied(list(loader)), found[count:])
    fewer = loader_of(Stream(files), batch_size=3, num_workers=1)
    with (
        LazyLoader(fewer, seed=5) as loader,
        pytest.raises(dp.ConfigError, match=r"workers \(2 → 1\)"),
    ):
        loader.load_state_dict(states[1])


# What fails


class Dislikes(Stream):
    """Raises an error at what waits, and takes other ways if there is one."""

    def __iter__(self):
        for number, sample in enumerate(super().__iter__()):
            if number in (3, 7) and lazy_of(sample[0]) is not None:
                raise TypeError("a tensor that waits")
            yield sample


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_is_begun_again_if_it_fails_while_pictures_wait(files, workers, seed):
    def own():
        return loader_of(Dislikes(files), num_workers=workers)

    with LazyLoader(own(), seed=seed, check=False) as loader:
        loader._program.give_up_all()
        expected = batches_of(loader)
    with LazyLoader(own(), seed=seed, check=False) as loader:
        found, heard = heard_of(loader)
    assert "3 samples skipped: TypeError: a tensor that waits" in heard[0]
    assert [batch[0][1].tolist() for batch in found] == [batch[0][1].tolist() for batch in expected]
    if seed is not None:
        assert_equal(found, expected)


class Shared(IterableDataset):
    """Gives other samples when it is begun again."""

    def __init__(self, files):
        # what is in a database a lazy loader does not know
        self.left = sqlite3.connect(":memory:", check_same_thread=False)
        self.left.execute("create table files (at, file)")
        self.left.executemany("insert into files values (?, ?)", enumerate(map(str, files)))

    def __iter__(self):
        while found := self.left.execute("select * from files order by at").fetchone():
            at, file = found
            self.left.execute("delete from files where at = ?", (at,))
            tensor = Pictures([file])[0][0]
            if at == 2 and lazy_of(tensor) is not None:
                raise TypeError("a tensor that waits")
            yield tensor, at


def test_a_stream_that_cannot_be_begun_again_is_loud(files):
    own = loader_of(Shared(files), num_workers=1)
    with (
        LazyLoader(own, check=False) as loader,
        pytest.raises(TypeError, match="another one when the stream is begun again"),
    ):
        list(loader)


def test_the_programs_own_error_is_raised(files):
    def item(at):
        if at == 6:
            raise ZeroDivisionError("six")
        return Pictures(files)[at]

    with LazyLoader(loader_of(Stream(files, item=item)), check=False) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ZeroDivisionError, match="six"):
            next(batches)


@pytest.mark.parametrize("config", [None, CPU], ids=["as noted", "dali"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("damage", [truncate, garble])
def test_a_picture_that_cannot_be_made(tmp_path, damage, workers, config):
    files = make_pictures(tmp_path / "own", 12)
    damage(files[5])

    def own():
        return loader_of(Stream(files, F.to_tensor), num_workers=workers)

    with LazyLoader(own(), config, check=False) as loader:
        batches = iter(loader)
        assert next(batches)[1].tolist() == [0, 1, 2, 3]
        with pytest.raises((OSError, SyntaxError)) as raised:
            next(batches)
    told = "".join(getattr(raised.value, "__notes__", ())) + str(raised.value)
    assert files[5] in told
    if damage is truncate:
        return  # the program itself has met it, and its stream has ended
    assert "substitute" in told

    with LazyLoader(own(), config, check=False, on_bad_sample="substitute") as loader:
        found, heard = heard_of(loader)
        assert len(loader.bad_samples) == 1
    assert len(heard) == 1
    indices = [batch[0][1].tolist() for batch in found]
    assert indices[0] + indices[2] == [0, 1, 2, 3, 8, 9, 10, 11]
    assert len(indices[1]) == 4
    assert set(indices[1]) == {4, 6, 7}
    at = indices[1].index(7)
    with Image.open(files[7]) as picture:
        torch.testing.assert_close(
            found[1][0][0][at], F.to_tensor(picture.convert("RGB")), atol=1e-6, rtol=0
        )


# Other libraries


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_webdataset(tar, tmp_path, workers):
    wds = pytest.importorskip("webdataset")
    with tarfile.open(tmp_path / "set.tar", "w") as made, tarfile.open(tar) as pictures:
        for member in pictures.getmembers():
            made.addfile(member, pictures.extractfile(member))
            label = tarfile.TarInfo(member.name.replace("jpg", "cls"))
            label.size = 1
            made.addfile(label, io.BytesIO(member.name[2:3].encode()))
    shard = str(tmp_path / "set.tar")

    def own(batched=True):
        made = wds.WebDataset(shard, shardshuffle=False, empty_check=False).decode("pil")
        made = made.to_tuple("jpg", "cls").map_tuple(F.to_tensor, lambda value: value)
        loader = wds.WebLoader(made, batch_size=4, num_workers=workers)
        return loader.unbatched().batched(5) if batched else loader

    with from_torch(own(), CPU, device="cpu") as loader:
        found = list(loader)
        assert loader.waited
    expected = list(own())
    assert len(found) == len(expected) == 4
    for one, other in zip(expected, found, strict=True):
        assert_equal(one[1], other[1])
        torch.testing.assert_close(one[0], other[0], atol=1e-6, rtol=0)

    with from_torch(own(False), CPU, device="cpu", seed=2) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [batch[1].tolist() for batch in batches]
        loader.load_state_dict(state)
        assert [batch[1].tolist() for batch in loader] == rest
    with from_torch(own(), CPU, device="cpu", seed=2) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(dp.ConfigError, match="WebLoader rearrange samples"):
            loader.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_data_set_of_hugging_face(files, workers):
    hf = pytest.importorskip("datasets")
    table = hf.Dataset.from_dict({"image": files, "label": list(range(len(files)))})
    table = table.cast_column("image", hf.Image())

    def as_tensors(row):
        return {"image": F.to_tensor(row["image"].convert("RGB")), "label": row["label"]}

    def own():
        stream = table.to_iterable_dataset(num_shards=2).map(as_tensors).shuffle(3, buffer_size=5)
        return loader_of(stream, num_workers=workers)

    expected = [copied(batch) for batch in own()]
    with LazyLoader(own(), check=False) as loader:
        assert_equal([copied(batch) for batch in loader], expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_data_pipes(files, workers):
    from torch.utils.data.datapipes.iter import IterableWrapper

    def to_tensor(file):
        with Image.open(file) as picture:
            return F.to_tensor(picture.convert("RGB")), float(np.random.rand())

    def own():
        pipe = IterableWrapper(files).shuffle().sharding_filter().map(to_tensor)
        return loader_of(pipe, num_workers=workers)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = batches_of(own())
        with LazyLoader(own(), check=False) as loader:
            assert_equal(batches_of(loader), expected)
            assert loader.waited


@pytest.mark.parametrize("workers", [0, 2])
def test_engines_set_the_epoch_of_a_stream_that_has_no_length(files, workers):
    """As Lightning does with each loader whose sampler has a `set_epoch`."""

    class Endless(IterableDataset):
        def __iter__(self):
            return iter(Stream(files))

    with LazyLoader(loader_of(Endless(), num_workers=workers)) as loader:
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            assert loader.epoch == epoch and len(list(loader)) >= 5


def test_its_length_is_the_data_sets(files):
    class Sized(Stream):
        def __len__(self):
            return len(self.inner)

    with LazyLoader(loader_of(Sized(files), drop_last=True, batch_size=3)) as loader:
        assert len(loader) == 6
    with (
        LazyLoader(loader_of(Stream(files))) as loader,
        pytest.raises(TypeError, match="has no len"),
    ):
        len(loader)
    assert list(itertools.islice(loader_of(Stream(files)), 1))
