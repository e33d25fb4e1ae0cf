"""What version 0.2 wrote: scans are made again, and manifests whose classes would be others are
refused with both lists.
"""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import dali_pipes as dp
from dali_pipes.data.table import saved
from dali_pipes.data.table.schema import RULES


def as_of_02(file, classes=None, folders=None):
    """A saved manifest as version 0.2 wrote it: folders without omissions, and no rules."""
    # not mapped, since the file is written over
    reader = pa.ipc.open_file(pa.BufferReader(Path(file).read_bytes()))
    batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    head = json.loads(reader.schema.metadata[saved._KEY])
    head["known"] = {
        name: value for name, value in head["known"].items() if name not in ("rules", "omissions")
    }
    known = folders if folders is not None else [name for name in head["known"]["folders"] if name]
    head["known"]["folders"] = {
        name: head["known"]["folders"].get(name, [0, 0, 0])[:3] for name in known
    }
    head["classes"] = classes or head["classes"]
    with (
        pa.OSFile(str(file), "wb") as out,
        pa.ipc.new_file(
            out, batches[0].schema.with_metadata({saved._KEY: json.dumps(head)})
        ) as writer,
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
def test_a_manifest_of_02_with_other_classes_is_refused_with_both_lists(
    folder, tmp_path, classes, now
):
    file = tmp_path / "m.arrow"
    dp.Manifest.scan(folder, progress=False).save(file)
    as_of_02(file, classes)
    for read in (dp.Manifest.load, dp.Manifest.open):
        with pytest.raises(dp.ManifestError, match=now) as caught:
            read(file)
        assert all(
            repr(name) in str(caught.value) for name in classes
        ) and "scan the images again" in str(caught.value)


@pytest.mark.parametrize("classes", [["", "cat"], [" cat", "cat"]])
def test_a_table_of_02_with_blank_names_is_refused(folder, tmp_path, classes):
    file = tmp_path / "m.arrow"
    dp.Manifest.scan(folder, progress=False).save(file)
    as_of_02(file, classes, folders=[])
    with pytest.raises(dp.ManifestError, match=r"and a scan has \['cat'\] now"):
        dp.Manifest.load(file)


@pytest.mark.parametrize(
    ("classes", "folders"),
    [(["cat", "dog"], None), (["train", "bus"], None), (["z", " a"], []), (["0", "1"], [])],
)
def test_other_manifests_of_02_are_read(folder, tmp_path, classes, folders):
    file = tmp_path / "m.arrow"
    dp.Manifest.scan(folder, progress=False).save(file)
    as_of_02(file, classes, folders)
    assert dp.Manifest.load(file).classes == classes


def test_what_this_version_writes_is_taken_as_it_is(folder, tmp_path):
    manifest = dp.Manifest.scan(folder, classes=["cat", "dog"], progress=False).map_classes(
        {"cat": "train", "dog": "val"}
    )
    manifest.save(tmp_path / "m.arrow")
    manifest.save(tmp_path / "m.parquet")
    assert (
        dp.Manifest.load(tmp_path / "m.arrow").classes
        == dp.Manifest.load(tmp_path / "m.parquet").classes
        == ["train", "val"]
    )


@pytest.fixture
def tiffs(tmp_path):
    (tmp_path / "set/a").mkdir(parents=True)
    Image.new("RGB", (8, 6)).save(tmp_path / "set/a/0.tif")
    Image.new("RGB", (8, 6)).save(tmp_path / "set/a/1.tif", tiffinfo={274: 6})
    return tmp_path / "set"


def as_of_rules(file, rules, **columns):
    """A saved manifest as an earlier version of the rules wrote it, with other values in some
    columns.
    """
    read = saved.read(file)
    table = read.table
    for name, values in columns.items():
        table = table.set_column(
            table.schema.get_field_index(name), name, pa.array(values, table[name].type)
        )
    known = read.known | {"rules": rules}
    metadata = {
        saved._KEY: json.dumps({"root": read.root, "classes": read.classes, "known": known})
    }
    with (
        pa.OSFile(f"{file}.old", "wb") as out,
        pa.ipc.new_file(out, table.schema.with_metadata(metadata)) as writer,
    ):
        writer.write_table(table.cast(table.schema.with_metadata(metadata)))
    Path(f"{file}.old").replace(file)


@pytest.mark.parametrize("rules", [0, 1])
def test_a_manifest_that_has_tiffs_turned_otherwise_is_refused_with_both_values(
    tiffs, tmp_path, rules
):
    file = tmp_path / "m.arrow"
    dp.Manifest.scan(tiffs, progress=False).save(file)
    assert dp.Manifest.load(file).take_orientations(np.arange(2)).tolist() == [1, 6]
    # as Pillow's own class states them
    as_of_rules(file, rules, orientation=[1, 1], height=[6, 8], width=[8, 6])
    with pytest.raises(
        dp.ManifestError,
        match=r"1\.tif is 6 × 8 with orientation 1, by a scan 8 × 6 with orientation 6; scan",
    ):
        dp.Manifest.load(file)


def test_a_manifest_of_earlier_rules_whose_tiffs_are_not_turned_is_read(tiffs, tmp_path):
    (tiffs / "a/1.tif").unlink()
    dp.Manifest.scan(tiffs, progress=False).save(tmp_path / "m.arrow")
    as_of_rules(tmp_path / "m.arrow", 1)
    assert len(dp.Manifest.load(tmp_path / "m.arrow")) == 1


def test_a_manifest_of_earlier_rules_whose_tiffs_cannot_be_looked_at_is_refused(tiffs, tmp_path):
    dp.Manifest.scan(tiffs, progress=False).save(tmp_path / "m.arrow")
    as_of_rules(tmp_path / "m.arrow", 1)
    (tiffs / "a/0.tif").unlink()
    with pytest.raises(
        dp.ManifestError, match=r"did not read the orientation of TIFFs, as of .*0\.tif'; scan"
    ):
        dp.Manifest.load(tmp_path / "m.arrow")


def test_a_cached_scan_of_earlier_rules_with_tiffs_is_made_again(tiffs, tmp_path):
    cache = tmp_path / "m.arrow"
    dp.Manifest.scan(tiffs, cache=cache, progress=False)
    as_of_rules(cache, 1, orientation=[1, 1], height=[6, 8], width=[8, 6])
    again = dp.Manifest.scan(tiffs, cache=cache, unchanged="folder", progress=False)
    assert (
        again.take_orientations(np.arange(2)).tolist() == [1, 6]
        and dp.Manifest.load(cache).rules == RULES
    )


@pytest.mark.parametrize("name", ["again.arrow", "again.parquet"])
def test_a_manifest_of_02_says_so_when_it_is_saved_again(folder, tmp_path, name):
    dp.Manifest.scan(folder, progress=False).save(tmp_path / "m.arrow")
    as_of_02(tmp_path / "m.arrow")
    dp.Manifest.load(tmp_path / "m.arrow").subset([0, 1]).save(tmp_path / name)

    again = dp.Manifest.load(tmp_path / name)
    assert again.rules == 0 and len(again) == 2
    with pytest.raises(dp.OmissionError, match=r"version 0\.2 saved this manifest without"):
        again.tell_omissions(strict=True)


def test_classes_of_02_are_compared_with_a_scan_only_as_02_wrote_them(folder, tmp_path):
    """Names that a user gives may be those of splits."""
    dp.Manifest.scan(folder, progress=False).save(tmp_path / "m.arrow")
    as_of_02(tmp_path / "m.arrow")
    renamed = dp.Manifest.load(tmp_path / "m.arrow").map_classes({"cat": "train", "dog": "val"})
    renamed.save(tmp_path / "m.arrow")
    assert dp.Manifest.load(tmp_path / "m.arrow").classes == ["train", "val"]
