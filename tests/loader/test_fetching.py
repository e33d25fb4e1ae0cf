"""Shards that do not all fit into the local cache: fetched window by window, about once, and never
more of them than fit.
"""

import collections
import gc
import io
import multiprocessing
import os
import re
import signal
import tarfile
import time

import fsspec.implementations.local
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from disk import Disk, size_of
from hypothesis import given
from hypothesis import strategies as st
from make_shards import add, tar_shards
from PIL import Image

import dali_pipes as dp
from dali_pipes import ConfigError, Manifest
from dali_pipes.data.reader import Reader
from dali_pipes.data.shards import copies
from dali_pipes.loader.fetching import Fetcher, check_room
from dali_pipes.plan.plan import Plan

LOCAL = fsspec.implementations.local.LocalFileSystem
TRANSFORM = dp.TrainTransform(size=16)
SHARDS, EACH = 40, 20


@pytest.fixture(scope="module")
def store(manifest, tmp_path_factory):
    """40 shards of 20 images, whose size is about the same."""
    return tar_shards(
        manifest.subset(np.arange(SHARDS * EACH) % 37), tmp_path_factory.mktemp("fetching"), EACH
    )


@pytest.fixture
def cache(tmp_path, monkeypatch, store):
    """An empty cache with room for six shards."""
    largest = max(path.stat().st_size for path in store.glob("*.tar"))
    monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DALI_PIPES_CACHE_GB", f"{6 * largest / 1e9:.9f}")
    return tmp_path / "cache"


@pytest.fixture
def far(store, cache, monkeypatch):
    """The manifest; what was fetched to scan is gone."""
    made = Manifest.open(f"file://{store}", progress=False)
    for path in cache.iterdir():
        path.unlink()
    return made


@pytest.fixture
def fetched(far, monkeypatch):
    """The shard of every request for content."""
    asked, original = [], LOCAL.cat_file

    def noted(self, path, start=None, end=None):
        asked.append(path.rsplit("/", 1)[1])
        return original(self, path, start, end)

    monkeypatch.setattr(LOCAL, "cat_file", noted)
    return asked


def build(far, config=None, batch_size=4, rank=None, sampling="windows", **options):
    config = config or dp.DaliConfig(device="cpu", num_threads=2)
    shared = {"transform": TRANSFORM, "last_batch": "partial", "sampling": sampling}
    return dp.build_loader(far, config, batch_size=batch_size, rank=rank, **shared, **options)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "config",
    [
        dp.DaliConfig(device="cpu", num_threads=2),
        pytest.param(dp.TorchConfig(num_workers=2), marks=pytest.mark.slow),
    ],
    ids=lambda each: type(each).__name__,
)
def test_every_image_comes_once_an_epoch_and_no_more_than_fits_is_here(far, cache, config):
    with Disk(cache) as disk, build(far, config) as loader:
        for _ in range(3):
            ids = [sample for batch in loader for sample in batch.ids.tolist()]
            assert set(collections.Counter(ids).values()) == {1} and len(ids) == len(far)
        assert not loader.bad_samples
    assert 0 < disk.most <= copies.cache_bytes()


@pytest.mark.few(1)
@pytest.mark.parametrize("count", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_caches_of_several_machines_fetch_the_data_about_once(
    far, cache, fetched, tmp_path, monkeypatch, count
):
    """Each rank on a machine of its own, for three epochs."""
    monkeypatch.setenv("WORLD_SIZE", str(count))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    for index in range(count):
        monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path / f"machine {index}"))
        with build(far, rank=dp.Rank(index, count), batch_size=8 // count) as loader:
            for _ in range(3):
                assert sum(len(batch.ids) for batch in loader)
    assert set(fetched) >= {f"shard-{number:06d}.tar" for number in range(SHARDS)}
    assert len(fetched) <= 1.2 * 3 * SHARDS


@pytest.mark.parametrize("epoch_size", [800, 500, 480])
def test_what_is_read_is_wanted_before_also_where_windows_reach_into_the_next_epoch(
    far, epoch_size
):
    """Batches of 32, the last of an epoch of 500 left out: some windows begin among images that
    are.
    """
    largest = int(far.shards.bytes.max())
    sampling = dp.Windows(window_gb=3 * largest / 1e9, epoch_size=epoch_size)
    planned = Plan(far, TRANSFORM, 32, sampling=sampling, last_batch="drop", rank=dp.Rank(0, 1))
    fetcher = Fetcher(planned)
    fetcher._work = lambda: None
    fetcher.start(0, 0)
    for epoch in range(6):
        for step in range(planned.steps):
            fetcher.deliver(epoch, step)
            assert {*far.shards.numbers[planned.batch(epoch, step).ids].tolist()} <= {
                *fetcher._wanted
            }, (epoch, step)


def test_a_batch_larger_than_a_window_is_warned_of(far, caplog):
    window = {"name": "windows", "window_gb": 1.1 * int(far.shards.bytes.max()) / 1e9}
    for batch_size, warnings in ((16, 0), (64, 1)):
        caplog.clear()
        build(
            far, batch_size=batch_size, sampling=dp.Windows(window_gb=window["window_gb"])
        ).close()
        assert (
            sum(
                "shards are fetched several times" in record.getMessage()
                for record in caplog.records
            )
            == warnings
        )


def test_the_next_window_is_fetched_while_this_one_is_read(far, cache):
    with build(far) as loader:
        next(iter(loader))
        lanes = loader.plan.lanes(0)
        present, following = (
            set(window.shards.tolist())
            for window, _ in zip(lanes.windows(0), range(2), strict=False)
        )
        wait_until(lambda: len(copies_in(cache)) == len(present | following))
        shards = far.shards
        here = {
            copies.copy_of(
                shards.files[each], (int(shards.bytes[each]), int(shards.times[each]))
            ).name
            for each in present | following
        }
        assert copies_in(cache) == here
        stats = loader.stats()
        assert (
            stats.window == (len(here), len(here))
            and stats.fetched == len(here)
            and stats.found >= 1
        )
        assert stats.fetched_bytes == sum(
            path.stat().st_size for path in cache.iterdir() if not path.suffix
        )


def copies_in(cache):
    return {path.name for path in cache.iterdir() if not path.suffix}


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_a_run_goes_on_bit_for_bit_on_other_ranks(far, cache):
    sampling = {"name": "windows", "lanes": 2, "window_gb": copies.cache_bytes() / 4e9}

    def batches(loaders, steps):
        iterators = [iter(each) for each in loaders]
        return [[next(each) for each in iterators] for _ in range(steps)]

    def joined(batch):
        return torch.cat([each.ids for each in batch]), torch.cat([each.images for each in batch])

    with build(far, batch_size=20, sampling=sampling) as one:
        expected = [joined(batch) for batch in batches([one], 9)]
    for before, after in ((1, 2), (2, 1)):
        first = [
            build(far, rank=dp.Rank(index, before), batch_size=20 // before, sampling=sampling)
            for index in range(before)
        ]
        found = [joined(batch) for batch in batches(first, 4)]
        state = first[-1].state_dict()
        second = [
            build(far, rank=dp.Rank(index, after), batch_size=20 // after, sampling=sampling)
            for index in range(after)
        ]
        for each in second:
            each.load_state_dict(state)
        found += [joined(batch) for batch in batches(second, 5)]
        for each in [*first, *second]:
            each.close()
        assert all(
            torch.equal(a, c) and torch.equal(b, d)
            for (a, b), (c, d) in zip(found, expected, strict=True)
        )
    with pytest.raises(
        ConfigError,
        match=r"lanes=2 cannot be shared by 3 ranks; 1, 2 ranks would do, or a multiple of 2",
    ):
        build(far, rank=dp.Rank(0, 3), batch_size=20, sampling=sampling)


def test_a_cache_that_is_too_small_is_refused_before_the_first_batch(far, cache, monkeypatch):
    with pytest.raises(
        ConfigError,
        match=r"set DALI_PIPES_CACHE_GB to .* at least, .* or load them with sampling=dp.Windows",
    ):
        build(far, sampling=None)
    with pytest.raises(
        ConfigError,
        match=(
            r"Windows.window_gb: .* 1 lanes with two windows of .* set DALI_PIPES_CACHE_GB to .*, "
            "or lower window_gb"
        ),
    ):
        build(far, sampling={"name": "windows", "window_gb": 0.7 * copies.cache_bytes() / 1e9})
    monkeypatch.setenv("DALI_PIPES_CACHE_GB", "much")
    with pytest.raises(ConfigError, match="DALI_PIPES_CACHE_GB=much is not a number above 0"):
        build(far)


def test_lanes_and_windows_follow_the_machines(monkeypatch):
    monkeypatch.setenv("DALI_PIPES_CACHE_GB", "80")
    assert (dp.Windows().lanes, dp.Windows().window_gb) == (None, None)
    alone = dp.Windows().on_machine()
    assert (alone.lanes, alone.window_gb) == (1, 40)
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    two, many = dp.Windows().on_machine(), dp.Windows(lanes=8).on_machine()
    assert (two.lanes, two.window_gb, many.window_gb) == (2, 40, 10)
    assert two.explain() == "lanes=2, each with windows of 40 GB of shards"

    schedule = dp.Schedule(schedule={0: "windows", 3: "uniform"}).on_machine()
    assert schedule.schedule == {0: two, 3: dp.Uniform()}
    assert schedule.explain() == f"from epoch 0 on {two.explain()}"


def test_an_interrupt_before_the_threads_start_leaves_fetching_to_the_next_call(far, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    window = dp.Windows(window_gb=2 * int(far.shards.bytes.max()) / 1e9)
    fetcher = Fetcher(Plan(far, TRANSFORM, 8, sampling=window, rank=dp.Rank(0, 1)))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("dali_pipes.loader.fetching.delayed_signals", interrupted)
        fetcher.start(0, 0)
    fetcher.start(0, 0)
    wait_until(lambda: fetcher.progress[0])
    fetcher.close()


@pytest.mark.slow
def test_files_that_were_not_fetched_stay(far, cache):
    cache.mkdir(exist_ok=True)
    mine = [cache / name for name in ("notes.txt", "folder", "f" * 31, "f" * 40)]
    for path in mine:
        path.mkdir() if path.name == "folder" else path.write_bytes(bytes(10**7))
    with build(far) as loader:
        assert sum(len(batch.ids) for batch in loader) == len(far)
    assert all(path.exists() for path in mine)


@pytest.mark.slow
def test_a_killed_rank_leaves_no_lock_and_no_half_shard(far, cache, monkeypatch):
    """It dies while it fetches and holds shards; another reads on within the same limit."""

    original, asked = LOCAL.cat_file, []

    def answer(self, path, start=None, end=None):
        asked.append(path)
        if len(asked) > 3:
            time.sleep(60)
        return original(self, path, start, end)

    def dies():
        fetcher = Fetcher(planned)
        fetcher.start(0, 0)
        wait_until(lambda: fetcher.progress[0] and len(asked) > 3)
        os.kill(os.getpid(), signal.SIGKILL)

    with build(far) as loader, monkeypatch.context() as patched:
        planned = loader.plan
        patched.setattr(LOCAL, "cat_file", answer)
        child = multiprocessing.get_context("fork").Process(target=dies)
        child.start()
        child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert list(cache.glob("*.part"))
    with Disk(cache) as disk, build(far) as loader:
        assert sum(len(batch.ids) for batch in loader) == len(far) and not loader.bad_samples
    assert disk.most <= copies.cache_bytes() and not list(cache.glob("*.part"))


def test_readers_do_not_wait_for_ever_for_what_others_hold(far, cache, monkeypatch):
    """A program that holds all of the cache; its copies are taken after a while, and it fetches
    them again if it needs them.
    """
    monkeypatch.setattr(copies, "_PATIENCE_S", 0.2)
    shards = far.shards
    held = []
    for each in range(5):
        held.append(
            copies.hold_copy(shards.files[each], (int(shards.bytes[each]), int(shards.times[each])))
        )
    with pytest.raises(copies.NoRoomError):
        for each in range(5, 9):
            held.append(
                copies.hold_copy(
                    shards.files[each], (int(shards.bytes[each]), int(shards.times[each]))
                )
            )
    assert [len(far.read(sample)) for sample in range(160, 240)] == far.bytes_each[160:240].tolist()
    assert size_of(cache) <= copies.cache_bytes() and any(map(copies.is_gone, held))
    for number in held:
        copies.release(number)


def test_a_reader_whose_copy_was_removed_opens_it_anew(far, cache):
    reader = Reader()
    first = reader.read(far.extent(0)).tobytes()
    for sample in range(EACH, len(far), EACH):
        reader.read(far.extent(sample))
    assert not copies.copy_of(far.extent(0).file, far.extent(0).stamp).exists()
    assert reader.read(far.extent(0)).tobytes() == first
    used = sum(
        os.fstat(file.number).st_blocks
        for file in [
            reader._opened(far.extent(at).file, far.extent(at).stamp) for at in (0, len(far) - 1)
        ]
    )
    assert used * 512 <= copies.cache_bytes()
    reader.close()


@pytest.mark.slow
def test_evaluation_in_order_needs_a_few_shards_at_a_time(far, cache):
    options = {"transform": dp.EvalTransform(size=16, resize=16), "batch_size": 10, "device": "cpu"}
    with (
        Disk(cache) as disk,
        dp.build_loader(far, dp.DaliConfig(device="cpu"), **options) as loader,
    ):
        assert [sample for batch in loader for sample in batch.ids.tolist()] == list(
            range(len(far))
        )
    assert disk.most <= copies.cache_bytes()


def test_a_loader_that_is_dropped_holds_nothing_and_stops_no_exit(far, cache):
    loader = build(far, dp.TorchConfig(num_workers=0))
    next(iter(loader))
    fetcher = loader._work.fetcher
    threads = fetcher._threads
    assert threads and all(thread.daemon for thread in threads)
    wait_until(lambda: fetcher.progress[0] == fetcher.progress[1])
    del loader
    gc.collect()
    assert fetcher.progress == (0, 0)
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.slow
def test_a_scan_beside_a_loader_that_holds_the_whole_cache_ends(far, cache, store):
    with build(far) as loader:
        next(iter(loader))
        wait_until(lambda: loader._work.fetcher.progress[0] == loader._work.fetcher.progress[1])
        assert len(Manifest.scan(f"file://{store}", workers=1, progress=False)) == len(far)


@given(gb=st.floats(1e-5, 1e4), lanes=st.integers(1, 9))
def test_two_default_windows_a_lane_never_need_more_than_the_cache(gb, lanes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DALI_PIPES_CACHE_GB", repr(gb))
        assert (
            2 * lanes * round(dp.Windows(lanes=lanes).on_machine().window_gb * 1e9)
            <= copies.cache_bytes()
        )


@pytest.mark.parametrize("room", ["0", "-1", "nan", "inf", "much"])
def test_a_room_that_is_none_is_refused_by_name(monkeypatch, room):
    monkeypatch.setenv("DALI_PIPES_CACHE_GB", room)
    with pytest.raises(ConfigError, match=f"DALI_PIPES_CACHE_GB={room} is not a number above 0"):
        dp.Windows().on_machine()


def test_a_cache_that_cannot_be_written_is_named_before_the_first_batch(far, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path / "file/cache"))
    with pytest.raises(
        ConfigError,
        match=(
            r"DALI_PIPES_CACHE=.*file/cache: not a directory; name a folder of yours on a "
            r"local disk"
        ),
    ):
        build(far)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_sets_that_were_joined_need_room_for_what_is_copied_of_each(tmp_path, monkeypatch, order):
    """Row groups of Parquet files are copied, and tars on this machine are not."""
    file = io.BytesIO()
    Image.new("RGB", (20, 10)).save(file, "JPEG")
    image = file.getvalue()
    pq.write_table(
        pa.table({"image": [{"bytes": image, "path": None}], "label": [0]}), tmp_path / "a.parquet"
    )
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        add(archive, "0.jpg", image)
        add(archive, "0.cls", b"0")
    sets = [Manifest.open(tmp_path / name, progress=False) for name in ("a.parquet", "b.tar")]
    joined = Manifest.concat([sets[place] for place in order])
    assert joined.copied and not sets[1].copied

    monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DALI_PIPES_CACHE_GB", "1e-9")
    with pytest.raises(ConfigError, match=re.escape(f" to {len(image) / 1e9:.10g} at least")):
        check_room(Plan(joined, TRANSFORM, 1))
