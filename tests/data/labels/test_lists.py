"""Labels that are lists, in every way in which people write them: one rule, whatever the source."""

import json
import tarfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from every_kind import picture, write_pictures
from hypothesis import given
from hypothesis import strategies as st
from later import later
from make_shards import add

import dali_pipes as dp
from dali_pipes.data.labels.reader import read_labels
from dali_pipes.data.sources.options import SourceOptions

hf = later("datasets")


def in_csv(folder, labels, **options):
    paths = write_pictures(folder, len(labels))
    pd.DataFrame({"path": paths, "label": labels}).to_csv(folder / "t.csv", index=False)
    return dp.Manifest.open(folder / "t.csv", progress=False, **options)


def in_parquet(folder, labels, **options):
    paths = write_pictures(folder, len(labels))
    pq.write_table(pa.table({"path": paths, "label": labels}), folder / "t.parquet")
    return dp.Manifest.open(folder / "t.parquet", progress=False, **options)


def embedded(folder, labels, **options):
    images = [{"bytes": picture(n), "path": None} for n in range(len(labels))]
    pq.write_table(pa.table({"image": images, "label": labels}), folder / "t.parquet")
    return dp.Manifest.open(folder / "t.parquet", progress=False, **options)


def from_hf(folder, labels, **options):
    paths = [str(folder / name) for name in write_pictures(folder, len(labels))]
    rows = hf.Dataset.from_dict({"image": paths, "label": labels})
    return dp.Manifest.from_hf(rows.cast_column("image", hf.Image()), progress=False, **options)


EVERY = {made.__name__: made for made in (in_csv, in_parquet, embedded, from_hf)}
every_source = pytest.mark.parametrize("source", EVERY)


def classes_of(manifest):
    """The names of the classes of each image."""
    return [
        sorted(manifest.classes[number] for number in row if number >= 0)
        for row in manifest.labels.tolist()
    ]


def notes(manifest):
    return [each.kind for each in manifest.omissions if each.unit == "note"]


@every_source
@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        ([[0, 1], [1, 0], [1, 1], [0, 0]], [["1"], ["0"], ["0", "1"], []]),
        ([[0, 0, 1], [1, 0, 1], [0, 0, 0], [0, 1, 0]], [["2"], ["0", "2"], [], ["1"]]),
        ([[True, False], [False, True]], [["0"], ["1"]]),
        # the last place is a class, though no image has it
        ([[0, 1, 0], [1, 0, 0]], [["1"], ["0"]]),
    ],
)
def test_vectors_of_zeros_and_ones(source, vectors, expected, tmp_path):
    manifest = EVERY[source](tmp_path, vectors)
    assert manifest.task == "multilabel" and classes_of(manifest) == expected
    assert len(manifest.classes) == len(vectors[0])
    assert "vectors of" in notes(manifest)[0] and not manifest.problems
    assert ("one class only" in notes(manifest)[0]) == all(sum(row) == 1 for row in vectors)


@every_source
@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ([[0, 1], [1], [0], []], [["0", "1"], ["1"], ["0"], []]),
        ([["cat", "dog"], ["dog"], [], ["cat"]], [["cat", "dog"], ["dog"], [], ["cat"]]),
        ([[2], [0], [1]], [["2"], ["0"], ["1"]]),
        ([[0], [1], [0]], [["0"], ["1"], ["0"]]),  # one place is no vector
        ([[0, 2], [1, 2]], [["0", "2"], ["1", "2"]]),
    ],
)
def test_lists_of_classes(source, lists, expected, tmp_path):
    manifest = EVERY[source](tmp_path, lists)
    assert classes_of(manifest) == expected and not notes(manifest)


@every_source
def test_vectors_of_fractions_are_asked_about(source, tmp_path):
    vectors = [[0.0, 1.0], [1.0, 0.0]]
    with pytest.raises(dp.ManifestError, match=r"written as fractions, such as \[0\.0, 1\.0\]"):
        EVERY[source](tmp_path, vectors)


@pytest.mark.parametrize("made", [in_csv, in_parquet])
def test_task_says_what_fractions_are(made, tmp_path):
    vectors = [[0.0, 1.0], [1.0, 1.0]]
    assert classes_of(made(tmp_path, vectors, task="classification")) == [["1"], ["0", "1"]]
    assert made(tmp_path, vectors, task="regression").labels.tolist() == vectors
    assert made(tmp_path, [[0.5, 1], [1, 0]]).labels.tolist() == [[0.5, 1], [1, 0]]


@pytest.mark.parametrize("kind", [pa.list_(pa.int64(), 2), pa.large_list(pa.uint8())])
def test_every_type_of_list(kind, tmp_path):
    manifest = in_parquet(tmp_path, pa.array([[0, 1], [1, 0]], kind))
    assert classes_of(manifest) == [["1"], ["0"]]


def test_who_names_another_number_of_classes_has_lists(tmp_path):
    manifest = in_parquet(tmp_path, [[0, 1], [1, 0]], classes=["a", "b", "c"])
    assert classes_of(manifest) == [["a", "b"], ["a", "b"]]
    vectors = in_parquet(tmp_path, [[0, 1], [1, 0]], classes=["a", "b"])
    assert classes_of(vectors) == [["b"], ["a"]]


@pytest.mark.parametrize("where", ["data set", "file"])
def test_lists_of_class_labels_are_class_numbers(where, tmp_path):
    cells = [{"bytes": picture(number), "path": None} for number in range(2)]
    names = hf.Sequence(hf.ClassLabel(names=["cat", "dog"]))
    features = hf.Features({"image": hf.Image(), "label": names})
    rows = hf.Dataset.from_dict({"image": cells, "label": [[0, 1], [1, 0]]}, features)
    if where == "data set":
        rows.save_to_disk(tmp_path / "set")
        manifest = dp.Manifest.from_hf(hf.load_from_disk(str(tmp_path / "set")))
    else:
        rows.to_parquet(str(tmp_path / "t.parquet"))
        manifest = dp.Manifest.open(tmp_path / "t.parquet", progress=False)
    assert classes_of(manifest) == [["cat", "dog"]] * 2


def test_true_and_false_of_several_lengths(tmp_path):
    with pytest.raises(dp.ManifestError, match=r"another length than the first.*\(row 2\)"):
        in_parquet(tmp_path, [[True, False], [True]])


# lists that are written as text

WRITTEN = {
    "Python": str,
    "JSON": json.dumps,
    "NumPy": lambda row: str(np.array(row)),
    "a tuple": lambda row: str(tuple(row)),
    "blanks": lambda row: f"  {row} ",
}


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("made", [in_csv, in_parquet])
@pytest.mark.parametrize("rows", [[[0, 2], [1], []], [["a b", "c"], ["c"], ["d"]]])
def test_texts_of_lists(made, written, rows, tmp_path):
    manifest = made(tmp_path, [WRITTEN[written](row) for row in rows])
    assert classes_of(manifest) == [sorted(map(str, row)) for row in rows]


def test_sets_and_vectors_as_text(tmp_path):
    assert classes_of(in_csv(tmp_path, ["{1, 0}", "{2}"])) == [["0", "1"], ["2"]]
    assert classes_of(in_csv(tmp_path, ["[true, false]", "[true,true]"])) == [["0"], ["0", "1"]]
    assert classes_of(in_csv(tmp_path, ["[0 1]", "[1 0]"])) == [["1"], ["0"]]
    assert in_csv(tmp_path, ["[0.5 1.]", "[1.  0.25]"]).labels.tolist() == [[0.5, 1], [1, 0.25]]


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        (["[0, 1]", "cat"], {}, r"'cat' is no list, and others are.*\(row 2\)"),
        (["[0, 1]", "['a']"], {}, r"of another kind than those before \(row 2\)"),
        (["[0, 1]", "[1]"], {"label_separator": ","}, "a list already"),
        (["[cat, dog]", "[dog]"], {}, "looks like a list, and cannot be read"),
        (["[[0, 1], [1]]", "[[1]]"], {}, "looks like a list, and cannot be read"),
    ],
)
def test_texts_that_are_only_partly_lists_are_refused(cells, options, message, tmp_path):
    with pytest.raises(dp.ManifestError, match=message):
        in_csv(tmp_path, cells, **options)
    if options:
        return
    named = in_csv(tmp_path, cells, task="classification")
    assert sorted(named.classes) == sorted(cells)


def test_names_in_brackets_are_names(tmp_path):
    assert in_csv(tmp_path, ["[unknown]", "cat"]).classes == ["[unknown]", "cat"]
    assert in_csv(tmp_path, ["(a) b", "[c] d"]).classes == ["(a) b", "[c] d"]


@given(
    st.lists(st.lists(st.integers(0, 5), max_size=4, unique=True), min_size=1, max_size=8),
    st.sampled_from(["numbers", "names"]),
    st.sampled_from(["Arrow", "Python", "JSON"]),
)
def test_a_text_means_what_the_list_means(rows, items, written):
    if items == "names":
        rows = [[f"class {number}" for number in row] for row in rows]
    kind = pa.list_(pa.int64() if items == "numbers" else pa.string())
    column = pa.array(rows, kind) if written == "Arrow" else pa.array(map(WRITTEN[written], rows))
    if not any(rows):
        return
    try:
        read = read_labels("t", pa.chunked_array([column]), SourceOptions())
    except dp.ManifestError:
        # an empty column of texts has no kind
        assert written != "Arrow" and not any(rows)
        return
    got = [sorted(read.classes[number] for number in row) for row in read.values.to_pylist()]
    are_vectors = (
        items == "numbers"
        and len({len(row) for row in rows}) == 1
        and len(rows[0]) > 1
        and all(number <= 1 for row in rows for number in row)
    )
    expected = (
        [[str(place) for place, one in enumerate(row) if one] for row in rows]
        if are_vectors
        else [sorted(map(str, row)) for row in rows]
    )
    assert got == expected


@pytest.mark.parametrize(
    ("extension", "content"),
    [
        (".cls", "cat"),
        (".cls", "[0, 1]"),
        (".json", '{"label": [0, 1]}'),
        (".json", '{"label": "cat"}'),
    ],
)
def test_a_shard_names_a_label_that_is_no_number(extension, content, tmp_path):
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        for number, text in enumerate([content, '{"label": 0}' if extension == ".json" else "0"]):
            add(archive, f"{number}.png", picture(number))
            add(archive, f"{number}{extension}", text.encode())
    manifest = dp.Manifest.open(tmp_path, progress=False)
    assert len(manifest) == 1 and "holds no class number" in manifest.problems[0][1]
