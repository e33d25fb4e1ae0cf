"""What happens when a shard goes bad after the scan: the sample is named, and no other is lost.
Promises 3 and 4 out of shards.
"""

import gc
import itertools
import multiprocessing
import os
import time

import psutil
import pytest
import torch
from make_shards import tar_shards
from PIL import Image

import dali_pipes as dp
from dali_pipes.backends.read_ahead import ReadAhead
from dali_pipes.data.reader import Reader

CONFIGS = {
    "dali": dp.DaliConfig(device="cpu", num_threads=2, read_threads=3),
    "torch": dp.TorchConfig(num_workers=2),
    "torch_no_workers": dp.TorchConfig(num_workers=0, decoder="torchvision"),
}
every_backend = pytest.mark.parametrize("name", CONFIGS)


@pytest.fixture
def scanned(manifest, tmp_path):
    return dp.Manifest.open(
        tar_shards(manifest, tmp_path / "shards"), cache_dir=tmp_path / "cache", progress=False
    )


def build(manifest, name, batch_size=8, **options):
    options = {"transform": dp.TrainTransform(size=32), "last_batch": "partial", **options}
    return dp.build_loader(manifest, CONFIGS[name], batch_size=batch_size, **options)


def overwrite(manifest, sample, content):
    """In place and without a trace: the file keeps its size and its time."""
    extent = manifest.extent(sample)
    with open(extent.file, "r+b") as file:
        file.seek(extent.offset)
        file.write(content[: extent.length].ljust(extent.length, b"\0"))
    os.utime(extent.file, ns=(0, extent.stamp[1]))


def of_another_size(manifest, sample):
    image = Image.new("RGB", (9, 7))
    image.save(manifest.root / "small.jpg")
    content = (manifest.root / "small.jpg").read_bytes()
    overwrite(manifest, sample, content)


ONE_SAMPLE = {
    "zeros": lambda manifest, sample: overwrite(manifest, sample, b""),
    "garbage": lambda manifest, sample: overwrite(manifest, sample, os.urandom(100_000)),
    "cut in half": lambda manifest, sample: overwrite(
        manifest, sample, manifest.read(sample).tobytes()[:400]
    ),
    "another size": of_another_size,
}
WHOLE_SHARD = {
    "deleted": lambda path: path.unlink(),
    "cut off": lambda path: os.truncate(path, 1024),
    "replaced": lambda path: path.write_bytes(path.read_bytes()),
    "a folder in its place": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.few(4)
@every_backend
@pytest.mark.parametrize("fault", ONE_SAMPLE)
def test_raise_names_shard_and_member(scanned, name, fault):
    ONE_SAMPLE[fault](scanned, 20)
    with build(scanned, name, shuffle=False) as loader, pytest.raises(dp.BadSampleError) as caught:
        for number, batch in enumerate(loader):
            assert batch.ids.tolist() == list(range(8 * number, 8 * number + 8))
    assert number == 1
    assert [(sample, message) for sample, message, _ in caught.value.bad_samples] == [
        (20, scanned.name(20))
    ]
    assert f"shard-000001.tar/000000020.jpg: {caught.value.bad_samples[0][2]}" in str(caught.value)


@pytest.mark.few(6)
@pytest.mark.slow
@every_backend
@pytest.mark.parametrize("fault", WHOLE_SHARD)
def test_a_lost_shard_costs_its_own_samples_only(scanned, name, fault):
    """Two epochs with substitution: every sample of the other shards comes exactly as planned."""
    WHOLE_SHARD[fault](scanned.path(0))
    lost = set(range(11))
    with build(scanned, name, on_bad_sample="substitute", max_bad_fraction=0.5) as loader:
        for epoch in range(2):
            delivered = [batch.ids.tolist() for batch in loader]
            for step, ids in enumerate(delivered):
                planned = loader.plan.batch(epoch, step).ids.tolist()
                assert len(ids) == len(planned)
                assert all(
                    one == two or (one in lost and two not in lost)
                    for one, two in zip(planned, ids, strict=True)
                )
            assert {sample for ids in delivered for sample in ids} == set(range(37)) - lost
    assert sorted(sample for sample, _, _ in loader.bad_samples) == sorted(lost)
    why = {"deleted": "no such file or directory"}.get(
        fault, "the shard has changed since it was scanned; scan again"
    )
    assert {reason for _, _, reason in loader.bad_samples} == {why}


@pytest.mark.few(3)
@pytest.mark.slow
@every_backend
def test_a_shard_that_is_cut_off_while_it_is_read(scanned, name):
    """Readers have it open already."""
    with build(scanned, name, on_bad_sample="substitute", max_bad_fraction=1) as loader:
        batches = iter(loader)
        delivered = next(batches).ids.tolist()
        os.truncate(scanned.path(11), 1024)
        delivered += [sample for batch in batches for sample in batch.ids.tolist()]
        delivered += [sample for batch in loader for sample in batch.ids.tolist()]
    lost = {sample for sample, _, _ in loader.bad_samples}
    assert len(delivered) == 2 * 37 and lost == set(range(11, 22))
    assert all(delivered.count(sample) >= 2 for sample in set(range(37)) - lost)


@pytest.mark.few
@every_backend
def test_a_resumed_stream_is_the_uninterrupted_one(scanned, name):
    def form(batch):
        return batch.ids.tolist(), batch.images

    with build(scanned, name) as loader:
        whole = [form(batch) for _ in range(2) for batch in loader]
    with build(scanned, name) as loader:
        batches = iter(loader)
        start = [form(next(batches)) for _ in range(3)]
        state = loader.state_dict()
    with build(scanned, name) as loader:
        loader.load_state_dict(state)
        resumed = start + [form(batch) for _ in range(2) for batch in loader]
    assert len(whole) == len(resumed) == 10
    assert all(
        one[0] == two[0] and torch.equal(one[1], two[1])
        for one, two in zip(whole, resumed, strict=True)
    )


def test_an_error_that_passes_blames_no_image_and_ends_no_run(scanned, monkeypatch, caplog):
    """The images are good when they are looked at again: the batch is tried once more, and the
    error is said.
    """
    read, failed = Reader.read, []

    def read_once(self, extent):
        if extent.member == "000000009.jpg" and not failed:
            failed.append(extent)
            raise OSError(5, "Input/output error")
        return read(self, extent)

    monkeypatch.setattr(Reader, "read", read_once)
    with build(scanned, "dali", shuffle=False) as loader:
        assert [sample for batch in loader for sample in batch.ids.tolist()] == list(range(37))
        assert loader.bad_samples == [] and loader.stats().retries == 1
    assert "the batch failed (" in caplog.text and f"{failed[0]}: input/output error" in caplog.text


def test_a_bounded_number_of_batches_is_read_ahead(scanned):
    plan, taken = dp.Plan(scanned, dp.TrainTransform(size=32), 4, last_batch="partial"), []
    ahead = ReadAhead(2, 3)
    batches = ahead(rows for rows in plan.iter_from() if taken.append(rows) is None)
    for number in range(5):
        rows, encoded = next(batches)
        assert len(taken) == number + 4
        assert [each.tobytes() for each in encoded] == [
            scanned.read(sample).tobytes() for sample in rows.ids
        ]
    ahead.close()


def test_an_error_names_the_images_of_its_own_stream_alone(scanned, monkeypatch):
    """A backend may keep one ReadAhead for several streams."""

    def fails(self, extent):
        raise OSError(5, "Input/output error")

    def broken(batches):
        yield from batches
        raise ValueError("cannot be decoded")

    ahead = ReadAhead(2, 3)
    plan = dp.Plan(scanned, dp.TrainTransform(size=32), 4, last_batch="partial")
    notes = []
    for batches in (1, 2):
        with monkeypatch.context() as patched, pytest.raises(ValueError, match="cannot") as caught:
            if batches == 1:
                patched.setattr(Reader, "read", fails)
            planned = itertools.islice(plan.iter_from(), batches)
            list(ahead.note_failures(broken(ahead(planned))))
        notes.append(getattr(caught.value, "__notes__", []))
    ahead.close()
    assert len(notes[0]) == 4 and all("input/output error" in each for each in notes[0])
    assert notes[1] == []


@pytest.mark.slow
@every_backend
def test_nothing_is_left_open(scanned, name):
    def use():
        with build(scanned, name) as loader:
            for _ in range(3):
                next(iter(loader))
        gc.collect()

    def open_now():
        me = psutil.Process()
        return me.num_fds(), me.num_threads(), len(me.children(recursive=True))

    use()  # what libraries open once and keep
    before = open_now()
    use()
    # threads of Python's queues end a moment after their processes
    deadline = time.monotonic() + 60
    while any(now > then for now, then in zip(open_now(), before, strict=True)):
        assert time.monotonic() < deadline, (open_now(), before)
        time.sleep(0.05)


def test_workers_forked_while_threads_read_for_dali(scanned):
    with build(scanned, "dali") as loader:
        batches = iter(loader)
        first = next(batches).ids.tolist()
        with build(scanned, "torch") as other:
            expected = [batch.ids.tolist() for batch in other]
        child = multiprocessing.get_context("fork").Process(target=gc.collect)
        child.start()
        child.join(60)
        hangs = child.is_alive()
        child.kill()
        assert not hangs and child.exitcode == 0
        assert [first, *(batch.ids.tolist() for batch in batches)] == expected
