"""What most likely means something else than it is read as is told once, counted and named, and
refused by `strict`.
"""

import json
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from every_kind import OF_NAMES, OF_NUMBERS, cached, folders, picture, write_pictures
from later import later

import dali_pipes as dp

hf = later("datasets")
every_kind = pytest.mark.parametrize("kind", OF_NUMBERS)


def doubts(manifest, unit="doubt"):
    """Of each doubt what it is, without advice, and how many."""
    return {
        each.kind.partition(";")[0]: each.number for each in manifest.omissions if each.unit == unit
    }


# class numbers


@every_kind
def test_labels_that_begin_at_1(kind, tmp_path):
    read = OF_NUMBERS[kind](tmp_path / "s", [1, 2, 3, 2])
    manifest = read()
    assert [what.partition(",")[0] for what in doubts(manifest)] == ["no label is 0"]
    assert manifest.labels.tolist() == [1, 2, 3, 2]
    with pytest.raises(dp.OmissionError, match=r"in doubt: no label is 0.*or in doubt"):
        read(strict=True)
    # who names the classes has looked
    named = ["none", "cat", "dog", "eel"]
    assert doubts(read(classes=named, strict=True)) == {}
    assert doubts(manifest.with_classes(named)) == {}
    assert doubts(manifest.with_classes(manifest.classes)) == {}


@every_kind
def test_gaps_are_a_doubt_only_where_each_class_would_have_an_image(kind, tmp_path):
    many = OF_NUMBERS[kind](tmp_path / "many", [0, 3] * 25)()
    assert doubts(many) == {"class numbers without an image": 2}
    few = OF_NUMBERS[kind](tmp_path / "few", [0, 9, 4])(strict=True)
    assert doubts(few) == {}
    assert doubts(few, "note") == {"class numbers without an image": 7}


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        ([1999, 2003, 2010] * 30, ["class numbers without an image"]),
        ([10, 20, 30] * 30, ["class numbers without an image"]),
        ([0, 1] * 40 + [255] * 5, ["class numbers without an image"]),
        ([n for n in range(1, 21) if n != 7] * 3, ["no label is 0"]),
        ([n for n in range(1, 21) if n != 7] * 10, ["no label is 0", "class numbers without"]),
    ],
)
def test_numbers_with_large_gaps_are_in_doubt_however_large_they_are(labels, what, tmp_path):
    found = list(doubts(OF_NUMBERS["csv"](tmp_path, labels)()))
    assert len(found) == len(what)
    assert all(any(one.startswith(other) for other in what) for one in found)


def test_labels_of_objects_that_begin_at_1(tmp_path):
    rows = {"path": write_pictures(tmp_path, 2), "b": [[0, 0, 1, 2]] * 2, "l": [[1], [2]]}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    targets = dp.Targets(boxes="b", box_labels="l")
    manifest = dp.Manifest.open(tmp_path / "t.parquet", targets=targets, progress=False)
    assert [what.partition(",")[0] for what in doubts(manifest)] == ["no label is 0"]


@pytest.mark.parametrize("names", ["folders", "text"])
def test_numbers_in_the_order_of_text(names, tmp_path):
    labels = ["0", "1", "10", "2"]
    if names == "folders":
        read = folders(tmp_path, labels)
    else:
        read = OF_NUMBERS["parquet"](tmp_path, labels)
    manifest = read()
    assert manifest.classes == ["0", "1", "10", "2"]
    assert list(doubts(manifest)) == [
        "classes are numbers in the order of text, so class 2 is '10'"
    ]
    assert doubts(read(classes=["0", "1", "2", "10"], strict=True)) == {}


@pytest.mark.parametrize(
    "labels",
    [
        ["0", "1", "10", "2", "other"],
        ["1.0", "10.0", "2.0"],
        ["tensor(0)", "tensor(10)", "tensor(2)"],
        ["0", "10", "2", "a", "b", "c"],
    ],
)
def test_numbers_in_the_order_of_text_among_names(labels, tmp_path):
    (what,) = doubts(OF_NUMBERS["parquet"](tmp_path, labels)())
    assert what.startswith("classes are numbers in the order of text")


@pytest.mark.parametrize(
    "labels",
    [
        ["0", "1", "2"],
        ["00", "01", "10"],
        ["a", "b"],
        ["1", "x"],
        ["8", "9"],
        ["10", "2", "a", "b", "c"],
        ["class1", "class10", "class2"],
    ],
)
def test_folders_in_the_order_of_their_numbers_or_of_names_are_no_doubt(labels, tmp_path):
    assert doubts(folders(tmp_path, labels)(strict=True)) == {}


def test_joined_names(tmp_path):
    cells = ["cat", "dog", "cat|dog", "dog|cat"]
    read = OF_NUMBERS["csv"](tmp_path, cells)
    (what,) = doubts(read())
    assert what == "class names are several names joined by '|'"
    assert doubts(read(label_separator="|", strict=True)) == {}


@pytest.mark.parametrize(
    ("cells", "sign"),
    [
        (["scab", "complex", "rust", "scab complex", "rust complex", "scab rust"], " "),
        (["16 0", "7 1 2 0", "5", "1", "0", "18", "0 5"], " "),
        (["1 0 0", "0 1 0", "0 0 1"], " "),
        (["clear,primary", "haze,primary", "clear,water", "haze,road"], ","),
        (["A|B", "B|C", "A|C", "A|B|C"], "|"),
        (["1;0", "0;1"], ";"),
    ],
)
def test_several_names_in_a_cell_are_in_doubt_where_none_stands_alone(cells, sign, tmp_path):
    table = {"path": write_pictures(tmp_path, len(cells)), "label": cells}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")

    def read(**options):
        return dp.Manifest.open(tmp_path / "t.parquet", progress=False, **options)

    told = [each.kind for each in read().omissions if each.unit == "doubt"]
    assert any(f"names joined by {sign!r}; label_separator={sign!r}" in what for what in told)
    assert read(label_separator=sign).task == "multilabel"


def test_a_folder_has_no_separator(tmp_path):
    (doubt,) = [
        each
        for each in folders(tmp_path, ["a", "b", "a+b", "b+a"])().omissions
        if each.unit == "doubt"
    ]
    assert doubt.kind.startswith("class names are several names joined by '+'")
    assert "label_separator" not in doubt.kind


@pytest.mark.parametrize(
    "names", [["Cat", "cat"], ["sea lion", "sea_lion"], ["a b", "a  b"], ["X-ray", "x ray", "y"]]
)
@pytest.mark.parametrize("kind", ["csv", "folders"])
def test_names_that_are_written_in_two_ways(kind, names, tmp_path):
    manifest = OF_NAMES[kind](tmp_path, names)()
    (doubt,) = [each for each in manifest.omissions if each.unit == "doubt"]
    assert doubt.kind.startswith("class names that differ in case, blanks or signs alone")
    assert doubt.names == [" and ".join(map(repr, sorted(names)[:2]))]


def test_letters_in_both_cases_are_classes(tmp_path):
    assert doubts(OF_NAMES["folders"](tmp_path, ["A", "B", "a", "b"])(strict=True)) == {}


@pytest.mark.parametrize("kind", ["csv", "parquet", "embedded"])
@pytest.mark.parametrize("missing", ["nan", "NaN", "<NA>", "#N/A", "NaT"])
def test_what_stands_for_a_missing_value_is_no_class(kind, missing, tmp_path):
    manifest = OF_NAMES[kind](tmp_path, ["cat", missing, "dog", "NA"])()
    assert manifest.classes == ["NA", "cat", "dog"]
    assert len(manifest) == 3 and len(manifest.problems) == 1


@pytest.mark.parametrize(
    "cells",
    [
        ["canna lily", "lily", "canna"],
        ["a-b", "a", "b"],
        ["cat|dog", "cat", "eel|fox"],
        ["tench, Tinca tinca", "goldfish, Carassius auratus", "hen"],
        ["sea lion", "mountain lion", "lion", "sea eagle", "eagle"],
        ["airfield", "cave/indoor", "cave/outdoor", "church/indoor", "bridge", "dam", "farm"],
        ["animal/cat", "animal/dog", "animal/eel", "plant/oak", "plant/elm"],
        ["New York", "New Orleans", "York"],
    ],
)
def test_names_with_signs_are_no_doubt(cells, tmp_path):
    assert doubts(OF_NUMBERS["parquet"](tmp_path, cells)(strict=True)) == {}


# files in several rows


def table(folder, rows):
    write_pictures(folder, 4)
    (folder / "t.csv").write_text("path,label\n" + "".join(f"{path},{n}\n" for path, n in rows))
    return lambda **options: dp.Manifest.open(folder / "t.csv", progress=False, **options)


def test_a_file_with_two_labels(tmp_path):
    rows = [("0.png", "a"), ("1.png", "b"), ("./0.png", "b"), ("2.png", "a"), (".//2.png", "a")]
    read = table(tmp_path, rows)
    manifest = read()
    (doubt,) = [each for each in manifest.omissions if each.unit == "doubt"]
    assert doubt.kind.startswith("files in several rows with different labels")
    assert (doubt.number, doubt.names) == (1, ["0.png"])
    assert doubts(manifest, "note") == {
        "files in several rows with the same label, each of which is a sample": 1
    }
    with pytest.raises(dp.OmissionError, match="different labels"):
        read(strict=True)


@pytest.mark.parametrize("kind", [kind for kind in OF_NAMES if kind != "saved"])
def test_the_same_bytes_with_two_labels(kind, tmp_path, caplog):
    """Found in every kind of source where all bytes are read; the kinds number pictures from 0."""
    (tmp_path / "one").mkdir()
    one = OF_NAMES[kind](tmp_path / "one", [0, 1, 0, 1])(verify="full")
    assert doubts(one) == doubts(one, "note") == {}
    # once more, with other labels of the first and the last
    others = OF_NAMES[kind](tmp_path / "two", [1, 1, 0, 0])(verify="full")
    joined = dp.Manifest.concat([one, others])
    (doubt,) = [each for each in joined.omissions if each.unit == "doubt"]
    caplog.clear()
    joined.tell_omissions()
    assert "2 (" in caplog.text and "different labels" in caplog.text
    alike = "images of the same bytes with the same label, each of which is a sample"
    assert doubts(joined, "note")[alike] == 2
    assert doubt.kind.startswith("images of the same bytes with different labels")
    assert doubt.number == 2


def test_a_file_of_several_rows_stays_in_one_part(tmp_path):
    rows = [(f"{number % 4}.png", "ab"[number % 2]) for number in range(40)]
    manifest = table(tmp_path, rows)()
    for seed in range(20):
        parts = manifest.split({"a": 0.5, "b": 0.5}, seed=seed)
        files = [{str(part.path(n)) for n in range(len(part))} for part in parts.values()]
        assert all(files) and not files[0] & files[1]


# the report


def test_a_doubt_is_told_once_and_on_the_first_rank(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    read = OF_NUMBERS["csv"](tmp_path, [1, 2])
    manifest = read()
    assert caplog.text.count("in doubt: no label is 0") == 1
    manifest.tell_omissions()
    manifest.with_classes(["a", "b", "c"]).tell_omissions()
    assert caplog.text.count("in doubt") == 1 and caplog.records[-1].levelname == "WARNING"
    caplog.clear()
    monkeypatch.setenv("LOCAL_RANK", "1")
    read()
    assert not caplog.text


def test_a_note_is_no_warning(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    OF_NUMBERS["csv"](tmp_path, [0, 9])()
    assert [each.levelname for each in caplog.records] == ["INFO"]
    assert "note: class numbers without an image: 8 (1, 2, 3, …)" in caplog.text


@pytest.mark.parametrize("name", ["m.arrow", "m.parquet"])
def test_a_saved_manifest_keeps_its_doubts(name, tmp_path):
    manifest = OF_NUMBERS["csv"](tmp_path, [1, 2])()
    manifest.save(tmp_path / name)
    loaded = dp.Manifest.load(tmp_path / name)
    assert loaded.omissions == manifest.omissions and doubts(loaded)
    with pytest.raises(dp.OmissionError):
        dp.Manifest.open(tmp_path / name, strict=True)
    assert not doubts(dp.Manifest.open(tmp_path / name, classes=["a", "b", "c"], strict=True))


def test_a_cached_scan_keeps_them_and_stays_mapped(tmp_path):
    read = cached(tmp_path, [1, 2])
    for _ in range(2):
        manifest = read()
        assert doubts(manifest) and manifest.rows.files


def test_a_part_is_refused_for_the_doubts_of_the_whole(tmp_path):
    manifest = OF_NUMBERS["csv"](tmp_path, [1, 2, 2])()
    part = manifest.filter("label == 2")
    assert doubts(part) == {}
    with pytest.raises(dp.OmissionError, match="no label is 0"):
        part.tell_omissions(strict=True)


def test_joined_sets_have_the_doubts_of_each(tmp_path):
    first, second = (OF_NUMBERS["csv"](tmp_path / name, [1, 2])() for name in "ab")
    (what,) = doubts(dp.Manifest.concat([first, second]))
    assert what.startswith("no label is 0")
    # together they may have no doubt, and may have one that none has alone
    zeros = OF_NUMBERS["csv"](tmp_path / "c", [0, 0])()
    assert doubts(dp.Manifest.concat([first, zeros])) == {}
    names = [OF_NUMBERS["csv"](tmp_path / name, [name])() for name in ("Cat", "cat")]
    assert [*doubts(dp.Manifest.concat(names))] == [
        "class names that differ in case, blanks or signs alone"
    ]
    joined = dp.Manifest.concat([names[0], zeros])
    (what,) = doubts(joined)
    assert what.startswith("sets with class numbers beside others with class names")
    assert doubts(joined.with_classes(joined.classes)) == {}
    assert doubts(dp.Manifest.concat([names[0], zeros], classes="apart")) == {}
    assert doubts(dp.Manifest.concat(names, classes="apart")) == {}


def test_a_file_of_before_is_looked_at_when_it_is_opened(tmp_path):
    manifest = OF_NUMBERS["csv"](tmp_path, [1, 2])()
    manifest.save(tmp_path / "m.parquet")
    table = pq.read_table(tmp_path / "m.parquet")
    (key,) = table.schema.metadata
    head = json.loads(table.schema.metadata[key])
    del head["known"]["doubts"]
    pq.write_table(table.replace_schema_metadata({key: json.dumps(head)}), tmp_path / "m.parquet")
    assert not doubts(dp.Manifest.load(tmp_path / "m.parquet"))
    assert doubts(dp.Manifest.open(tmp_path / "m.parquet")) == doubts(manifest)


# those who name the classes have looked


def test_numbers_that_the_source_names_are_no_doubt(tmp_path):
    read = OF_NUMBERS["tar"](tmp_path / "s", [1, 2])
    (tmp_path / "s/classes.json").write_text(json.dumps(["0", "1", "2"]))
    assert doubts(read(strict=True)) == {}
    names = [str(number) for number in range(3)]
    cells = [{"bytes": picture(number), "path": None} for number in range(2)]
    features = hf.Features({"image": hf.Image(), "label": hf.ClassLabel(names=names)})
    rows = hf.Dataset.from_dict({"image": cells, "label": [1, 2]}, features)
    rows.to_parquet(str(tmp_path / "t.parquet"))
    assert doubts(dp.Manifest.open(tmp_path / "t.parquet", progress=False, strict=True)) == {}


def test_a_part_whose_classes_are_named_is_not_refused(tmp_path):
    part = OF_NUMBERS["csv"](tmp_path, [1, 2, 2])().filter("label == 2")
    part.with_classes(["a", "b", "c"]).tell_omissions(strict=True)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["01", "02", "03"], [0, 1, 0]),
        (["1", "2", "3"], [0, 1, 0]),
        (["03", "02", "01"], [2, 1, 2]),
        (["10", "20", "30"], [1, 2, 1]),  # the numbers are places
        (["0002", "0007", "0010"], [1, 2, 1]),  # as not all have a name by value
        (["a", "b", "c"], [1, 2, 1]),
    ],
)
def test_numbers_are_named_by_their_value_where_names_are_numbers(names, expected, tmp_path):
    manifest = OF_NUMBERS["csv"](tmp_path, [1, 2, 1])(classes=names)
    assert manifest.classes == names and manifest.labels.tolist() == expected
