"""Samples that are made twice, the second time truly in a copy of the process."""

import itertools
import multiprocessing
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from lazy_programs import CPU, Pictures, assert_equal, batches_of, heard_of, loader_of
from PIL import Image

from dali_pipes.adapters.lazy import compared
from dali_pipes.adapters.lazy.compared import NotTheSame, Unknown, compare, difference, prints
from dali_pipes.adapters.lazy.loader import LazyLoader
from dali_pipes.adapters.lazy.tensors import lazy_of

Pair = namedtuple("Pair", "one two")


@dataclass
class Sample:
    image: torch.Tensor
    name: str


class Plain:
    def __init__(self, value):
        self.value = value


PARTS = [
    1,
    1.0,
    True,
    "1",
    None,
    torch.zeros(3),
    torch.zeros(3, dtype=torch.float64),
    torch.zeros(3, 1),
    torch.tensor([0.0, 0.0, 1.0]),
    torch.zeros(3, requires_grad=True),
    torch.tensor(1.0),
    torch.zeros(0),
    np.zeros(3),
    np.zeros((3, 1)),
    np.array(["a", None], object),
    Image.new("RGB", (4, 3)),
    Image.new("RGB", (3, 4)),
    Image.new("RGB", (4, 3), "red"),
    [1, 2],
    (1, 2),
    [1, 2, 3],
    {"a": 1},
    {"b": 1},
    {"a": 2},
    Pair(1, 2),
    Pair(1, 3),
    Sample(torch.zeros(2), "a"),
    Sample(torch.ones(2), "a"),
    Plain([1]),
    Plain([2]),
]


def test_whatever_differs_is_seen():
    seen = [list(prints(part)) for part in PARTS]
    for one, first in enumerate(seen):
        assert difference(first, list(prints(PARTS[one]))) is None
        for other, second in enumerate(seen):
            assert (difference(first, second) is None) == (one == other)


def test_a_difference_is_named():
    one, other = (list(prints({"image": [torch.zeros(2), each]})) for each in (1, 2))
    assert difference(one, other) == "['image'][1] has other values"
    other = list(prints({"image": [torch.zeros(3), 1]}))
    assert "['image'][0] is Tensor of ('torch.float32', (3,), False) instead of" in difference(
        one, other
    )


# Copies of the process


def in_turn(*values):
    """A function that makes one value after the other, also in copies of the process."""
    calls = torch.zeros(1, dtype=torch.int64).share_memory_()

    def make():
        made = values[int(calls)]
        calls.add_(1)
        if isinstance(made, Exception):
            raise made
        return made

    return make


def test_a_copy_changes_nothing_here(tmp_path):
    values, file = [], tmp_path / "file"
    file.write_bytes(bytes(range(100)))
    with file.open("rb", buffering=0) as opened:
        opened.seek(10)

        def make():
            values.append(1)
            print("a copy says something", flush=True)
            return opened.read(5)

        assert compare(make) == ""
        assert values == []
        assert opened.read(5) == bytes(range(10, 15))


def test_what_is_random_by_itself_is_compared_by_types():
    first, second, third = (np.full(3, value) for value in (1, 2, 3))
    assert "of which this loader does not know" in compare(in_turn(first, second, third))


@pytest.mark.parametrize("again", [np.zeros(3), np.ones(3)])
def test_what_is_random_by_itself_may_differ_as_well(again):
    with pytest.raises(NotTheSame, match=r"\(4,\)\) instead of"):
        compare(in_turn(np.zeros(3), np.zeros(4), again))


def test_an_error_is_a_difference():
    error = KeyError("truly")
    with pytest.raises(NotTheSame, match="without waiting it is KeyError"):
        compare(in_turn(error, 1, error))


def test_an_error_of_what_waits_comes_here_as_well():
    assert compare(in_turn(1, KeyError("waiting"))) == ""


def test_a_copy_that_hangs_or_crashes_says_nothing():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        # its thread is not there in a copy
        with pytest.raises(Unknown, match="did not end"):
            compare(lambda: pool.submit(int).result(), limit=0.5)
    with pytest.raises(Unknown, match="crashed"):
        compare(lambda: os.kill(os.getpid(), 9))


def test_a_copy_writes_no_files(tmp_path):
    """Those that are there already; temporary ones it may."""
    file = tmp_path / "file"
    file.write_text("before")

    def temporary():
        with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile() as single:
            single.write(b"1")
            Path(folder, "inside").write_text("2")
            return Path(folder, "inside").read_text()

    assert compare(temporary) == ""
    ways = [
        lambda: file.write_text("after"),
        lambda: file.open("a").write("after"),
        lambda: os.open(file, os.O_RDWR | os.O_CREAT),
        lambda: (tmp_path / "new").touch(),
        file.unlink,
        lambda: file.rename(tmp_path / "new"),
        lambda: os.truncate(file, 0),
    ]
    for way in ways:
        with pytest.raises(Unknown, match="writes files, which a copy must not"):
            compare(way)
    with pytest.raises(Unknown, match="starts another one"):
        compare(lambda: subprocess.run(["touch", tmp_path / "new"], check=True))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "before"


# In a loader


class Differs(Pictures):
    """Makes another sample if its tensor waits, without an error."""

    first = 0

    def __getitem__(self, at):
        tensor, *rest = super().__getitem__(at)
        if at >= self.first and lazy_of(tensor) is not None:
            tensor = torch.zeros(3, 16, 16)
        return tensor, *rest


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_differs_while_it_waits_is_found(files, workers):
    def own():
        return loader_of(Differs(files), shuffle=True, num_workers=workers)

    expected = batches_of(own())
    with LazyLoader(own()) as loader:
        found, heard = heard_of(loader)
    assert_equal(found, expected)
    assert len(heard) == 1
    assert "NotTheSame: [0] has other values" in heard[0]
    assert heard[0].endswith("nothing waits")


def test_the_tenth_sample_is_compared_as_well(files):
    data = Differs(files)
    data.first = 9  # of which none is in the first batch
    with LazyLoader(loader_of(data, batch_size=5)) as loader:
        found, heard = heard_of(loader)
    assert "NotTheSame" in heard[0]
    expected = batches_of(loader_of(data, batch_size=5))
    assert_equal(found, expected)


class Threads(Pictures):
    """Makes its samples in threads that it keeps."""

    pool = None

    def __getitem__(self, at):
        self.pool = self.pool or ThreadPoolExecutor(1)
        return super().__getitem__(at)[1], self.pool.submit(super().__getitem__, at).result()[0]


def test_threads_of_a_worker_are_coped_with(files, monkeypatch):
    monkeypatch.setattr(compared, "SECONDS", 1.0)
    start = time.monotonic()
    with LazyLoader(loader_of(Threads(files), num_workers=1)) as loader:
        found, heard = heard_of(loader)
    assert len(found) == 5
    # in the first sample they are not there yet, in the tenth they are
    assert "not compared with true ones here: a copy of the process did not end" in heard[0]
    assert time.monotonic() - start < 60
    assert threading.active_count() < 20


class Connects(Pictures):
    """Keeps a connection to a server that answers each byte by the number of bytes so far.

    Args:
        uses: whether samples need it.
    """

    def __init__(self, files, uses):
        super().__init__(files)
        self.uses, self.server = uses, socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.serve, daemon=True).start()
        self.connection = socket.create_connection(self.server.getsockname())

    def serve(self):
        connection, _ = self.server.accept()
        with connection:
            for count in itertools.count(1):
                if not connection.recv(1):
                    return
                connection.send(bytes([count]))

    def __getitem__(self, at):
        sample = super().__getitem__(at)
        if not self.uses:
            return sample
        self.connection.send(b"?")
        return sample, self.connection.recv(1)[0]

    def close(self):
        self.connection.close()
        self.server.close()


@pytest.mark.parametrize("uses", [False, True])
def test_connections_are_not_shared_with_a_copy(files, uses):
    dataset = Connects(files, uses)
    with LazyLoader(loader_of(dataset, batch_size=None)) as loader:
        found, heard = heard_of(loader)
    dataset.close()
    assert ["network connections" in each for each in heard] == [True] * uses
    if uses:
        assert [sample[-1] for sample, *_ in found] == list(range(1, len(found) + 1))


class Counts(Pictures):
    """Counts its samples for all processes."""

    def __init__(self, files):
        super().__init__(files)
        self.count = multiprocessing.get_context("fork").Value("i")

    def __getitem__(self, at):
        self.count.value += 1
        return super().__getitem__(at)[0], self.count.value


class Writes(Pictures):
    """Counts its samples in a file."""

    count = None

    def __getitem__(self, at):
        with self.count.open("a") as file:
            file.write("1")
        return super().__getitem__(at)[0], self.count.stat().st_size


@pytest.mark.parametrize("kind", [Counts, Writes])
def test_what_is_outside_of_the_process_stays(files, tmp_path, kind):
    def own(name):
        data = kind(files)
        if kind is Writes:
            data.count = tmp_path / name
        return loader_of(data, num_workers=1)

    expected = batches_of(own("old"))
    with LazyLoader(own("new")) as loader:
        found, heard = heard_of(loader)
        assert loader.waited == 20
    assert_equal(found, expected)
    told = {Counts: "other processes use dataset.count as well", Writes: "the program writes files"}
    assert len(heard) == 1
    assert told[kind] in heard[0]


class Fresh(Pictures):
    """Makes a generator for each sample, from numbers of the system."""

    def __getitem__(self, at):
        return super().__getitem__(at)[0] * np.random.default_rng().random(), at


def test_a_program_that_is_random_by_itself_goes_on_waiting(files):
    with LazyLoader(loader_of(Fresh(files), num_workers=1)) as loader:
        _, heard = heard_of(loader)
        assert loader.waited == 20
    assert "of which this loader does not know" in heard[0]


def test_nothing_is_compared_where_there_is_no_fork(files, monkeypatch):
    monkeypatch.delattr(os, "fork")
    with LazyLoader(loader_of(Pictures(files))) as loader:
        found, heard = heard_of(loader)
        assert loader.waited == 20
    assert len(found) == 5
    assert "not compared" in heard[0]


def test_it_says_what_was_compared(files):
    with LazyLoader(loader_of(Pictures(files), num_workers=1), CPU) as loader:
        _, heard = heard_of(loader)
        text = loader.explain()
    assert not heard
    assert "2 times samples were made in two copies" in text  # the first ones, and the tenth
    assert "pictures of backends were compared with the program's" in text
    with LazyLoader(loader_of(Pictures(files), num_workers=1), check=False) as loader:
        list(loader)
        assert "compared" not in loader.explain()


# Pixels of a backend


def test_a_backend_that_makes_other_pixels_is_left_out(files, monkeypatch):
    from dali_pipes.adapters.lazy.compiler import lines

    finish = lines.finish

    def wrong(images, *args):
        return finish(images, *args).roll(2, -1)

    monkeypatch.setattr(lines, "finish", wrong)
    own = loader_of(Pictures(files))
    expected = batches_of(own)
    with LazyLoader(own, CPU, check=True) as loader:
        found, heard = heard_of(loader)
        text = loader.explain()
    assert "away from the program's own" in heard[0]
    assert "such pictures are made as noted" in text
    assert_equal(found, expected)
