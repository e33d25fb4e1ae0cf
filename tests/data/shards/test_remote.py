"""Shards behind a URL: fetched whole or not at all, by one process at a time, into a folder of
bounded size.
"""

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import fsspec.implementations.local
import pytest
import torch

import dali_pipes as dp
from dali_pipes import ConfigError, Manifest, ManifestError
from dali_pipes.data.reader import Reader
from dali_pipes.data.shards import copies as local
from dali_pipes.data.shards import listing, remote, store_requests, traffic

LOCAL = fsspec.implementations.local.LocalFileSystem


@pytest.fixture
def fetched(monkeypatch):
    """The (path, first byte) of every request for content."""
    asked, original = [], LOCAL.cat_file
    monkeypatch.setattr(
        LOCAL,
        "cat_file",
        lambda self, path, start=None, end=None: (
            asked.append((path, start)) or original(self, path, start, end)
        ),
    )
    return asked


def scan(store, **options):
    return Manifest.open(f"file://{store}", progress=False, **options)


def copies(cache):
    return {path.name for path in cache.iterdir() if not path.suffix}


def stamp_of(url):
    folder, name = url.rsplit("/", 1)
    return listing.list_objects(folder)[name]


def read(url, stamp):
    number = local.open_copy(url, stamp)
    try:
        return os.pread(number, 10**7, 0)
    finally:
        os.close(number)


@pytest.mark.few
@pytest.mark.parametrize(
    "config",
    [dp.DaliConfig(device="cpu"), dp.TorchConfig(num_workers=2)],
    ids=str,
)
def test_the_same_samples_and_pixels_as_from_the_folder(manifest, store, cache, config):
    far = scan(store)
    assert (
        far.classes == manifest.classes
        and far.name(12) == f"file://{store}/shard-000001.tar/000000012.jpg"
    )
    options = {"transform": dp.TrainTransform(size=48), "batch_size": 8, "last_batch": "partial"}
    with (
        dp.build_loader(manifest, config, **options) as one,
        dp.build_loader(far, config, **options) as two,
    ):
        for a, b in zip([*one, *one], [*two, *two], strict=True):
            assert (
                torch.equal(a.ids, b.ids)
                and torch.equal(a.labels, b.labels)
                and torch.equal(a.images, b.images)
            )


def test_each_shard_is_fetched_once_and_kept(store, cache, fetched, tmp_path, monkeypatch):
    far = scan(store / "shard-000001.tar", cache_dir=tmp_path / "scans")
    assert len(far) == 11 and [far.read(number) is not None for number in range(11)]
    assert [path.rsplit("/", 1)[1] for path, _ in fetched] == ["shard-000001.tar", "classes.json"]
    assert (
        len(copies(cache)) == 1
        and far.path(0).read_bytes() == (store / "shard-000001.tar").read_bytes()
    )
    monkeypatch.setattr(local, "_make", None)
    far.save(tmp_path / "m.parquet")
    assert Manifest.load(tmp_path / "m.parquet").read(3).tobytes() == far.read(3).tobytes()
    assert scan(store / "shard-000001.tar", cache_dir=tmp_path / "scans").table.equals(far.table)


def test_least_recently_used_out_and_never_more_than_the_limit(store, cache, monkeypatch):
    urls = [f"file://{store}/shard-00000{number}.tar" for number in range(4)]
    stamps = [stamp_of(url) for url in urls]
    sizes = [size for size, _ in stamps]
    monkeypatch.setenv("DALI_PIPES_CACHE_GB", str((sizes[0] + sizes[1] + sizes[2] + 1) / 1e9))
    for number in (0, 1, 2, 0, 3):
        assert (
            read(urls[number], stamps[number]) == (store / f"shard-00000{number}.tar").read_bytes()
        )
        assert sum(path.stat().st_size for path in cache.iterdir()) <= sum(sizes[:3]) + 1
        time.sleep(0.01)
    assert local.copy_of(urls[1], stamps[1]).name not in copies(cache)
    assert {local.copy_of(urls[number], stamps[number]).name for number in (0, 3)} <= copies(cache)


def in_processes(work, count):
    """Runs it in forked processes at the same time; their exit codes."""
    context = multiprocessing.get_context("fork")
    running = [context.Process(target=work) for _ in range(count)]
    for process in running:
        process.start()
    for process in running:
        process.join(60)
    return [process.exitcode for process in running]


def test_of_several_processes_and_threads_one_fetches(store, cache, monkeypatch):
    url, original, asked = (
        f"file://{store}/shard-000002.tar",
        LOCAL.cat_file,
        multiprocessing.get_context("fork").SimpleQueue(),
    )
    stamp, content = stamp_of(url), (store / "shard-000002.tar").read_bytes()

    def slow(self, path, start=None, end=None):
        asked.put(os.getpid())
        time.sleep(0.2)
        return original(self, path, start, end)

    def fetch():
        assert read(url, stamp) == content

    monkeypatch.setattr(LOCAL, "cat_file", slow)
    assert in_processes(fetch, 4) == [0] * 4
    asked.get()
    assert asked.empty()
    local.copy_of(url, stamp).unlink()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: read(url, stamp), range(8))) == {content}
    assert asked.get() == os.getpid() and asked.empty()


def test_what_is_fetched_by_half_is_never_taken_for_whole(store, cache, monkeypatch):
    """A process that dies on the way leaves a file of another name, which the next one clears
    away.
    """
    url, other = f"file://{store}/shard-000000.tar", f"file://{store}/shard-000003.tar"
    stamp = stamp_of(url)

    def dies(url, stamp, file):
        file.write(bytes(1000))
        file.flush()
        os.kill(os.getpid(), 9)

    with monkeypatch.context() as patched:
        patched.setattr(local, "download", dies)
        assert in_processes(lambda: read(url, stamp), 1) == [-9]
    assert not copies(cache) and len(list(cache.glob("*.part"))) == 1
    read(other, stamp_of(other))
    assert not list(cache.glob("*.part"))
    assert read(url, stamp) == (store / "shard-000000.tar").read_bytes()


class Faults:
    """Every third request fails, in one way after the other; a request that was answered by half
    goes on where it stopped.
    """

    def __init__(self, original):
        self.original, self.asked = original, 0

    def __call__(self, files, path, start=None, end=None):
        self.asked += 1
        content = self.original(files, path, start, end)
        match self.asked % 9:
            case 2:
                raise ConnectionResetError("connection reset by peer")
            case 5:
                raise RuntimeError("500 internal server error")
            case 8:
                return content[: len(content) // 2]
        return content


def test_broken_connections_are_tried_again_where_they_stopped(store, cache, monkeypatch):
    monkeypatch.setattr(remote, "_CHUNK", 4096)
    faults, before = Faults(LOCAL.cat_file), traffic.current().retries
    monkeypatch.setattr(LOCAL, "cat_file", lambda *what, **where: faults(*what, **where))
    url = f"file://{store}/shard-000000.tar"
    assert read(url, stamp_of(url)) == (store / "shard-000000.tar").read_bytes()
    assert traffic.current().retries - before == faults.asked // 3
    assert 10 < faults.asked <= 1.6 * (stamp_of(url)[0] / 4096 + 1)


def test_a_store_that_stays_away_is_named_with_the_sample(store, cache, monkeypatch):
    far = scan(store)
    for path in cache.iterdir():
        path.unlink()

    def away(self, path, start=None, end=None):
        raise ConnectionResetError("connection reset by peer")

    monkeypatch.setattr(LOCAL, "cat_file", away)
    config, transform = dp.DaliConfig(device="cpu"), dp.TrainTransform(size=32)
    with (
        dp.build_loader(far, config, transform=transform, batch_size=4) as loader,
        pytest.raises(dp.BadSampleError) as caught,
    ):
        next(iter(loader))
    assert "jpg: cannot be fetched (2 times: connection reset by peer)" in str(caught.value)
    assert not copies(cache) and not list(cache.glob("*.part"))


def test_while_nothing_succeeds_requests_give_up_sooner_and_say_what_they_wait_for(
    store, cache, monkeypatch, caplog
):
    urls = [f"file://{store}/shard-00000{number}.tar" for number in range(4)]
    stamps, original, asked = [stamp_of(url) for url in urls], LOCAL.cat_file, []
    monkeypatch.setattr(store_requests, "_FIRST_PAUSE_S", 0.001)

    def away(self, path, start=None, end=None):
        asked.append(path)
        raise OSError("connection reset by peer")

    for _ in range(2):
        monkeypatch.setattr(LOCAL, "cat_file", away)
        for url, stamp, times in zip(urls, stamps, (10, 2, 2, 2), strict=True):
            asked.clear()
            with pytest.raises(
                OSError, match=rf"cannot be fetched \({times} times: connection reset by peer\)"
            ):
                read(url, stamp)
            assert len(asked) == times
        monkeypatch.setattr(LOCAL, "cat_file", original)
        assert read(urls[0], stamps[0])
        local.copy_of(urls[0], stamps[0]).unlink()
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert (
        len(warned) == 2 * 7
        and warned[0]
        == f"{urls[0]}: attempt 3 of 10 failed (connection reset by peer); trying again"
    )


def test_threads_that_waited_for_a_shard_share_its_failure(store, cache, monkeypatch):
    url, asked = f"file://{store}/shard-000000.tar", []
    stamp, begun, original = stamp_of(url), threading.Barrier(4), LOCAL.cat_file

    def away(self, path, start=None, end=None):
        asked.append(path)
        time.sleep(0.3)
        raise OSError("connection reset by peer")

    def attempt(_):
        begun.wait()
        with pytest.raises(OSError, match="cannot be fetched") as caught:
            read(url, stamp)
        return str(caught.value)

    monkeypatch.setattr(store_requests, "_ATTEMPTS", 1)
    monkeypatch.setattr(LOCAL, "cat_file", away)
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(attempt, range(4)))) == 1 and len(asked) == 1
    monkeypatch.setattr(LOCAL, "cat_file", original)
    assert read(url, stamp)


def test_a_cache_that_keeps_whole_seconds_only(store, cache, monkeypatch):
    original = os.utime
    monkeypatch.setattr(
        local.os,
        "utime",
        lambda file, ns: original(file, ns=tuple(time // 10**9 * 10**9 for time in ns)),
    )
    shards = sorted(store.glob("*.tar"))
    for shard in shards:
        original(shard, ns=(0, 10**18 + 123_456_000))
    far = scan(store)
    assert set(far.samples["mtime_ns"].to_pylist()) == {stamp_of(f"file://{shards[0]}")[1]}
    for path in cache.iterdir():
        path.unlink()
    assert far.read(0).size


def test_an_object_that_was_replaced_is_refused_but_its_copy_is_good(store, cache):
    far = scan(store)
    first = far.read(0).tobytes()
    shard = store / "shard-000000.tar"
    os.utime(shard, ns=(0, shard.stat().st_mtime_ns + 10**9))
    assert far.read(0).tobytes() == first
    for path in cache.iterdir():
        path.unlink()
    with pytest.raises(OSError, match="has changed since it was scanned"):
        far.read(0)
    assert scan(store).read(0).tobytes() == first


def test_files_of_a_user_in_the_folder_stay_and_a_lower_limit_holds_at_once(
    store, cache, monkeypatch
):
    cache.mkdir(exist_ok=True)
    names = ["0123456789abcdef" * 2, "0123456789abcdef" * 2 + ".part", "notes.txt"]
    for name in names:
        (cache / name).write_bytes(b"mine")
    urls = [f"file://{store}/shard-00000{number}.tar" for number in range(3)]
    stamps = [stamp_of(url) for url in urls]
    for url, stamp in zip(urls, stamps, strict=True):
        read(url, stamp)
    monkeypatch.setenv("DALI_PIPES_CACHE_GB", f"{1.1 * max(size for size, _ in stamps) / 1e9:.9f}")
    local.check_folder()
    assert [
        local.copy_of(url, stamp).exists() for url, stamp in zip(urls, stamps, strict=True)
    ] == [False, False, True]
    assert all((cache / name).read_bytes() == b"mine" for name in names)


def test_loaders_that_take_each_others_shards_are_warned_about_once(
    store, cache, monkeypatch, caplog
):
    """With room for one shard, which is held elsewhere each time."""
    urls = [f"file://{store}/shard-00000{number}.tar" for number in range(2)]
    stamps = [stamp_of(url) for url in urls]
    monkeypatch.setenv("DALI_PIPES_CACHE_GB", f"{1.1 * max(size for size, _ in stamps) / 1e9:.9f}")
    monkeypatch.setattr(local, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(local, "_TOO_MANY", 3)
    monkeypatch.setattr(local, "_held_removed", 0)
    monkeypatch.setattr(traffic, "_totals", None)
    for turn in range(6):
        held = local.hold_copy(urls[turn % 2], stamps[turn % 2], take_held=True)
        os.close(os.open(local.copy_of(urls[turn % 2], stamps[turn % 2]), os.O_RDONLY))
        assert not local.is_gone(held)
        read(urls[1 - turn % 2], stamps[1 - turn % 2])
        assert local.is_gone(held)
        local.release(held)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1 and "3 shards that another loader reads were removed" in warned[0]


def test_what_is_not_there(tmp_path, cache):
    with pytest.raises(ManifestError, match="no such place in the object store"):
        Manifest.open(f"file://{tmp_path}/nowhere")
    with pytest.raises(ConfigError, match="nosuchscheme://x"):
        Manifest.open("nosuchscheme://x")


def cut_off(copy):
    os.truncate(copy, copy.stat().st_size // 2)


def empty(copy):
    os.truncate(copy, 0)


def lengthen(copy):
    with copy.open("ab") as file:
        file.write(b"more")


def overwrite_the_end(copy):
    """As a power cut leaves a file of which the last pages were not written."""
    with copy.open("r+b") as file:
        file.seek(copy.stat().st_size // 2)
        file.write(bytes(copy.stat().st_size // 2))


@pytest.mark.parametrize("damage", [cut_off, empty, lengthen, overwrite_the_end])
def test_a_damaged_copy_is_fetched_again(manifest, store, cache, damage, caplog):
    for shard in store.iterdir():
        os.utime(shard, (1, 1))  # long before the copies are made
    far = scan(store)
    for name in copies(cache):
        damage(cache / name)
    assert [far.read(number).tobytes() for number in range(37)] == [
        manifest.read(number).tobytes() for number in range(37)
    ]
    assert caplog.text.count("was damaged, and is fetched again") == 4
    fetched = traffic.current().fetched
    assert (
        far.read(5).tobytes() == manifest.read(5).tobytes() and traffic.current().fetched == fetched
    )


def test_a_copy_that_is_damaged_while_it_is_held_and_read(manifest, store, cache):
    """By two readers, of which one opened it before, and a loader that holds it."""
    far, before = scan(store / "shard-000000.tar"), Reader()
    url, stamp = far.extent(0).file, far.extent(0).stamp
    assert before.read(far.extent(0)).tobytes() == far.read(0).tobytes()
    held = local.hold_copy(url, stamp)
    empty(local.copy_of(url, stamp))
    for reader in (Reader(), before):
        assert [reader.read(far.extent(each)).tobytes() for each in range(11)] == [
            manifest.read(each).tobytes() for each in range(11)
        ]
    assert local.is_gone(held)
    local.release(held)


def test_processes_that_find_a_damaged_copy_fetch_it_once(store, cache, monkeypatch):
    url, asked = (
        f"file://{store}/shard-000002.tar",
        multiprocessing.get_context("fork").SimpleQueue(),
    )
    stamp, content, original = (
        stamp_of(url),
        (store / "shard-000002.tar").read_bytes(),
        LOCAL.cat_file,
    )
    read(url, stamp)
    cut_off(local.copy_of(url, stamp))

    def slow(self, path, start=None, end=None):
        asked.put(os.getpid())
        time.sleep(0.2)
        return original(self, path, start, end)

    def fetch():
        assert read(url, stamp) == content

    monkeypatch.setattr(LOCAL, "cat_file", slow)
    assert in_processes(fetch, 4) == [0] * 4
    asked.get()
    assert asked.empty()
