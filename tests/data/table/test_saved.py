"""Manifests that are mapped from a file: what they cost, and what happens if the file is not what
it was.
"""

import os
import pickle
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dali_pipes as dp
from dali_pipes import ConfigError, Manifest, ManifestError
from dali_pipes.data.own_columns import COLUMN
from dali_pipes.data.table.schema import SCHEMA, replace_column

IDS = np.array([5, 0, 36, 5])
LOOK_UPS = {
    "labels": lambda manifest: manifest.take_labels(IDS),
    "sizes": lambda manifest: manifest.take_sizes(IDS),
    "upright sizes": lambda manifest: manifest.take_sizes(IDS, upright=True),
    "paths": lambda manifest: manifest.path_matrix(IDS),
    "extent": lambda manifest: manifest.extent(5),
    "columns": lambda manifest: manifest.take_columns(IDS),
    "table": lambda manifest: manifest.table,
    "subset": lambda manifest: manifest.subset(IDS[:2]).labels,
    "filter": lambda manifest: manifest.filter("height > 1"),
    "problems": lambda manifest: manifest.problems,
    "whole files": lambda manifest: manifest.whole_files,
    "pickled": pickle.dumps,
    "fingerprint of a part": lambda manifest: manifest.subset(IDS[:2]).fingerprint,
    "joined": lambda manifest: Manifest.concat([manifest, manifest]).take_sizes(IDS + 37),
}


@pytest.fixture(scope="module")
def images(manifest):
    """37 images, the digests of their bytes, and a column, in memory."""
    digests = pa.array([bytes([number] * 16) for number in range(37)], pa.binary())
    table = replace_column(manifest.table, "content", digests)
    scores = table.append_column(COLUMN + "score", pa.array(np.arange(37)))
    return Manifest.from_rows(manifest.root, manifest.classes, scores)


@pytest.fixture
def file(images, tmp_path):
    images.save(tmp_path / "m.arrow")
    return tmp_path / "m.arrow"


def large(rows):
    """A manifest of so many made-up rows, with a column of its own."""
    same = {
        name: pa.repeat(pa.scalar(value, SCHEMA.field(name).type), rows)
        for name, value in (("bytes", 9), ("height", 8))
    }
    same |= {
        name: pa.repeat(pa.scalar(0, SCHEMA.field(name).type), rows)
        for name in ("mtime_ns", "offset", "file_bytes")
    }
    same |= {
        name: pa.repeat(pa.scalar("", SCHEMA.field(name).type), rows)
        for name in ("format", "member", "jpeg", "content")
    }
    same |= {
        "width": same["height"],
        "orientation": pa.repeat(pa.scalar(1, pa.int8()), rows),
        "problem": pa.nulls(rows, pa.string()),
    }
    paths = pa.array(np.char.mod("c/%09d.jpg", np.arange(rows))).cast(pa.large_binary())
    same |= {
        "path": paths,
        "label": pa.array(np.arange(rows) % 10, pa.int32()),
        "decoded": pa.repeat(False, rows),
    }
    table = pa.table({name: same[name] for name in SCHEMA.names}, schema=SCHEMA)
    return Manifest.from_rows(
        "/images",
        list("abcdefghij"),
        table.append_column(COLUMN + "score", pa.array(np.arange(rows), pa.int64())),
    )


def private_mib():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024


def test_opening_and_looking_up_copies_no_column(tmp_path):
    rows = 1_000_000  # 4 MB for the smallest of these columns
    large(rows).save(tmp_path / "m.arrow")
    before = private_mib()
    manifest = Manifest.load(tmp_path / "m.arrow")
    ids = np.random.default_rng(0).integers(0, rows, 10_000)
    assert (manifest.take_labels(ids) == ids % 10).all() and (
        manifest.take_columns(ids)["score"] == ids
    ).all()
    assert (manifest.take_sizes(ids) == 8).all() and manifest.path_matrix(ids)[
        3
    ].tobytes() == b"/images/c/%09d.jpg" % ids[3]
    assert (
        manifest.extent(7).file == "/images/c/000000007.jpg"
        and len(manifest.fingerprint) == 64
        and manifest.describe()
    )
    assert private_mib() - before < 3.5


def test_a_mapped_manifest_is_the_one_that_was_saved(file, images):
    mapped = Manifest.load(file)
    assert (
        mapped.table.equals(images.table)
        and mapped.classes == images.classes
        and mapped.root == images.root
    )
    assert mapped.fingerprint == images.fingerprint and mapped.describe() == images.describe()
    mapped.verify()


def test_problems_are_kept(tmp_path, image_folder):
    shutil.copytree(image_folder, tmp_path / "set")
    next((tmp_path / "set").rglob("*.jpg")).write_bytes(b"")
    scanned = Manifest.scan(tmp_path / "set", progress=False)
    scanned.save(tmp_path / "m.arrow")
    mapped = Manifest.load(tmp_path / "m.arrow")
    assert (
        len(mapped) == 36
        and mapped.problems == scanned.problems
        and mapped.table.equals(scanned.table)
    )


def test_another_process_gets_the_same(file):
    mapped = Manifest.load(file)
    sent = pickle.loads(pickle.dumps(mapped.subset(IDS[:3])))
    assert sent.fingerprint == mapped.subset(IDS[:3]).fingerprint and sent.extent(
        1
    ) == mapped.extent(0)


@pytest.mark.parametrize("look_up", LOOK_UPS.values(), ids=LOOK_UPS)
@pytest.mark.parametrize("change", ["cut off", "emptied", "written over"])
def test_a_file_that_is_changed_while_it_is_used_ends_in_one_line(file, look_up, change):
    mapped = Manifest.load(file)
    if change == "written over":
        with file.open("r+b") as opened:
            opened.write(b"\xff" * 5000)
        os.utime(file, ns=(0, 0))
    else:
        os.truncate(file, 1000 if change == "cut off" else 0)
    with pytest.raises(ManifestError, match=r"m\.arrow: was changed while it was in use"):
        look_up(mapped)


def test_training_on_a_file_that_is_cut_off_ends_in_one_line(file):
    with dp.build_loader(
        Manifest.load(file),
        dp.TorchConfig(num_workers=0),
        transform=dp.EvalTransform(size=32),
        batch_size=4,
    ) as loader:
        batches = iter(loader)
        next(batches)
        os.truncate(file, 100)
        with pytest.raises(ManifestError, match="was changed while it was in use"):
            for _ in batches:
                pass


def test_a_file_that_is_replaced_stays_what_it_was(file, manifest):
    mapped = Manifest.load(file)
    manifest.subset(np.arange(3)).save(file)
    assert len(mapped) == 37 and mapped.take_labels(IDS).tolist() == manifest.labels[IDS].tolist()
    assert mapped.extent(36) == manifest.extent(36)
    assert len(Manifest.load(file)) == 3


def forged(file, name, values):
    """The file with other bytes in one column, as long as those that were there."""
    content, column = file.read_bytes(), Manifest.load(file).samples[name].chunk(0)
    before = column.buffers()[
        -2 if pa.types.is_large_binary(column.type) and values.dtype == np.int64 else -1
    ].to_pybytes()
    assert content.count(before) == 1 and values.nbytes <= len(before)
    file.write_bytes(content.replace(before, values.tobytes() + before[values.nbytes :]))
    return Manifest.load(file)


@pytest.mark.parametrize(
    ("name", "values", "look_up", "message"),
    [
        ("label", np.full(37, 99, np.int32), "labels", "labels outside its"),
        ("label", np.full(37, -1, np.int32), "labels", "labels outside its"),
        ("height", np.zeros(37, np.int32), "sizes", "without a size"),
        ("path", np.full(300, ord("/"), np.uint8), "paths", "a path that is absolute"),
        ("path", np.full(300, ord("/"), np.uint8), "extent", "a path that is absolute"),
        ("path", np.zeros(300, np.uint8), "extent", "a NUL byte"),
        ("path", np.r_[0, np.full(36, 2**40)], "paths", "a text in it has no end"),
        ("path", np.arange(37)[::-1], "extent", "a text in it has no end"),
        ("path", np.r_[0, np.full(36, -1)], "paths", "a text in it has no end"),
    ],
)
def test_what_would_mislead_a_loader_is_refused_as_it_is_taken(
    file, name, values, look_up, message
):
    mapped = forged(file, name, values)
    with pytest.raises(ManifestError, match=message):
        LOOK_UPS[look_up](mapped)
    with pytest.raises(ManifestError):
        mapped.verify()


@pytest.mark.parametrize("name", ["format", "member", "path", "jpeg", "content"])
def test_what_arrow_itself_would_believe_is_checked_as_a_whole(file, name):
    """A text inside a column that begins far outside it: Arrow takes it without looking, and the
    process ends.
    """
    column = Manifest.load(file).samples[name].chunk(0)
    kind = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    offsets = column.buffers()[1].to_pybytes()
    broken = np.frombuffer(offsets, kind).copy()
    broken[5] = 2**30
    content = file.read_bytes()
    file.write_bytes(content.replace(offsets, broken.tobytes(), 1))
    for look_up in ("table", "joined"):
        with pytest.raises(ManifestError, match="the manifest is damaged"):
            LOOK_UPS[look_up](Manifest.load(file))
    with pytest.raises(ManifestError, match="the manifest is damaged"):
        Manifest.load(file).verify()
    if name not in ("jpeg", "content"):  # no columns of filters
        with pytest.raises(ManifestError, match="the manifest is damaged"):
            Manifest.load(file).filter(f"{name} == 'a'")


def test_what_is_pickled_is_what_was_chosen(file):
    mapped = Manifest.load(file)
    assert len(pickle.dumps(mapped.subset(IDS[:1]))) < len(pickle.dumps(mapped)) - 1000


def test_a_fingerprint_of_long_texts_needs_little_memory(manifest):
    texts = pa.array(
        [("x" * 200_000) if number == 3 else "y" for number in range(2000)], pa.large_string()
    )
    table = manifest.table.take(pa.array(np.arange(2000) % 37)).append_column(
        COLUMN + "text", texts
    )
    odd = Manifest.from_rows(manifest.root, manifest.classes, table).subset(np.arange(2000)[::-1])
    tracemalloc.start()
    assert odd.fingerprint
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    assert peak < 20


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([True] * 37, "of a mask np.flatnonzero"),
        ([37], "ids run from 0 to 36, and one is 37"),
        ([-1], "one is -1"),
    ],
)
def test_a_subset_of_what_are_no_ids(file, ids, message):
    for whole in (Manifest.load(file), Manifest.load(file).subset(np.arange(37))):
        with pytest.raises(ConfigError, match=message):
            whole.subset(np.array(ids))


def test_a_file_that_is_none_is_opened_as_one(tmp_path):
    with pytest.raises(ManifestError, match="no such manifest"):
        Manifest.open(tmp_path / "m.arrow")
    (tmp_path / "m.arrow").write_bytes(b"ARROW1\0\0half")
    with pytest.raises(ManifestError, match="not a manifest"):
        Manifest.open(tmp_path / "m.arrow")


def test_a_row_that_could_be_one_is_found_by_verify(file):
    mapped = forged(file, "height", np.full(37, 100, np.int32))
    mapped.take_sizes(IDS)
    with pytest.raises(ManifestError, match="not those that it was saved with"):
        mapped.verify()


@given(place=st.floats(0, 1), flipped=st.binary(min_size=1, max_size=60))
def test_a_damaged_file_is_refused_or_harmless(manifest, tmp_path_factory, place, flipped):
    file = tmp_path_factory.mktemp("damaged") / "m.arrow"
    manifest.save(file)
    content = bytearray(file.read_bytes())
    start = int(place * (len(content) - len(flipped)))
    content[start : start + len(flipped)] = flipped
    file.write_bytes(content)
    try:
        mapped = Manifest.load(file)
        for look_up in ("labels", "sizes", "paths", "extent"):
            LOOK_UPS[look_up](mapped)
        mapped.verify()
    except (ManifestError, IndexError):  # IndexError: fewer rows
        pass


@pytest.mark.parametrize(
    "content", [b"", b"ARROW1", b"ARROW1\0\0" + b"\0" * 100, b"ARROW1\0\0" + os.urandom(5000)]
)
def test_a_file_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "m.arrow").write_bytes(content)
    with pytest.raises(ManifestError, match="not a manifest"):
        Manifest.load(tmp_path / "m.arrow")


def test_an_arrow_file_of_something_else_is_neither_opened_nor_overwritten(tmp_path, manifest):
    file = tmp_path / "m.arrow"
    with pa.ipc.new_file(file, pa.schema({"a": pa.int64()})) as writer:
        writer.write_table(pa.table({"a": [1]}))
    before = file.read_bytes()
    with pytest.raises(ManifestError, match="not a manifest"):
        Manifest.load(file)
    with pytest.raises(ManifestError, match="nothing was changed"):
        manifest.save(file)
    assert file.read_bytes() == before
