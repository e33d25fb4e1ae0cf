"""Every option that takes names refuses one text, and a name that is there twice, alike."""

import dataclasses
import inspect
import typing
from collections.abc import Sequence
from pathlib import Path

import pytest
from every_kind import tar, write_pictures
from later import later

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.data.sources.options import SourceOptions

hf = later("datasets")
METHODS = [name for name in vars(dp.Manifest) if not name.startswith("_")]


@pytest.fixture
def folder(tmp_path):
    write_pictures(tmp_path / "a", 1)
    write_pictures(tmp_path / "b", 1)
    (tmp_path / "t.csv").write_text("path,label,site\na/0.png,a,1\nb/0.png,b,2\n")
    return tmp_path


def read(name, source):
    return lambda folder, names: getattr(dp.Manifest, name)(
        folder / source, classes=names, progress=False
    )


CALLS = {
    "Manifest.scan": read("scan", ""),
    "Manifest.open": read("open", ""),
    "Manifest.from_table": read("from_table", "t.csv"),
    "Manifest.from_coco": read("from_coco", "c.json"),
    "Manifest.from_masks": lambda folder, names: dp.Manifest.from_masks(
        folder / "a", folder / "b", classes=names, progress=False
    ),
    "Manifest.from_hf": lambda folder, names: dp.Manifest.from_hf(dataset(folder), classes=names),
    "Manifest.with_classes": lambda folder, names: dp.Manifest.scan(
        folder, progress=False
    ).with_classes(names),
    "Manifest.without_columns": lambda folder, names: dp.Manifest.open(
        folder / "t.csv", progress=False
    ).without_columns(names),
    "SourceOptions": lambda folder, names: dp.SourceOptions(classes=names),
    "Targets": lambda folder, names: dp.Targets(
        boxes="b", box_labels="l", keypoints="k", keypoint_names=names
    ),
    "DataConfig": lambda folder, names: DataConfig(classes=names),
}


def dataset(folder):
    rows = hf.Dataset.from_dict({"image": [str(folder / "a/0.png")], "label": ["a"]})
    return rows.cast_column("image", hf.Image())


def takes_names(annotation):
    kinds = typing.get_args(annotation) or (annotation,)
    return any(kind in (list[str], Sequence[str]) for kind in (annotation, *kinds))


def test_every_option_of_names_is_tried_here():
    """A new one fails here until its refusals are tried below."""
    found = set()
    for name in METHODS:
        method = inspect.getattr_static(dp.Manifest, name)
        call = getattr(dp.Manifest, name)
        if not isinstance(method, classmethod) and not inspect.isfunction(method):
            continue
        # those that read a source take the options of all
        hints = typing.get_type_hints(inspect.unwrap(call))
        if hints.get("options") is SourceOptions:
            hints = typing.get_type_hints(SourceOptions)
        if any(takes_names(hint) for option, hint in hints.items() if option != "return"):
            found.add(f"Manifest.{name}")
    for options in (dp.SourceOptions, dp.Targets, DataConfig):
        hints = typing.get_type_hints(options)
        if any(takes_names(hints[field.name]) for field in dataclasses.fields(options)):
            found.add(options.__name__)
    assert found == set(CALLS)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("names", ["cat", ["a", "a"], [1, 2]], ids=["text", "twice", "numbers"])
def test_what_is_no_list_of_names_is_refused(call, names, folder):
    with pytest.raises(dp.ConfigError, match=r"it takes a list of|names 'a' twice"):
        CALLS[call](folder, names)


def test_a_column_that_is_not_there_is_not_left_out(folder):
    manifest = dp.Manifest.open(folder / "t.csv", progress=False)
    assert list(manifest.without_columns(["site"]).columns) == []
    with pytest.raises(dp.ConfigError, match=r"there is no column 'sit' .* did you mean site"):
        manifest.without_columns(["sit"])


def test_columns_of_ones_own_may_be_called_as_targets_are(tmp_path):
    write_pictures(tmp_path, 1)
    (tmp_path / "t.csv").write_text("path,label,mask_quality,cafe\u0301\n0.png,a,1,2\n", "utf-8")
    manifest = dp.Manifest.open(tmp_path / "t.csv", progress=False)
    assert list(manifest.without_columns(["mask_quality", "caf\u00e9"]).columns) == []


def test_classes_of_shards_that_were_joined_apart_may_have_one_name(tmp_path):
    Path(tmp_path / "classes.json").write_text('["a", "a"]')
    assert tar(tmp_path, [0, 1])().classes == ["a", "a"]
