"""Threads and processes in a data set; workers of all kinds; what they share."""

import collections
import copy
import io
import itertools
import multiprocessing
import os
import queue
import random
import tarfile
import tempfile
import threading
from array import array as array_of_numbers
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torchvision.transforms.functional as F
from PIL import Image, ImageFilter
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchvision import transforms as T

from programs.pictures import FILES, fresh
from programs.traps import (
    COUNT,
    SIZE,
    Pairs,
    array,
    dataset_trap,
    loader_trap,
    pairs,
    small,
    tensor,
    trap,
)

# Threads


@trap(workers=1)
def pool_of_threads_in_getitem(path, other):
    with ThreadPoolExecutor(4) as pool:
        return torch.stack(list(pool.map(tensor, FILES[:6])))


@trap
def thread_gets_what_another_opened(path, other):
    p, made = small(path), queue.Queue()
    thread = threading.Thread(target=lambda: made.put((F.to_tensor(p), p.rotate(9))))
    thread.start()
    p.paste((0, 0, 0), (0, 0, 9, 9)) if thread.join() else None
    x, q = made.get()
    return x, F.to_tensor(q)


@trap(workers=1)
def many_threads_change_one_tensor_and_one_array(path, other):
    x, a, gate = tensor(path), array(path), threading.Barrier(3)

    def change(at):
        gate.wait()
        (x[at] if at % 2 else x.narrow(0, at, 1)).add_(at + 1)
        a[at : at + 1] += np.uint8(at)

    threads = [threading.Thread(target=change, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return x, a


class Pooled(Pairs):
    """It keeps a pool of threads, which a copy of the process does not have."""

    def __init__(self):
        super().__init__(None)
        self.pool = None

    def __getitem__(self, at):
        self.pool = self.pool or ThreadPoolExecutor(2)
        return list(self.pool.map(tensor, self.files[at : at + 2]))

    def __getstate__(self):
        return self.__dict__ | {"pool": None}


@loader_trap(epochs=2)
def pool_of_threads_that_the_data_set_keeps():
    dataset = Pooled()
    dataset[0]
    return DataLoader(dataset, batch_size=3)


@loader_trap
def samples_that_a_thread_reads_ahead():
    class Ahead(Pairs):
        ahead = None

        def __getitem__(self, at):
            if self.ahead is None:
                self.ahead = queue.Queue(2)
                threading.Thread(target=self.read, daemon=True).start()
            return self.ahead.get(timeout=60)

        def read(self):
            for file in self.files[:COUNT]:
                self.ahead.put(tensor(file))

    return DataLoader(Ahead(None), batch_size=3)


# Processes


@trap
def pool_of_processes_in_getitem(path, other):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        x, a = pool.map(_both, [path])[0]
        p = pool.apply(_turned, (small(other),))
    return x, a, F.to_tensor(p)


def _both(path):
    return tensor(path), array(path)


def _turned(picture):
    return picture.transpose(Image.Transpose.ROTATE_90)


@trap
def forked_child_makes_a_picture(path, other):
    p = small(path)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, p.resize((9, 9)).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        q = Image.frombytes("RGB", (9, 9), file.read())
    return F.to_tensor(q), F.to_tensor(p)


@trap
def queues_between_processes_and_threads(path, other):
    plain, shared = multiprocessing.get_context("fork").SimpleQueue(), torch.multiprocessing.Queue()
    shared.put((tensor(path), array(path)))
    plain.put(small(other).resize((9, 9)))
    x, a = shared.get(timeout=60)
    return x.clone(), a, F.to_tensor(plain.get())


class TarStream(IterableDataset):
    """A tar that is read without seeking, as WebDataset does: a copy of the process reads on."""

    def __init__(self, file):
        self.file = file

    def __iter__(self):
        with open(self.file, "rb", buffering=0) as stream, tarfile.open(None, "r|", stream) as tar:
            for member in tar:
                yield F.to_tensor(small(tar.extractfile(member)))


def _packed():
    """A tar of all pictures."""
    file = fresh(".tar")
    with tarfile.open(file, "w") as tar:
        for path in FILES:
            tar.add(path, Path(path).name)
    return file


@loader_trap(epochs=2)
def tar_that_is_read_as_a_stream():
    return DataLoader(TarStream(_packed()), batch_size=4)


# State of the program


class Counted(Pairs):
    """How often it was asked, by itself, and numbers of generators that it owns."""

    def __init__(self):
        super().__init__(None)
        self.count, self.rng = 0, np.random.default_rng(4)
        self.python, self.torch = random.Random(4), torch.Generator().manual_seed(4)

    def __getitem__(self, at):
        self.count += 1
        drawn = self.rng.random(), self.python.random(), torch.rand((), generator=self.torch)
        return tensor(self.files[at]) * drawn[0], self.count, drawn


@loader_trap(epochs=2)
def counter_and_generators_of_the_program():
    return DataLoader(Counted(), batch_size=3)


@loader_trap
def counter_of_the_program_and_an_error_while_pictures_wait():
    class Failing(Counted):
        def __getitem__(self, at):
            x, count, drawn = super().__getitem__(at)
            view = memoryview(array(self.files[at])) if at == 4 else b""
            return x, count, drawn, len(view)

    return DataLoader(Failing(), batch_size=3)


@dataset_trap(batch_size=3)
def sample_after_sample_of_an_iterator(self, at):
    """Asked once more, it would give the next one."""
    self.walk = getattr(self, "walk", iter(self.files))
    a = array(next(self.walk))
    return torch.frombuffer(a.copy(), dtype=torch.uint8) if at == 3 else torch.tensor(a).view(-1)


# Workers


@loader_trap(epochs=2)
def workers_get_shards_by_worker_init_fn():
    return DataLoader(Shards(), batch_size=2, num_workers=2, worker_init_fn=_divide)


class Shards(IterableDataset):
    first, step = 0, 1

    def __iter__(self):
        for path in FILES[self.first : 9 : self.step]:
            yield tensor(path), Path(path).name


def _divide(worker):
    info = get_worker_info()
    info.dataset.first, info.dataset.step = info.id, info.num_workers


def _both_as_tensors(path, other):
    return tensor(path), tensor(other)


@dataset_trap(batch_size=3, num_workers=2)
def data_set_asks_who_it_is(self, at):
    info = get_worker_info()
    same = info.dataset is self, type(info.dataset).__name__, info.id, info.num_workers
    return tensor(self.files[at]), same, info.seed, info.seed == torch.initial_seed()


@loader_trap
def spawned_workers():
    return pairs(_drawn, 3, num_workers=1, multiprocessing_context="spawn")


def _drawn(path, other):
    turn = T.Compose([T.RandomHorizontalFlip(), T.RandomRotation(9), T.ToTensor()])
    return turn(small(path)), array(other), random.random(), np.random.rand()


@trap(workers=2, epochs=2, persistent_workers=True)
def workers_that_stay(path, other):
    return tensor(path), random.random(), float(torch.rand(())), os.getppid() > 0


@trap(workers=1, raises=True)
def errors_of_the_program_in_workers(path, other):
    raise KeyError(Path(path).name)


@loader_trap(raises=True)
def end_of_a_data_set_by_index_error():
    class Endless(Dataset):
        def __getitem__(self, at):
            if at >= 5:
                raise IndexError
            return tensor(FILES[at])

    def count_up():
        yield from range(9)

    return DataLoader(Endless(), batch_size=2, sampler=count_up())


@trap(workers=1)
def another_dtype_and_device_in_workers(path, other):
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("cpu")
    with torch.device("cpu"):
        x = F.gaussian_blur(tensor(path), 3)
    return x, torch.zeros(2), F.pil_to_tensor(small(path)) / 255


@trap
def functions_of_the_library_that_the_program_replaces(path, other):
    """For a moment, and for good."""
    own, Image.Image.filter = Image.Image.filter, lambda self, _: self.rotate(9)
    try:
        p = small(path).filter(ImageFilter.BLUR)
    finally:
        Image.Image.filter = own
    original, F.hflip = F.hflip, F.vflip
    try:
        q = T.RandomHorizontalFlip(1.0)(small(other))
    finally:
        F.hflip = original
    return F.to_tensor(p), F.to_tensor(q)


@loader_trap
def library_that_the_program_has_changed_before():
    own = Image.Image.resize

    def resize(self, size, *rest, **options):
        return own(self, (size[1], size[0]), *rest, **options).transpose(Image.Transpose.ROTATE_90)

    def load(path, other):
        p = Image.open(path).convert("RGB").resize((SIZE, 20))
        return F.to_tensor(p), F.to_tensor(copy.copy(p))

    Image.Image.resize = resize
    return DataLoader(Pairs(load), batch_size=3)


@loader_trap
def opener_that_the_program_registers_in_its_workers():
    from PIL import JpegImagePlugin

    def register(worker):
        Image.register_open("JPEG", _open_upside_down, JpegImagePlugin._accept)

    def _open_upside_down(file, name):
        picture = JpegImagePlugin.JpegImageFile(file, name)
        return picture if picture.width > 110 else picture.transpose(Image.Transpose.ROTATE_180)

    Image.preinit()
    return pairs(_both_as_tensors, batch_size=3, num_workers=1, worker_init_fn=register)


# What is kept from sample to sample, and an error while pictures wait


class Keeps(Pairs):
    """One sample of it cannot be made while arrays wait. `keep` returns what the others, and those
    that are made once more, must find.
    """

    def __init__(self, keep):
        super().__init__(None)
        self.keep = keep

    def __getitem__(self, at):
        a = array(self.files[at])
        kept = self.keep(self, at)
        return torch.from_numpy(a), len(memoryview(a)) if at == 4 else SIZE, kept


def _containers(data, at):
    if not hasattr(data, "last"):
        data.last, data.seen, data.places = collections.deque(maxlen=3), [], {"count": 0}
        data.table, data.grown = np.zeros(3), set()
    data.last.append(at)
    data.seen += [at]
    data.places["count"] += 1
    data.table[at % 3] += 1
    data.grown.add(len(data.seen))
    return sum(data.last), len(data.seen), dict(data.places), data.table.sum(), len(data.grown)


def _big_containers(data, at):
    if not hasattr(data, "counts"):
        data.counts = dict.fromkeys(range(2000), 0), [0] * 2000, np.zeros(2000)
        data.bytes, data.numbers = bytearray(2000), array_of_numbers("q", [0] * 2000)
        data.order = collections.OrderedDict.fromkeys(range(3000))
    for each in (*data.counts, data.bytes, data.numbers):
        each[at % 2] += 1
    data.order.move_to_end(min(at, 5))
    sums = [each[0] + each[1] for each in (*data.counts, data.bytes, data.numbers)]
    return sums, list(data.order)[-1], next(iter(data.order))


def _small_buffers(data, at):
    if not hasattr(data, "bytes"):
        data.bytes, data.numbers = bytearray(b"\0"), array_of_numbers("q", [0])
        data.words, data.text = collections.Counter(), io.StringIO("\n".join("abcdefgh"))
    data.bytes[0] += 1
    data.numbers.append(at)
    data.words["seen"] += 1
    return data.bytes[0], len(data.numbers), data.words["seen"], ord(data.text.readline()[0])


class _Slots:
    __slots__ = ("count", "places")

    def __init__(self):
        self.count, self.places = 0, []


def _slots(data, at):
    data.tally = getattr(data, "tally", None) or _Slots()
    data.tally.count += 1
    data.tally.places.append(at)
    return data.tally.count, len(data.tally.places)


def _shared_count(data, at):
    data.shared = getattr(data, "shared", None) or multiprocessing.Value("i", 0)
    data.shared.value += 1
    return data.shared.value


def _shared_count_without_a_lock(data, at):
    data.shared = getattr(data, "shared", None) or multiprocessing.Array("i", 3, lock=False)
    data.shared[1] += 1
    return data.shared[1]


_asked = 0


def _variables(data, at):
    global _asked
    _asked += 1
    type(data).asked = getattr(type(data), "asked", 0) + 1
    return _asked, type(data).asked


def _sample_before(data, at):
    before, data.before = getattr(data, "before", None), tensor(data.files[at])
    return data.before if before is None else (data.before + before) / 2


def _lines_of_a_file(data, at):
    if not hasattr(data, "lines"):
        data.lines = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        data.lines.write(b"\n".join(b"%d" % number for number in range(100)))
        data.lines.seek(0)
    return int(data.lines.readline())


def _iterator_of_the_first_batch(data, at):
    data.count = getattr(data, "count", itertools.count())
    return next(data.count)


def _register(keep, size=2):
    def make():
        return DataLoader(Keeps(keep), batch_size=size)

    make.__name__ = f"kept_and_an_error_while_pictures_wait{keep.__name__}"
    loader_trap(make)


for _keep in (
    *(_containers, _big_containers, _small_buffers, _slots),
    *(_variables, _sample_before, _lines_of_a_file),
):
    _register(_keep)
_register(_iterator_of_the_first_batch, 6)


def _numbers_of_a_queue(data, at):
    if not hasattr(data, "queue"):
        data.queue = queue.Queue()
        for number in range(99):
            data.queue.put(number)
    return data.queue.get()


def _members_of_a_stream(data, at):
    if not hasattr(data, "tar"):
        data.tar = tarfile.open(_packed(), "r|")  # noqa: SIM115
    return data.tar.next().name


for _keep in (
    *(_numbers_of_a_queue, _members_of_a_stream, _shared_count, _shared_count_without_a_lock),
):
    _register(_keep)


class Broken(Counted):
    """A file that cannot be decoded is seen in the training process."""

    def __init__(self):
        super().__init__()
        broken = fresh(".jpg")
        data = Path(FILES[0]).read_bytes()
        Path(broken).write_bytes(data[: len(data) // 2])
        self.files[4] = broken

    def __getitem__(self, at):
        try:
            return super().__getitem__(at)
        except OSError:
            self.files[4] = self.files[3]
            return super().__getitem__(at)


@loader_trap
def counter_of_the_program_and_a_broken_file():
    return DataLoader(Broken(), batch_size=3, num_workers=1)
