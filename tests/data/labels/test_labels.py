"""What the columns of a table become: labels of every kind, and columns, in a manifest and in a
batch.
"""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import dali_pipes as dp
from dali_pipes.loader.targets import multi_hot
from dali_pipes.measure.arms import SyntheticConfig
from dali_pipes.tools.scan.run import _summary

DOCS = Path(__file__).parents[3] / "docs/targets.md"
NAN = float("nan")


@pytest.fixture
def listed(manifest, tmp_path):
    """A manifest of a Parquet table with these labels and columns, or of a CSV with these cells of
    labels.
    """

    def make(labels, separator=None, task=None, **columns):
        paths = [str(manifest.path(number)) for number in range(len(labels))]
        if isinstance(labels, str):
            cells = labels.split("|")
            file = tmp_path / "t.csv"
            file.write_text(
                "path,label\n"
                + "".join(f"{manifest.path(number)},{cell}\n" for number, cell in enumerate(cells))
            )
        else:
            file = tmp_path / "t.parquet"
            pq.write_table(pa.table({"path": paths, "label": labels, **columns}), file)
        return dp.Manifest.open(file, label_separator=separator, task=task, progress=False)

    return make


@pytest.mark.parametrize(
    ("labels", "separator", "classes", "expected"),
    [
        ("cat;dog|dog||bird ; cat", ";", ["bird", "cat", "dog"], [[1, 2], [2], [], [0, 1]]),
        ("2;0|3||0", ";", ["0", "1", "2", "3"], [[0, 2], [3], [], [0]]),
        ("2|3|0", ";", ["0", "1", "2", "3"], [[2], [3], [0]]),
        ("10;x|2", ";", ["10", "2", "x"], [[0, 2], [1]]),
        ([[2, 0], [3], []], None, ["0", "1", "2", "3"], [[0, 2], [3], []]),
        ([["b", "a"], ["c"]], None, ["a", "b", "c"], [[0, 1], [2]]),
        (
            pa.array([["b", "a"], ["c"]], pa.large_list(pa.string())),
            ";",
            ["a", "b", "c"],
            [[0, 1], [2]],
        ),
        (
            pa.array([[0, 1], [3, 2]], pa.list_(pa.int16(), 2)),
            None,
            ["0", "1", "2", "3"],
            [[0, 1], [2, 3]],
        ),
    ],
)
def test_several_classes(listed, labels, separator, classes, expected):
    manifest = listed(labels, separator)
    assert manifest.task == "multilabel" and manifest.classes == classes
    hot = multi_hot(torch.from_numpy(manifest.labels), len(classes))
    assert (
        hot.dtype == torch.float32 and [row.nonzero().flatten().tolist() for row in hot] == expected
    )
    assert ((hot == 0) | (hot == 1)).all()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("0.5|-2|3e1", [0.5, -2, 30]),
        (pa.array([0.5, 2], pa.float16()), [0.5, 2]),
        ([[0.5, 1.0], [2.0, -1.0]], [[0.5, 1], [2, -1]]),
        (pa.array([[0.5, 1.0], [2.0, -1.0]], pa.list_(pa.float64(), 2)), [[0.5, 1], [2, -1]]),
        ([[0.5], [2.0]], [[0.5], [2]]),
    ],
)
def test_numbers_to_predict(listed, labels, expected):
    manifest = listed(labels)
    assert manifest.task == "regression" and manifest.classes == []
    assert manifest.labels.dtype == np.float32 and manifest.labels.tolist() == expected


def test_one_class_stays_one_class(listed):
    assert (
        listed("b|a|b").task
        == listed([3, 1]).task
        == listed(pa.array(["b", "a"]).dictionary_encode()).task
        == "classification"
    )
    assert listed("a;b|a").classes == ["a", "a;b"]
    assert listed([3, 1]).labels.dtype == np.int64


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[0, 2, 0], [1, 0, 1]], "the label of row 1 has the class 0 twice"),
        ([[0.5], [1.0, 2.0]], "must all have the same length"),
        ([[], []], "no row has a label"),
        (
            [[1, None]],
            r"no row has a label \(row 1: no label: an empty place in its list",
        ),
        ([None, None], "no row has a label"),
        ([NAN], "no row has a label"),
        ([0.5, float("inf")], r"a label is not finite, inf \(row 2\)"),
        ([[1.0, NAN]], "no row has a label"),
        ([[0.5, 1.0], [1.0, -float("inf")]], r"a label is not finite, -inf \(row 2\)"),
        ([[-1]], r"no row has a label \(row 1: no label: an empty place in its list"),
        ([-1, -1], "no row has a label"),
        ([-1, 1, -1], "all labels are -1 and 1, and -1 is no class"),
        ([[1, -1, 1], [-1, -1, 1], [1, 1, 1]], "all labels are -1 and 1, and -1 is no class"),
        ([[1, -1, 1], [-1, -1, 1]], "all labels are -1 and 1, and -1 is no class"),
        ([[-2]], "labels run from -2 to -2"),
        (pa.array([1, 2**64 - 1], pa.uint64()), "labels run from 1 to 18446744073709551615"),
        ([{"a": 1}], "make no sense"),
        ([[[1]]], "make no sense"),
    ],
)
def test_labels_that_cannot_be_meant(listed, labels, message):
    with pytest.raises(dp.ManifestError, match=message):
        listed(labels)


@pytest.mark.parametrize(
    ("labels", "missing"),
    [
        ([[1], None], "no label (row 2)"),
        ([[1], [0, None]], "no label: an empty place in its list of labels (row 2)"),
        ([[1], [0, -1]], "no label: an empty place in its list of labels (row 2)"),
        ([3, -1], "no label (row 2)"),
        ([0.5, None], "no label (row 2)"),
        ([0.5, NAN], "no label (row 2)"),
        ([[1.0, 0.5], [1.0, NAN]], "no label: an empty place in its list of labels (row 2)"),
    ],
)
def test_a_row_without_a_label_is_a_problem(listed, labels, missing):
    made = listed(labels)
    assert len(made) == 1 and [why.partition(";")[0] for _, why in made.problems] == [missing]
    assert made.labels.tolist() == [labels[0]]


def test_minus_one_may_be_predicted(listed):
    assert listed([-1.5, -1.0]).labels.tolist() == [-1.5, -1]
    assert listed([-1, 1], task="regression").labels.tolist() == [-1, 1]
    assert len(listed([-1.0, 0.0], task="classification").problems) == 1


def test_columns_are_kept(listed):
    manifest = listed(
        [0, 1, 0],
        whole=pa.array([1, 2, 3], pa.int8()),
        gap=[1, None, 3],
        fraction=pa.array([0.5, None, 1e300]),
        flag=[True, False, True],
        pair=pa.array([[1, 2], [3, 4], [5, None]], pa.list_(pa.int32(), 2)),
        height=[7.0, 8.0, 9.0],  # a name that manifests use too
        text=["a", None, "ü"],
        ragged=[[1], None, [2, 3]],
        fractions=pa.array([[0.5], [], [None, 2]], pa.large_list(pa.float64())),
        day=pa.array([0, 1, 2], pa.date32()),
    )
    columns = dict(manifest.columns)
    assert columns.pop("text").to_pylist() == ["a", "", "ü"] and columns.pop(
        "ragged"
    ).to_pylist() == [[1], [], [2, 3]]
    assert str(columns.pop("fractions").to_pylist()) == "[[0.5], [], [nan, 2.0]]"
    assert {name: str(each.dtype) for name, each in columns.items()} == {
        "whole": "int64",
        "gap": "float32",
        "fraction": "float32",
        "flag": "bool",
        "pair": "float32",
        "height": "float32",
    }
    assert columns["whole"].tolist() == [1, 2, 3] and columns["flag"].tolist() == [
        True,
        False,
        True,
    ]
    assert np.array_equal(columns["gap"], [1, NAN, 3], equal_nan=True)
    assert np.array_equal(columns["fraction"], [0.5, NAN, np.inf], equal_nan=True)
    assert np.array_equal(columns["pair"], [[1, 2], [3, 4], [5, NAN]], equal_nan=True)
    assert columns["height"].tolist() == [7, 8, 9] and manifest.sizes.min() > 9


@pytest.mark.parametrize(
    "values",
    [
        [20231101, None],
        [-(2**24) - 1, None],
        pa.array([2**62, None], pa.int64()),
        pa.array([2**24 + 1, None], pa.uint32()),
        [20231101.0, 20231102.0],
        [[20231101, None], [1, 2]],
        pa.array([[20231101.0], [1.0]], pa.list_(pa.float64(), 1)),
    ],
)
def test_whole_numbers_that_would_become_others_are_refused_by_the_name_of_the_column(
    listed, values
):
    with pytest.raises(dp.ManifestError, match=r"column patient: .* beyond 16,777,216, such as"):
        listed([0, 1], patient=values)


def test_whole_numbers_are_exact(listed):
    made = listed([0, 1, 1], id=[2**53 + 1, 2**62, -5], few=[2**24, None, -(2**24)])
    assert made.columns["id"].tolist() == [2**53 + 1, 2**62, -5]
    assert made.columns["few"].tolist()[::2] == [2**24, -(2**24)]
    large = listed([0, 1], large=pa.array([3e7 + 2, 1e30], pa.float32())).columns["large"]
    assert large.tolist() == [30000002, np.float32(1e30)]
    assert len(made.filter(f"id == {2**53 + 1}")) == len(made.filter(f"few == {2**24}")) == 1


def test_joined_columns_keep_whole_numbers_exact_or_are_refused(listed, tmp_path):
    plain = listed([0, 1])
    few, ids = listed([0, 1], id=[1, 2**24]), listed([0, 1], id=[20231101, 20231102])
    both = dp.Manifest.concat([few, plain]).columns["id"]
    assert np.array_equal(both, [1, 2**24, NAN, NAN], equal_nan=True)
    assert dp.Manifest.concat([ids, ids]).columns["id"].tolist() == [20231101, 20231102] * 2
    with pytest.raises(dp.ManifestError, match=r"the column id is not in all manifests .*20231101"):
        dp.Manifest.concat([ids, plain])


def test_columns_that_cannot_be_used(listed):
    with pytest.raises(dp.ManifestError, match="a column cannot be used"):
        listed([0, 1], pair=pa.array([[1, 2], None], pa.list_(pa.int32(), 2)))
    with pytest.raises(dp.ManifestError, match="a column cannot be used"):
        listed([0], large=pa.array([2**64 - 1], pa.uint64()))


KINDS = {
    "class": [3, 0, 1],
    "several": [[2], [], [0, 1]],
    "number": [0.5, 1.5, 2.5],
    "numbers": [[0.5, 1.0], [1.5, 2.0], [3.0, 4.0]],
}


@pytest.mark.parametrize("kind", KINDS)
def test_saved_loaded_and_subset(listed, tmp_path, kind):
    manifest = listed(
        KINDS[kind], age=[10, 20, 30], vector=pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2))
    )
    manifest.save(tmp_path / "m.parquet")
    loaded = dp.Manifest.load(tmp_path / "m.parquet")
    assert (
        loaded.fingerprint == manifest.fingerprint
        and loaded.table.equals(manifest.table)
        and loaded.task == manifest.task
    )
    part = loaded.subset(np.array([2, 0]))
    assert part.columns["age"].tolist() == [30, 10] and part.columns["vector"].shape == (2, 2)
    width = part.labels.shape[1] if part.labels.ndim > 1 else None
    assert np.array_equal(
        part.labels, manifest.labels[[2, 0]] if width is None else manifest.labels[[2, 0], :width]
    )
    nothing = loaded.subset(np.array([], np.int64))
    assert len(nothing.labels) == len(nothing.columns["vector"]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_follows_labels_and_columns(listed, kind):
    labels, ages = KINDS[kind], [10, 20, 30]
    same = [listed(labels, age=ages).fingerprint for _ in range(2)]
    others = [
        listed(labels[:1] + labels[2:] + labels[1:2], age=ages),
        listed(labels, age=[10, 20, 31]),
        listed(labels, year=ages),
        listed(labels, age=[10.0, 20.0, 30.0]),
        listed(labels),
    ]
    assert same[0] == same[1] and len({same[0], *(each.fingerprint for each in others)}) == 6


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("label", pa.array([[0], [9], []], pa.list_(pa.int32()))),
        ("label", pa.array([[0], [-2], []], pa.list_(pa.int32()))),
        ("label", pa.array([[0], [None], []], pa.list_(pa.int32()))),
        ("label", pa.array([[0.5], None, [1.0]], pa.list_(pa.float32(), 1))),
        ("label", pa.array(["a", "b", "c"])),
        ("column:age", pa.array([0, 1, 2], pa.date32())),
        ("column:age", pa.array([1, None, 2])),
    ],
)
def test_a_forged_manifest_is_refused(listed, tmp_path, name, values):
    manifest = listed(KINDS["several"], age=[1, 2, 3])
    manifest.save(tmp_path / "m.parquet")
    table = pq.read_table(tmp_path / "m.parquet")
    pq.write_table(
        table.set_column(table.column_names.index(name), name, values), tmp_path / "m.parquet"
    )
    with pytest.raises(dp.ManifestError):
        dp.Manifest.load(tmp_path / "m.parquet")


def test_a_batch_says_of_its_labels_and_columns(listed):
    manifest = listed(KINDS["several"], age=[10, 20, 30])
    with dp.build_loader(
        manifest, SyntheticConfig(), transform=dp.EvalTransform(size=8), batch_size=2
    ) as loader:
        assert "labels=(2, 3) and ids (2,), targets age" in repr(next(iter(loader)))
    with dp.build_loader(
        listed([1, 0]), SyntheticConfig(), transform=dp.EvalTransform(size=8), batch_size=2
    ) as loader:
        assert repr(next(iter(loader))).endswith("labels and ids (2,))")


def test_several_classes_and_numbers_are_mixed_too(listed):
    for kind, labels in KINDS.items():
        if kind != "class":
            mix = dp.MixUp()
            options = {
                "transform": dp.TrainTransform(size=8),
                "batch_size": 3,
                "shuffle": False,
                "batch_transform": mix,
            }
            with dp.build_loader(
                listed(labels, age=[1, 2, 3]), SyntheticConfig(), **options
            ) as loader:
                batch = next(iter(loader))
            assert batch.labels.dtype == torch.float32 and batch.targets["age"].tolist() == [
                1,
                2,
                3,
            ]


def test_a_scan_says_what_the_labels_are(listed):
    message = {
        kind: [row for column in _summary(listed(labels)).columns for row in column.cells]
        for kind, labels in KINDS.items()
    }
    assert (
        "4 (1 without a usable image)" in message["class"]
        and "3, any number for each image" in message["several"]
    )
    assert "numbers to predict" in message["number"] and "2" in message["numbers"]
    assert "age, size" in [
        row for column in _summary(listed([0], age=[1], size=[2])).columns for row in column.cells
    ]


def test_the_example_of_the_documentation(manifest, tmp_path, monkeypatch):
    rows = [
        f"{manifest.path(number)},{'cat;dog' if number % 2 else 'dog'},{number}"
        for number in range(8)
    ]
    (tmp_path / "photos.csv").write_text("\n".join(["path,label,age", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(re.search(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)[1], names)
    batch = names["batch"]
    assert (
        batch.labels[:, 0].tolist() == (batch.targets["age"] % 2).tolist()
        and batch.labels[:, 1].tolist() == [1.0] * 4
    )
