"""Names whose accents are written in two ways, as a Mac stores them and as others write them."""

import json
import unicodedata

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from every_kind import picture, tar, write_pictures
from later import later
from PIL import Image

import dali_pipes as dp
from dali_pipes.data import expression
from dali_pipes.data.composed import composed, composed_column, decomposed

hf = later("datasets")
NFC = "café"
NFD = unicodedata.normalize("NFD", NFC)


def lay(folder, *names):
    for name in names:
        write_pictures(folder / name, 2)
    return folder


def test_class_folders_have_one_form(tmp_path):
    train = dp.Manifest.scan(lay(tmp_path / "train", NFC, "dog"), progress=False)
    val = dp.Manifest.scan(lay(tmp_path / "val", NFD, "dog"), progress=False)
    assert train.classes == val.classes == [NFC, "dog"]
    assert len(val) == 4 and len(bytes(val.read(0))) > 0
    joined = dp.Manifest.concat([train, val])
    assert joined.classes == [NFC, "dog"] and joined.labels.tolist() == [0, 0, 1, 1] * 2


@pytest.mark.parametrize("form", [NFC, NFD])
def test_classes_are_named_in_any_form(tmp_path, form):
    folder = lay(tmp_path, NFD, "dog")
    named = dp.Manifest.scan(folder, classes=[form, "dog"], progress=False)
    assert named.classes == [NFC, "dog"] and named.labels.tolist() == [0, 0, 1, 1]
    manifest = dp.Manifest.scan(folder, progress=False)
    assert manifest.with_classes(["dog", form]).labels.tolist() == [1, 1, 0, 0]
    assert len(manifest.filter(f"class == '{form}'")) == 2
    assert manifest.map_classes({form: "x"}).classes == ["x", "dog"]
    with pytest.raises(dp.ConfigError, match="twice"):
        manifest.with_classes([NFC, NFD, "dog"])


def test_two_folders_of_one_name_are_refused(tmp_path):
    with pytest.raises(dp.ManifestError, match=r"'cafe\\u0301' and 'caf\\xe9' have the same name"):
        dp.Manifest.scan(lay(tmp_path, NFC, NFD), progress=False)


def test_a_saved_manifest_of_another_form_is_joined(tmp_path):
    manifest = dp.Manifest.scan(lay(tmp_path, NFC, "dog"), progress=False)
    other = dp.Manifest.from_rows(manifest.root, [NFD, "dog"], manifest.table)
    assert dp.Manifest.concat([manifest, other]).classes == [NFC, "dog"]
    assert other.with_classes([NFC, "dog"]).labels.tolist() == manifest.labels.tolist()


@pytest.mark.parametrize("stored", [NFC, NFD])
@pytest.mark.parametrize("written", [NFC, NFD])
def test_a_table_finds_the_file_in_any_form(tmp_path, stored, written):
    (tmp_path / f"{stored}.png").write_bytes(picture(0))
    (tmp_path / "t.csv").write_text(f"path,label\n{written}.png,a\n", encoding="utf-8")
    manifest = dp.Manifest.open(tmp_path / "t.csv", progress=False)
    assert not manifest.problems and manifest.path(0).name == f"{stored}.png"
    content = {
        "images": [{"id": 1, "file_name": f"{written}.png"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 1, 1]}],
        "categories": [{"id": 1, "name": NFD}],
    }
    (tmp_path / "c.json").write_text(json.dumps(content))
    coco = dp.Manifest.open(tmp_path / "c.json", progress=False)
    assert not coco.problems and coco.classes == [NFC]


def test_both_forms_may_be_files(tmp_path):
    for number, name in enumerate([NFC, NFD]):
        (tmp_path / f"{name}.png").write_bytes(picture(number))
    (tmp_path / "t.csv").write_text(f"path,label\n{NFC}.png,a\n{NFD}.png,b\n", encoding="utf-8")
    assert dp.Manifest.open(tmp_path / "t.csv", progress=False).sizes[:, 1].tolist() == [1, 2]


def test_labels_of_a_table_are_one_class(tmp_path):
    paths = write_pictures(tmp_path, 3)
    pq.write_table(pa.table({"path": paths, "label": [NFC, NFD, "dog"]}), tmp_path / "t.parquet")
    manifest = dp.Manifest.open(tmp_path / "t.parquet", progress=False)
    assert manifest.classes == [NFC, "dog"] and manifest.labels.tolist() == [0, 0, 1]


def test_labels_of_objects_are_one_class(tmp_path):
    rows = {"path": write_pictures(tmp_path, 2), "b": [[0, 0, 1, 2]] * 2, "l": [[NFC], [NFD]]}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    targets = dp.Targets(boxes="b", box_labels="l")
    manifest = dp.Manifest.open(tmp_path / "t.parquet", targets=targets, progress=False)
    assert manifest.classes == [NFC]


def test_masks_belong_to_images_of_the_other_form(tmp_path):
    for folder, name, mode in (("i", NFC, "RGB"), ("m", NFD, "L")):
        (tmp_path / folder).mkdir()
        Image.new(mode, (4, 4)).save(tmp_path / folder / f"{name}.png")
    manifest = dp.Manifest.from_masks(tmp_path / "i", tmp_path / "m", progress=False)
    assert len(manifest) == 1 and not manifest.problems


def test_classes_of_shards(tmp_path):
    read = tar(tmp_path, [0, 1])
    (tmp_path / "classes.json").write_text(json.dumps([NFD, "dog"]))
    assert read().classes == [NFC, "dog"]
    (tmp_path / "classes.json").write_text(json.dumps([NFD, NFC]))
    with pytest.raises(dp.ManifestError, match="has a class in two forms of its accents"):
        read()


def test_values_of_a_column_are_equal_in_any_form(tmp_path):
    """So that a patient or a place is in one part, and a filter finds all of it."""
    cities = [form("Zürich") for form in (composed, decomposed)] * 4 + ["Bern"] * 4
    rows = zip(write_pictures(tmp_path, len(cities)), cities, strict=True)
    lines = [f"{path},0,{city}" for path, city in rows]
    (tmp_path / "t.csv").write_text("path,label,city\n" + "\n".join(lines))
    manifest = dp.Manifest.open(tmp_path / "t.csv", progress=False)
    for form in (composed, decomposed):
        assert len(manifest.filter(f"city == '{form('Zürich')}'")) == 8
        assert len(manifest.filter(f"city in ('{form('Zürich')}', 'x')")) == 8
        assert len(manifest.filter(f"city != '{form('Zürich')}'")) == 4
    for seed in range(4):
        parts = manifest.split({"a": 0.5, "b": 0.5}, by="city", seed=seed)
        assert sorted(map(len, parts.values())) in ([4, 8], [0, 12])


def test_a_filter_composes_each_column_once(tmp_path, monkeypatch):
    """It takes much longer than to compare the column with a value."""
    names = [form("Zürich") for form in (composed, decomposed)] + ["Bern", "Genève"]
    rows = zip(write_pictures(tmp_path, 4), names, names, strict=True)
    lines = [",".join(row) for row in rows]
    (tmp_path / "t.csv").write_text("path,label,city\n" + "\n".join(lines))
    manifest = dp.Manifest.open(tmp_path / "t.csv", progress=False)

    columns, lookups = [], []
    monkeypatch.setattr(
        expression,
        "composed_column",
        lambda column: columns.append(column) or composed_column(column),
    )
    original = expression.pc.is_in
    monkeypatch.setattr(
        expression.pc,
        "is_in",
        lambda *args, **options: lookups.append(1) or original(*args, **options),
    )

    many = ", ".join(f"'{form('Genève')}'" for form in (composed, decomposed)) + ", 'x', 'y'"
    for text, kept in (
        (f"city in ('Zürich', {many})", [0, 1, 3]),
        (f"city not in ({many}) and city != 'Bern' and 'Zürich' == city", [0, 1]),
    ):
        columns.clear()
        assert manifest.filter(text).labels.tolist() == manifest.labels[kept].tolist()
        assert len(columns) == 1

    assert len(manifest.filter(f"class in ('{decomposed('Zürich')}', 'Genève')")) == 3
    assert len(lookups) == 1
    assert len(manifest.filter("class not in ('Zürich', 'Genève')")) == 1
    assert not len(manifest.filter("class in ()"))
