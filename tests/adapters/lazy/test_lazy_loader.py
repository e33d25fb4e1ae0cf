"""A lazy loader in the place of a DataLoader: equal batches, its interface, and its end."""

import gc
import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
from collections import OrderedDict, deque
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from lazy_programs import (
    CPU,
    Pictures,
    assert_equal,
    assert_same_as_ever,
    batches_of,
    loader_of,
    seed_globals,
    train_steps,
)
from left_processes import children, wait_for_end
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchvision import datasets
from torchvision.transforms.functional import to_pil_image, to_tensor

import dali_pipes as dp
from dali_pipes.adapters.lazy.compiler.lines import BackendLine
from dali_pipes.adapters.lazy.convert import from_torch
from dali_pipes.adapters.lazy.found import moved
from dali_pipes.adapters.lazy.loader import LazyLoader
from dali_pipes.adapters.lazy.parcels import Parcels


class DrawingSampler:
    """Draws for every batch, so that its draws lie between those of the training."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for _ in range(5):
            yield [random.randrange(self.count), int(torch.randint(self.count, ()))]

    def __len__(self):
        return 5


def programs(files):
    data = Pictures(files)
    weights = list(range(1, len(files) + 1))
    batches = BatchSampler(RandomSampler(data), 3, drop_last=True)
    return {
        "in order": partial(loader_of, data),
        "shuffled": partial(loader_of, data, shuffle=True, drop_last=True),
        "no batches": partial(loader_of, data, batch_size=None, shuffle=True),
        "with replacement": lambda: loader_of(
            data, sampler=WeightedRandomSampler(weights, 10, replacement=True)
        ),
        "a subset": lambda: loader_of(data, sampler=SubsetRandomSampler([3, 5, 7, 11, 13])),
        "a batch sampler": lambda: DataLoader(data, batch_sampler=batches),
        "a sampler that draws": lambda: DataLoader(data, batch_sampler=DrawingSampler(len(data))),
        "a list": lambda: loader_of(data, sampler=[2, 2, 4, 7, 1]),
        "a rank": lambda: loader_of(data, sampler=DistributedSampler(data, 2, 1, seed=3)),
        "a generator": lambda: loader_of(
            data, shuffle=True, generator=torch.Generator().manual_seed(5)
        ),
    }


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", programs([""]))
def test_batches_are_those_of_the_old_loader(files, name, workers):
    make = programs(files)[name]

    def with_workers():
        loader = make()
        loader.num_workers = workers
        loader.prefetch_factor = 2 if workers else None
        return loader

    loader = assert_same_as_ever(with_workers, epochs=2, check=False)
    assert "100%" in loader.explain().splitlines()[0]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_may_start_in_any_way(files, method):
    make = partial(
        loader_of, Pictures(files), shuffle=True, num_workers=1, multiprocessing_context=method
    )
    assert_same_as_ever(make)


def set_up(worker):
    torch.utils.data.get_worker_info().dataset.transform = train_steps(8 + worker)
    np.random.seed(worker)


def test_worker_init_fn_may_change_the_data_set(files):
    make = partial(loader_of, Pictures(files), num_workers=2, worker_init_fn=set_up)
    assert_same_as_ever(make, epochs=2)


def test_a_backend_makes_the_pictures(files):
    make = partial(loader_of, Pictures(files, train_steps(24)), shuffle=True, num_workers=2)
    theirs = batches_of(make())
    with from_torch(make(), CPU, device="cpu") as loader:
        ours = batches_of(loader)
        assert "24 × 24 pixels" in loader.explain()
    for (old, *draws), (new, *drawn) in zip(theirs, ours, strict=True):
        assert_equal([old[1:], draws], [new[1:], drawn])
        assert old[0].dtype == new[0].dtype
        # normalized by a std of 2: a step is 1 / 510
        assert (old[0] - new[0]).abs().mean() < 0.25 / 510


def test_the_programs_loader_stays_usable(files):
    own = loader_of(Pictures(files), shuffle=True, num_workers=1)
    before = vars(own).copy()
    expected = batches_of(own)
    with LazyLoader(own) as loader:
        for _ in loader:
            break
        assert_equal(batches_of(own), expected)  # in the middle of a lazy epoch, too
        list(loader)
    assert vars(own) == before
    assert_equal(batches_of(own), expected)


def test_pictures_wait_only_in_the_loader(files):
    with LazyLoader(loader_of(Pictures(files))) as loader:
        for _ in loader:
            with Image.open(files[0]) as picture:
                picture.load()
                assert "_lazy" not in vars(picture)
            break


def test_it_has_the_interface_of_a_dataloader(files):
    own = loader_of(Pictures(files), shuffle=True, num_workers=2, drop_last=True)
    with LazyLoader(own) as loader:
        assert len(loader) == len(own) == 5
        assert loader.dataset is own.dataset
        assert (loader.batch_size, loader.num_workers, loader.drop_last) == (4, 2, True)
        assert isinstance(loader.sampler, RandomSampler)
        assert len(loader.sampler) == 20
        assert len(loader.batch_sampler) == 5
        with pytest.raises(AttributeError, match="num_workers cannot be set"):
            loader.num_workers = 3
        with pytest.raises(AttributeError):
            loader.nothing  # noqa: B018


def test_it_is_not_pickled(files):
    with (
        LazyLoader(loader_of(Pictures(files))) as loader,
        pytest.raises(TypeError, match="cannot be pickled or copied"),
    ):
        pickle.dumps(loader)


# Epochs


def test_a_loop_that_is_left_abandons_its_epoch(files):
    own = loader_of(Pictures(files), num_workers=1)
    with LazyLoader(own, seed=1) as loader:
        for _ in loader:
            break
        assert loader.state_dict()["samples"] == 4
        assert len(list(loader)) == 5
        assert loader.state_dict()["epoch"] == 2


def test_one_epoch_at_a_time_is_delivered(files):
    with LazyLoader(loader_of(Pictures(files), num_workers=1)) as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        with pytest.raises(RuntimeError, match="one epoch at a time"):
            next(first)
        assert len(list(second)) == 5
        with pytest.raises(StopIteration):
            next(second)


class WholeBatches(Pictures):
    """Makes batches by itself, which the collate function passes on."""

    def __getitems__(self, places):
        made = [self[at] for at in places]
        return {
            "picture": torch.stack([each[0] for each in made]),
            "at": [each[1] for each in made],
        }


class Cache(OrderedDict):
    """Of what was used last."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def __getitem__(self, key):
        self.move_to_end(key)
        return super().__getitem__(key)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        while len(self) > self.most:
            self.popitem(last=False)


class Ring(deque):
    def __init__(self, most):
        super().__init__(maxlen=most)


class WithCaches(Pictures):
    def __init__(self, files):
        super().__init__(files)
        self.cache, self.last = Cache(3), Ring(5)

    def __getitem__(self, at):
        self.cache[at] = self.files[at]
        self.last.append(at)
        first = next(iter(self.cache))
        return *super().__getitem__(at), len(self.cache[first]), first, sum(self.last)


class LateBuckets(Sampler):
    """Knows how many batches there are when it has made them."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        self.batches = [[at, at + 1] for at in range(0, self.count - 1, 2)]
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


class Named(dict):
    __getattr__ = dict.__getitem__


class Anything:
    """Answers to any name, as what wraps a library of C may do."""

    __slots__ = ()

    def __getattr__(self, name):
        return self


class WithNames(Pictures):
    def __init__(self, files):
        super().__init__(files)
        self.anything = Anything()

    def __getitem__(self, at):
        picture, at, *_ = super().__getitem__(at)
        mask, noise = torch.zeros_like(picture[0]), torch.randn_like(picture)
        mask[2:4] = at
        return Named(picture=picture, mask=mask, noise=noise, at=at)


class WithOldLabels(Dataset):
    """Looks for a file of labels that may be missing, before there are samples."""

    def __init__(self, files, flip=True):
        self.files, self.flip = files, flip
        try:
            self.labels = np.load(files[0] + ".cache.npy")
        except Exception:
            self.labels = np.arange(len(files))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, at):
        image = np.array(Image.open(self.files[at]).convert("RGB").resize((40, 30)))
        if self.flip is True:
            image = image[:, ::-1]
        tensor = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        return tensor.type(torch.FloatTensor), self.labels[at]


PEOPLES = {
    "old labels": lambda files: partial(loader_of, WithOldLabels(files)),
    "a part of old labels": lambda files: partial(
        loader_of, Subset(WithOldLabels(files), range(len(files)))
    ),
    "whole batches": lambda files: partial(
        loader_of, WholeBatches(files), collate_fn=lambda batch: batch
    ),
    "caches": lambda files: partial(loader_of, WithCaches(files), shuffle=True),
    "late buckets": lambda files: partial(
        DataLoader, Pictures(files), batch_sampler=LateBuckets(len(files))
    ),
    "names for keys": lambda files: partial(loader_of, WithNames(files), shuffle=True),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", PEOPLES)
def test_batches_of_what_people_write(files, name, workers):
    def make():
        return PEOPLES[name](files)(num_workers=workers)

    loader = assert_same_as_ever(make, epochs=2, check=True)
    assert loader.waited == 2 * len(files)


class WithABadSample(Pictures):
    def __getitem__(self, at):
        if at == 6:
            raise KeyError("no label")
        return super().__getitem__(at)


def delivered(batches):
    """Indices of batches, and the kinds of errors that came in between."""
    found = []
    while True:
        try:
            found.append(next(batches)[1].tolist())
        except StopIteration:
            return found
        except Exception as error:
            found.append(type(error))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["raises", "broken file"])
def test_after_an_error_the_next_batch_comes(files, tmp_path, workers, kind):
    data = WithABadSample(files)
    if kind == "broken file":
        bad = tmp_path / "bad.jpg"
        bad.write_bytes(Path(files[6]).read_bytes()[:300])
        data = Pictures([*files[:6], str(bad), *files[7:]])
    own = loader_of(data, num_workers=workers)
    with LazyLoader(own, CPU) as loader:
        expected, found = delivered(iter(own)), delivered(iter(loader))
        assert found == expected and len(found) == 5
        assert loader.epoch == 1


class LosesWorkers(Pictures):
    def __getitem__(self, at):
        if at == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(at)


def test_a_worker_that_is_lost_is_told_before_more_is_asked_for(files, monkeypatch):
    """A DataLoader waits for seconds before it says so, and again each time that it is asked."""
    failed, ask = [], Parcels.__next__

    def asked(self):
        parcel = ask(self)
        if parcel.raised:
            failed.append(parcel)
        return parcel

    monkeypatch.setattr(Parcels, "__next__", asked)
    with LazyLoader(loader_of(LosesWorkers(files), num_workers=1), CPU, check=False) as loader:
        with pytest.raises(RuntimeError, match=r"DataLoader worker .*pid"):
            list(loader)
        assert len(failed) <= 1  # none, if PyTorch's handler of SIGCHLD tells it first


class TakesItsWorkerAlong:
    """What ends the worker that has sent it, as it arrives."""

    def __reduce__(self):
        return _lose_worker, (os.getpid(),)


def _lose_worker(pid):
    os.kill(pid, signal.SIGKILL)
    raise ConnectionResetError("reset by peer")


class SendsWhatLosesWorkers(Pictures):
    def __getitem__(self, at):
        return TakesItsWorkerAlong() if at == 8 else super().__getitem__(at)


def test_a_connection_that_breaks_with_its_worker_is_a_lost_worker(files):
    """The connection ends before the process, which a DataLoader then finds alive."""
    own = loader_of(SendsWhatLosesWorkers(files), num_workers=1, collate_fn=list)
    lost = pytest.raises(RuntimeError, match=r"DataLoader worker .*pid")
    with LazyLoader(own, CPU, check=False) as loader, lost:
        list(loader)


def test_a_connection_that_breaks_without_its_worker_is_the_programs_error(files):
    class Resets(Pictures):
        def __getitem__(self, at):
            if at == 8:
                raise ConnectionResetError("of the server")
            return super().__getitem__(at)

    own = loader_of(Resets(files), num_workers=1)
    reset = pytest.raises(ConnectionResetError, match="of the server")
    with LazyLoader(own, CPU, check=False) as loader, reset:
        list(loader)


def test_a_lost_worker_of_another_loader_is_no_failure_of_a_backend(files, monkeypatch, caplog):
    """PyTorch's handler of SIGCHLD raises its error wherever the training process is by then."""
    other = iter(loader_of(Pictures(files), num_workers=1))
    next(other)

    def wait_for(self, part):
        os.kill(other._workers[0].pid, signal.SIGKILL)
        signal.sigtimedwait([], 5)  # until the handler raises

    monkeypatch.setattr(BackendLine, "wait_for", wait_for)
    lost = pytest.raises(RuntimeError, match="killed by signal")
    with LazyLoader(loader_of(Pictures(files)), CPU, check=False) as loader, lost:
        list(loader)
    assert "made as noted" not in caplog.text


class MovesItself:
    def __init__(self, tensor):
        self.tensor = tensor

    def to(self, device):
        self.tensor = self.tensor.to(device)


def test_whatever_a_batch_is_it_is_moved():
    device = torch.device("meta")
    assert moved(Named(picture=torch.zeros(2)), device)["picture"].device == device
    batch = MovesItself(torch.zeros(2))
    assert moved(batch, device) is batch and batch.tensor.device == device


@pytest.mark.parametrize("images", [torch.rand(8, 3, 4, 4), np.ones((8, 3, 4, 4), np.float32)])
def test_a_part_of_a_tensor_is_a_data_set(images):
    own = loader_of(Subset(images, range(2, 8)))
    with from_torch(own, CPU) as loader:
        assert_equal(list(loader), list(own))


@pytest.mark.parametrize("how", ["close", "drop the loader", "leave the loop", "error"])
@pytest.mark.parametrize("config", [None, CPU], ids=["as noted", "dali"])
def test_workers_end_with_it(files, how, config):
    """At once, and not when Python next looks for what refers to itself."""
    before = children()
    gc.disable()
    try:
        end_workers(files, how, config)
        wait_for_end(before)
    finally:
        gc.enable()


def end_workers(files, how, config):
    before = children()
    loader = LazyLoader(loader_of(Pictures(files), num_workers=2), config)
    batches = iter(loader)
    next(batches)
    assert children() - before
    if how == "close":
        loader.close()
        with pytest.raises(RuntimeError, match="closed"):
            iter(loader)
    elif how == "drop the loader":
        del loader, batches
    elif how == "leave the loop":
        del batches
    else:
        with pytest.raises(KeyboardInterrupt):
            for _ in batches:
                raise KeyboardInterrupt
        del batches


def test_persistent_workers_end_though_others_have_their_iterator(files, monkeypatch):
    """Lightning keeps all that is set on a DataLoader."""
    kept, before = [], children()
    monkeypatch.setattr(
        DataLoader,
        "__setattr__",
        lambda self, name, value: (kept.append(value), object.__setattr__(self, name, value))[1],
    )
    with LazyLoader(loader_of(Pictures(files), num_workers=1, persistent_workers=True)) as loader:
        list(loader)
        assert children() - before
    assert kept
    wait_for_end(before)


def test_persistent_workers_stay_until_it_is_closed(files):
    before = children()
    own = loader_of(Pictures(files), num_workers=2, persistent_workers=True)
    with LazyLoader(own) as loader:
        list(loader)
        workers = children() - before
        assert len(workers) >= 2
        for _ in loader:
            break
        list(loader)
        assert children() - before == workers
    del own, loader
    gc.collect()
    wait_for_end(before)


KEPT = {
    "picture": lambda picture: picture,
    "tensor": to_tensor,
    "array": lambda picture: np.array(picture),
}
USES = {
    "to_tensor": lambda value: value if isinstance(value, torch.Tensor) else to_tensor(value),
    "pixels": lambda value: np.asarray(value).tobytes(),
    "resize": lambda value: to_tensor(as_picture(value).resize((8, 8))),
    "pickle": lambda value: np.asarray(pickle.loads(pickle.dumps(value))).tobytes(),
}


def as_picture(value):
    if isinstance(value, torch.Tensor):
        return to_pil_image(value)
    return Image.fromarray(value) if isinstance(value, np.ndarray) else value


class Cached(Dataset):
    """Keeps its samples, after they were opened once."""

    def __init__(self, files, kind):
        self.files, self.keep, self.cache = files, KEPT[kind], {}

    def __len__(self):
        return len(self.files)

    def __getitem__(self, at):
        if at not in self.cache:
            opened = Image.open(self.files[at]).convert("RGB").resize((32, 32))
            self.cache[at] = self.keep(opened)
        kept = self.cache[at]
        return kept if isinstance(kept, torch.Tensor) else to_tensor(kept)


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize("use", USES)
def test_what_the_program_keeps_can_be_used_when_the_loader_has_ended(files, kind, use):
    data, own = Cached(files, kind), Cached(files, kind)
    with LazyLoader(loader_of(data), CPU, check=False) as loader:
        list(loader)
        assert loader.waited == len(files), loader.explain()
    list(loader_of(own))
    found, expected = USES[use](data.cache[3]), USES[use](own.cache[3])
    assert_equal(found, expected)
    assert_equal(data[5][0], own[5][0])


class Interrupts(Dataset):
    def __init__(self, files):
        self.inner, self.count = Pictures(files), 0

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, at):
        self.count += 1
        if self.count == 6:
            raise KeyboardInterrupt
        return self.inner[at]


def test_an_interrupt_ends_an_epoch_and_not_the_loader(files):
    with LazyLoader(loader_of(Interrupts(files)), check=False) as loader:
        with pytest.raises(KeyboardInterrupt):
            list(loader)
        assert len(list(loader)) == 5


def use_in_fork(loader, there):
    try:
        next(iter(loader))
    except RuntimeError as error:
        there.send(str(error))
    del loader
    gc.collect()


def test_a_fork_does_not_use_it(files):
    with LazyLoader(loader_of(Pictures(files), num_workers=1), CPU) as loader:
        batches = iter(loader)
        next(batches)
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        process = context.Process(target=use_in_fork, args=(loader, there))
        process.start()
        assert "another process" in here.recv()
        process.join()
        assert len(list(batches)) == 4


# What it takes


def test_what_is_no_dataloader_is_refused_by_name(files):
    data = Pictures(files)
    with pytest.raises(dp.ConfigError, match="Pictures; pass on the DataLoader of it"):
        from_torch(data)
    with pytest.raises(dp.ConfigError, match="builtins list; it takes a DataLoader"):
        from_torch([data])
    with (
        LazyLoader(loader_of(data)) as loader,
        pytest.raises(dp.ConfigError, match="one of from_torch already"),
    ):
        from_torch(loader)
    with pytest.raises(dp.ConfigError, match="on_bad_sample"):
        from_torch(loader_of(data), CPU, on_bad_sample="skip")


class Endless(DataLoader):
    """Whose workers live as long as the training: YOLO's."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Repeated:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_derived_loader_may_keep_its_iterator(files, workers):
    own = Endless(Pictures(files), batch_size=4, num_workers=workers)
    expected = [batch[1].tolist() for batch in own]
    with pytest.raises(dp.ConfigError, match=r"Endless\.iterator has begun already.* a seed="):
        LazyLoader(own, check=False)
    with LazyLoader(own, check=False, seed=1) as loader:
        batches = iter(loader)
        assert [next(batches)[1].tolist(), next(batches)[1].tolist()] == expected[:2]
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert [batch[1].tolist() for batch in loader] == expected[2:]
        assert [batch[1].tolist() for batch in loader] == expected
        assert len(loader) == 5
        assert loader.waited == 40


class Changes(DataLoader):
    def __iter__(self):
        for images, *_ in super().__iter__():
            yield images * 2


def test_a_derived_loader_that_changes_batches_is_refused_by_name(files):
    with (
        LazyLoader(Changes(Pictures(files))) as loader,
        pytest.raises(dp.ConfigError, match="Changes changes its batches"),
    ):
        list(loader)


def test_timms_prefetch_loader_goes_on_as_it_did(files, tmp_path):
    timm_data = pytest.importorskip("timm.data")
    for at, file in enumerate(files):
        home = tmp_path / f"class_{at % 2}"
        home.mkdir(exist_ok=True)
        os.link(file, home / Path(file).name)

    def make():
        seed_globals()
        return timm_data.create_loader(
            timm_data.ImageDataset(str(tmp_path)),
            (3, 24, 24),
            4,
            is_training=True,
            re_prob=0.7,
            num_workers=1,
            persistent_workers=False,
            device=torch.device("cpu"),
        )

    theirs = batches_of(make(), 2)
    with from_torch(make(), CPU) as loader:
        assert loader.device == torch.device("cpu")
        loader.mixup_enabled = False
        ours = batches_of(loader, 2)
        assert loader.waited
    for (old, *draws), (new, *drawn) in zip(theirs, ours, strict=True):
        assert_equal([old[1], draws], [new[1], drawn])
        assert torch.equal(old[0] == 0, new[0] == 0)  # the same rectangles
        assert (old[0] - new[0]).abs().mean() < 0.02

    with pytest.raises(dp.ConfigError, match="PrefetchLoader puts batches on cpu"):
        from_torch(make(), CPU, device="cuda")
    with from_torch(make(), CPU, seed=3) as loader:
        expected = batches_of(loader)
        batches = iter(loader)
        next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = list(batches)
    assert state["samples"] == 4  # although timm takes one batch ahead
    with from_torch(make(), CPU, seed=3) as loader:
        loader.load_state_dict(state)
        assert_equal([list(batch) for batch in loader], [list(batch) for batch in rest])
    assert len(expected) == 5


# What it says


def test_explain_names_the_line_that_looks(files):
    with LazyLoader(loader_of(Looks(files), num_workers=1), check=False) as loader:
        list(loader)
        text = loader.explain()
    assert "0% of 20 pictures waited" in text
    assert "test_lazy_loader.py" in text
    assert "Looks.__getitem__" in text
    assert "20 times" in text
    assert "CPU-s an epoch" in text


class Looks(Pictures):
    def __getitem__(self, at):
        picture = Image.open(self.files[at]).convert("RGB")
        return self.transform(picture), picture.getpixel((0, 0))


def test_explain_says_that_a_folder_needs_no_code(tmp_path, files):
    home = tmp_path / "class"
    home.mkdir()
    os.link(files[0], home / "0.jpg")
    data = datasets.ImageFolder(str(tmp_path), train_steps())
    with LazyLoader(loader_of(data)) as loader:
        assert f"dp.Manifest.open('{tmp_path}')" in loader.explain()
    with LazyLoader(loader_of(Pictures(files))) as loader:
        assert "Manifest" not in loader.explain()


MANY = """
import time
from torch.utils.data import DataLoader, Dataset
from dali_pipes.adapters.lazy.loader import LazyLoader
from lazy_programs import Pictures

data = Pictures({files!r} * 5000)
loader = LazyLoader(DataLoader(data, 4, shuffle=True, num_workers=2))
assert len(data) == 100_000
start = time.process_time()
next(iter(loader))
print(time.process_time() - start)
loader.close()
"""


def test_no_scan_comes_before_the_first_batch(files):
    made = subprocess.run(
        [sys.executable, "-c", MANY.format(files=files)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
