"""What version 0.2 wrote: scans are made again, and manifests whose classes would be others are refused with both lists."""

import json
import os

import pyarrow as pa
import pytest
from PIL import Image

import dali_pipes as dp
from dali_pipes.data.table import saved
from dali_pipes.data.table.schema import RULES


def as_of_02(file, classes=None, folders=None):
    """A saved manifest as version 0.2 wrote it: folders without omissions, and no rules."""
    with pa.memory_map(str(file)) as opened:
        reader = pa.ipc.open_file(opened)
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        head = json.loads(reader.schema.metadata[saved._KEY])
    head["known"] = {name: value for name, value in head["known"].items() if name not in ("rules", "omissions")}
    known = folders if folders is not None else [name for name in head["known"]["folders"] if name]
    head["known"]["folders"] = {name: head["known"]["folders"].get(name, [0, 0, 0])[:3] for name in known}
    head["classes"] = classes or head["classes"]
    with (
        pa.OSFile(str(file), "wb") as out,
        pa.ipc.new_file(out, batches[0].schema.with_metadata({saved._KEY: json.dumps(head)})) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)


@pytest.fixture
def folder(tmp_path):
    for name in ("cat/0.jpg", "dog/0.jpg", "dog/1.jfif"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6)).save(tmp_path / "set" / name, "JPEG")
    for each in [tmp_path / "set", *(tmp_path / "set").rglob("*")]:
        os.utime(each, ns=(10**18, 10**18))
    return tmp_path / "set"


@pytest.mark.parametrize("unchanged", ["file", "folder"])
def test_a_scan_that_02_cached_is_made_again(folder, tmp_path, unchanged):
    cache = tmp_path / "m.arrow"
    whole = dp.Manifest.scan(folder, cache=cache, progress=False)
    (folder / "dog/1.jfif").rename(tmp_path / "aside")
    dp.Manifest.scan(folder, cache=cache, progress=False)
    (tmp_path / "aside").rename(folder / "dog/1.jfif")  # 0.2 passed over it
    os.utime(folder / "dog", ns=(10**18, 10**18))
    as_of_02(cache)
    assert dp.Manifest.load(cache).rules == 0 and len(dp.Manifest.load(cache)) == 2
    again = dp.Manifest.scan(folder, cache=cache, unchanged=unchanged, progress=False)
    assert again.fingerprint == whole.fingerprint and dp.Manifest.load(cache).rules == RULES


@pytest.mark.parametrize(
    ("classes", "now"),
    [
        ([".ipynb_checkpoints", "cat"], r"\['cat'\]"),
        (["__MACOSX", "cat"], r"\['cat'\]"),
        (["train", "val"], "none of them, since they are splits"),
    ],
)
def test_a_manifest_of_02_with_other_classes_is_refused_with_both_lists(folder, tmp_path, classes, now):
    file = tmp_path / "m.arrow"
    dp.Manifest.scan(folder, progress=False).save(file)
    as_of_02(file, classes)
    for read in (dp.Manifest.load, dp.Manifest.open):
        with pytest.raises(dp.ManifestError, match=now) as caught:
            read(file)
        assert all(repr(name) in str(caught.value) for name in classes) and "scan the images again" in str(caught.value)


@pytest.mark.parametrize("classes", [["", "cat"], [" cat", "cat"]])
def test_a_table_of_02_with_blank_names_is_refused(folder, tmp_path, classes):
    file = tmp_path / "m.arrow"
    dp.Manifest.scan(folder, progress=False).save(file)
    as_of_02(file, classes, folders=[])
    with pytest.raises(dp.ManifestError, match=r"and a scan has \['cat'\] now"):
        dp.Manifest.load(file)


@pytest.mark.parametrize(
    ("classes", "folders"), [(["cat", "dog"], None), (["train", "bus"], None), (["z", " a"], []), (["0", "1"], [])]
)
def test_other_manifests_of_02_are_read(folder, tmp_path, classes, folders):
    file = tmp_path / "m.arrow"
    dp.Manifest.scan(folder, progress=False).save(file)
    as_of_02(file, classes, folders)
    assert dp.Manifest.load(file).classes == classes


def test_what_this_version_writes_is_taken_as_it_is(folder, tmp_path):
    manifest = dp.Manifest.scan(folder, classes=["cat", "dog"], progress=False).map_classes({"cat": "train", "dog": "val"})
    manifest.save(tmp_path / "m.arrow")
    manifest.save(tmp_path / "m.parquet")
    assert dp.Manifest.load(tmp_path / "m.arrow").classes == dp.Manifest.load(tmp_path / "m.parquet").classes == ["train", "val"]
