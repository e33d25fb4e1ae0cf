"""Calls in unusual spellings, functions that draw or count where a library calls them, collate
functions that keep something, and errors that a program catches in unusual ways.
"""

import functools
import io
import multiprocessing
import os
import random
import tempfile
import types
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import torch
import torchvision.transforms.functional as F
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Sampler, get_worker_info
from torchvision import transforms as T
from torchvision.transforms import v2

from programs.pictures import FILES
from programs.traps import SIZE, Pairs, array, loader_trap, loop_trap, pairs, small, tensor, trap

# Functions of the program that a library calls


@trap
def point_by_a_function_that_draws_and_counts(path, other):
    calls = []

    def brighter(value):
        calls.append(value)
        return value * 1.5 + random.randint(-10, 10)

    return F.to_tensor(small(path).point(brighter)), len(calls), random.random()


@trap
def rows_are_shuffled_without_warnings(path, other):
    warnings.filterwarnings("ignore")
    a, b, c = array(path), array(path), array(path)
    np.random.shuffle(a)
    np.random.RandomState(3).shuffle(b)
    np.random.default_rng(3).shuffle(c)
    return a, b, c


@trap
def place_of_a_paste_is_a_list(path, other):
    canvas, place = Image.new("RGB", (100, 100)), [5, 6]
    canvas.paste(small(path), place)
    return F.to_tensor(canvas), len(place)


@trap
def contrast_with_options_that_are_zero(path, other):
    p = small(path)
    return [
        F.to_tensor(each)
        for each in (
            ImageOps.autocontrast(p, ignore=0),
            ImageOps.autocontrast(p, cutoff=(0, 0)),
            ImageOps.autocontrast(p, preserve_tone=True),
            ImageOps.autocontrast(p, 0, None),
        )
    ]


# Spellings


@trap(workers=1)
def first_arguments_by_name(path, other):
    p = small(path)
    backwards = np.array(p)[:, ::-1]
    return (
        *(
            torch.tensor(data=[1.0]),
            torch.as_tensor(data=[1, 2]),
            torch.as_tensor(data=np.array(p)),
        ),
        *(np.asarray(a=p), np.array(object=p), np.ascontiguousarray(a=backwards)),
    )


@trap
def imread_into_memory_of_the_program(path, other):
    whole = cv2.imread(path)
    again = cv2.imread(path, dst=np.empty_like(whole))
    return whole[:SIZE, :SIZE].copy(), again[:SIZE, :SIZE].copy()


@trap
def kernels_of_v2_by_keywords(path, other):
    x = tensor(path)
    return (
        v2.functional.normalize_image(x, std=[0.2, 0.3, 0.4], mean=[0.5, 0.4, 0.6]),
        v2.functional.erase_image(x, v=torch.zeros(3, 1, 1), h=20, w=5, i=3, j=7),
        F.erase(x, v=torch.ones(3, 1, 1), w=20, h=5, i=3, j=7, inplace=True),
        x,
    )


class _Generators(Sampler):
    def __len__(self):
        return 2

    def __iter__(self):
        for first in (0, 3):
            yield (first + number for number in range(3))


@loader_trap
def batches_of_indices_are_generators():
    return DataLoader(Pairs(lambda path, other: tensor(path)), batch_sampler=_Generators())


# Attributes, types and errors


@trap
def attributes_of_an_array_are_set(path, other):
    a, b = array(path), array(other)
    a.flat, b.real = 7, 3
    return a, b


@trap
def array_gets_another_size_in_place(path, other):
    a = array(path)
    a.resize((SIZE, SIZE * 3), refcheck=False)
    return a, a.shape, a[:, :9].copy()


_OF_FILES_OR_TYPES = (TypeError, OSError)


@trap
def errors_are_caught_by_a_constant(path, other):
    a = array(path)
    try:
        size = len(zlib.compress(a))
    except _OF_FILES_OR_TYPES:
        size = -1
    return a, size


@trap
def errors_end_in_a_finally(path, other):
    a, size = array(path), -1
    try:
        size = len(zlib.compress(a))
    finally:
        return a, size  # noqa: B012


@trap
def future_keeps_the_error(path, other):
    a = array(path)
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(zlib.compress, a)
    return a, -1 if made.exception() is not None else len(made.result())


# Collate functions that look at pixels, and keep something


def _mixed(samples, share):
    images = torch.stack(samples)
    return share * images + (1 - share) * images.flip(0), share


def _collate_by(samples, generator):
    return _mixed(samples, float(generator.beta(1, 1)))


def _loader(collate):
    item = lambda path, other: tensor(path)  # noqa: E731
    return pairs(item, batch_size=2, num_workers=1, collate_fn=collate)


@loader_trap
def collate_draws_from_its_argument():
    return _loader(functools.partial(_collate_by, generator=np.random.default_rng(0)))


@loader_trap
def collate_counts_in_a_list():
    counts = [0]

    def collate(samples):
        counts[0] += 1
        return *_mixed(samples, 0.5), counts[0]

    return _loader(collate)


class _ManySizes(Pairs):
    """As the data sets of several YOLOs: its `collate` changes the size from time to time."""

    batches, size = 0, SIZE

    def collate(self, samples):
        self.batches += 1
        if self.batches % 2 == 0:
            self.size = random.choice((32, 40, 56))
        resize = torch.nn.functional.interpolate
        return torch.stack([resize(each[None], size=self.size)[0] for each in samples])


@loader_trap
def collate_of_the_data_set_counts():
    dataset = _ManySizes(lambda path, other: tensor(path))
    return DataLoader(dataset, batch_size=2, num_workers=1, collate_fn=dataset.collate)


# Where pictures are in a batch


class _Views(list):
    pass


class _Holder:
    def __init__(self, held):
        self.held = held


def _listed(item):
    return lambda: pairs(item, batch_size=2, num_workers=1, collate_fn=list)


def _view(path, other):
    views = _Views([1])
    views.picture = small(path)
    return views


@loop_trap(_listed(_view))
def picture_is_an_attribute_of_a_list(loader):
    for batch in loader:
        yield [np.asarray(each.picture) for each in batch]


@loop_trap(_listed(lambda path, other: functools.partial(max, array(path), small(path))))
def pictures_are_arguments_of_a_partial(loader):
    for batch in loader:
        yield [[np.asarray(argument) for argument in each.args] for each in batch]


def _held(path, other):
    return functools.reduce(lambda held, _: _Holder(held), range(5), small(path))


@loop_trap(_listed(_held))
def picture_is_five_objects_deep(loader):
    for batch in loader:
        for each in batch:
            while isinstance(each, _Holder):
                each = each.held
            yield np.asarray(each)


# Later pictures of a batch that are others


class _Many(Pairs):
    def __len__(self):
        return 18

    def __getitem__(self, at):
        return self.item(FILES[at], at)


def _gray(path):
    return Image.open(path).convert("L").resize((SIZE, SIZE))


@loader_trap
def gray_pictures_get_a_color_by_name():
    def item(path, at):
        return F.to_tensor(_gray(path).rotate(30, fillcolor="red" if at > 8 else 0))

    return DataLoader(_Many(item), batch_size=18)


@loader_trap
def tensors_of_other_whole_numbers_are_brightened():
    def item(path, at):
        x = F.pil_to_tensor(small(path)).to(torch.int32)
        return F.adjust_brightness(x, 1.9 if at > 8 else 0.5)

    return DataLoader(_Many(item), batch_size=18)


@loader_trap
def gray_pictures_get_three_channels():
    return DataLoader(
        _Many(lambda path, at: F.to_tensor(T.Grayscale(3)(_gray(path)))), batch_size=4
    )


# What workers have and the training process has not


class SizesOfItsOwn(Pairs):
    """Of several sizes, which are drawn in workers."""

    size = 40

    def __getitem__(self, at):
        if at == 1:
            self.size = 24
        return F.to_tensor(small(self.files[at])), at

    def collate(self, samples):
        images = torch.stack([image for image, _ in samples])
        if images.mean() >= 0:
            images = F.resize(images, [self.size, self.size])
        return images, [at for _, at in samples]


@loader_trap
def collate_has_what_a_sample_has_set():
    data = SizesOfItsOwn(None)
    return DataLoader(data, 2, num_workers=1, collate_fn=data.collate)


def _choose_a_size(worker):
    SizesOfItsOwn.size = 32


@loader_trap
def collate_has_what_a_worker_has_set():
    data = SizesOfItsOwn(None)
    return DataLoader(
        data, 2, num_workers=1, collate_fn=data.collate, worker_init_fn=_choose_a_size
    )


def _by_worker(samples):
    images = torch.stack([image for image, _ in samples])
    return images + (0.1 if images.mean() >= 0 else 0), get_worker_info().id


@loader_trap
def collate_asks_for_its_worker():
    return DataLoader(SizesOfItsOwn(None), 2, num_workers=2, collate_fn=_by_worker)


class InitIsSeen(Pairs):
    """A transform that workers set, and a file that is broken beside it."""

    light = 1.0

    def __getitem__(self, at):
        path = self.broken if at == 2 else self.files[at]
        try:
            image = F.to_tensor(Image.open(path).convert("RGB").resize((SIZE, SIZE)))
        except OSError:
            image = F.to_tensor(small(self.files[at]))
        return image * self.light


def _set_light(worker):
    get_worker_info().dataset.light = 0.5


@loader_trap
def broken_file_where_workers_have_another_program():
    data = InitIsSeen(None)
    png = io.BytesIO()
    small(FILES[0]).save(png, "PNG")
    middle = png.getvalue().index(b"IDAT") + 40
    with tempfile.NamedTemporaryFile(suffix=".png", delete=False) as file:
        file.write(png.getvalue()[:middle] + bytes(20) + png.getvalue()[middle + 20 :])
    os.utime(file.name, (1, 1))
    data.broken = file.name
    return DataLoader(data, 2, num_workers=1, worker_init_fn=_set_light)


class StepsOfAllWorkers(Pairs):
    """Counts in memory that processes share."""

    def __init__(self, item):
        super().__init__(item)
        self.step = torch.zeros(1, dtype=torch.long).share_memory_()
        self.seen = np.frombuffer(multiprocessing.Array("q", 1, lock=False), np.int64)

    def __getitem__(self, at):
        self.step += 1
        self.seen[0] += 1
        return F.to_tensor(small(self.files[at])), int(self.step), int(self.seen[0])


@loader_trap
def count_in_a_shared_tensor():
    return DataLoader(StepsOfAllWorkers(None), 2, num_workers=1)


# Values


@trap
def a_mask_of_truth_values_becomes_numbers(path, other):
    mask = F.pil_to_tensor(small(path).convert("L").resize((20, 20), Image.NEAREST))
    return mask.bool().float(), mask.bool().long(), mask.to(torch.int8).float()


@trap
def an_array_of_truth_values_becomes_numbers(path, other):
    mask = np.array(small(path).convert("L"), dtype=bool)
    return mask.astype(np.float32), array(path).astype(np.int8).astype(np.float32)


@trap
def whole_numbers_are_scaled_by_their_largest(path, other):
    x = tensor(path)
    return [v2.functional.to_dtype(x.to(kind), torch.float32, scale=True) for kind in _KINDS]


_KINDS = (torch.int32, torch.int16, torch.uint8)


# Code that is not in the function itself


class Static:
    @staticmethod
    def blurred(path, other):
        try:
            return _IN_C(array(path))
        except Exception:
            return array(other)


_IN_C = functools.partial(cv2.medianBlur, ksize=3)


@trap
def c_code_in_an_except_of_a_static_method(path, other):
    return Static.blurred(path, other)


@trap
def c_code_in_an_except_of_a_comprehension(path, other):
    return [caught(each, other) for each in (path,)]


def caught(path, other):
    try:
        return _IN_C(array(path))
    except Exception:
        return array(other)


_MODULE = types.ModuleType("program_without_a_name")
exec(
    compile(
        "def blurred(blur, make, other):\n"
        "    try:\n"
        "        return blur(make())\n"
        "    except Exception:\n"
        "        return other\n",
        "configs/data.py",
        "exec",
    ),
    vars(_MODULE),
)


@trap
def c_code_in_an_except_of_a_module_that_nobody_has_noted(path, other):
    return _MODULE.blurred(_IN_C, functools.partial(array, path), array(other))
