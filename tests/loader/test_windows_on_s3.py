"""Shards in a bucket that are more than the cache holds: real ranks, killed and resumed, and what a
store can do to them.
"""

import os
import shutil
import subprocess
import threading
import time

import numpy as np
import pytest
from disk import Disk
from make_shards import tar_shards
from rank_worker import CONFIGS, TRANSFORM
from ranks import finish, kill_after, start_ranks
from s3_server import BUCKET, s3_server
from test_ranks import WORKER, delivered, read_state

import dali_pipes as dp
from dali_pipes import Manifest, ManifestError
from dali_pipes.data.shards import copies, store_requests

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]
SHARDS, EACH, BATCH, EPOCHS = 40, 8, 8, 1


@pytest.fixture(scope="module")
def store(manifest, tmp_path_factory):
    return tar_shards(
        manifest.subset(np.arange(SHARDS * EACH) % 37), tmp_path_factory.mktemp("windows"), EACH
    )


@pytest.fixture(scope="module")
def s3(store):
    with s3_server({"train": store}) as proxy:
        proxy.every = 10
        yield proxy


@pytest.fixture(scope="module")
def bucket(s3, tmp_path_factory):
    """Its manifest, opened by the index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DALI_PIPES_CACHE", str(tmp_path_factory.mktemp("scanning")))
        Manifest.scan(f"s3://{BUCKET}/train", progress=False).save_index()
        before = s3.sent
        made = Manifest.open(f"s3://{BUCKET}/train", progress=False)
        size = s3.client.head_object(Bucket=BUCKET, Key="train/index.arrow")["ContentLength"]
        assert s3.sent - before == size
        return made


@pytest.fixture
def cache(tmp_path, monkeypatch, store):
    """With room for six shards."""
    largest = max(path.stat().st_size for path in store.glob("*.tar"))
    monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DALI_PIPES_CACHE_GB", f"{6 * largest / 1e9:.9f}")
    return tmp_path / "cache"


def start(ranks, out, loader, step_s=0.0):
    arguments = (out / "m.arrow", out, loader, BATCH, EPOCHS, "windows")
    return start_ranks(WORKER, *arguments, ranks=ranks, STEP_S=str(step_s))


@pytest.mark.parametrize(("first", "then"), [((2, "dali"), (1, "dali"))])
def test_killed_ranks_go_on_with_another_number_within_the_same_disk(
    bucket, cache, tmp_path, first, then
):
    """One cache, two ranks of one lane, kill -9 in the first epoch; every id once an epoch, every
    batch as one process has it.
    """
    bucket.save(tmp_path / "m.arrow")
    with Disk(cache) as disk:
        killed = start(first[0], tmp_path, first[1], step_s=0.05)

        def has_read_ten_batches():
            state = read_state(tmp_path)
            return state and state["samples"] >= 10 * BATCH

        kill_after(killed, has_read_ten_batches)
        finish(start(then[0], tmp_path, then[1]))
    assert 0 < disk.most <= copies.cache_bytes()
    found, expected = delivered(tmp_path), {}
    options = {"transform": TRANSFORM, "batch_size": BATCH, "sampling": "windows"}
    with dp.build_loader(bucket, CONFIGS[first[1]], **options) as loader:
        for epoch in range(EPOCHS):
            for step, batch in enumerate(loader):
                expected[epoch, (step + 1) * BATCH] = (
                    batch.ids.tolist(),
                    float(batch.images.double().sum()),
                )
    assert {step: ids for step, (ids, _) in found.items()} == {
        step: ids for step, (ids, _) in expected.items()
    }
    assert [pixels for _, pixels in found.values()] == pytest.approx(
        [expected[step][1] for step in found], abs=1e-3
    )
    assert sorted(
        sample for (epoch, _), (ids, _) in expected.items() if not epoch for sample in ids
    ) == list(range(SHARDS * EACH))


@pytest.mark.few(1)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_separate_caches_fetch_the_data_about_once(
    s3, bucket, cache, store, tmp_path, monkeypatch, count
):
    """Bytes as the server sent them rightly, for as many epochs as machines: what was fetched ahead
    for the next counts too.

    Batches are so small that all that is read ahead lies in the present window or the next one,
    however slow the machine is: those are held, and the cache has no room for more.
    """
    monkeypatch.setenv("WORLD_SIZE", str(count))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    wait_for_fetches()
    before, epochs = s3.sent, count
    for index in range(count):
        monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path / f"machine {index}"))
        options = {
            "transform": TRANSFORM,
            "batch_size": 2,
            "sampling": "windows",
            "rank": dp.Rank(index, count),
        }
        with dp.build_loader(bucket, CONFIGS["dali"], **options) as loader:
            assert (
                sum(len(batch.ids) for _ in range(epochs) for batch in loader)
                == epochs * SHARDS * EACH // count
            )
            assert not loader.bad_samples
        wait_for_fetches()
    data = sum(path.stat().st_size for path in store.glob("*.tar"))
    # some shards are still there when an epoch begins
    assert 0.8 * data <= (s3.sent - before) / epochs <= 1.2 * data


def wait_for_fetches(seconds=60):
    """A loader that is closed does not wait for the shards that it is fetching: they would count
    for the next one.
    """
    end = time.monotonic() + seconds
    while any(thread.name == "fetch" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.01)


def read_all(far, **options):
    with dp.build_loader(
        far, CONFIGS["dali"], transform=TRANSFORM, batch_size=BATCH, sampling="windows", **options
    ) as loader:
        return [batch.ids.tolist() for batch in loader]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("403 forbidden", r"s3://.*refused \(.*\); docs/object-stores.md has"),
        ("404 gone", r"shard-\d+.tar/.*jpg: .*no such object"),
        ("a byte a second", r"cannot be fetched \(1 times: no whole answer within 1 s\)"),
    ],
)
def test_what_a_store_answers_for_ever_is_named(s3, bucket, cache, monkeypatch, fault, message):
    attempts = store_requests._ATTEMPTS
    monkeypatch.setattr(store_requests, "_ATTEMPTS", 1)
    monkeypatch.setattr(store_requests, "_DEADLINE_S", 0.6)
    monkeypatch.setattr(s3, "always", fault)
    with pytest.raises(dp.BadSampleError, match=message) as caught:
        read_all(bucket)
    assert "s3://images/train/shard-0" in str(caught.value)
    if fault[0] == "4":
        with pytest.raises(ManifestError, match="s3://images/train"):
            Manifest.open("s3://images/train", progress=False)
    monkeypatch.setattr(s3, "always", None)
    monkeypatch.setattr(store_requests, "_ATTEMPTS", attempts)
    monkeypatch.setattr(store_requests, "_DEADLINE_S", 30.0)
    assert len(read_all(bucket)) == SHARDS * EACH // BATCH


def test_a_shard_that_is_replaced_after_indexing_is_substituted_by_name(s3, bucket, cache, store):
    s3.client.upload_file(str(store / "shard-000002.tar"), BUCKET, "train/shard-000001.tar")
    try:
        with dp.build_loader(
            bucket,
            CONFIGS["dali"],
            transform=TRANSFORM,
            batch_size=BATCH,
            sampling="windows",
            on_bad_sample="substitute",
            max_bad_fraction=0.1,
        ) as loader:
            assert sum(len(batch.ids) for batch in loader) == SHARDS * EACH
        assert {name.split("/")[-2] for _, name, _ in loader.bad_samples} == {
            "shard-000001.tar"
        } and len(loader.bad_samples) == EACH
        assert all("has changed since it was scanned" in why for _, _, why in loader.bad_samples)
    finally:
        s3.client.upload_file(str(store / "shard-000001.tar"), BUCKET, "train/shard-000001.tar")


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("mount"), reason="only root mounts a small disk"
)
def test_a_full_disk_is_named_with_what_to_do(bucket, cache, tmp_path, monkeypatch):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True
    ).returncode:
        pytest.skip("this machine mounts nothing")
    try:
        monkeypatch.setenv("DALI_PIPES_CACHE", str(small))
        with pytest.raises(
            dp.BadSampleError,
            match=(
                "small: no space left on device; lower DALI_PIPES_CACHE_GB, or name another "
                "folder with DALI_PIPES_CACHE"
            ),
        ):
            read_all(bucket)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
