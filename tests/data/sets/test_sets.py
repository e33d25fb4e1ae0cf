"""Filters, splits, joined and renamed manifests, against plain Python lists."""

import tempfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_shards import tar_shards

import dali_pipes as dp
from dali_pipes import ConfigError, Manifest, ManifestError
from dali_pipes.data.own_columns import COLUMN
from dali_pipes.data.table.schema import SCHEMA

KNOWN = [0, 3, 9, 19, 20, 22]
CLASSES = ["bird", "cat", "dog"]
ROWS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(1, 9),
        st.integers(1, 9),
        st.sampled_from(["a", "b", ""]),
        st.sampled_from([0.5, 2.0, float("nan")]),
        st.booleans(),
        st.lists(st.integers(0, 3), max_size=3),
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
)
FILTERS = {
    "height >= 4": lambda row: row[1] >= 4,
    "3 < width <= 7 and height != width": lambda row: 3 < row[2] <= 7 and row[1] != row[2],
    "5 > height": lambda row: row[1] < 5,
    "class == 'cat'": lambda row: row[0] == 1,
    "class in ('cat', 'dog') or not flag": lambda row: row[0] in (1, 2) or not row[5],
    "class not in ['bird'] and split == 'a'": lambda row: row[0] != 0 and row[3] == "a",
    "split in ('a', '') and flag": lambda row: row[3] in ("a", "") and row[5],
    "score > 1": lambda row: row[4] > 1,
    "score in (0.5, 2)": lambda row: row[4] in (0.5, 2),
    "score != 0.5": lambda row: row[4] != 0.5,
    "not (label == 2 or height == 1)": lambda row: not (row[0] == 2 or row[1] == 1),
    "path in ('3.jpg', '0.jpg')": lambda row: row[-1] in (0, 3),
}


def made(rows, root="/images", names=CLASSES):
    """Of each row its label, height, width, columns of text, numbers, booleans and lists, and
    whether it is usable.

    Mapped if the number of rows is odd.
    """
    label, height, width, split, score, flag, boxes, usable = map(list, zip(*rows, strict=True))
    count = len(rows)
    known = {
        "path": [b"%d.jpg" % number for number in range(count)],
        "label": label,
        "height": height,
        "width": width,
    }
    known |= {
        "bytes": [9] * count,
        "mtime_ns": [0] * count,
        "orientation": [1] * count,
        "format": ["JPEG"] * count,
    }
    known |= {
        "decoded": [False] * count,
        "problem": [None if each else "broken" for each in usable],
        "member": [b""] * count,
    }
    known |= {"jpeg": [""] * count, "content": [b""] * count}
    table = pa.table(known | {"offset": [0] * count, "file_bytes": [0] * count}, schema=SCHEMA)
    own = {
        "split": pa.array(split, pa.large_string()),
        "score": pa.array(score, pa.float32()),
        "flag": pa.array(flag),
    }
    for name, values in (own | {"boxes": pa.array(boxes, pa.large_list(pa.int64()))}).items():
        table = table.append_column(COLUMN + name, values)
    manifest = Manifest.from_rows(root, names, table)
    if count % 2 == 0:
        return manifest
    with tempfile.TemporaryDirectory() as folder:
        manifest.save(f"{folder}/m.arrow")
        return Manifest.load(f"{folder}/m.arrow")


def plain(manifest):
    """Its samples as Python's values."""
    columns = {name: values.tolist() for name, values in manifest.columns.items()}
    return [
        (
            str(manifest.path(number)),
            manifest.classes[manifest.labels[number]],
            *manifest.sizes[number].tolist(),
            *(repr(values[number]) for values in columns.values()),
        )
        for number in range(len(manifest))
    ]


@given(ROWS, st.sampled_from(list(FILTERS)))
def test_a_filter_keeps_what_python_would(rows, text):
    manifest = made(rows)
    usable = [(*row, place) for place, row in enumerate(rows) if row[-1]]
    expected = [
        each for each, row in zip(plain(manifest), usable, strict=True) if FILTERS[text](row)
    ]
    assert plain(manifest.filter(text)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("heigth > 3", "member, split, score, flag, boxes; did you mean height?"),
        ("class == 'cow'", "there is no class 'cow' among 3"),
        ("class == 'ca'", "there is no class 'ca' among 3; did you mean cat?"),
        ("class > 'cat'", "class takes ==, !=, in and not in"),
        ("class in (1, 2)", "label has the number of the class"),
        ("class", "class is compared with a name"),
        ("height", "height alone is neither true nor false"),
        ("height == '3'", "height (int32) and '3' cannot be compared"),
        ("split > 3", "split (large_string) and 3 cannot be compared"),
        ("3 in (height,)", "`in` takes a column and a list of values"),
        ("height < 10**30", "is not a literal"),
        ("height < 1000000000000000000000", "cannot be compared"),
        ("boxes == 3", "and 3 cannot be compared"),
        ("height == split", "height (int32) and split (large_string) cannot be compared"),
        ("height in 3", "`in` takes a column and a list of values"),
        ("height in split", "`in` takes a column and a list of values"),
        ("split == a", "there is no column a"),
        ("3 > 2", "one side of a comparison must be a column"),
        ("height is 3", "use == or !="),
        ("height + 1 > 3", "one side of a comparison must be a column"),
        ("__import__('os').abort()", "is not a comparison of a column with a value"),
        ("height > len('abc')", "is not a literal"),
        ("(height > 3", "not an expression"),
        ("", "not an expression"),
        ("height > 3; width > 3", "not an expression"),
    ],
)
def test_a_wrong_filter_names_what_is_wrong(text, message):
    manifest = made([(0, 1, 1, "a", 0.5, True, [1], True)])
    with pytest.raises(ConfigError) as caught:
        manifest.filter(text)
    assert str(caught.value).startswith(f"filter {text!r}: ") and message in str(caught.value)


ODD_NAMES = (
    *("class_", "class", "and", "is", "None", "lambda", "my column", "my 'column'", 'a "b"', "3"),
    *("a-b", "label", "path", "height", "name0", "größe", "gro\u0308ße", "ﬁle", "x.y", "`", ""),
)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_every_column_of_a_table_can_be_filtered(name):
    images = made([(0, 1, 1, "a", 0.5, True, [1], True)] * 3)
    table = images.table.append_column(COLUMN + name, pa.array([0, 5, 7]))
    images = Manifest.from_rows(images.root, images.classes, table)
    # of a backquote in a name there is no way to write it
    if name != "`":
        assert images.filter(f"`{name}` > 4 and class == 'bird' and split != '`3` class'").columns[
            name
        ].tolist() == [5, 7]
    if name.isidentifier() and name not in ("class", "and", "is", "None", "lambda"):
        assert images.filter(f"4 < {name} <= 5").columns[name].tolist() == [5]
    assert len(images.split({"a": 1.0}, by=name)["a"]) == 3


def test_a_column_in_backquotes_that_is_not_there_is_named_and_proposed():
    images = made([(0, 1, 1, "a", 0.5, True, [1], True)])
    images = Manifest.from_rows(
        images.root, images.classes, images.table.append_column(COLUMN + "my column", pa.array([0]))
    )
    with pytest.raises(ConfigError, match=r"no column `my colum` .*; did you mean `my column`\?"):
        images.filter("`my colum` > 4")
    with pytest.raises(ConfigError, match=r"stands in backquotes, as in `my column` > 3"):
        images.filter("my column > 4")


def test_a_filter_on_any_of_several_classes(manifest, tmp_path):
    paths = [manifest.path(number) for number in range(3)]
    file = tmp_path / "t.csv"
    file.write_text(
        "path,label\n"
        + "".join(
            f"{path},{label}\n" for path, label in zip(paths, ("a;b", "", "b;c"), strict=True)
        )
    )
    several = Manifest.from_table(file, label_separator=";", progress=False)
    assert [
        len(several.filter(text))
        for text in ("class == 'b'", "class in ('a', 'c')", "class != 'a'")
    ] == [2, 2, 2]


@pytest.mark.slow
@given(ROWS, st.lists(st.floats(0.05, 0.3), min_size=1, max_size=3), st.integers(0, 2**32))
def test_a_split_divides_the_samples(rows, shares, seed):
    manifest = made(rows)
    fractions = {f"part {number}": share for number, share in enumerate(shares)}
    found = manifest.split(fractions, seed=seed)
    assert found.keys() == fractions.keys()
    paths = [row[0] for part in found.values() for row in plain(part)]
    assert len(set(paths)) == len(paths) and set(paths) <= {row[0] for row in plain(manifest)}
    assert all(
        plain(part) == sorted(plain(part), key=lambda row: int(row[0][8:-4]))
        for part in found.values()
    )
    for end in range(1, len(shares) + 1):
        assert (
            abs(
                sum(len(part) for part in list(found.values())[:end])
                - sum(shares[:end]) * len(manifest)
            )
            <= 0.5
        )
    again = manifest.split(fractions, seed=seed)
    assert [plain(part) for part in again.values()] == [plain(part) for part in found.values()]


def test_a_split_is_random_and_known():
    manifest = made([(0, 1, 1, "a", 0.5, True, [], True)] * 1000)
    first, second = (
        manifest.split({"train": 0.8, "val": 0.2}, seed=seed)["val"] for seed in (0, 1)
    )
    assert len(first) == len(second) == 200
    ids = [int(row[0][8:-4]) for row in plain(first)]
    assert ids[:6] == KNOWN and 400 < np.mean(ids) < 600
    assert 20 <= len(set(ids) & {int(row[0][8:-4]) for row in plain(second)}) <= 60


@given(ROWS)
def test_equal_values_stay_in_one_part(rows):
    manifest = made(rows)
    found = manifest.split({"a": 0.5, "b": 0.5}, by="split")
    values = [set(part.columns["split"].to_pylist()) for part in found.values()]
    assert not values[0] & values[1] and sum(map(len, found.values())) == len(manifest)


@pytest.mark.parametrize("fractions", [{}, {"a": 0.0}, {"a": -0.1, "b": 0.5}, {"a": 0.9, "b": 0.2}])
def test_fractions_that_are_no_shares(fractions):
    with pytest.raises(ConfigError, match="each must be positive, and their sum at most 1"):
        made([(0, 1, 1, "a", 0.5, True, [], True)]).split(fractions)


def test_a_split_by_what_is_not_there():
    manifest = made([(0, 1, 1, "a", 0.5, True, [], True)])
    with pytest.raises(ConfigError, match="did you mean split"):
        manifest.split({"a": 0.5}, by="spilt")
    with pytest.raises(ConfigError, match="a column of lists"):
        manifest.split({"a": 0.5}, by="boxes")


@pytest.mark.slow
@given(ROWS, ROWS)
def test_concat_joins_classes_of_the_same_name(one, other):
    names = ["dog", "emu", "bird"]
    first, second = made(one, "/images/one"), made(other, "/images/two", names)
    joined = Manifest.concat([first, second])
    assert plain(joined) == plain(first) + plain(second)
    assert joined.classes == ["bird", "cat", "dog", "emu"] and str(joined.root) == "/images"
    assert len(joined.problems) == len(first.problems) + len(second.problems)
    apart = Manifest.concat([first, second], classes="apart")
    assert plain(apart) == plain(first) + plain(second) and apart.classes == CLASSES + names
    assert set(apart.labels[len(first) :]) <= {3, 4, 5}


@pytest.mark.slow
@given(ROWS, st.data())
def test_equal_content_has_an_equal_fingerprint(rows, data):
    manifest = made(rows)
    cut = data.draw(st.integers(0, len(manifest)))
    ids = np.arange(len(manifest))
    halves = [manifest.subset(ids[:cut]), manifest.subset(ids[cut:])]
    assert (
        Manifest.concat(halves).fingerprint
        == manifest.subset(ids).fingerprint
        == manifest.fingerprint
    )
    assert manifest.filter("height >= 1").map_classes({}).fingerprint == manifest.fingerprint
    changed = made([(*row[:3], row[3] + "x", *row[4:]) for row in rows])
    assert (changed.fingerprint != manifest.fingerprint) == (len(manifest) > 0)


def test_concat_of_a_folder_and_of_shards(manifest, tmp_path):
    shards = Manifest.scan(tar_shards(manifest, tmp_path / "shards"), progress=False)
    both = Manifest.concat([shards, manifest])
    assert len(both) == 2 * len(manifest) and not both.whole_files
    for source, start in ((shards, 0), (manifest, len(shards))):
        for number in (0, 7, 36):
            assert np.array_equal(both.read(start + number), source.read(number)), both.name(
                start + number
            )
    both.save(tmp_path / "both.parquet")
    assert Manifest.load(tmp_path / "both.parquet").fingerprint == both.fingerprint


@pytest.mark.parametrize(
    "config",
    [dp.DaliConfig(device="cpu", num_threads=1), dp.TorchConfig(num_workers=0)],
    ids=["dali", "torch"],
)
def test_a_loader_of_both(manifest, tmp_path, config):
    shards = Manifest.scan(tar_shards(manifest, tmp_path / "shards"), progress=False)
    both = Manifest.concat([shards, manifest]).filter("class in ('class 1', 'class 3')")
    options = {
        "transform": dp.EvalTransform(size=16, resize=16),
        "batch_size": 8,
        "last_batch": "partial",
    }
    with dp.build_loader(both, config, **options) as loader:
        batches = list(loader)
    assert sum(map(len, batches)) == len(both)


def test_columns_that_only_some_have(manifest, tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(f"path,label,age,by\n{manifest.path(0)},0,7,me\n{manifest.path(1)},1,8,you\n")
    joined = Manifest.concat(
        [Manifest.from_table(file, progress=False), manifest.subset(np.arange(2))]
    )
    assert np.array_equal(joined.columns["age"], np.float32([7, 8, np.nan, np.nan]), equal_nan=True)
    assert joined.columns["by"].to_pylist() == ["me", "you", "", ""]


def test_prefixes_of_one_bucket_are_joined_below_what_they_share(manifest):
    one, two = (
        Manifest.from_rows(f"s3://bucket/data/{name}", manifest.classes, manifest.table)
        for name in ("one", "two/three")
    )
    joined = Manifest.concat([one, two])
    assert joined.root == "s3://bucket/data" and len(joined) == 2 * len(manifest)
    assert [joined.name(number) for number in (0, 37)] == [one.name(0), two.name(0)]


def test_what_cannot_be_joined(manifest, tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(f"path,label\n{manifest.path(0)},0.5\n")
    with pytest.raises(
        ManifestError, match="labels of different types cannot be joined: float and int32"
    ):
        Manifest.concat([manifest, Manifest.from_table(file, progress=False)])
    remote = Manifest.from_rows("s3://bucket/train", manifest.classes, manifest.table)
    for other in (
        manifest,
        Manifest.from_rows("s3://other/train", manifest.classes, manifest.table),
    ):
        with pytest.raises(ManifestError, match="images in object stores must be of one bucket"):
            Manifest.concat([other, remote])
    lists = made([(0, 1, 1, "a", 0.5, True, [1], True)])
    with pytest.raises(ManifestError, match="the column boxes is not in all manifests"):
        Manifest.concat([manifest, lists])
    with pytest.raises(ConfigError, match="classes is 'merge'; choose one of join, apart"):
        Manifest.concat([manifest], classes="merge")


def test_classes_are_renamed_and_merged():
    manifest = made([(label, 1, 1, "a", 0.5, True, [], True) for label in (0, 1, 2, 1)])
    pets = manifest.map_classes({"cat": "pet", "dog": "pet"})
    assert pets.classes == ["bird", "pet"] and pets.labels.tolist() == [0, 1, 1, 1]
    assert manifest.map_classes({"bird": "cat"}).labels.tolist() == [0, 0, 1, 0]
    with pytest.raises(ConfigError, match="there is no class 'cow'"):
        manifest.map_classes({"cow": "pet"})


@pytest.mark.parametrize("name", ["mix.arrow", "mix.parquet"])
def test_a_mixture_names_its_sources_wherever_it_goes(manifest, tmp_path, name):
    half = manifest.subset(range(10))
    mixed = Manifest.mix({"all": (manifest, 3), "half": (half, 1)})
    assert (
        mixed.facts.mixture == ("stratified", {"all": 0.75, "half": 0.25})
        and manifest.facts.mixture is None
    )
    assert (
        mixed.columns["source"].tolist() == [0] * len(manifest) + [1] * 10
        and mixed.classes == manifest.classes
    )
    assert "source" not in manifest.columns and mixed.take_columns(np.array([0, 40]))[
        "source"
    ].tolist() == [0, 1]
    mixed.save(tmp_path / name)
    again = Manifest.load(tmp_path / name)
    assert again.facts.mixture == mixed.facts.mixture and again.fingerprint == mixed.fingerprint
    for part in (
        again.filter("source == 1"),
        again.subset([3, 40]),
        again.map_classes({again.classes[0]: "other"}),
    ):
        assert part.facts.mixture == mixed.facts.mixture
    apart = Manifest.mix(
        {"all": (manifest, 3), "half": (half, 1)}, classes="apart", mode="proportional"
    )
    assert (
        len(apart.classes) == 2 * len(manifest.classes)
        and apart.facts.mixture.mode == "proportional"
    )
    assert Manifest.concat([manifest, half]).facts.mixture is None


# strata

COLUMNS_OF_STRATA = st.lists(st.integers(0, 2), min_size=1, max_size=60)


@given(
    COLUMNS_OF_STRATA, st.sampled_from([(0.5, 0.5), (0.8, 0.1, 0.1), (0.7, 0.2)]), st.integers(0, 9)
)
def test_each_part_has_its_share_of_every_stratum(labels, shares, seed):
    rows = [(label, 4, 4, "a", 0.5, True, [], True) for label in labels]
    manifest = made(rows)
    fractions = {str(number): share for number, share in enumerate(shares)}
    parts = manifest.split(fractions, stratify="label", seed=seed)
    again = made(rows).split(fractions, stratify="label", seed=seed)
    kept = []
    for name, share in fractions.items():
        assert parts[name].fingerprint == again[name].fingerprint
        kept += plain(parts[name])
        for label in set(labels):
            count = labels.count(label)
            assert abs((parts[name].labels == label).sum() - share * count) <= 1
    assert len(set(kept)) == len(kept) <= len(labels)
    if sum(shares) > 0.99:
        assert sorted(kept) == sorted(plain(manifest))


def test_small_strata_are_not_all_rounded_one_way():
    rows = [(0, number // 2 + 1, 4, "a", 0.5, True, [], True) for number in range(16)]
    parts = made(rows).split({"a": 0.5, "b": 0.25, "c": 0.25}, stratify="height")
    # eight strata of two images
    assert all(len(part) >= 2 for part in parts.values())


def test_strata_are_values_of_which_there_are_few():
    manifest = made([(0, 4, 4, "a", 0.5, True, [1], True)] * 4)
    with pytest.raises(ConfigError, match="stratify is a column of lists"):
        manifest.split({"a": 1}, stratify="boxes")
    with pytest.raises(ConfigError, match="stratify is a column of fractions"):
        manifest.split({"a": 1}, stratify="score")
    with pytest.raises(ConfigError, match="by or stratify, not both"):
        manifest.split({"a": 1}, stratify="label", by="label")
    with pytest.raises(ConfigError, match="there is no column"):
        manifest.split({"a": 1}, stratify="nothing")


def test_a_split_by_labels_says_that_classes_are_missing(caplog):
    caplog.set_level("INFO")
    manifest = made(
        [(number % 3, 4, 4, "ab"[number % 2], 0.5, True, [], True) for number in range(12)]
    )
    parts = manifest.split({"train": 0.7, "val": 0.3}, by="label")
    lacking = {name: [each.names for each in part.omissions] for name, part in parts.items()}
    assert [len(names[0]) for names in lacking.values()] == [1, 2]
    assert caplog.text.count("stratify='label' gives each part its share") == 2
    with pytest.raises(dp.OmissionError, match="classes that other parts have"):
        parts["val"].tell_omissions(strict=True)

    # where something else keeps images together, that may be as it is meant
    caplog.clear()
    rows = [(number % 2, 4, 4, "ab"[number % 2], 0.5, True, [], True) for number in range(12)]
    parts = made(rows).split({"train": 0.5, "val": 0.5}, by="split")
    assert {each.levelname for each in caplog.records} == {"INFO"}
    for part in parts.values():
        part.tell_omissions(strict=True)
