"""Batches of all structures, collate functions, samplers; and how training loops use a loader."""

import collections
import copy
import inspect
import itertools
import pickle
import queue
import random
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
import torchvision.transforms.functional as F
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    Sampler,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
    random_split,
)
from torch.utils.data._utils.collate import collate, default_collate_fn_map
from torchvision import transforms as T

from programs.pictures import FILES
from programs.traps import (
    COUNT,
    SIZE,
    Pairs,
    array,
    collate_trap,
    dataset_trap,
    loader_trap,
    loop_trap,
    pairs,
    small,
    tensor,
    trap,
)


def _tensor(path, other):
    return tensor(path)


def _both(path, other):
    return tensor(path), array(other)


def _drawn(path, other):
    return tensor(path), random.random()


def _zero(path, other):
    return tensor(path), 0


@dataclass
class Pack:
    image: Any
    more: Any


@dataclass(frozen=True, slots=True)
class Slots:
    image: Any
    more: Any


class Named(NamedTuple):
    image: Any
    label: Any


class Plain:
    """With a `__init__` of other arguments, and memory pinned by itself."""

    def __init__(self, samples):
        self._image = torch.stack([each[0] for each in samples])
        self.rest = {"arrays": [each[1] for each in samples]}

    def pin_memory(self):
        return self


class OldSlots:
    __slots__ = ("image", "more")

    def __init__(self, image, more):
        self.image, self.more = image, more


def _collated(kind):
    def collate(samples):
        images = torch.stack([each[0] for each in samples])
        return kind(images, [each[1] for each in samples])

    return collate


def _in_one(*kinds):
    """Several structures in one batch."""
    return lambda *parts: [kind(*parts) for kind in kinds]


def _mapping(kind):
    return lambda *parts: kind(dict(zip("ab", parts, strict=True)))


_MAPPINGS = map(_mapping, (collections.UserDict, collections.OrderedDict, collections.ChainMap))


trap(
    _both,
    name="batches_of_classes",
    collate_fn=_collated(_in_one(Pack, Slots, Named, OldSlots, *_MAPPINGS)),
    workers=1,
)


trap(_both, name="batches_of_a_class_with_a_constructor_of_its_own", collate_fn=Plain, workers=1)


def _nested(value, depth=12):
    return [_nested(value, depth - 1)] if depth else value


@collate_trap(_both)
def batches_of_odd_containers(samples):
    xs, arrays = [each[0] for each in samples], [each[1] for each in samples]
    held = np.empty(len(arrays), object)
    held[:] = arrays
    return [
        collections.deque(xs),
        frozenset(xs),
        dict.fromkeys(xs, 1),
        held,
        (x * 2 for x in xs),
        map(np.mean, arrays),
        np.ma.masked_less(arrays[0], 9),
        _nested(xs[0]),
    ]


@collate_trap(_zero)
def batches_of_modules(samples):
    return torch.nn.ParameterList([torch.stack([each[0] for each in samples])])


@collate_trap(_zero)
def batches_of_packed_sequences(samples):
    return torch.nn.utils.rnn.pack_sequence([each[0][0] for each in samples])


def _without_none(samples):
    found = [each for each in samples if each is not None]
    return default_collate(found) if found else None


@trap(collate_fn=_without_none, workers=1)
def samples_that_are_none(path, other):
    return None if int(path[-7:-4]) % 2 else (tensor(path), array(other))


@dataclass
class Box:
    image: Any
    size: int


def _collate_boxes(samples, *, collate_fn_map=None):
    return Box(
        collate([each.image for each in samples], collate_fn_map=collate_fn_map), len(samples)
    )


def _collate_pictures(samples, *, collate_fn_map=None):
    return torch.stack([F.to_tensor(each.convert("RGB").resize((9, 9))) for each in samples])


@loader_trap
def types_that_the_program_registers_for_collating():
    default_collate_fn_map.update({Box: _collate_boxes, Image.Image: _collate_pictures})
    dataset = Pairs(lambda path, other: (Box(tensor(path), 3), small(other), Image.open(path)))
    return DataLoader(dataset, batch_size=3, num_workers=1)


@loader_trap
def tensors_are_padded_by_a_registered_function():
    def padded(samples, *, collate_fn_map=None):
        width = max(each.shape[-1] for each in samples)
        return torch.stack([F.pad(each, [0, 0, width - each.shape[-1], 0]) for each in samples])

    default_collate_fn_map[torch.Tensor] = padded
    item = lambda path, other: F.to_tensor(small(path).crop((0, 0, len(path) % 7 + 9, 9)))  # noqa: E731
    return DataLoader(Pairs(item), batch_size=3)


# Collate functions that look or change


def _mixing(samples):
    images, labels = default_collate(samples)
    part = float(np.random.beta(1, 1))
    mixed = part * images + (1 - part) * images.roll(1, 0)
    return mixed, labels, random.random(), torch.rand(2), torch.randperm(4)


trap(_drawn, name="collate_function_that_mixes", collate_fn=_mixing, epochs=2)


trap(
    _drawn,
    name="collate_function_that_mixes_in_workers",
    collate_fn=_mixing,
    workers=1,
    batch_size=2,
)


@collate_trap(_zero, epochs=2)
def collate_function_that_changes_samples(samples):
    for x, _ in samples:
        x[:, :3] = 0
        x.mul_(2)
    return torch.stack([x for x, _ in samples]), [x.sum().item() for x, _ in samples]


class Remembering:
    """Mixes each batch with the one before."""

    before = None

    def __call__(self, samples):
        images = torch.stack([each[0] for each in samples])
        mixed = images if self.before is None else (images + self.before[: len(images)]) / 2
        self.before = images
        return mixed, [each[1] for each in samples]


@loader_trap(epochs=2)
def collate_object_that_remembers_the_batch_before():
    return pairs(lambda path, other: (tensor(path), 1), batch_size=2, collate_fn=Remembering())


@trap(collate_fn=lambda samples: [np.stack([np.asarray(p) for p, _ in samples]), samples[0][0]])
def collate_function_of_pictures(path, other):
    return small(path), 0


_held = torch.zeros(3, SIZE, SIZE)


@trap(collate_fn=_mixing, workers=1, batch_size=2)
def tensor_that_all_samples_share(path, other):
    _held.add_(1)
    return tensor(path), _held


@collate_trap(_both, workers=1)
def batches_in_channels_last(samples):
    batch = torch.stack([each[0] for each in samples]).to(memory_format=torch.channels_last)
    return batch, torch.as_tensor(np.stack([each[1] for each in samples])).permute(0, 3, 1, 2)


_out = torch.zeros(COUNT, 3, SIZE, SIZE)


@collate_trap(_zero)
def collate_function_with_one_buffer_for_all_batches(samples):
    for at, (x, _) in enumerate(samples):
        _out[at].copy_(x)
    return _out[: len(samples)], torch.tensor([float(x.mean()) for x, _ in samples])


def _fast_collate(samples):
    """As timm's, of arrays."""
    batch = torch.zeros((len(samples), 3, SIZE, SIZE), dtype=torch.uint8)
    for at, (_, a) in enumerate(samples):
        batch[at] += torch.from_numpy(np.rollaxis(np.array(a), 2).copy())
    return batch


@trap(collate_fn=_fast_collate, workers=1)
def collate_function_of_arrays(path, other):
    return 0, array(path)


# Samples as they are


@trap(batch_size=None)
def no_batches(path, other):
    return {"x": tensor(path), "a": array(path), "p": small(path), "f": array(path) / 255}


@trap(collate_fn=list, workers=1)
def samples_with_pictures(path, other):
    return Image.open(path), small(other), small(other).convert("L"), Image.open(other).copy()


@trap(collate_fn=list, workers=1)
def same_object_twice_in_a_sample(path, other):
    x, a, p = tensor(path), array(path), small(path)
    inside = {"list": [x, (x, a)], "other": tensor(other)}
    return x, x, inside, x[:, 2:], x.clone(), a, p, p, torch.from_numpy(a)


# Data sets and samplers


@loader_trap
def data_sets_of_data_sets():
    whole = Pairs(_tensor)
    parts = random_split(whole, [2, 4])
    inner = Subset(Subset(whole, [5, 0, 3]), [2, 0])
    joined = ConcatDataset([inner, *parts])
    numbers = TensorDataset(torch.arange(8.0), torch.rand(8, 3, 4, 4))
    return DataLoader(StackDataset(image=joined, other=joined, numbers=numbers), batch_size=3)


@loader_trap
def data_sets_of_tensors_and_of_pictures():
    plain = TensorDataset(torch.rand(3, 3, SIZE, SIZE), torch.arange(3))
    return DataLoader(
        ConcatDataset([plain, Pairs(lambda path, other: (tensor(path), torch.tensor(9)))]),
        batch_size=2,
    )


class Some(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        for path in self.files:
            if random.random() < 0.8:
                yield tensor(path), torch.rand(())


@loader_trap(epochs=2)
def streams_in_workers():
    return DataLoader(Some(FILES[:8]) + Some(FILES[8:12]), batch_size=3, num_workers=2)


@loader_trap(epochs=2)
def samples_asked_for_together():
    class Together(Pairs):
        def __getitems__(self, many):
            opened = [small(self.files[at]) for at in many]
            return [(F.to_tensor(each), random.random()) for each in opened]

    return DataLoader(Together(None), batch_size=4, shuffle=True)


@loader_trap
def loader_inside_of_a_data_set():
    inner = Pairs(lambda path, other: (tensor(path), 1))

    class Outer(Pairs):
        def __getitem__(self, at):
            batch, _ = next(iter(DataLoader(inner, batch_size=3)))
            return batch.mean(dim=0), batch[1]

    return DataLoader(Outer(None), batch_size=2)


@dataset_trap(batch_size=3)
def sample_of_a_sample(self, at):
    """A mix of a sample with another one, which the data set asks itself for."""
    x, y = tensor(self.files[at]), tensor(self.files[at + 1])
    if random.random() < 0.7 and at:
        return x * 0.3 + self[at - 1] * 0.7
    return torch.maximum(x, y)


class Drawn(Sampler):
    def __iter__(self):
        for _ in range(COUNT):
            yield random.randrange(COUNT)

    def __len__(self):
        return COUNT


@loader_trap(epochs=2)
def sampler_that_draws():
    dataset = Pairs(lambda path, other: (tensor(path), np.random.rand()))
    return DataLoader(dataset, sampler=Drawn(), batch_size=2)


@loader_trap(epochs=2)
def batch_sampler_of_the_program():
    class Growing(BatchSampler):
        def __iter__(self):
            order = torch.randperm(COUNT).tolist()
            yield from (order[:1], order[1:3], [order[0]] * 3)

        def __len__(self):
            return 3

    dataset = Pairs(_drawn)
    return DataLoader(dataset, batch_sampler=Growing(range(COUNT), 2, False))


@dataset_trap(epochs=2, batch_size=2, sampler=[(at, 9) for at in range(4)])
def indices_that_are_no_numbers(self, key):
    name, size = key
    return tensor(self.files[name]).narrow(1, 0, size)


# How a training loop uses its loader


@loop_trap(lambda: DataLoader(Sized(None), batch_size=3))
@loop_trap(
    lambda: DataLoader(Sized(None), batch_size=3, num_workers=1),
    name="data_set_changes_between_epochs_with_workers",
)
def data_set_changes_between_epochs(loader):
    """Larger pictures from epoch to epoch."""
    for size in (9, 20, 30):
        loader.dataset.size = size
        yield from loader


@loop_trap(lambda: DataLoader(Sized(None), batch_size=2))
def data_set_changes_within_an_epoch(loader):
    for number, batch in enumerate(loader):
        yield batch
        loader.dataset.size = 9 + number


class Sized(Pairs):
    size = 5

    def __getitem__(self, at):
        return F.to_tensor(Image.open(self.files[at]).convert("RGB").resize((self.size, self.size)))


@loop_trap(lambda: pairs(_tensor, batch_size=3))
def loader_changes_between_epochs(loader):
    yield from loader
    loader.collate_fn = list
    yield from loader
    loader.num_workers, loader.prefetch_factor = 1, 2
    yield from loader


def _sampled():
    dataset = Pairs(lambda path, other: (tensor(path), torch.rand(())))
    sampler = torch.utils.data.DistributedSampler(dataset, 2, 1)
    options = {"sampler": sampler, "generator": torch.Generator(), "num_workers": 1}
    return DataLoader(dataset, batch_size=2, **options)


@loop_trap(_sampled)
def epochs_are_set_and_seeded(loader):
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        loader.generator.manual_seed(epoch)
        yield from loader


@loop_trap(lambda: pairs(_drawn, 2, shuffle=True))
@loop_trap(
    lambda: pairs(_drawn, 2, shuffle=True, num_workers=2, persistent_workers=True),
    name="epochs_that_are_given_up_with_workers_that_stay",
)
def epochs_that_are_given_up(loader):
    for _ in range(3):
        yield next(iter(loader))
    for batch in loader:
        yield batch
        break
    yield from itertools.islice(itertools.cycle(loader), 5)
    yield len(loader)
    yield len(loader.dataset)


class Kept(Pairs):
    kept = None

    def __getitem__(self, at):
        self.kept = self.kept or {}
        return self.kept.setdefault(at, _both(self.files[at], self.files[at]))


@loop_trap(lambda: DataLoader(Kept(None), batch_size=None, collate_fn=lambda sample: sample))
def batches_change_what_the_data_set_keeps(loader):
    for _ in range(2):
        for batch in loader:
            yield batch
            batch[0].zero_()
            batch[1][:, 0] = 9


@loop_trap(lambda: pairs(_both, batch_size=2))
def data_set_is_used_outside_of_the_loader(loader):
    other = DataLoader(Subset(loader.dataset, [3, 1]), batch_size=1)
    for batch in loader:
        yield batch
        yield next(iter(other))
        yield loader.dataset[2]


@loop_trap(lambda: pairs(_both, batch_size=2))
def loader_in_a_thread(loader):
    """A thread iterates, and the training process uses the same libraries meanwhile."""
    made = queue.Queue(1)
    thread = threading.Thread(target=lambda: [made.put(batch) for batch in [*loader, None]])
    thread.start()
    while (batch := made.get()) is not None:
        p = small(FILES[0])
        yield batch, F.to_tensor(p) * 2, np.array(p)[:9], type(p).__name__
    thread.join()


def _two():
    dataset = Pairs(_drawn)
    others = DataLoader(Subset(dataset, [3, 1, 2]), 1, num_workers=1)
    return [DataLoader(dataset, 2, shuffle=True), others]


@loop_trap(_two)
def loaders_side_by_side(loaders):
    for one, other in zip(*loaders, strict=False):
        yield one, other
        yield loaders[0].dataset[0]


@loop_trap(lambda: DataLoader(Kept(None), batch_size=2))
def libraries_in_the_training_process(loader):
    """What the same libraries are in the training process, before, between and after."""
    yield _libraries()
    for batch in loader:
        yield batch
        yield _libraries()
    yield copy.deepcopy(loader.dataset)[1], pickle.loads(pickle.dumps(loader.dataset))[2]
    yield _libraries()


def _libraries():
    p, a = small(FILES[1]), array(FILES[2])
    x = torch.jit.script(T.Normalize([0.5] * 3, [0.5] * 3))(
        torch.from_numpy(a).permute(2, 0, 1) / 255
    )
    said = str(inspect.signature(F.pad)), F.to_tensor.__name__, len(inspect.getsource(F.resize))
    same = pickle.loads(pickle.dumps(F.resize)) is F.resize
    found = F.resize(p, 9).tobytes(), cv2.resize(a, (9, 9)), x, said, same
    return *found, np.asarray(p).flags.owndata


@loader_trap
def batches_in_any_order():
    dataset = Pairs(lambda path, other: (tensor(path), get_worker_info().seed))
    return DataLoader(dataset, batch_size=2, num_workers=1, in_order=False, timeout=60)


class Hard(Sampler):
    """Which samples come next is what the training has found hard."""

    def __init__(self):
        self.hard = 0

    def __iter__(self):
        for at in range(12):
            yield (at + self.hard) % COUNT


@loop_trap(lambda: pairs(_tensor, 2, sampler=Hard(), num_workers=1))
def sampler_that_the_training_steers(loader):
    for number, batch in enumerate(loader):
        yield batch
        loader.sampler.hard += number
