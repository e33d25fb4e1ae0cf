"""An option that a source does not take is refused, unless that of the other split takes it."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.data.images import open_images
from dali_pipes.data.objects import Targets
from dali_pipes.errors import ConfigError


@pytest.fixture
def sources(image_folder, tmp_path):
    """A source of each kind, over the same images."""
    files = sorted(image_folder.glob("*/*.jpg"))[:4]
    table = pa.table({"path": [str(file) for file in files], "label": [0.5, 1.5, 2.5, 3.5]})
    pq.write_table(table, tmp_path / "paths.parquet")
    rows = "".join(f"{file},{number}.5\n" for number, file in enumerate(files))
    (tmp_path / "table.csv").write_text(f"path,label\n{rows}")
    images = [
        {"id": number, "file_name": str(file), "width": 1, "height": 1}
        for number, file in enumerate(files)
    ]
    (tmp_path / "coco.json").write_text(
        json.dumps({"images": images, "annotations": [], "categories": [{"id": 1, "name": "a"}]})
    )
    dp.Manifest.scan(image_folder).save(tmp_path / "saved.arrow")

    embedded = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    rows = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    pq.write_table(
        pa.table({"image": pa.array(rows, embedded), "label": [0, 1, 0, 1]}),
        tmp_path / "images.parquet",
    )
    names = {
        "csv": "table.csv",
        "parquet": "paths.parquet",
        "coco": "coco.json",
        "manifest": "saved.arrow",
        "embedded": "images.parquet",
    }
    return {"folder": image_folder} | {kind: tmp_path / name for kind, name in names.items()}


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("folder", {"label_column": "nothere"}, "label_column"),
        ("folder", {"delimiter": ";"}, "delimiter"),
        ("folder", {"task": "regression"}, "task"),
        ("folder", {"images": "/"}, "images"),
        ("folder", {"targets": Targets(annotated="upright")}, "targets.annotated"),
        ("folder", {"targets": Targets(mask_values={255: 1})}, "targets.mask_values"),
        ("manifest", {"label_column": "nothere"}, "label_column"),
        ("manifest", {"targets": Targets(text="caption")}, "targets.text"),
        ("manifest", {"images": "/"}, "images"),
        ("coco", {"encoding": "latin-1"}, "encoding"),
        ("coco", {"targets": Targets(text="caption")}, "targets.text"),
        ("coco", {"targets": Targets(boxes="b", box_labels="l")}, "targets.box"),
        ("parquet", {"delimiter": ";"}, "delimiter"),
        ("parquet", {"encoding": "latin-1"}, "encoding"),
        ("csv", {"targets": Targets(box_format="xywh")}, "targets.box_format"),
        ("csv", {"targets": Targets(bad_objects="problem")}, "targets.bad_objects"),
        ("embedded", {"images": "/"}, "images"),
        ("embedded", {"path_column": "file"}, "path_column"),
    ],
)
def test_an_option_that_changes_nothing_is_refused(sources, kind, options, named):
    with pytest.raises(ConfigError, match=f"{named}.* would change nothing: .*; leave it out"):
        dp.Manifest.open(sources[kind], **options)


def test_a_table_refuses_it_itself(sources):
    with pytest.raises(ConfigError, match="delimiter would change nothing"):
        dp.Manifest.from_table(sources["parquet"], delimiter=",")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_to_predict_have_no_classes(sources, kind):
    with pytest.raises((ConfigError, dp.ManifestError), match="no classes; leave out"):
        dp.Manifest.open(sources[kind], classes=["a", "b"])


def test_an_option_of_the_other_split_is_passed_over(sources):
    data = DataConfig(train=str(sources["csv"]), val=str(sources["folder"]), encoding="latin-1")
    assert open_images(data, "train").task == "regression"
    assert open_images(data, "val").task == "classification"

    data = DataConfig(train=str(sources["coco"]), val=str(sources["folder"]), encoding="latin-1")
    with pytest.raises(ConfigError, match=r"data\.encoding would change nothing"):
        open_images(data, "val")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"train_images": "/"}, r"data\.train_images"),
        ({"missing": "skip"}, r"data\.missing"),
        ({"targets": Targets(boxes="b", box_labels="l")}, r"data\.targets\.box"),
        ({"label_column": "class"}, r"data\.label_column"),
    ],
)
@pytest.mark.parametrize("with_masks", [False, True])
def test_folders_of_images_and_of_masks(sources, options, named, with_masks):
    masks = {"train_masks": str(sources["folder"])} if with_masks else {}
    if with_masks and "missing" in options:
        return
    data = DataConfig(train=str(sources["folder"]), **masks, **options)
    kind = (ConfigError, dp.ManifestError)  # a folder refuses targets by its own message
    with pytest.raises(kind, match=f"{named}.* would change nothing|targets are read from shards"):
        open_images(data, "train")


def test_a_cache_file_is_refused_where_nothing_is_cached(sources):
    for kind in ("csv", "coco", "manifest"):
        with pytest.raises(ConfigError, match="cache would change nothing"):
            dp.Manifest.open(sources[kind], cache="x.arrow")
    with pytest.raises(ConfigError, match="cache and cache_dir are both given"):
        dp.Manifest.scan(sources["folder"], cache="x.arrow", cache_dir="x")
    with pytest.raises(ConfigError, match="masks is for a folder of images"):
        dp.Manifest.open(sources["csv"], masks="m")


def test_an_empty_option_names_nothing(sources):
    """As data.train_images= on a command line."""
    assert len(dp.Manifest.open(sources["folder"], images="", masks="", progress=False))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: dp.Manifest.from_table("t.csv", "d"), r"Manifest.from_table\(\): too many"),
        (lambda: dp.Manifest.from_masks("im"), r"Manifest.from_masks\(\): missing .*'masks'"),
        (lambda: dp.Manifest.from_coco("c.json", with_labels=False), "unexpected .*'with_labels'"),
    ],
)
def test_a_wrong_call_is_named_as_it_was_made(call, text):
    with pytest.raises(TypeError, match=text):
        call()
