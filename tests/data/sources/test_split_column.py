"""A table with a column of splits is read one split at a time, with the same classes in each."""

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from every_kind import picture, write_pictures
from later import later

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.data.images import open_images
from dali_pipes.data.sources.split_column import SeveralSplitsError

hf = later("datasets")
SPLITS = ["train", "val", "train", "test", "train", "val"]
LABELS = ["a", "b", "b", "c", "a", "a"]


def csv(folder, splits, name):
    rows = zip(write_pictures(folder, len(splits)), LABELS, map(str, splits), strict=False)
    lines = [f"path,label,{name}", *(",".join(row) for row in rows)]
    (folder / "t.csv").write_text("\n".join(lines))
    return lambda **options: dp.Manifest.open(folder / "t.csv", progress=False, **options)


def parquet(folder, splits, name):
    paths, count = write_pictures(folder, len(splits)), len(splits)
    table = pa.table({"path": paths, "label": LABELS[:count], name: splits})
    pq.write_table(table, folder / "t.parquet")
    return lambda **options: dp.Manifest.open(folder / "t.parquet", progress=False, **options)


def embedded(folder, splits, name):
    folder.mkdir(exist_ok=True)
    images = [{"bytes": picture(n), "path": None} for n in range(len(splits))]
    table = pa.table({"image": images, "label": LABELS[: len(splits)], name: splits})
    pq.write_table(table, folder / "t.parquet")
    return lambda **options: dp.Manifest.open(folder / "t.parquet", progress=False, **options)


def from_hf(folder, splits, name):
    paths = [str(folder / path) for path in write_pictures(folder, len(splits))]
    rows = {"image": paths, "label": LABELS[: len(splits)], name: splits}
    dataset = hf.Dataset.from_dict(rows).cast_column("image", hf.Image())
    return lambda **options: dp.Manifest.from_hf(dataset, progress=False, **options)


KINDS = {made.__name__: made for made in (csv, parquet, embedded, from_hf)}
every_kind = pytest.mark.parametrize("kind", KINDS)


def numbers(manifest):
    """The rows, by the widths of their images."""
    return [width - 1 for width in manifest.sizes[:, 1].tolist()]


@every_kind
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("split", {}),
        ("Subset", {"val": "Validation", "train": " training "}),
        ("Usage", {"train": "Training", "val": "PublicTest", "test": "PrivateTest"}),
        ("phase", {"val": "valid"}),
        ("set", {"val": "dev"}),
    ],
)
def test_rows_of_several_splits_are_refused_until_one_is_named(kind, name, words, tmp_path):
    read = KINDS[kind](tmp_path, [words.get(split, split) for split in SPLITS], name)
    with pytest.raises(SeveralSplitsError, match=rf"column {name} has 3 rows of train.*split="):
        read()
    assert numbers(read(split="train")) == [0, 2, 4]
    assert numbers(read(split="all")) == list(range(6))
    if name != "Usage":
        assert numbers(read(split="val")) == [1, 5]
        assert numbers(read(split="test")) == [3]


def test_the_error_comes_whole_from_another_process(tmp_path):
    with pytest.raises(SeveralSplitsError) as caught:
        csv(tmp_path, SPLITS, "split")()
    other = pickle.loads(pickle.dumps(caught.value))
    assert str(other) == str(caught.value) and other.splits == {"train": 3, "val": 2, "test": 1}


@every_kind
def test_classes_are_those_of_all_rows(kind, tmp_path):
    read = KINDS[kind](tmp_path, SPLITS, "split")
    assert read(split="val").classes == read(split="train").classes == ["a", "b", "c"]


@every_kind
def test_a_split_that_is_not_there_is_refused(kind, tmp_path):
    read = KINDS[kind](tmp_path, ["train", "test"], "split")
    with pytest.raises(dp.ManifestError, match=r"no row of val, but 1 rows of train"):
        read(split="val")
    with pytest.raises(dp.ConfigError, match="choose one of train, val, test, trainval, all"):
        read(split="valid")
    with pytest.raises(dp.ManifestError, match="has no column of splits"):
        KINDS[kind](tmp_path / "other", ["x", "y"], "site")(split="train")


@every_kind
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("split", ["a", "b"]),
        ("split", ["train", "oak"]),
        ("vehicle", ["train", "test"]),
    ],
)
def test_other_columns_change_nothing(kind, name, values, tmp_path):
    assert numbers(KINDS[kind](tmp_path, values, name)()) == [0, 1]


def test_a_label_may_be_a_word_of_a_split(tmp_path):
    paths = write_pictures(tmp_path, 2)
    rows = "".join(f"{path},{word}\n" for path, word in zip(paths, ["train", "test"], strict=True))
    (tmp_path / "t.csv").write_text("path,set\n" + rows)
    manifest = dp.Manifest.open(tmp_path / "t.csv", label_column="set", progress=False)
    assert manifest.classes == ["test", "train"]


def test_a_folder_takes_no_split(tmp_path):
    write_pictures(tmp_path / "a", 1)
    with pytest.raises(dp.ConfigError, match="split would change nothing"):
        dp.Manifest.open(tmp_path, split="train", progress=False)


def test_a_job_reads_its_own_split(tmp_path):
    csv(tmp_path, SPLITS, "split")
    data = DataConfig(train=str(tmp_path / "t.csv"), val=str(tmp_path / "t.csv"))
    train, val = (open_images(data, split, progress=False) for split in ("train", "val"))
    assert numbers(train) == [0, 2, 4] and numbers(val) == [1, 5]


def test_bad_images_are_counted_among_all_rows(tmp_path):
    read = csv(tmp_path, SPLITS, "split")
    (tmp_path / "3.png").write_bytes(b"no image")
    part = read(split="train")
    assert len(part) == 3 and [each.number for each in part.of_whole] == [1]
    with pytest.raises(dp.OmissionError):
        read(split="train", strict=True)


def test_of_two_columns_the_one_with_splits_counts(tmp_path):
    paths = write_pictures(tmp_path, 3)
    rows = zip(paths, "aba", ["train"] * 3, ["train", "val", "val"], strict=True)
    (tmp_path / "t.csv").write_text(
        "\n".join(["path,label,set,split", *(",".join(row) for row in rows)])
    )
    with pytest.raises(SeveralSplitsError, match="its column split has"):
        dp.Manifest.open(tmp_path / "t.csv", progress=False)
    assert numbers(dp.Manifest.open(tmp_path / "t.csv", split="val", progress=False)) == [1, 2]


@every_kind
def test_a_table_of_one_split_may_be_asked_for_it(kind, tmp_path):
    read = KINDS[kind](tmp_path, ["train", "train"], "split")
    assert numbers(read(split="train")) == [0, 1]
    with pytest.raises(dp.ManifestError, match="no row of val"):
        read(split="val")


def test_a_job_without_rows_of_validation_measures_on_those_of_test(tmp_path):
    csv(tmp_path, ["train", "test", "train", "test"], "split")
    data = DataConfig(val=str(tmp_path / "t.csv"))
    assert numbers(open_images(data, "val", progress=False)) == [1, 3]
    # who filters has chosen
    data = DataConfig(val=str(tmp_path / "t.csv"), filter="split == 'train'")
    assert numbers(open_images(data, "val", progress=False)) == [0, 2]


@every_kind
@pytest.mark.parametrize(
    ("name", "flagged", "train", "others", "rest"),
    [
        ("is_valid", {"val"}, "train", "val", [0, 2, 3, 4]),
        ("is_train", {"train"}, "train", "test", [0, 2, 4]),
        ("is_training_image", {"train"}, "train", "test", [0, 2, 4]),
        ("Is_Test", {"test"}, "train", "test", [0, 1, 2, 4, 5]),
    ],
)
@pytest.mark.parametrize("kind_of_flag", [bool, int])
def test_a_column_of_flags(kind, name, flagged, train, others, rest, kind_of_flag, tmp_path):
    read = KINDS[kind](tmp_path, [kind_of_flag(split in flagged) for split in SPLITS], name)
    with pytest.raises(SeveralSplitsError, match=rf"column {name} has \d rows of"):
        read()
    assert numbers(read(split=train)) == rest
    assert numbers(read(split=others)) == [n for n in range(6) if n not in rest]
    assert numbers(read(split="all")) == list(range(6))


def of_flags(folder, **flags):
    rows = zip(write_pictures(folder, 6), LABELS, *flags.values(), strict=True)
    lines = [",".join(map(str, row)) for row in rows]
    (folder / "t.csv").write_text("\n".join([",".join(["path", "label", *flags]), *lines]))
    return lambda **options: dp.Manifest.open(folder / "t.csv", progress=False, **options)


def test_several_columns_of_flags(tmp_path):
    flags = {f"is_{split}": [each == split for each in SPLITS] for split in ("train", "val")}
    read = of_flags(tmp_path, **flags)
    with pytest.raises(SeveralSplitsError, match="is_train and is_val has 3 rows of train"):
        read()
    assert [numbers(read(split=split)) for split in ("train", "val", "test")] == [
        [0, 2, 4],
        [1, 5],
        [3],
    ]


@pytest.mark.parametrize(
    "flags",
    [
        {"is_train": [1, 1, 1, 0, 0, 0], "is_val": [0, 0, 1, 1, 1, 1]},
        {"is_train": [1, 1, 0, 0, 0, 0], "is_val": [0, 0, 1, 0, 0, 0], "is_test": [0] * 6},
    ],
)
def test_flags_that_say_two_splits_or_none_are_refused(flags, tmp_path):
    read = of_flags(tmp_path, **flags)
    with pytest.raises(
        dp.ManifestError, match=r"is_train and is_val.* [13] rows are in two splits"
    ):
        read()
    assert len(read(split="all")) == 6


@pytest.mark.parametrize(
    "flags",
    [{"is_valid": [1, 1, 1, 1, 1, 0]}, {"is_train": [0, 1, 2, 0, 1, 2]}, {"valid": [0] * 6}],
)
def test_other_numbers_are_no_flags_of_splits(flags, tmp_path):
    assert len(of_flags(tmp_path, **flags)(strict=True)) == 6
