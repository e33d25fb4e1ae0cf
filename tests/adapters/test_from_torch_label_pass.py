"""from_torch's pass over all samples: in several processes, kept in a file, and stopped."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import weakref
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import composes
import cv2  # noqa: F401  its openers are patched where it is loaded
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets.folder import pil_loader

import dali_pipes as dp
from dali_pipes.adapters.from_torch import label_pass
from dali_pipes.adapters.from_torch.label_file import LabelFile
from dali_pipes.adapters.from_torch.label_pass import pass_over
from dali_pipes.adapters.from_torch.recorder import Recorder
from dali_pipes.adapters.from_torch.recording import openers
from dali_pipes.adapters.from_torch.recording.cheap import Copies, noise_of
from dali_pipes.adapters.from_torch.recording.containers import Containers
from dali_pipes.adapters.from_torch.recording.visit import Opened
from dali_pipes.adapters.from_torch.structure import first_difference, slot
from dali_pipes.adapters.from_torch.trace import trace
from dali_pipes.adapters.transforms.reading import NotConvertibleError
from dali_pipes.data.reader import Extent

EVAL = composes.torchvision_eval(40, 32)


@pytest.fixture(scope="module")
def files(image_folder):
    paths = sorted(str(path) for path in Path(image_folder).rglob("*.*"))
    return [path for path in paths if mode_of(path) == "RGB"][:12]


@pytest.fixture(autouse=True)
def quickly(few_made_up):
    """With few of the made-up pictures: the pass comes after them."""


def mode_of(path):
    with Image.open(path) as image:
        return image.mode


class Table(Dataset):
    """Paths with a label each; `more` is called for each sample."""

    def __init__(self, files, count=60, more=lambda index: index % 7):
        self.files, self.count, self.more = files, count, more

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return EVAL(pil_loader(self.files[index % len(self.files)])), self.more(index)


def run(dataset, processes=1, file=None):
    with Recorder(dataset) as recorder:
        seen = trace(recorder, range(len(dataset)), 4)
        return pass_over(recorder, seen, range(len(dataset)), processes, file)


def assert_same(one, other):
    assert one.files == other.files
    assert first_difference(one.skeletons, other.skeletons) is None


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize(
    "make",
    [openers._to_chw, partial(openers._cheap_array, 0), partial(openers._cheap_array, 1)],
    ids=["torchvision", "OpenCV's gray", "OpenCV"],
)
def test_what_a_sample_writes_into_cheap_noise_no_other_sample_gets(make, mode):
    noise = noise_of(5, 1, (11, 14), mode)
    pixels, opened = noise.pixels.copy(), Opened("an opener", "a.jpg", mode=mode)

    first, _ = make(opened, noise)
    as_made = np.asarray(first).copy()
    first += 1

    # as many as are copied at once, and more
    assert np.array_equal(noise.pixels, pixels)
    assert all(np.array_equal(make(opened, noise)[0], as_made) for _ in range(40))


@pytest.mark.parametrize(
    "use",
    [
        lambda tensor: tensor,
        weakref.ref,
        lambda tensor: str(tensor.add_(1)),
        lambda tensor: tensor.numpy().fill(0),
        lambda tensor: str(tensor.unsqueeze_(0)),
        lambda tensor: setattr(tensor, "data", tensor.data[:2]),
        lambda tensor: setattr(tensor, "label", 1),
        lambda tensor: str(tensor.requires_grad_()),
    ],
    ids=["kept", "weak", "add", "fill", "axes", "data", "attribute", "gradient"],
)
def test_a_small_tensor_is_handed_out_again_only_if_it_is_as_it_was(use):
    copies = Copies(torch.rand(3, 4, 4))
    first = id(copies.take()[0])
    assert id(copies.take()[0]) == first

    kept = use(copies.take()[0])
    fresh, snapshot = copies.take()
    assert id(fresh) != first and snapshot.holds(fresh)
    del kept


# Several samples at once


class Batched(Table):
    """A table that is asked for several samples, as Hugging Face's data sets are."""

    change = staticmethod(lambda samples: samples)
    calls = ()

    def __getitems__(self, indices):
        self.calls += (len(indices),)
        return self.change([self[index] for index in indices])


class OfTwoFiles(Batched):
    """Some samples open another file after their own."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        if index % 5 == 1:
            pil_loader(self.files[(index + 1) % len(self.files)])
        return sample


def shift(samples):
    """The label of sample 40, which none of the trace has, is that of the sample beside it."""
    at = next((at for at, (_, label) in enumerate(samples) if label == 40), None)
    if at is not None and len(samples) > 1:
        samples[at] = samples[at][0], samples[at - 1][1]
    return samples


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Batched, OfTwoFiles])
def test_samples_that_are_visited_together_are_those_alone(files, kind):
    together = run(kind(files, more=lambda index: index))
    alone_kind = type("Alone", (kind,), {"__getitems__": None})
    alone = run(alone_kind(files, more=lambda index: index))
    assert_same(together, alone)
    assert len({len(each) for each in alone.files}) == (1 if kind is Batched else 2)


def test_most_samples_are_visited_together_the_first_time(files):
    with Recorder(Batched(files, 64)) as recorder:
        visitor = label_pass._Visitor(recorder, trace(recorder, range(64), 4), False)
        recorder.copy.calls = ()
        visitor.run_all(range(64))
        # the first four are visited alone as well, to be compared
        assert recorder.copy.calls == (4, 1, 1, 1, 1) + 15 * (4,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shift, "__getitems__ makes something else of a batch"),
        (lambda samples: [(x, y + random.randint(0, 1)) for x, y in samples], "random|another"),
    ],
    ids=["shifted", "random"],
)
def test_what_samples_have_only_together_is_refused(files, change, message):
    table = Batched(files, 64, lambda index: index)
    table.change = change
    with pytest.raises(NotConvertibleError, match=message):
        run(table)


def test_a_file_is_looked_at_again_if_other_bytes_are_read(files, tmp_path):
    first, second = (Path(path).read_bytes() for path in files[:2])
    file = tmp_path / "one.jpg"
    file.write_bytes(first)
    containers = Containers()
    assert containers.has_size(str(file), len(first))
    assert not containers.has_size(str(file), len(second))
    file.write_bytes(second)
    assert containers.has_size(str(file), len(second))
    with pytest.raises(OSError, match="nothing"):
        containers.has_size(str(tmp_path / "nothing"), 3)


@pytest.fixture
def in_processes_at_once(monkeypatch):
    """A pass that is divided among processes from its first chunk on."""
    monkeypatch.setattr(label_pass, "_ALONE_S", -1.0)
    monkeypatch.setattr(label_pass, "_HELP_S", -1.0)
    monkeypatch.setattr(label_pass, "_MOST", 8)


# Several processes


def values(index):
    return {"at": index, "name": f"image {index}", "boxes": torch.full((4, 4), float(index))}


@pytest.mark.slow
def test_several_processes_see_what_one_sees(files, in_processes_at_once):
    table = Table(files, more=values)
    assert_same(run(table, processes=2), run(table))


DRAW = np.random.default_rng()
DEFECTS = {
    "random": lambda index: random.random(),
    "own random numbers": lambda index: DRAW.random(),
    "fails": lambda index: 1 // (index - 41),
    "a process": lambda index: os.getpid(),
    "a time": lambda index: time.monotonic_ns() if index == 17 else 0,
}


@pytest.mark.few
@pytest.mark.parametrize("defect", DEFECTS)
def test_several_processes_refuse_what_one_refuses(files, in_processes_at_once, defect):
    table, errors = Table(files, more=DEFECTS[defect]), []
    if defect == "a process":
        # what one process sees is the same each time
        run(table)
    for processes in (1, 2):
        if (defect, processes) == ("a process", 1):
            continue
        with pytest.raises(NotConvertibleError) as raised:
            run(table, processes)
        errors.append(str(raised.value))
    assert len(set(errors)) == 1


@pytest.mark.slow
def test_a_process_that_is_killed_or_hangs_is_done_without(
    files, in_processes_at_once, monkeypatch
):
    monkeypatch.setattr(label_pass, "_PATIENCE_S", 1.0)
    own = os.getpid()

    def kill(index):
        if os.getpid() != own and index == 33:
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    def hang(index):
        if os.getpid() != own and index == 33:
            time.sleep(1000)
        return index

    for more in (kill, hang):
        table = Table(files, more=more)
        assert [each[1] for each in run(table, processes=2).skeletons] == list(range(60))


class Database:
    """What one process has opened and no other one may use."""

    def __init__(self):
        self.process = os.getpid()

    def read(self):
        if os.getpid() != self.process:
            raise RuntimeError("it was opened by another process")


@pytest.mark.slow
def test_a_process_opens_what_it_needs_itself(files, in_processes_at_once):
    class Opening(Table):
        database = None

        def __getitem__(self, index):
            if self.database is None:
                self.database = Database()
            self.database.read()
            return super().__getitem__(index)

    assert_same(run(Opening(files), processes=2), run(Opening(files)))


def test_only_data_sets_that_run_in_forked_workers_are_divided(files):
    from dali_pipes.adapters.from_torch.conversion import _processes

    table = Table(files)
    assert _processes(DataLoader(table, 4)) == 1
    spawned = DataLoader(table, 4, num_workers=2, multiprocessing_context="spawn")
    assert _processes(spawned) == 1
    assert _processes(DataLoader(table, 4, num_workers=2, worker_init_fn=print)) == 1
    several = _processes(DataLoader(table, 4, num_workers=2, multiprocessing_context="fork"))
    assert several == min(2, len(os.sched_getaffinity(0))) or several == 1


# Caches


@pytest.mark.parametrize("processes", [1, 2])
def test_a_table_in_a_cache_is_not_read_for_each_sample(files, in_processes_at_once, processes):
    calls, read_here = [], []

    @lru_cache
    def labels():
        calls.append(1)
        read_here.append(os.getpid())
        return list(range(600))

    found = run(Table(files, 600, lambda index: labels()[index]), processes)
    assert [skeleton[1] for skeleton in found.skeletons] == list(range(600))
    assert len(calls) < 100 and set(read_here) == {os.getpid()}


RARE = 31  # of 60 samples; the trace visits others


def test_a_picture_that_few_samples_keep_in_a_cache(files):
    """They open nothing the second time, unless it is emptied."""
    keep = lru_cache(lambda file: pil_loader(file))

    class Keeping(Table):
        def __getitem__(self, index):
            file = self.files[index % len(self.files)]
            opener = keep if index in (RARE, RARE + len(files)) else pil_loader
            return EVAL(opener(file)), index

    assert_same(run(Keeping(files)), run(Table(files, more=lambda index: index)))
    # no noise is left for the program
    assert keep.cache_info().currsize == 0
    assert np.array_equal(keep(files[RARE % len(files)]), pil_loader(files[RARE % len(files)]))


class Told(Table):
    """Of one sample a function with a cache, which is told nothing, sees the picture."""

    def __getitem__(self, index):
        self.picture = pil_loader(self.files[index % len(self.files)])
        return EVAL(self.picture), index == RARE and self.ask(index)

    @lru_cache  # noqa: B019
    def ask(self, index):
        return self.more(self)


CACHED_DEFECTS = {
    "pixels": lambda self: self.picture.getpixel((0, 0)),
    "the size": lambda self: self.picture.size,
    "the worker": lambda self: torch.utils.data.get_worker_info() is None,
    "random": lambda self: random.random(),
}


@pytest.mark.parametrize("defect", CACHED_DEFECTS)
def test_what_a_cache_hides_the_first_time_is_seen_the_second_time(files, defect):
    told = Told(files, more=CACHED_DEFECTS[defect])
    with pytest.raises(NotConvertibleError), Recorder(told, workers=2) as recorder:
        pass_over(recorder, trace(recorder, range(60), 4), range(60))


@pytest.mark.slow
def test_what_every_sample_has_from_a_cache_is_seen(files):
    """As above, of the samples of the trace as well."""
    for more in CACHED_DEFECTS.values():
        told, seen = Told(files, more=more), None
        told.__class__ = type("ToldAll", (Told,), {"__getitem__": _ask_always})
        with pytest.raises(NotConvertibleError), Recorder(told, workers=2) as recorder:
            seen = trace(recorder, range(60), 4)
            pass_over(recorder, seen, range(60))


def _ask_always(self, index):
    self.picture = pil_loader(self.files[index % len(self.files)])
    return EVAL(self.picture), self.ask(index)


@pytest.mark.slow
def test_a_file_in_a_cache_is_opened_by_each_process(files, in_processes_at_once, tmp_path):
    """Such as one of LMDB, which a forked process must not go on using."""

    @lru_cache
    def process():
        return os.getpid()

    def check(index):
        assert process() == os.getpid()
        return index

    run(Table(files, more=check), processes=2)


# Kept in a file


@dataclass
class Pair:
    image: object
    label: object


@pytest.fixture
def visits(tmp_path, monkeypatch):
    """How many samples the label pass visits, since the last call."""
    count = []
    places_of = label_pass._Visitor._places

    def counting(self, index, opened):
        count.append(index)
        return places_of(self, index, opened)

    monkeypatch.setattr(label_pass._Visitor, "_places", counting)

    def take():
        taken = len(count)
        count.clear()
        return taken

    return take


def convert(table, folder, **options):
    config = dp.TorchConfig(num_workers=0)
    loader = DataLoader(table, 8, **options)
    return dp.from_torch(loader, config, device="cpu", cache_dir=folder, check=False)


def batches(loader):
    with loader:
        return [[images.numpy().copy(), *rest] for images, *rest in loader]


@pytest.mark.slow
def test_the_next_call_takes_it_from_the_file(files, tmp_path, visits):
    fresh = [convert(Table(files, more=values), tmp_path / "cache") for _ in range(2)]
    assert visits() <= 2 * 60 + label_pass._TRIED
    ours, theirs = map(batches, fresh)
    assert first_difference(ours, theirs) is None

    # another list of samples of the same data set
    convert(
        torch.utils.data.Subset(Table(files, more=values), range(30)), tmp_path / "cache"
    ).close()
    assert visits() == 2 * 30


VALUES = {
    "numbers": lambda index: [index, index / 3, np.float32(index), np.int16(index % 9), True, None],
    "tensors": lambda index: (torch.full((2, index % 3), index), torch.tensor(index)),
    "arrays": lambda index: {"a": np.arange(index % 5), "s": np.array(["x", f"{index}"])},
    "a dataclass": lambda index: Pair(index, f"{index}"),
    "bfloat16": lambda index: torch.full((3,), index % 8, dtype=torch.bfloat16),
    "a path": lambda index: Path(f"{index}"),
    "a set": lambda index: {index},
}
NOT_KEPT = ("bfloat16", "a path")


@pytest.mark.few(3)
@pytest.mark.slow
@pytest.mark.parametrize("kind", VALUES)
def test_values_come_out_of_the_file_as_they_were(files, tmp_path, kind):
    table, seen = Table(files, 20, VALUES[kind]), []
    for _ in range(2):
        with Recorder(table) as recorder:
            traced = trace(recorder, range(20), 4)
            file = LabelFile(tmp_path, "key", traced.skeleton)
            seen.append(pass_over(recorder, traced, range(20), 1, file))
    assert_same(*seen)
    assert bool((tmp_path / "from_torch-labels-key").stat().st_size) == (kind not in NOT_KEPT)


@pytest.mark.slow
def test_a_file_of_another_time_is_not_taken(files, tmp_path, visits):
    copies = []
    for at, file in enumerate(files):
        copies.append(str(tmp_path / f"{at}{Path(file).suffix}"))
        Path(copies[-1]).write_bytes(Path(file).read_bytes())
    names = tmp_path / "names.txt"
    names.write_text("cat dog eel fox gnu hen ibex")

    def name(index):
        return names.read_text().split()[index % 7]

    cache, table = tmp_path / "cache", Table(copies, more=name)
    first = run_kept(table, cache)
    assert visits() == 120 and [each[1] for each in first.skeletons[:2]] == ["cat", "dog"]
    run_kept(table, cache)
    assert visits() <= label_pass._TRIED

    # a text that the data set reads, and an image
    names.write_text("ant bee eel fox gnu hen ibex")
    assert [each[1] for each in run_kept(table, cache).skeletons[:2]] == ["ant", "bee"]
    assert visits() >= 120
    os.utime(copies[3], ns=(1, 1))
    run_kept(table, cache)
    assert visits() >= 120
    run_kept(table, cache)
    assert visits() <= label_pass._TRIED


def run_kept(table, folder, key="key"):
    with Recorder(table) as recorder:
        seen = trace(recorder, range(len(table)), 4)
        file = LabelFile(folder, key, seen.skeleton)
        return pass_over(recorder, seen, range(len(table)), 1, file)


def test_a_text_that_a_cache_has_is_noted(files, tmp_path):
    names = tmp_path / "names.txt"
    cached = lru_cache(lambda: names.read_text())

    for text in ("cat", "ant"):
        names.write_text(text)
        # of a sample that is not tried again when the file is read
        table = Table(files, more=lambda index: cached() if index == 33 else cached() and "")
        assert run_kept(table, tmp_path / "cache").skeletons[33][1] == text
        # as in a new process
        cached.cache_clear()


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "flipped", "garbage", "another data set's", "empty"])
def test_a_damaged_file_is_valid_up_to_the_damage(files, tmp_path, monkeypatch, damage):
    monkeypatch.setattr(label_pass, "_MOST", 8)
    table = Table(files)
    wanted = run_kept(table, tmp_path)
    file = tmp_path / "from_torch-labels-key"
    content = bytearray(file.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 3]
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
    elif damage == "garbage":
        content = bytearray(np.random.default_rng(1).bytes(5000))
    elif damage == "another data set's":
        run_kept(Table(files, more=lambda index: index + 1), tmp_path, "other")
        content = bytearray((tmp_path / "from_torch-labels-other").read_bytes())
    else:
        content = bytearray()
    file.write_bytes(content)
    assert_same(run_kept(table, tmp_path), wanted)
    assert_same(run_kept(table, tmp_path), wanted)


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


def test_nothing_in_a_file_is_executed(files, tmp_path, monkeypatch):
    import pickle

    from dali_pipes.adapters.from_torch.label_file import _HEAD, _hash

    monkeypatch.chdir(tmp_path)
    encoded = pickle.dumps({"records": [Harmful()]})
    head = _HEAD.pack(len(encoded), _hash(encoded))
    (tmp_path / "from_torch-labels-key").write_bytes(head + encoded)
    run_kept(Table(files), tmp_path)
    assert not (tmp_path / "harm").exists()


def test_parts_of_files_are_kept_as_well(tmp_path):
    database, example = tmp_path / "data.mdb", (slot(0), 3)
    database.write_bytes(b"1")
    records = [((Extent(str(database), "byte 5", 5, 9, (1, 2)),), example)]
    with LabelFile(tmp_path, "key", example) as file:
        file.add(records, [])
    with LabelFile(tmp_path, "key", example) as file:
        assert file.read(4) == (records, 0)

    database.write_bytes(b"12")
    with LabelFile(tmp_path, "key", example) as file:
        assert file.read(4) == ([], 0)


def test_a_folder_that_cannot_be_written_is_done_without(files, tmp_path):
    (tmp_path / "file").write_text("")
    assert_same(run_kept(Table(files), tmp_path / "file"), run(Table(files)))


# Stopped


@pytest.mark.slow
def test_a_pass_that_was_stopped_goes_on(files, tmp_path, visits, monkeypatch):
    monkeypatch.setattr(label_pass, "_MOST", 8)
    table, left, visit = Table(files), [0], label_pass._Visitor.run
    wanted = run(table)
    visits()

    def stopping(self, index, which):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return visit(self, index, which)

    monkeypatch.setattr(label_pass._Visitor, "run", stopping)
    state, code = random.getstate(), Image.open.__code__
    # in the first visits, and then in the second ones, which are in the opposite order
    for count in (50, label_pass._TRIED + 12 + 30):
        left[0] = count
        with pytest.raises(KeyboardInterrupt):
            run_kept(table, tmp_path / "cache")
        assert random.getstate() == state and Image.open.__code__ is code
    visits()
    left[0] = 1000
    assert_same(run_kept(table, tmp_path / "cache"), wanted)
    # of at most 8 samples in the chunk that was stopped nothing is known
    assert 0 <= visits() - (label_pass._TRIED + 30) < 8


PROGRAM = """
    import os, random, signal, sys, time
    from pathlib import Path
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms
    import dali_pipes as dp
    from dali_pipes.adapters.from_torch import label_pass

    files, cache, log, workers, again = sys.argv[1].split("|"), *sys.argv[2:]
    LOG = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    EVAL = transforms.Compose(
        [transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()]
    )

    class Slow(Dataset):
        def __init__(self):
            self.files = files

        def __len__(self):
            return 150

        def __getitem__(self, index):
            time.sleep(0.02)
            # by its number, since a data set that opens files to write is refused
            os.write(LOG, f"{index}\\n".encode())
            with Image.open(self.files[index % len(self.files)]) as image:
                return EVAL(image.convert("RGB")), index

    loader = DataLoader(Slow(), 8, num_workers=int(workers))
    options = {"device": "cpu", "cache_dir": cache, "check": False}
    # in several processes from the first chunk on, if there may be any
    label_pass._ALONE_S = label_pass._HELP_S = -1.0
    random.seed(3)
    before = random.getstate(), torch.get_rng_state(), torch.get_num_threads(), Image.open.__code__
    try:
        converted = dp.from_torch(loader, dp.TorchConfig(num_workers=0), **options)
    except KeyboardInterrupt:
        code = Image.open.__code__
        after = random.getstate(), torch.get_rng_state(), torch.get_num_threads(), code
        assert before[0] == after[0] and torch.equal(before[1], after[1])
        assert before[2:] == after[2:]
        with Image.open(files[0]) as image:
            assert image.size != (14, 11)
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        assert not children, children
        if again == "no":
            print("stopped")
            sys.exit(0)
        converted = dp.from_torch(loader, dp.TorchConfig(num_workers=0), **options)
    labels = [label for _, labels in converted for label in labels.tolist()]
    converted.close()
    print("labels", labels == list(range(150)))
"""


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(("workers", "again"), [(0, "no"), (2, "no"), (2, "yes")])
def test_ctrl_c_leaves_all_clean_and_the_next_call_goes_on(files, tmp_path, workers, again):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    log, cache = tmp_path / "log", tmp_path / "cache"
    command = [sys.executable, program, "|".join(files), cache, log, str(workers), again]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

    # the file is there with the first chunks of the pass
    running = subprocess.Popen(command, **pipes)
    until = time.monotonic() + 120
    while not kept_bytes(cache) or len(log.read_text().split()) < 180:
        assert time.monotonic() < until and running.poll() is None, running.communicate()
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 0, err

    if again == "no":
        assert "stopped" in out and kept_bytes(cache)
        visited = len(log.read_text().split())
        out = subprocess.run(command, **pipes, check=True, timeout=120).stdout
        # less than the whole pass, though the trace and some visits are made again, among them one
        # for each of up to 128 labels
        assert len(log.read_text().split()) - visited < 300 + 128
    assert "labels True" in out


def kept_bytes(cache):
    return sum(file.stat().st_size for file in cache.glob("from_torch-labels-*"))
