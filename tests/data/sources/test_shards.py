"""A manifest of tar shards: what is in it, what is named as unusable, and what is remembered."""

import json
import os
import shutil
import tarfile
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from make_shards import add, tar_shards
from PIL import Image

import dali_pipes as dp
import dali_pipes.data.sources.shards as reading
from dali_pipes import Manifest, ManifestError
from dali_pipes.data.sources.rows import files
from dali_pipes.measure.arms import DaliNativeConfig
from dali_pipes.measure.arms.native_loader import NativeLoader


@pytest.fixture
def folder(manifest, tmp_path):
    return tar_shards(manifest, tmp_path / "shards")


def scan(folder, **options):
    """Mapped, as what people train on is."""
    with tempfile.TemporaryDirectory() as cache:
        return Manifest.open(folder, progress=False, **({"cache_dir": cache} | options))


def test_ids_labels_classes_and_bytes_are_those_of_the_folder(manifest, folder):
    shards = scan(folder)
    assert (
        len(shards) == len(manifest)
        and not shards.problems
        and not shards.whole_files
        and manifest.whole_files
    )
    assert shards.classes == manifest.classes and shards.labels.tolist() == manifest.labels.tolist()
    assert (shards.sizes == manifest.sizes).all() and shards.bytes_in_all == manifest.bytes_in_all
    for number in range(len(manifest)):
        assert (
            shards.read(number).tobytes()
            == manifest.path(number).read_bytes()
            == manifest.read(number).tobytes()
        )
    assert (
        shards.path(12) == folder / "shard-000001.tar"
        and shards.name(12) == f"{folder}/shard-000001.tar/000000012.jpg"
    )


def test_one_shard_is_a_data_set(folder):
    one = scan(folder / "shard-000003.tar")
    assert (
        len(one) == 4
        and one.root == folder
        and one.name(0) == f"{folder}/shard-000003.tar/000000033.jpg"
    )


def test_many_shards_are_read_by_processes_in_order(folder):
    assert scan(folder).table.equals(Manifest.scan(folder, workers=1, progress=False).table)


@pytest.mark.slow
def test_saved_loaded_moved_and_cut(folder, tmp_path):
    shards = scan(folder)
    shards.save(tmp_path / "m.parquet")
    loaded = Manifest.open(tmp_path / "m.parquet")
    assert loaded.table.equals(shards.table) and loaded.extent(20) == shards.extent(20)
    part = loaded.subset(np.array([30, 2, 2]))
    assert [part.name(number) for number in range(3)] == [
        shards.name(number) for number in (30, 2, 2)
    ]
    shutil.copytree(folder, tmp_path / "moved")
    assert scan(tmp_path / "moved").fingerprint == shards.fingerprint
    assert shards.subset(np.arange(36)).fingerprint != shards.fingerprint


def test_a_manifest_from_before_there_were_shards(manifest, tmp_path):
    manifest.save(tmp_path / "new.parquet")
    table = pq.read_table(tmp_path / "new.parquet")
    pq.write_table(table.drop_columns(["member", "offset", "file_bytes"]), tmp_path / "old.parquet")
    old = Manifest.load(tmp_path / "old.parquet")
    assert (
        old.table.equals(manifest.table)
        and old.fingerprint == manifest.fingerprint
        and old.whole_files
    )
    assert old.read(5).tobytes() == manifest.path(5).read_bytes()


@pytest.mark.few
@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("offset", -1), ("offset", 2**62), ("bytes", 2**62), ("bytes", -5)),
        *(("file_bytes", 10), ("file_bytes", -(2**63))),
    ],
)
def test_a_manifest_that_would_read_outside_its_shard_is_refused(folder, column, value):
    table = scan(folder).table
    values = table[column].to_pylist()
    values[2] = value
    forged = table.set_column(
        table.schema.get_field_index(column), column, pa.array(values, pa.int64())
    )
    with pytest.raises(ManifestError, match="reach beyond their shard"):
        Manifest.from_rows(folder, ["a"] * 5, forged)


def test_numbers_are_the_names_where_there_is_no_classes_file(folder):
    (folder / "classes.json").unlink()
    assert scan(folder).classes == ["0", "1", "2", "3", "4"]


@pytest.mark.few
@pytest.mark.parametrize("text", ["{}", "[1, 2]", "[", "[" * 100_000, "\xff"])
def test_a_classes_file_that_is_none(folder, text):
    (folder / "classes.json").write_text(text, "latin-1")
    with pytest.raises(ManifestError, match=r"classes\.json"):
        scan(folder)


def test_labels_without_a_name_are_left_out_until_they_have_one(folder, manifest, tmp_path):
    (folder / "classes.json").write_text(json.dumps(manifest.classes[:4]))
    shards = scan(folder, cache_dir=tmp_path / "cache")
    left_out = int((manifest.labels == 4).sum())
    assert len(shards) == len(manifest) - left_out and len(shards.problems) == left_out > 0
    assert "none of the 4 classes of classes.json" in shards.problems[0][1]
    (folder / "classes.json").write_text(json.dumps(manifest.classes))
    assert len(scan(folder, cache_dir=tmp_path / "cache")) == len(manifest)


def test_what_cannot_be_used_is_named_as_shard_and_member(folder, manifest):
    good = manifest.read(0).tobytes()
    with tarfile.open(folder / "shard-000004.tar", "w") as archive:
        for name, content in {
            "0": good,
            "1": b"",
            "2": b"<html>",
            "3": good[: len(good) // 2],
            "4": good,
        }.items():
            add(archive, f"{name}.jpg", content)
            add(archive, f"{name}.cls", b"99999999" if name == "4" else b"1")
        add(archive, "note.txt", b"hello")
    (folder / "shard-000005.tar").touch()
    (folder / "shard-000006.tar").write_bytes((folder / "shard-000000.tar").read_bytes()[:1000])
    (folder / "shard-000007.tar").symlink_to(folder / "gone")
    (folder / "notes.txt").write_text("not a shard")
    shards = scan(folder, verify="full")
    assert len(shards) == 37 + 1 and shards.name(37).endswith("shard-000004.tar/0.jpg")
    assert [
        (name.removeprefix("shard-00000"), problem.split("(")[0].strip())
        for name, problem in shards.problems
    ] == [
        ("4.tar/1.jpg", "empty file"),
        ("4.tar/2.jpg", "not an image, or its header is broken"),
        ("4.tar/3.jpg", "cannot be decoded by Pillow"),
        ("4.tar/4.jpg", "no label: its number is too large"),
        ("4.tar/note.txt", "no image of this key"),
        ("5.tar", "empty file"),
        ("6.tar", "the archive is cut off, or its size is wrong"),
        ("7.tar", "no such file or directory"),
    ]
    assert "the archive ends after" in shards.problems[6][1]


def test_shards_without_a_sample(tmp_path):
    with tarfile.open(tmp_path / "0.tar", "w"):
        pass
    with pytest.raises(ManifestError, match="its 1 shards hold no image"):
        scan(tmp_path)


def test_compressed_shards_are_refused(folder, tmp_path):
    (tmp_path / "packed").mkdir()
    shutil.copy(folder / "shard-000000.tar", tmp_path / "packed" / "shard-000000.tar.gz")
    with pytest.raises(
        ManifestError, match=r"shard-000000\.tar\.gz: is a compressed tar, whose images cannot"
    ):
        scan(tmp_path / "packed")


def test_a_folder_of_classes_stays_one_whatever_lies_in_it(manifest, folder, tmp_path):
    shutil.copytree(manifest.root, tmp_path / "set")
    shutil.copy(folder / "shard-000000.tar", tmp_path / "set")
    assert scan(tmp_path / "set").fingerprint == manifest.fingerprint


def test_an_unchanged_shard_is_not_read_again(folder, tmp_path, monkeypatch):
    first, read = scan(folder, cache_dir=tmp_path / "cache"), []
    original = reading.read_shard
    monkeypatch.setattr(files, "map_in_order", lambda read_one, items, *_: map(read_one, items))
    monkeypatch.setattr(
        reading,
        "read_shard",
        lambda file, **options: read.append(file) or original(file, **options),
    )
    again = scan(folder, cache_dir=tmp_path / "cache")
    assert again.table.equals(first.table) and read == []
    changed = folder / "shard-000002.tar"
    os.utime(changed, ns=(0, changed.stat().st_mtime_ns + 1))
    assert (
        scan(folder, cache_dir=tmp_path / "cache").fingerprint == first.fingerprint
        and len(read) == 1
    )
    assert read[0][0] == os.fsencode(changed)
    (folder / "shard-000001.tar").unlink()
    assert len(scan(folder, cache_dir=tmp_path / "cache")) == 26 and len(read) == 1
    assert len(scan(folder, cache_dir=tmp_path / "cache", verify="full")) == 26 and len(read) == 4
    assert len(scan(folder, cache_dir=tmp_path / "cache", verify="full")) == 26 and len(read) == 4


def test_exif_is_read(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 6)).save(tmp_path / "turned.jpg", exif=exif)
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        add(archive, "0.jpg", (tmp_path / "turned.jpg").read_bytes())
        add(archive, "0.json", b'{"label": 0}')
    shards = scan(tmp_path)
    assert shards.sizes.tolist() == [[6, 8]] and shards.take_sizes(
        np.array([0]), upright=True
    ).tolist() == [[8, 6]]


def test_dali_native_says_that_it_cannot(folder):
    with pytest.raises(dp.ConfigError, match="these images are in shards; use DaliConfig"):
        NativeLoader(scan(folder), DaliNativeConfig(device="cpu"), dp.TrainTransform(size=32), 4)
