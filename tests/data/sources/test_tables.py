"""Tables as people have them: nothing in them is lost or takes another meaning without a word."""

import csv
import gzip
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.data.images import open_images
from dali_pipes.data.sources.rows import files

PICTURES = 6


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder with 0.png … 5.png and sub/6.png."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "sub").mkdir()
    for name in (*map(str, range(PICTURES)), f"sub/{PICTURES}"):
        Image.new("RGB", (8 + int(name[-1]), 6)).save(folder / f"{name}.png")
    return folder


@pytest.fixture
def opened(pictures, tmp_path):
    """The manifest of a table with this text or these columns."""

    def make(table, name="t.csv", **options):
        file = tmp_path / name
        if isinstance(table, pa.Table):
            file = tmp_path / "t.parquet"
            pq.write_table(table, file)
        else:
            file.write_bytes(table if isinstance(table, bytes) else table.encode())
        options = {"images": pictures} | options
        return dp.Manifest.open(file, progress=False, **options)

    return make


def names(manifest):
    """Of each usable image its file and its class."""
    return [
        (manifest.path(number).name, manifest.classes[label])
        for number, label in enumerate(manifest.labels)
    ]


def problems(manifest):
    """Of each other row its path and what is wrong, without what to do."""
    return [(path, why.partition(";")[0]) for path, why in manifest.problems]


def labels_of(opened, cells, **options):
    """The manifest of a CSV whose rows have these labels."""
    return opened(
        "path,label\n" + "".join(f"{number}.png,{cell}\n" for number, cell in enumerate(cells)),
        **options,
    )


# columns


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        (
            "image_id,label",
            {},
            "columns path; it has image_id, label; rename one, or name it with path_column",
        ),
        (
            "path,Labels",
            {},
            "columns path and label; it has path, Labels; label is missing: rename one",
        ),
        (
            "path,klass,size",
            {},
            (
                "it has path, klass, size; label is missing: rename one, or name it with "
                "label_column"
            ),
        ),
        (
            "path,label",
            {"label_column": "lable"},
            "columns path and lable; it has path, label; lable is missing: rename one",
        ),
        ("path,label", {"path_column": "image"}, "columns image; it has path, label"),
        ("path,label,label", {}, "has the column label 2 times"),
        (
            "path,label",
            {"delimiter": ";"},
            "not a table with the columns path; it has path,label; rename one",
        ),
        ("image_id,2019,2020", {}, "it has image_id, 2019, 2020; rename one"),
        ("path:label", {}, "not a table with the columns path; it has path:label; rename one"),
        (
            "path,x",
            {"targets": dp.Targets(text="caption")},
            r"columns path and caption; it has path, x; caption is missing: .* targets.text",
        ),
        (
            "path,caption",
            {"targets": dp.Targets(text="caption"), "label_column": "kind"},
            "columns path and caption and kind; it has path, caption; kind is missing",
        ),
    ],
)
def test_a_column_that_is_not_there_is_named_with_those_that_are(opened, header, options, message):
    with pytest.raises(dp.ManifestError, match=message):
        opened(f"{header}\n0.png{',x' * header.count(',')}\n", **options)


def test_columns_have_the_names_that_they_are_given(opened, pictures, tmp_path):
    text = "label,file,kind\n7,0.png,cat\n8,1.png,dog\n"
    made = opened(text, path_column="file", label_column="kind")
    assert names(made) == [("0.png", "cat"), ("1.png", "dog")] and made.columns[
        "label"
    ].tolist() == [7, 8]
    same = opened(
        pa.table({"label": [7, 8], "file": ["0.png", "1.png"], "kind": ["cat", "dog"]}),
        path_column="file",
        label_column="kind",
    )
    assert same.fingerprint == made.fingerprint

    data = DataConfig(
        train=str(tmp_path / "t.csv"),
        train_images=str(pictures),
        path_column="file",
        label_column="kind",
    )
    assert open_images(data, "train", progress=False).fingerprint == made.fingerprint


def test_labels_of_embedded_images_are_those_of_the_named_column(opened, pictures):
    images = pa.array([{"bytes": (pictures / f"{number}.png").read_bytes()} for number in range(2)])
    table = pa.table(
        {"image": images, "label": [0, 1], "kind": ["cat", None], "path_of": ["0.png", "1.png"]}
    )
    made = opened(table, label_column="kind", images=None)
    assert made.classes == ["cat"] and len(made) == 1 and made.columns["label"].tolist() == [0]
    assert [why for _, why in made.problems] == ["no label (row 2); give it one, or remove the row"]
    with pytest.raises(
        dp.ManifestError, match="columns kinds; it has label, kind, path_of; rename one"
    ):
        opened(table, label_column="kinds", images=None)
    assert opened(table, path_column="path_of").path(1) == pictures / "1.png"


def test_names_of_another_column_are_not_those_of_the_labels(opened, pictures):
    images = pa.array([{"bytes": (pictures / f"{number}.png").read_bytes()} for number in range(2)])
    features = (
        '{"info": {"features": {"animal": {"_type": "ClassLabel", "names": ["cat", "dog"]}}}}'
    )
    table = pa.table({"image": images, "label": [0, 1], "animal": [1, 0]}).replace_schema_metadata(
        {"huggingface": features}
    )
    assert opened(table, images=None).classes == ["0", "1"]
    assert opened(table, images=None, label_column="animal").classes == ["cat", "dog"]


def note_classes(table, names):
    note = {"info": {"features": {"label": {"_type": "ClassLabel", "names": names}}}}
    return table.replace_schema_metadata({"huggingface": json.dumps(note)})


@pytest.mark.parametrize("kind", ["paths", "images"])
@pytest.mark.parametrize(
    ("labels", "names", "classes", "numbers"),
    [
        ([1, 0], ["cat", "dog", "eft"], ["cat", "dog", "eft"], [1, 0]),
        # a column that was written anew with words keeps the note
        (["eft", "ape"], ["cat", "dog", "eft"], ["ape", "eft"], [1, 0]),
        ([3, 0], ["cat", "dog"], ["0", "1", "2", "3"], [3, 0]),
    ],
)
def test_a_class_label_names_numbers_and_nothing_else(
    opened, pictures, kind, labels, names, classes, numbers
):
    column = {"path": ["0.png", "1.png"]}
    if kind == "images":
        column = {
            "image": [{"bytes": (pictures / f"{each}.png").read_bytes()} for each in range(2)]
        }
    options = {} if kind == "paths" else {"images": None}
    made = opened(note_classes(pa.table(column | {"label": labels}), names), **options)
    assert made.classes == classes and made.labels.tolist() == numbers
    doubts = {each.kind: each.names for each in made.omissions if "ClassLabel" in each.kind}
    assert list(doubts.values()) == ([["2", "3"]] if max(labels) == 3 else [])


@pytest.mark.parametrize(
    "options",
    [
        {"delimiter": ";;"},
        {"delimiter": '"'},
        {"delimiter": "¦"},
        {"encoding": "utf-9"},
        {"encoding": "hex"},
        {"task": "multilabel"},
        {"path_column": ""},
    ],
)
def test_options_that_cannot_be(opened, options):
    (name,) = options
    with pytest.raises(dp.ConfigError, match=f"^{name} is "):
        opened("path,label\n0.png,cat\n", **options)
    with pytest.raises(dp.ConfigError, match=f"DataConfig.{name} is "):
        DataConfig(root="x", **options)
    with pytest.raises(dp.ConfigError, match="path_column and label_column are both 'x'"):
        opened("x,y\n0.png,cat\n", path_column="x", label_column="x")


# encodings


@pytest.mark.parametrize(
    ("encoding", "option"),
    [
        ("utf-8", None),
        ("utf-8-sig", None),
        ("utf-16", None),
        ("utf-8", "utf-8"),
        ("utf-8-sig", "utf-8"),
        ("utf-16", "utf-16"),
        ("utf-16-le", "utf-16-le"),
        ("utf-32", "utf-32"),
        ("latin-1", "latin-1"),
        ("cp1252", "cp1252"),
        ("shift-jis", "shift-jis"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_text_in_every_encoding(opened, encoding, option, end):
    name = "猫" if encoding == "shift-jis" else "café"
    text = f'path,label{end}0.png,{name}{end}{end}"1.png","a, ""b""{end}c"{end}'
    made = opened(text.encode(encoding), encoding=option)
    assert names(made) == [("0.png", name), ("1.png", f'a, "b"{end}c')]


def test_big_endian_text_too(opened):
    text = "path,label\n0.png,café\n"
    assert opened(b"\xfe\xff" + text.encode("utf-16-be")).classes == ["café"]
    assert opened(gzip.compress(text.encode()), name="t.csv.gz").classes == ["café"]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            "path,label\n0.png,a\n\n1.png,é\n".encode("latin-1"),
            {},
            "is not text in utf-8; give the encoding that it has: encoding=",
        ),
        ("path,label,né\n0.png,a,1\n".encode("latin-1"), {}, "is not text in utf-8"),
        ("path,label\n0.png,é\n".encode(), {"encoding": "ascii"}, "is not text in ascii"),
        ("path,label\n0.png,a\n".encode("utf-16-le"), {}, "is not text in utf-8"),
        ("path,label\n0.png,a\n".encode("utf-16-be"), {}, "is not text in utf-8"),
        ("path,label\n0.png,a\n".encode("utf-32"), {}, "is not text in utf-16"),
        ("path,label\n0.png,a\n".encode("utf-16")[:-1], {}, "is not text in utf-16"),
        (
            "path,label\n0.png,a\n".encode("utf-8-sig"),
            {"encoding": "latin-1"},
            "begins with the mark of UTF-8",
        ),
        (b"path,label\n0.png,\x81\n", {"encoding": "cp1252"}, "is not text in cp1252"),
        (b"path,label\n0.p\0ng,a\n", {}, "is not text in utf-8"),
        (b"\x89PNG\r\n\x1a\n\0\0", {}, "is not text in utf-8"),
    ],
)
def test_another_encoding_is_never_guessed(opened, content, options, message):
    with pytest.raises(dp.ManifestError, match=message):
        opened(content, **options)


# separators, headers and quotes


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_separator_is_that_of_the_header(opened, delimiter):
    text = "age,path,label\n3,0.png,cat\n4,1.png,a dog\n".replace(",", delimiter)
    assert opened(text).fingerprint == opened(text, delimiter=delimiter).fingerprint
    assert names(opened(text, name="t.tsv")) == [("0.png", "cat"), ("1.png", "a dog")]


def test_quotes_after_a_blank(opened):
    made = opened('path, "label"\n0.png, "cat"\n1.png,cat\n2.png,"""cat"""\n')
    assert names(made) == [("0.png", "cat"), ("1.png", "cat"), ("2.png", '"cat"')]


def test_a_caption_may_have_lines_that_name_images(opened):
    text = 'path,label,text\n0.png,cat,"see\nthis photo.jpg\nand x"\n1.png,dog,"b\n\nc"\n'
    assert opened(text).columns["text"].to_pylist() == ["see\nthis photo.jpg\nand x", "b\n\nc"]
    with pytest.raises(dp.ManifestError, match="row 1 has rows of other images"):
        opened('path,label,text\n0.png,cat,"a\n1.png,dog,b"\n2.png,dog,x\n')


def test_other_separators_are_given(opened):
    assert names(opened("path label\n0.png cat\n", delimiter=" ")) == [("0.png", "cat")]
    assert names(opened("path\tlabel\n0.png\tcat\n", delimiter="\\t")) == [("0.png", "cat")]
    assert names(
        opened('path,"label;x"\n0.png,cat\n'.replace('"label;x"', "label"), delimiter=",")
    ) == [("0.png", "cat")]
    assert names(opened('path;"label";x\n"0.png";"a;b";1,5\n')) == [("0.png", "a;b")]


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("0.png 0\n1.png 1\n", "0.png 0"),
        ("0.png,0\n1.png,1\n", "0.png, 0"),
        ('"0.png","cat"\n', "0.png, cat"),
        ("0,1\n1,0\n", "0, 1"),
        ("sep=;\npath;label\n0.png;cat\n", "sep="),
        ("# mine\n\n# too\npath,label\n0.png,cat\n", "# mine"),
        ("x" * 200_000, "x" * 80),
    ],
)
def test_a_list_without_a_header_is_refused(opened, text, has):
    with pytest.raises(dp.ManifestError, match=f"not a table with the columns path; it has {has}"):
        opened(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "path,label\n0.png,cat\n1.png,dog,x\n",
            r"row 1 is the header \(.*Row #3: Expected 2 columns, got 3: 1.png,dog,x\)",
        ),
        ("path,label\n\n0.png,cat\n1.png\n", "Row #3: Expected 2 columns, got 1: 1.png"),
        ("path,label\n0.png,1;2\n   \n", "Row #3: Expected 2 columns, got 1"),
        ('path,label\n0.png,cat\n1.png,"dog\n2.png,cat\n', "row 2 has rows of other images"),
        ('path,label\n0.png,"cat\n1.png,"dog\n2.png,cat\n', "row 1 has rows of other images"),
        ('path,label\n0,cat\n1,"dog\n2,cat\n', "row 2 has rows of other images within quotes"),
        (
            'path,label\n0.png,"cat\n1.png,dog"\n2.png,cat\n',
            "row 1 has rows of other images within quotes",
        ),
        ('label,path\n"cat,0.png\ndog",1.png\nx,2.png\n', "row 1 has rows of other images"),
        ('path,label,text\n0.png,cat,"a\n1.png,dog,b\n', "row 1 has rows of other images"),
        (
            "path,label\n0.png,0\npath,label\n1.png,1\n",
            "row 2 is a header again, as of files that were joined",
        ),
        ("path;label\n0.png,cat\n", "Row #2: Expected 2 columns, got 1: 0.png,cat"),
        (b"PK\3\4\0\0", "is a ZIP archive, as Excel writes"),
        (b"PAR1\0\0", r"is Parquet; end its name in \.parquet"),
        ("path,label\n0.png,0\n\ufeffpath,label\n1.png,1\n", "row 2 is a header again"),
        ("", "is empty; begin it with a line of names, such as path,label"),
        ("\n\n", "is empty"),
        ("path,label\n", "has no row below its header"),
    ],
)
def test_a_broken_csv_is_refused_by_row(opened, text, message):
    with pytest.raises(dp.ManifestError, match=message):
        opened(text)


# labels


@pytest.mark.parametrize("empty", ["", "  ", "\t", '""', '" "', "\u00a0"])
def test_a_row_without_a_label_is_a_problem(opened, empty):
    for others in (["cat", "dog"], ["0", "1"], ["0.5", "1"]):
        made = labels_of(opened, [others[0], empty, others[1]])
        assert len(made) == 2 and problems(made) == [("1.png", "no label (row 2)")]
        assert "" not in made.classes
        full = labels_of(opened, others)
        assert made.labels.tolist() == full.labels.tolist() and made.classes == full.classes
    with pytest.raises(dp.ManifestError, match=r"t\.csv: no row has a label"):
        labels_of(opened, [empty, empty])


@pytest.mark.parametrize(
    ("labels", "usable"),
    [
        (["cat", None, " "], [0]),
        ([1, None, 0], [0, 2]),
        ([0.5, float("nan"), None], [0]),
        (pa.array(["cat", None, "dog"]).dictionary_encode(), [0, 2]),
        (pa.array([True, None, False]), [0, 2]),
        (pa.array(["cat", "", "dog"], pa.string_view()), [0, 2]),
        ([["a", "b"], None, ["a", " "]], [0]),
        ([[0.5, 1.0], [], None], [0]),
        ([[0], None, []], [0, 2]),
        (pa.array([[0.5, 1.0], None, [2.0, None]], pa.list_(pa.float64(), 2)), [0]),
    ],
)
def test_rows_without_a_label_in_parquet(opened, labels, usable):
    made = opened(pa.table({"path": [f"{number}.png" for number in range(3)], "label": labels}))
    assert [made.path(number).name for number in range(len(made))] == [
        f"{row}.png" for row in usable
    ]
    assert {why for _, why in problems(made)} <= {
        f"{what} (row {row})"
        for what in ("no label", "no label: an empty place in its list of labels")
        for row in (1, 2, 3)
    }
    assert len(made.problems) == 3 - len(usable)
    made.save(made.root / "saved.parquet")
    again = dp.Manifest.load(made.root / "saved.parquet")
    assert again.problems == made.problems and again.fingerprint == made.fingerprint
    (made.root / "saved.parquet").unlink()


@pytest.mark.parametrize(
    ("cells", "classes", "labels"),
    [
        ([" cat", "cat", "cat\t"], ["cat"], [0, 0, 0]),
        (["cat", "Cat", "CAT"], ["CAT", "Cat", "cat"], [2, 1, 0]),
        (["001", "1", "01"], ["001", "01", "1"], [0, 2, 1]),
        (["01", "02"], ["01", "02"], [0, 1]),
        (["-1", "+1"], ["+1", "-1"], [1, 0]),
        ([" 2", "0 "], ["0", "1", "2"], [2, 0]),
        (["3", "x", "1"], ["1", "3", "x"], [1, 2, 0]),
        (["true", "false"], ["false", "true"], [1, 0]),
        (["True", "False", "True"], ["false", "true"], [1, 0, 1]),
        (["true", "1"], ["1", "true"], [1, 0]),
        (["2024-01-05", "2023-01-05"], ["2023-01-05", "2024-01-05"], [1, 0]),
        (["2024-01-05 10:00", "10:00"], ["10:00", "2024-01-05 10:00"], [1, 0]),
        (["NA", "DE", "null", "None"], ["DE", "NA", "None", "null"], [1, 0, 3, 2]),
        (["NA", "NA"], ["NA"], [0, 0]),
        (["0x1F", "1e5a"], ["0x1F", "1e5a"], [0, 1]),
        (["a;b", "a"], ["a", "a;b"], [1, 0]),
        (["1", "+", "-", "0"], ["+", "-", "0", "1"], [3, 0, 1, 2]),
        (['"a,b"', '"1,5 cm"'], ["1,5 cm", "a,b"], [1, 0]),
    ],
)
def test_what_text_means(opened, cells, classes, labels):
    made = labels_of(opened, cells)
    assert (
        made.classes == classes
        and made.labels.tolist() == labels
        and made.task == "classification"
        and not made.problems
    )


@pytest.mark.parametrize("missing", ["NA", "nan", "NaN", "null", "N/A", "None", "<NA>"])
def test_a_missing_number_is_not_a_class(opened, missing):
    for cells, made in (
        (["0", missing, "1"], ["0", "1"]),
        (["0.5", missing], []),
        (["01", missing, "1"], ["01", "1"]),
    ):
        manifest = labels_of(opened, cells)
        assert problems(manifest) == [("1.png", "no label (row 2)")] and manifest.classes == made


@pytest.mark.parametrize(
    "labels",
    [
        ["1.0", "", "2.0"],
        ["1", "2.0", "0"],
        ["1.", "1e2", "3"],
        [1.0, None, 2.0],
        pa.array([1, 2, 3], pa.decimal128(5, 2)),
    ],
)
def test_whole_fractions_are_asked_about(opened, labels):
    if isinstance(labels, list) and isinstance(labels[0], str):
        make = lambda task: labels_of(opened, labels, task=task)  # noqa: E731
    else:
        table = pa.table({"path": ["0.png", "1.png", "2.png"], "label": labels})
        make = lambda task: opened(table, task=task)  # noqa: E731
    with pytest.raises(
        dp.ManifestError,
        match=(
            r"whole numbers .* such as 1.0 \(row 1\), .* task='classification' .* "
            r"task='regression'"
        ),
    ):
        make(None)
    numbers, predicted = make("classification"), make("regression")
    assert (
        numbers.task == "classification"
        and predicted.task == "regression"
        and predicted.labels.dtype == np.float32
    )
    assert (
        numbers.labels.tolist() == predicted.labels.tolist()
        and len(numbers.classes) == max(numbers.labels) + 1
    )


def test_the_task_says_what_numbers_are(opened, tmp_path, pictures):
    assert labels_of(opened, ["3", "-1", "007"], task="regression").labels.tolist() == [3, -1, 7]
    assert labels_of(opened, ["0.5", "+2", "-inf"][:2], task="regression").labels.tolist() == [
        0.5,
        2,
    ]
    assert labels_of(
        opened, ["1;2", "3;4"], label_separator=";", task="regression"
    ).labels.tolist() == [[1, 2], [3, 4]]
    assert labels_of(opened, ["0.5", "1.5", "?"], task="classification").classes == [
        "0.5",
        "1.5",
        "?",
    ]
    assert labels_of(opened, ["cat", "dog"], task="classification").classes == ["cat", "dog"]
    data = DataConfig(train=str(tmp_path / "t.csv"), train_images=str(pictures), task="regression")
    with pytest.raises(dp.ManifestError, match=r"predicts numbers, .* such as 'cat' \(row 1\)"):
        open_images(data, "train", progress=False)

    table = pa.table({"path": ["0.png", "1.png"], "label": [[1.0, 0.0], [2.0]]})
    assert opened(table, task="classification").task == "multilabel"
    table = pa.table({"path": ["0.png", "1.png"], "label": [[1, 0], [2, 5]]})
    assert opened(table, task="regression").labels.tolist() == [[1, 0], [2, 5]]


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        (
            ["0", "", "-3"],
            {},
            r"labels run from -3 to 0, as -3 \(row 3\); number the classes from 0",
        ),
        (["0", "3000000000"], {}, r"as 3000000000 \(row 2\)"),
        (
            ["0", "99999999999999999999"],
            {},
            r"the label 99999999999999999999 \(?is too large \(row 2\)",
        ),
        (
            ["1.0", "", "1.5"],
            {"task": "classification"},
            r"the label 1.5 is not a whole number \(row 3\)",
        ),
        (["0.5", "inf"], {}, r"a label is not finite, inf \(row 2\)"),
        (["0.5", "", "1e300"], {}, r"a label is not finite, .* \(row 3\)"),
        (["a", "b;a;b"], {"label_separator": ";"}, "the label of row 2 has the class b twice"),
        (["0;1", "", "2;-2"], {"label_separator": ";"}, r"as -2 \(row 3\)"),
        (
            ["1.0;2.5", "3.0;1.0"],
            {"label_separator": ";", "task": "classification"},
            r"2.5 is not a whole number \(row 1\)",
        ),
        (
            ["0.5;1", "0.5;1", "0.5"],
            {"label_separator": ";", "task": "regression"},
            r"same length, not \[1, 2\] \(row 3\)",
        ),
        (["0", "1", "?"], {}, r"the label '\?' is no number, and others are \(row 3\)"),
        (["-", "0.5", "1.5"], {}, r"the label '-' is no number, and others are \(row 1\)"),
        (
            ["0.5", "1.5", "", "unknown"],
            {},
            r"the label 'unknown' is no number, and others are \(row 4\); .* task='classification'",
        ),
        (
            ["0;1", "--;1"],
            {"label_separator": ";"},
            r"the label '--' is no number, and others are \(row 2\)",
        ),
        (
            ['"0,5"', '"1"'],
            {},
            r"the label '0,5' has a comma, and all labels are numbers \(row 1\)",
        ),
        (
            ["cat", "cat\u200b"],
            {},
            r"the classes 'cat' \(row 1\) and 'cat.u200b' \(row 2\) look the same",
        ),
        (["a b", "a\u00a0b"], {}, "look the same"),
    ],
)
def test_labels_that_cannot_be_meant_are_named_by_row(opened, cells, options, message):
    with pytest.raises(dp.ManifestError, match=message):
        labels_of(opened, cells, **options)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, None, -2], r"as -2 \(row 3\)"),
        ([[0], None, [1, 1]], "the label of row 3 has the class 1 twice"),
        ([[0.5], None, [1.0, 2.0]], r"same length, not \[1, 2\] \(row 3\)"),
        ([0.5, None, float("inf")], r"not finite, inf \(row 3\)"),
    ],
)
def test_rows_of_parquet_count_from_one_too(opened, labels, message):
    with pytest.raises(dp.ManifestError, match=message):
        opened(pa.table({"path": [f"{number}.png" for number in range(3)], "label": labels}))


@pytest.mark.parametrize(
    ("cells", "classes", "labels"),
    [
        (["01;1", "1"], ["01", "1"], [[0, 1], [1, -1]]),
        (["0.5;1", "2"], ["0.5", "1", "2"], [[0, 1], [2, -1]]),
        (["True;NA", "x"], ["NA", "True", "x"], [[1, 0], [2, -1]]),
        ([" 1;0", "1"], ["0", "1"], [[1, 0], [1, -1]]),
    ],
)
def test_what_is_split_are_classes(opened, cells, classes, labels):
    made = labels_of(opened, cells, label_separator=";")
    assert made.classes == classes and made.labels.tolist() == labels


def test_numbers_of_parquet_are_split_too(opened):
    table = pa.table({"path": ["0.png", "1.png", "2.png"], "label": [2, None, 0]})
    assert opened(table, label_separator=";").labels.tolist() == [[2], [-1], [0]]


def test_a_missing_number_among_several_is_a_problem(opened):
    made = labels_of(opened, ["0;2", "nan", "1;NA"], label_separator=";")
    assert made.labels.tolist() == [[0, 2]]
    assert [why for _, why in problems(made)] == [
        f"no label: an empty place in its list of labels (row {row})" for row in (2, 3)
    ]
    assert labels_of(
        opened, ["1.0;2.0", "0"], label_separator=";", task="classification"
    ).labels.tolist() == [[1, 2], [0, -1]]


def test_an_empty_cell_of_several_classes_is_no_class(opened):
    made = labels_of(opened, ["a;b", "", "b ; "], label_separator=";")
    assert (
        made.task == "multilabel"
        and made.labels.tolist() == [[0, 1], [-1, -1], [1, -1]]
        and not made.problems
    )


# paths


def test_rows_that_are_fine_are_looked_at_once(opened, monkeypatch):
    looks, read = [], files.read_header
    monkeypatch.setattr(
        files, "read_header", lambda path, check: looks.append(path) or read(path, check)
    )
    opened("path,label\n0.png,a\n1.png,a\n")
    assert len(looks) == 2
    opened("path,label\n0.png,a\ngone.png,a\nsub\\6.png,a\n")
    assert len(looks) == 2 + 3 + 1


def test_a_lost_row_is_a_problem_and_the_others_are_not(opened):
    made = opened("path,label\n0.png,a\ngone.png,b\n,c\n \t,c\n2.png,a\nsub,a\n")
    assert names(made) == [("0.png", "a"), ("2.png", "a")] and made.classes == ["a", "b", "c"]
    assert problems(made) == [
        ("gone.png", "no such file or directory (row 2)"),
        ("", "no path (row 3)"),
        (" \t", "no path (row 4)"),
        ("sub", "is a directory (row 6)"),
    ]
    moved = dp.Manifest.concat([made, labels_of(opened, ["a"])])
    assert len(moved) == 3 and len(moved.problems) == 4


def test_every_fault_of_a_row_is_told(opened):
    made = opened(
        pa.table({"path": ["gone.png", None, "0\0.png", "3.png"], "label": [None, None, 0, 1]})
    )
    assert names(made) == [("3.png", "1")]
    assert [why for _, why in made.problems] == [
        "no such file or directory, and no label (row 1); give it one, or remove the row",
        "no path, and no label (row 2); give it one, or remove the row",
        "its path has a NUL character (row 3); write it anew",
    ]


@pytest.mark.parametrize(
    "path", ["sub\\6.png", ".\\sub\\6.png", " sub/6.png", "sub/6.png ", " sub\\6.png\t"]
)
def test_paths_of_windows_and_with_blanks_around_them(opened, path):
    made = opened(f"path,label\n0.png,a\n{path},b\n")
    assert [made.path(number).name for number in range(2)] == [
        "0.png",
        "6.png",
    ] and not made.problems
    assert made.read(1).size


def test_a_file_with_such_a_name_goes_first(opened, pictures, tmp_path):
    odd = tmp_path / "odd"
    odd.mkdir()
    for number, name in enumerate(("a\\b.png", " c.png", "c.png")):
        Image.new("RGB", (20 + number, 6)).save(odd / name)
    (tmp_path / "t.csv").write_text("path,label\na\\b.png,0\n c.png,1\nc.png,1\n")
    made = dp.Manifest.from_table(tmp_path / "t.csv", root=odd, progress=False)
    assert made.sizes[:, 1].tolist() == [20, 21, 22]


def test_absolute_paths_with_blanks(opened, pictures):
    made = opened(f"path,label\n0.png,a\n {pictures}/1.png,b\n")
    assert (
        made.root == pictures
        and [made.path(number).name for number in range(2)] == ["0.png", "1.png"]
        and made.read(1).size
    )
    made = opened(f"path,label\n{pictures}/0.png,a\n 1.png,b\n")
    assert [made.path(number) for number in range(2)] == [pictures / "0.png", pictures / "1.png"]


def test_an_absolute_path_with_a_blank_is_found_from_a_root_that_is_a_link(pictures, tmp_path):
    real, link = tmp_path / "disk" / "a" / "real", tmp_path / "link"
    real.mkdir(parents=True)
    link.symlink_to(real)
    for number, file in enumerate((real / "0.png", tmp_path / "1.png", tmp_path / "disk/a/1.png")):
        Image.new("RGB", (20 + number, 6)).save(file)
    (link / "t.csv").write_text(f"path,label\n0.png,0\n {tmp_path}/1.png,1\n {link}/0.png,1\n")
    made = dp.Manifest.open(link / "t.csv", progress=False)
    assert made.sizes[:, 1].tolist() == [20, 21, 20]


def test_numbers_are_paths_too(opened, pictures, tmp_path):
    for name in ("0", "001", "1"):
        (tmp_path / name).write_bytes((pictures / "0.png").read_bytes())
    (tmp_path / "t.csv").write_text("path,label\n0,a\n001,b\n1,c\n")
    made = dp.Manifest.open(tmp_path / "t.csv", progress=False)
    assert [made.path(number).name for number in range(3)] == ["0", "001", "1"]
    pq.write_table(pa.table({"path": [0, 1], "label": ["a", "b"]}), tmp_path / "t.parquet")
    assert len(dp.Manifest.open(tmp_path / "t.parquet", progress=False)) == 2
    with pytest.raises(
        dp.ManifestError, match="the column path is of type double; it must be text"
    ):
        opened(pa.table({"path": [0.0], "label": ["a"]}))


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("pictures\\0.png", "give the folder of the images: root="),
        ("~/0.png", "write the whole path: nothing replaces ~"),
        ("s3://bucket/0.png", "paths are of this machine"),
        (
            "nothing",
            ("give the folder of the images: root= of from_table, images= of open"),
        ),
        ("x" * 300, "."),
    ],
)
def test_a_table_of_other_files_says_where_it_looked(opened, pictures, path, hint):
    try:
        made = opened(f"path,label\n{path},a\n{path}{path},b\n")
    except dp.ManifestError as error:
        shown = path.replace("\\", "/")
        assert (
            f"none of its 2 rows names a file that is there; the first is {shown!r}, looked "
            f"for in {pictures}; "
        ) in str(error)
        with pytest.raises(dp.ManifestError, match=hint):
            raise
    else:
        assert [why for _, why in problems(made)] == [
            "file name too long (row 1)",
            "file name too long (row 2)",
        ]


def test_paths_from_the_folder_above(pictures, tmp_path):
    (tmp_path / "t.csv").write_text("path,label\n0.png,a\n")
    with pytest.raises(
        dp.ManifestError, match="there is no such folder; give that of the images: root="
    ):
        dp.Manifest.from_table(tmp_path / "t.csv", root=tmp_path / "gone", progress=False)


# what stays as it was


@pytest.mark.parametrize(
    ("text", "options", "fingerprint"),
    [
        ("path,label,age\n0.png,cat,3\n1.png,dog,\n2.png,cat,5\n", {}, "976f2defc76ea739"),
        ("path,label\n0.png,2\n1.png,0\n2.png,1\n", {}, "7d87e654dcd67c7c"),
        ("path,label\n0.png,0.5\n1.png,2\n2.png,3e1\n", {}, "5cb8c9525875a1eb"),
        ("path,label\n0.png,True\n1.png,False\n", {}, "49eafcbe32f73872"),
        ("path,label\n0.png,2024-01-05\n1.png,2023-01-05\n", {}, "efe0e6eff036f4f5"),
        ("path,label\n0.png,a;b\n1.png,\n2.png,b\n", {"label_separator": ";"}, "6b05d0e0e06ec763"),
        ("path,label\n0.png,3;1\n1.png,\n2.png,0\n", {"label_separator": ";"}, "744925b636d0bf56"),
    ],
)
def test_fingerprints_stay(opened, text, options, fingerprint):
    """Of tables that differ in one thing from one that is read well."""
    assert opened(text, **options).fingerprint[:16] == fingerprint


# all at once

CELLS = st.sampled_from(
    ["cat", " cat", "dog ", "Namibia", "NA", "é", "a,b", "a;b", 'say "x"', "two\nlines", "7"]
)
EMPTY = st.sampled_from(["", " ", "\t"])
PATHS = st.sampled_from([f"{number}.png" for number in range(PICTURES)] + [" 0.png ", "sub\\6.png"])
LOST = st.sampled_from(["gone.png", "sub\\gone.png", "", "  "])
ROWS = st.tuples(st.one_of(PATHS, PATHS, LOST), st.one_of(CELLS, CELLS, EMPTY))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(ROWS, max_size=12),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    encoding=st.sampled_from(
        [("utf-8", None), ("utf-8-sig", None), ("utf-16", None), ("latin-1", "latin-1")]
    ),
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_every_row_is_an_image_or_a_problem(
    pictures, tmp_path, rows, delimiter, encoding, end, quoting
):
    rows = [("0.png", "cat"), *rows]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows(
        [[" path", "label "], *rows]
    )
    (tmp_path / "t.csv").write_bytes(text.getvalue().encode(encoding[0]))
    made = dp.Manifest.from_table(
        tmp_path / "t.csv", root=pictures, encoding=encoding[1], progress=False
    )

    there = [
        bool(path.strip()) and "gone" not in path and bool(label.strip()) for path, label in rows
    ]
    expected = [
        (path.strip().replace("\\", "/"), label.strip())
        for (path, label), good in zip(rows, there, strict=True)
        if good
    ]
    found = [
        (str(made.path(number).relative_to(pictures)), made.classes[label])
        for number, label in enumerate(made.labels)
    ]
    assert found == expected and made.classes == sorted(
        {label.strip() for _, label in rows if label.strip()}
    )

    bad = [number for number, good in enumerate(there, 1) if not good]
    assert len(made.problems) == len(bad)
    for number, (path, why) in zip(bad, made.problems, strict=True):
        given = rows[number - 1][0]
        assert path in (given, given.strip().replace("\\", "/")) and f"(row {number})" in why
