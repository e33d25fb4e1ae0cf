"""Tables with the types that other programs write for the same values: views, dictionaries, plain
bytes, structs and lists of structs.
"""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from every_kind import picture, write_pictures
from later import later

import dali_pipes as dp
from dali_pipes.data.arrow_types import plain, with_fields

hf = later("datasets")
TEXTS = {
    "string": pa.string(),
    "large": pa.large_string(),
    "view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}
BYTES = {
    "binary": pa.binary(),
    "large": pa.large_binary(),
    "view": pa.binary_view(),
}


def opened(folder, columns, **options):
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return dp.Manifest.open(folder / "t.parquet", progress=False, **options)


def first_batch(manifest):
    loader = dp.build_loader(
        manifest,
        dp.TorchConfig(num_workers=0),
        transform=dp.EvalTransform(size=4, resize=4),
        batch_size=8,
        device="cpu",
    )
    with loader:
        return next(iter(loader))


def column(values, kind):
    return (
        pa.array(values).dictionary_encode()
        if kind == "dictionary"
        else pa.array(values, TEXTS[kind])
    )


@pytest.mark.parametrize("kind", TEXTS)
def test_every_type_of_text(kind, tmp_path):
    paths = write_pictures(tmp_path, 4)
    manifest = opened(
        tmp_path,
        {
            "path": column(paths, kind),
            "label": column(list("baba"), kind),
            "site": column(list("xxyy"), kind),
        },
    )
    assert manifest.classes == ["a", "b"] and manifest.labels.tolist() == [1, 0, 1, 0]
    assert len(manifest.filter("site == 'y'")) == 2
    assert sorted(map(len, manifest.split({"a": 0.5, "b": 0.5}, by="site").values())) == [2, 2]
    assert not manifest.omissions
    manifest.save(tmp_path / "m.arrow")
    assert dp.Manifest.load(tmp_path / "m.arrow").columns["site"].to_pylist() == list("xxyy")
    assert first_batch(manifest).labels.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("text", ["string", "large", "view"])
@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("shape", ["struct", "plain"])
def test_every_type_of_images(shape, kind, text, tmp_path):
    images = [picture(number) for number in range(4)]
    if shape == "plain":
        values = pa.array(images, BYTES[kind])
    else:
        of = pa.struct([("bytes", BYTES[kind]), ("path", TEXTS[text])])
        values = pa.array([{"bytes": image, "path": None} for image in images], of)
    manifest = opened(tmp_path, {"picture": values, "label": [0, 1, 0, 1]})
    assert manifest.sizes[:, 1].tolist() == [1, 2, 3, 4] and not manifest.problems
    reds = first_batch(manifest).images[:, 0].flatten(1).mean(1)
    assert (np.diff(reds.numpy()) > 0).all()


def test_a_file_of_bytes_beside_class_folders_changes_nothing(tmp_path):
    write_pictures(tmp_path / "a", 2)
    pq.write_table(pa.table({"hash": [b"1"], "other": [b"2"]}), tmp_path / "features.parquet")
    assert dp.Manifest.open(tmp_path, progress=False).classes == ["a"]


def test_several_columns_of_bytes_are_refused(tmp_path):
    images = [picture(0)]
    with pytest.raises(dp.ManifestError, match="several columns of images, one, two"):
        opened(tmp_path, {"one": images, "two": images, "label": [0]})


@pytest.mark.parametrize("items", [pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
@pytest.mark.parametrize("of", [pa.list_, pa.large_list])
def test_lists_of_such_types_are_labels(items, of, tmp_path):
    rows = [["a", "b"], ["b"]]
    lists = pa.array(rows, pa.list_(pa.string())).cast(of(pa.string()))
    if pa.types.is_dictionary(items):
        inner = lists.flatten().dictionary_encode()
        made = pa.LargeListArray if of is pa.large_list else pa.ListArray
        lists = made.from_arrays(lists.offsets, inner)
    else:
        lists = lists.cast(of(items))
    manifest = opened(tmp_path, {"path": write_pictures(tmp_path, 2), "label": lists})
    assert manifest.labels.tolist() == [[0, 1], [1, -1]]


def test_plain_changes_no_value_and_no_other_type():
    table = pa.table(
        {
            "view": pa.array(["a", None], pa.string_view()),
            "number": pa.array([1, 2], pa.int16()),
            "struct": pa.array([{"x": b"1"}, None], pa.struct([("x", pa.binary_view())])),
        }
    )
    changed = plain(table)
    assert changed.to_pylist() == table.to_pylist()
    assert changed.schema.types == [
        pa.large_string(),
        pa.int16(),
        pa.struct([("x", pa.large_binary())]),
    ]
    assert plain(changed) is changed


# columns that are not kept, and objects

OBJECTS = [
    [{"bbox": [0.0, 0, 1, 2], "category": 1}, {"bbox": [0.0, 1, 1, 1], "category": 0}],
    [],
    [{"bbox": [0.0, 0, 1, 1], "category": 1}],
]
TARGETS = dp.Targets(boxes="objects.bbox", box_labels="objects.category", box_format="xywh")


def struct_of_lists(rows):
    fields = [{key: [each[key] for each in row] for key in ("bbox", "category")} for row in rows]
    kind = pa.struct(
        [("bbox", pa.list_(pa.list_(pa.float64()))), ("category", pa.list_(pa.int64()))]
    )
    return pa.array(fields, kind)


def list_of_structs(rows):
    kind = pa.list_(pa.struct([("bbox", pa.list_(pa.float64())), ("category", pa.int64())]))
    # in a slice of a longer column, as rows of a file are
    return pa.array([*rows[:1], *rows], kind)[1:]


@pytest.mark.parametrize("made", [struct_of_lists, list_of_structs])
@pytest.mark.parametrize("images", ["files", "embedded"])
def test_fields_of_a_column_of_objects_are_targets(made, images, tmp_path):
    columns = {"objects": made(OBJECTS)}
    if images == "files":
        columns["path"] = write_pictures(tmp_path, 3)
    else:
        columns["image"] = [{"bytes": picture(n), "path": None} for n in range(3)]
    manifest = opened(tmp_path, columns, targets=TARGETS)
    objects = manifest.take_objects(np.arange(3))
    assert objects.counts.tolist() == [2, 0, 1] and objects.labels.tolist() == [1, 0, 1]
    assert objects.boxes.tolist() == [[0, 0, 1, 2], [0, 1, 1, 2], [0, 0, 1, 1]]

    without = opened(tmp_path, columns | {"label": [0, 1, 0]})
    (doubt,) = [each for each in without.omissions if each.unit == "doubt"]
    assert "Targets(boxes='objects.bbox', box_labels='objects.category'" in doubt.kind
    with pytest.raises(dp.OmissionError, match="a column of boxes, which are not read"):
        without.tell_omissions(strict=True)


@pytest.mark.parametrize("embeds", [False, True])
@pytest.mark.parametrize(("name", "labels"), [("bbox", "category"), ("Boxes", "class_labels")])
def test_a_column_of_boxes_beside_that_of_their_labels(name, labels, embeds, tmp_path):
    paths = write_pictures(tmp_path, 3)
    if embeds:
        cells = [{"bytes": (tmp_path / path).read_bytes(), "path": path} for path in paths]
    images = {"image": cells} if embeds else {"path": paths}
    boxes = [[[0, 0, 1, 2], [0, 1, 1, 1]], [], [[0, 0, 1, 1]]]
    columns = {"label": [0, 1, 0], name: boxes, labels: [[1, 0], [], [1]]}
    pq.write_table(pa.table(images | columns), tmp_path / "t.parquet")

    def read(**options):
        return dp.Manifest.open(tmp_path / "t.parquet", progress=False, **options)

    (doubt,) = [each for each in read().omissions if each.unit == "doubt"]
    assert f"Targets(boxes='{name}', box_labels='{labels}'" in doubt.kind
    with pytest.raises(dp.OmissionError, match="a column of boxes, which are not read"):
        read(strict=True)
    targets = dp.Targets(boxes=name, box_labels=labels, box_format="xywh")
    manifest = read(targets=targets, strict=True)
    assert manifest.take_objects(np.arange(3)).counts.tolist() == [2, 0, 1]


def test_objects_of_an_open_data_set(tmp_path):
    cells = [{"bytes": picture(number), "path": None} for number in range(3)]
    features = hf.Features(
        {
            "image": hf.Image(),
            "objects": {
                "bbox": hf.Sequence(hf.Sequence(hf.Value("float64"))),
                "category": hf.Sequence(hf.ClassLabel(names=["cat", "dog"])),
            },
        }
    )
    rows = struct_of_lists(OBJECTS).to_pylist()
    dataset = hf.Dataset.from_dict({"image": cells, "objects": rows}, features)
    dataset.save_to_disk(tmp_path / "set")
    dataset = hf.load_from_disk(str(tmp_path / "set"))
    manifest = dp.Manifest.from_hf(dataset, targets=TARGETS, progress=False)
    assert manifest.classes == ["cat", "dog"]
    assert manifest.take_objects(np.arange(3)).labels.tolist() == [1, 0, 1]
    # the same rows in another order, and as a file that holds the images
    turned = dp.Manifest.from_hf(dataset.select([2, 1, 0]), targets=TARGETS, progress=False)
    assert turned.take_objects(np.arange(3)).counts.tolist() == [1, 0, 2]
    dataset.to_parquet(str(tmp_path / "d.parquet"))
    stored = dp.Manifest.open(tmp_path / "d.parquet", targets=TARGETS, progress=False)
    assert stored.classes == ["cat", "dog"] and stored.labels.tolist() == [
        [0, 1],
        [-1, -1],
        [1, -1],
    ]


def test_columns_that_nobody_keeps_are_noted(tmp_path):
    day = datetime.date(2026, 1, 1)
    columns = {"path": write_pictures(tmp_path, 2), "label": [0, 1], "day": [day] * 2}
    columns |= {"map": pa.array([{"x": 1}] * 2), "kept": [1.5, 2.5]}
    manifest = opened(tmp_path, columns, strict=True)
    (note,) = manifest.omissions
    assert (note.kind, note.unit) == ("columns of types that are not kept", "note")
    assert note.names == ["day", "map"] and list(manifest.columns) == ["kept"]


def test_a_field_that_is_not_there_is_refused_by_name(tmp_path):
    columns = {"path": write_pictures(tmp_path, 3), "objects": struct_of_lists(OBJECTS)}
    wrong = dp.Targets(boxes="objects.box", box_labels="objects.category")
    with pytest.raises(dp.ManifestError, match=r"objects\.box is missing"):
        opened(tmp_path, columns, targets=wrong)
    table = pa.table({"a": [1]})
    assert with_fields(table, ["a.b", "c.d", "a"]).column_names == ["a"]
