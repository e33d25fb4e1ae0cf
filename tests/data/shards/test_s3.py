"""Shards in a real S3 server on this machine, through a proxy that breaks one answer in three."""

import collections
from pathlib import Path

import fsspec
import pytest
from make_shards import tar_shards
from s3_server import s3_server

import dali_pipes as dp
from dali_pipes import Manifest, ManifestError
from dali_pipes.data.shards import remote, store_requests, traffic

PARQUET = Path(__file__).with_name("files")
# what the libraries themselves leave to the garbage collector when a connection breaks
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def s3(manifest, tmp_path_factory):
    """A bucket with the shards of the test images; its proxy."""
    folders = {"deep/train": tar_shards(manifest, tmp_path_factory.mktemp("s3")), "hf": PARQUET}
    with s3_server(folders) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "_CHUNK", 5_000)
        yield proxy


def test_row_groups_of_parquet_files_are_fetched_by_themselves(s3, tmp_path, monkeypatch):
    """Those of Hugging Face's files in test_parquet.py."""
    monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path))
    monkeypatch.setattr(remote, "_CHUNK", 50_000)
    far, near = (
        Manifest.open("s3://images/hf/*.parquet", progress=False),
        Manifest.open(PARQUET, progress=False),
    )
    assert (
        len(far) == 9
        and far.classes == near.classes
        and far.labels.tolist() == near.labels.tolist()
    )
    assert far.name(3) == "s3://images/hf/images-00000-of-00002.parquet#1/3.jpg"
    assert far.read(8).tobytes() == near.read(8).tobytes()
    assert len([file for file in tmp_path.iterdir() if not file.suffix]) == 2  # one far, one near
    assert all(far.read(number).tobytes() == near.read(number).tobytes() for number in range(9))


@pytest.fixture(scope="module")
def bucket(s3, tmp_path_factory):
    """The manifest of the bucket."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DALI_PIPES_CACHE", str(tmp_path_factory.mktemp("scanning")))
        return Manifest.open("s3://images/deep/train", progress=False)


@pytest.fixture
def far(bucket, tmp_path, monkeypatch):
    """The bucket, with an empty cache, so that loading fetches again."""
    monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path / "loading"))
    return bucket


def test_the_manifest_is_that_of_the_folder(manifest, far):
    assert (
        not far.problems
        and far.labels.tolist() == manifest.labels.tolist()
        and far.classes == manifest.classes
    )
    assert far.name(12) == "s3://images/deep/train/shard-000001.tar/000000012.jpg"
    assert all(
        far.read(number).tobytes() == manifest.read(number).tobytes() for number in range(37)
    )


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(dp.DaliConfig(device="cpu", num_threads=2), id="dali"),
        pytest.param(dp.TorchConfig(num_workers=2), id="torch"),
    ],
)
def test_every_sample_comes_exactly_once_whatever_breaks(s3, far, config):
    before, retries = dict(s3.done), traffic.current().retries
    with dp.build_loader(
        far, config, transform=dp.TrainTransform(size=32), batch_size=8, last_batch="partial"
    ) as loader:
        for epoch in range(2):
            ids = [batch.ids.tolist() for batch in loader]
            assert ids == [
                loader.plan.batch(epoch, step).ids.tolist() for step in range(len(loader))
            ]
            assert set(collections.Counter(sample for each in ids for sample in each).values()) == {
                1
            }
        assert not loader.bad_samples
    assert all(s3.done[fault] > before[fault] for fault in s3.FAULTS), s3.done
    broken = sum(
        s3.done[fault] - before[fault]
        for fault in s3.FAULTS
        if fault not in ("slow", "reset before the answer")
    )
    # aiohttp repeats what a kept connection did not answer, and nobody more
    assert traffic.current().retries - retries == broken


def test_a_bucket_that_is_not_there(s3):
    with pytest.raises(ManifestError, match="s3://nobody/x: "):
        Manifest.open("s3://nobody/x", progress=False)
    with pytest.raises(ManifestError, match=r"no such place|no shard there"):
        Manifest.open("s3://images/shallow", progress=False)


@pytest.fixture
def nobody(s3, monkeypatch, tmp_path):
    """A user without credentials, and the number of requests so far."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "PROFILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "DALI_PIPES_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr(store_requests, "_failing_stores", set())
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    yield monkeypatch
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_public_bucket_by_the_option_of_fsspec(s3, nobody, manifest, store, scheme):
    s3.client.create_bucket(Bucket=f"public-{scheme}", ACL="public-read")
    for shard in store.iterdir():
        s3.client.put_object(
            Bucket=f"public-{scheme}",
            Key=f"train/{shard.name}",
            Body=shard.read_bytes(),
            ACL="public-read",
        )
    url, before = f"{scheme}://public-{scheme}/train", traffic.current().retries
    with pytest.raises(
        ManifestError,
        match=r"cannot be fetched \(4 times: .*credentials.*\); docs/object-stores.md has",
    ):
        Manifest.open(url, progress=False)
    assert traffic.current().retries - before == 3
    configured = {}
    # as fsspec does when it is imported
    fsspec.config.set_conf_env(configured, {"FSSPEC_S3_ANON": "true"})
    nobody.setattr(fsspec.config, "conf", configured)
    far = Manifest.open(url, progress=False)
    assert len(far) == 37 and far.read(0).tobytes() == manifest.read(0).tobytes()


def test_a_profile_that_is_missing_is_named(s3, nobody):
    nobody.setenv("AWS_PROFILE", "nope")
    with pytest.raises(
        ManifestError,
        match=r"profile \(nope\) could not be found\); docs/object-stores.md has the settings",
    ):
        Manifest.open("s3://images/deep/train", progress=False)
