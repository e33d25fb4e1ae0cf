"""Hugging Face's Parquet, read as it is. The files were written by `datasets` itself:
files/make.py.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from make_shards import tar_shards

import dali_pipes as dp
from dali_pipes import Manifest, ManifestError
from dali_pipes.data.shards import copies
from dali_pipes.tools.scan.run import index

FILES, NAMES = (
    Path(__file__).with_name("files"),
    ["images-00000-of-00002.parquet", "images-00001-of-00002.parquet"],
)
CONFIGS = [dp.DaliConfig(device="cpu"), dp.TorchConfig(num_workers=2)]


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        shutil.copy(FILES / name, tmp_path)
    return tmp_path


def opened(source, **options):
    return Manifest.open(source, progress=False, **options)


def rows():
    """What `datasets` wrote, by pyarrow."""
    return pa.concat_tables([pq.read_table(FILES / name) for name in NAMES]).to_pylist()


def test_rows_become_samples(folder):
    made, expected = (
        opened(folder),
        [row for row in rows() if row["image"] and row["image"]["bytes"]],
    )
    assert made.classes == ["cat", "dog", "eft"] and made.task == "classification"
    assert made.labels.tolist() == [row["animal"] for row in expected] and len(made) == 9
    assert made.columns["age"].tolist() == [row["age"] for row in expected]
    assert made.columns["caption"].to_pylist() == [row["caption"] for row in expected]
    assert [made.read(number).tobytes() for number in range(9)] == [
        row["image"]["bytes"] for row in expected
    ]
    assert made.sizes.tolist() == [[24, 32 + int(row["caption"].split()[-1])] for row in expected]
    assert made.problems == [(f"{NAMES[0]}#1/row 1", "no bytes in this row: no image")]
    assert made.name(3) == f"{folder}/{NAMES[0]}#1/3.jpg"


def test_a_copy_of_a_row_group_is_made_once(folder, cache, monkeypatch):
    made = opened(folder)
    for _ in range(2):
        assert all(len(made.read(number)) for number in range(9))
    assert sorted(file.stat().st_size for file in cache.iterdir() if not file.suffix) == sorted(
        sum(len(row["image"]["bytes"]) for row in group if row["image"] and row["image"]["bytes"])
        for group in (rows()[0:3], rows()[3:5], rows()[5:8], rows()[8:10])
    )
    monkeypatch.setattr(copies, "_make", None)
    made.save(folder / "saved.arrow")
    assert Manifest.load(folder / "saved.arrow").read(5).tobytes() == made.read(5).tobytes()


def test_a_damaged_copy_of_a_row_group_is_made_again(folder, cache):
    made = opened(folder)
    expected = [made.read(number).tobytes() for number in range(9)]
    for copy in cache.iterdir():
        os.truncate(copy, copy.stat().st_size // 2)
    assert [made.read(number).tobytes() for number in range(9)] == expected


@pytest.mark.slow
@pytest.mark.parametrize("source", ["{}", "{}/images-*.parquet", "file://{}/images-*.parquet"])
def test_folders_patterns_and_urls(folder, source):
    made = opened(source.format(folder))
    same = opened(folder)
    assert len(made) == 9 and all(
        made.read(number).tobytes() == same.read(number).tobytes() for number in range(9)
    )
    assert len(opened(f"{source.format(folder).removesuffix('/images-*.parquet')}/{NAMES[1]}")) == 5


@pytest.mark.few
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_the_pixels_are_those_of_the_same_images_in_files(folder, tmp_path, config):
    made = opened(folder)
    for number in range(len(made)):
        file = tmp_path / f"files/{made.classes[made.labels[number]]}/{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(made.read(number).tobytes())
    files = Manifest.scan(tmp_path / "files", progress=False)
    order = [int(Path(files.name(number)).stem) for number in range(len(files))]
    options = {"transform": dp.EvalTransform(size=20, resize=22), "batch_size": 4, "device": "cpu"}
    with (
        dp.build_loader(made.subset(order), config, **options) as one,
        dp.build_loader(files, config, **options) as two,
    ):
        for a, b in zip(one, two, strict=True):
            assert torch.equal(a.images, b.images) and a.labels.tolist() == b.labels.tolist()


def test_objects_and_captions_out_of_list_columns(folder):
    targets = dp.Targets(boxes="boxes", box_labels="things", text="caption")
    made = opened(folder, targets=targets)
    with dp.build_loader(
        made,
        CONFIGS[0],
        transform=dp.EvalTransform(size=20, resize=22),
        batch_size=9,
        device="cpu",
        max_bad_fraction=1,
    ) as loader:
        batch = next(iter(loader))
    assert made.classes == ["head"] and batch["boxes"].lengths == [
        number % 3 for number in range(10) if number != 4
    ]
    assert batch.text[4] == "animal no. 5"


@pytest.mark.slow
def test_the_command_writes_an_index_of_parquet_files_where_they_lie(folder, cache, monkeypatch):
    index(f"file://{folder}", "header")
    monkeypatch.setattr(copies, "_make", None)
    assert opened(f"file://{folder}").fingerprint == opened(folder).fingerprint
    with pytest.raises(
        ManifestError, match=r"index.arrow: 1 of the 2 files there are not in this manifest"
    ):
        opened(f"file://{folder}/{NAMES[0]}").save_index()


def test_a_folder_whose_name_looks_like_a_row_group(folder, manifest, cache, tmp_path):
    odd = tmp_path / "odd.parquet#1"
    tar_shards(manifest.subset(range(4)), odd, 2)
    assert opened(f"file://{odd}").read(3).tobytes() == manifest.read(3).tobytes()


def test_a_file_that_was_written_anew_is_noticed(folder, cache):
    made = opened(folder)
    os.utime(folder / NAMES[0], (1, 1))
    with pytest.raises(OSError, match="has changed since it was scanned"):
        made.read(0)
    pq.write_table(pq.read_table(folder / NAMES[1]), folder / NAMES[1], row_group_size=5)
    with pytest.raises(OSError, match="has changed since it was scanned"):
        made.read(5)
    assert not [file for file in cache.iterdir() if file.suffix == ".part"]
    options = {"transform": dp.EvalTransform(size=20, resize=22), "batch_size": 4, "device": "cpu"}
    with (
        dp.build_loader(made, CONFIGS[0], **options, max_bad_fraction=1) as loader,
        pytest.raises(dp.BadSampleError, match="has changed since it was scanned"),
    ):
        next(iter(loader))


def broken(folder):
    (folder / NAMES[0]).write_bytes((folder / NAMES[0]).read_bytes()[:-50])


def other_columns(folder):
    pq.write_table(pq.read_table(folder / NAMES[0]).drop_columns(["age"]), folder / NAMES[0])


def no_label(folder):
    for name in NAMES:
        pq.write_table(
            pq.read_table(folder / name).drop_columns(["animal"]).replace_schema_metadata(),
            folder / name,
        )


@pytest.mark.parametrize(
    ("fault", "options", "message"),
    [
        (other_columns, {}, "have not the same columns"),
        (no_label, {}, "not a table with the columns label; it has caption, age, boxes, things"),
        (
            lambda folder: None,
            {"targets": dp.Targets(mask="caption")},
            "masks are not read from rows that hold their images",
        ),
        (
            lambda folder: None,
            {"targets": dp.Targets(text="word")},
            "word is missing: rename one, or name it with targets.text=",
        ),
    ],
)
def test_files_that_cannot_be_read(folder, fault, options, message):
    fault(folder)
    with pytest.raises(ManifestError, match=message):
        opened(folder, **options)


def test_a_broken_file_is_named(folder):
    broken(folder)
    with pytest.raises(ManifestError, match=f"{NAMES[0]}: "):
        opened(folder / NAMES[0])


def test_paths_without_images_are_problems_that_say_what_to_do(tmp_path):
    images = pa.array(
        [{"bytes": None, "path": "/a.jpg"}, {"bytes": b"GIF", "path": None}],
        pa.struct({"bytes": pa.binary(), "path": pa.string()}),
    )
    pq.write_table(pa.table({"image": images, "label": [0, 1]}), tmp_path / "x.parquet")
    made = opened(tmp_path / "x.parquet")
    assert [why for _, why in made.problems] == [
        (
            "no bytes in this row: only its path; embed the images "
            "(datasets.table.embed_table_storage)"
        ),
        "not an image, or its header is broken",
    ]


def test_a_scan_of_folders_says_how_to_open_them(folder):
    with pytest.raises(ManifestError, match="its Parquet files hold the images; open them with"):
        Manifest.scan(folder, progress=False)


def test_a_cache_that_is_too_small_is_refused(folder, monkeypatch):
    monkeypatch.setenv("DALI_PIPES_CACHE_GB", "0.000001")
    made = opened(folder)
    with pytest.raises(dp.ConfigError, match="set DALI_PIPES_CACHE_GB to"):
        dp.build_loader(
            made,
            CONFIGS[0],
            transform=dp.EvalTransform(size=20, resize=22),
            batch_size=4,
            device="cpu",
            max_bad_fraction=1,
        )
    with pytest.raises(OSError, match="more than DALI_PIPES_CACHE_GB=1e-06 allows"):
        made.read(0)


def test_numbers_stay_numbers_without_names(tmp_path):
    images = pa.array(
        [{"bytes": (row["image"] or {}).get("bytes")} for row in rows()[:3]],
        pa.struct({"bytes": pa.large_binary()}),
    )
    pq.write_table(pa.table({"img": images, "label": np.array([2, 0, 1])}), tmp_path / "x.parquet")
    made = opened(tmp_path / "x.parquet")
    assert (
        made.classes == ["0", "1", "2"]
        and made.labels.tolist() == [2, 0, 1]
        and made.name(1).endswith("x.parquet#0/row 1")
    )


def media(folder, **types):
    """A Parquet file of structs of bytes: `datasets` notes these types, or nothing for None."""
    image = pq.read_table(FILES / NAMES[0])["image"][:1].to_pylist()
    cells = {
        name: image if kind == "Image" or name.startswith("image") else [{"bytes": b"RIFF"}]
        for name, kind in types.items()
    }
    table = pa.table(cells | {"label": [0]})
    noted = {name: {"_type": kind} for name, kind in types.items() if kind}
    metadata = {"huggingface": json.dumps({"info": {"features": noted}})} if noted else None
    pq.write_table(table.replace_schema_metadata(metadata), folder / "m.parquet")
    return folder / "m.parquet"


@pytest.mark.parametrize(
    "types",
    [
        {"audio": "Audio", "image": "Image"},
        {"video": "Video", "audio": "Audio", "photo": "Image"},
        {"other": None, "photo": "Image"},
        {"audio": "Audio", "image": None},
        {"image": None},
    ],
)
def test_the_column_of_images_is_the_one_that_datasets_calls_so(types, tmp_path):
    made = opened(media(tmp_path, **types))
    image = pq.read_table(FILES / NAMES[0])["image"][0].as_py()["bytes"]
    assert made.read(0).tobytes() == image and not made.problems


@pytest.mark.parametrize("kind", ["Image", None])
def test_several_columns_of_images_are_refused_by_name(kind, tmp_path):
    file = media(tmp_path, audio="Audio", image_before=kind, image=kind)
    for source in (file, tmp_path, tmp_path / "*.parquet"):
        with pytest.raises(ManifestError, match="several columns of images, image_before, image;"):
            opened(source)
