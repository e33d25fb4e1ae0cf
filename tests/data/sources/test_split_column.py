"""A table with a column of splits is read one split at a time, with the same classes in each."""

import itertools
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
        ("split", ["train", "oak", "elm"]),
        ("vehicle", ["train", "bus"]),
        ("site", ["test lab", "train yard"]),
        ("vehicle", ["train", "train"]),
        ("split", ["", ""]),
        ("split", [1, 1]),
        ("split", [0, 7]),
        ("fold", [0, 1]),
        ("train", [0, 2]),
    ],
)
def test_other_columns_change_nothing(kind, name, values, tmp_path):
    manifest = KINDS[kind](tmp_path, values, name)(strict=True)
    assert numbers(manifest) == list(range(len(values)))


@every_kind
@pytest.mark.parametrize(
    ("name", "others"),
    [
        *itertools.product(["split", "data set", "Dataset_type", "image-split"], ["", "unlabeled"]),
        *itertools.product(["Usage", "group", "Unnamed: 3"], ["", "nan", None]),
    ],
)
def test_rows_of_no_split_are_told_and_never_used_with_others(kind, name, others, tmp_path):
    if kind == "csv":
        others = others or ""
    read = KINDS[kind](tmp_path, ["train", others, "train", "test"], name)
    with pytest.raises(SeveralSplitsError, match=r"2 rows of train, .*1 rows of no split \(such"):
        read()
    train = read(split="train", strict=True)
    assert numbers(train) == [0, 2]
    (left,) = train.omissions
    assert left.unit == "note" and left.number == 2 and "1 rows of no split" in left.kind
    assert numbers(read(split="test")) == [3]
    assert numbers(read(split="all", strict=True)) == [0, 1, 2, 3]


@every_kind
def test_one_split_beside_rows_of_none(kind, tmp_path):
    read = KINDS[kind](tmp_path, ["train", "", "train"], "split")
    with pytest.raises(
        SeveralSplitsError, match=r"2 rows of train, 1 rows of no split \(such as ''"
    ):
        read()
    assert numbers(read(split="train")) == [0, 2]


def test_any_number_of_words(tmp_path):
    words = [f"train_{n}" for n in range(30)] + [f"test_{n}" for n in range(15)]
    paths = write_pictures(tmp_path, len(words))
    rows = [f"{path},a,{word}" for path, word in zip(paths, words, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,split", *rows]))
    with pytest.raises(SeveralSplitsError, match="30 rows of train, 15 rows of test"):
        dp.Manifest.open(tmp_path / "t.csv", progress=False)
    assert len(dp.Manifest.open(tmp_path / "t.csv", split="train", progress=False)) == 30


@every_kind
@pytest.mark.parametrize("name", ["split", "Partition"])
@pytest.mark.parametrize("values", [[0, 0, 1, 2], [1.0, 0.0, None, 1.0], ["0", "1", "1", "2"]])
def test_numbers_of_splits_are_in_doubt(kind, name, values, tmp_path):
    if kind == "csv":
        values = ["" if value is None else value for value in values]
    read = KINDS[kind](tmp_path, values, name)
    (doubt,) = read().omissions
    assert doubt.unit == "doubt" and f"filter('{name} == 0')" in doubt.kind
    if values[0] != "0":
        assert len(read().filter(f"{name} == 0")) == values.count(0)
    with pytest.raises(dp.OmissionError, match=f"by the numbers in {name}"):
        read(strict=True)
    with pytest.raises(dp.ManifestError, match=rf"numbers in {name}.*leave out split='train'"):
        read(split="train")
    assert numbers(read(split="all", strict=True)) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["from_hf", "embedded", "parquet"])
def test_a_column_of_classes_has_their_names(kind, tmp_path):
    paths = [str(tmp_path / path) for path in write_pictures(tmp_path, 4)]
    images = {
        "from_hf": ("image", paths, hf.Image()),
        "embedded": ("image", [{"bytes": picture(n), "path": None} for n in range(4)], hf.Image()),
        "parquet": ("path", paths, hf.Value("string")),
    }
    column, cells, feature = images[kind]
    classes = hf.ClassLabel(names=["train", "val", "test"])
    dataset = hf.Dataset.from_dict(
        {column: cells, "label": LABELS[:4], "split": [0, 1, 0, -1]},
        hf.Features({column: feature, "label": hf.Value("string"), "split": classes}),
    )
    dataset.to_parquet(str(tmp_path / "t.parquet"))

    def read(**options):
        if kind == "from_hf":
            return dp.Manifest.from_hf(dataset, progress=False, **options)
        return dp.Manifest.open(tmp_path / "t.parquet", progress=False, **options)

    with pytest.raises(SeveralSplitsError, match="2 rows of train, 1 rows of val, 1 rows of no"):
        read()
    assert numbers(read(split="train")) == [0, 2] and numbers(read(split="val")) == [1]


def of_folders(folder, *files):
    paths = [
        f"{place}/{name}"
        for number, place in enumerate(files)
        for name in write_pictures(folder / place, 2 + number)[number:]
    ]
    rows = [f"{path},{'ab'[place % 2]}" for place, path in enumerate(paths)]
    (folder / "t.csv").write_text("\n".join(["path,label", *rows]))
    return lambda **options: dp.Manifest.open(folder / "t.csv", progress=False, **options)


@pytest.mark.parametrize(
    "folders",
    [
        ("train", "val"),
        ("images/train2017", "images/val2017"),
        ("a/b/Train", "a/b/dev/x"),
        ("./train", "val"),
    ],
)
def test_folders_of_splits_are_in_doubt(folders, tmp_path):
    read = of_folders(tmp_path, *folders)
    (doubt,) = read().omissions
    assert doubt.unit == "doubt" and "2 rows of train, 2 rows of val" in doubt.kind
    with pytest.raises(dp.OmissionError, match="by the folders"):
        read(strict=True)
    assert len(read(split="all", strict=True)) == 4
    assert numbers(read(split="val", strict=True)) == [1, 2]
    with pytest.raises(dp.ManifestError, match="no row of test, but 2 rows of train"):
        read(split="test")


@pytest.mark.parametrize(
    "folders", [("train", "bus"), ("train/a", "train/val"), ("test lab", "train yard"), ("x", ".")]
)
def test_other_folders_are_not(folders, tmp_path):
    assert len(of_folders(tmp_path, *folders)(strict=True)) == 4


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


def load(manifest):
    with dp.build_loader(
        manifest, dp.TorchConfig(), transform=dp.EvalTransform(size=8), batch_size=1
    ) as loader:
        return len(loader)


@every_kind
def test_what_is_wrong_with_other_rows_does_not_count(kind, tmp_path):
    splits = ["train", "test", "train", "test", "val"]
    labels, LABELS[1], LABELS[3] = LABELS[:], "", ""
    try:
        read = KINDS[kind](tmp_path, splits, "split")
    finally:
        LABELS[:] = labels
    train = read(split="train", strict=True)
    assert numbers(train) == [0, 2] and not train.problems and train.bad_of_whole == (0, 2)
    assert load(train) == 2
    # and what is wrong with its own does
    test = read(split="test")
    assert len(test.problems) == 2 and test.bad_of_whole == (2, 2)
    with pytest.raises(dp.OmissionError, match="no label: 2"):
        read(split="test", strict=True)
    with pytest.raises(dp.ManifestError, match=r"2 of 2 images cannot be used.*no label"):
        load(test)


def test_a_part_is_refused_with_what_is_wrong_in_its_whole(tmp_path):
    read = csv(tmp_path, SPLITS, "split")
    (tmp_path / "3.png").write_bytes(b"no image")
    part = read(split="all").filter("split == 'train'")
    with pytest.raises(dp.ManifestError, match="allows: 1 × not an image"):
        load(part)


@pytest.mark.parametrize("other", ["?", "unknown", "1.5", "007"])
def test_labels_of_other_rows_make_no_names_of_numbers(other, tmp_path):
    paths = write_pictures(tmp_path, 14)
    cells = [*(f"{n},train" for n in range(12)), f"{other},test", "11,val"]
    rows = [f"{path},{cell}" for path, cell in zip(paths, cells, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,split", *rows]))
    train, val = (
        dp.Manifest.open(tmp_path / "t.csv", split=split, progress=False, strict=True)
        for split in ("train", "val")
    )
    assert train.classes == val.classes == [str(n) for n in range(12)]
    assert train.labels.tolist() == list(range(12)) and val.labels.tolist() == [11]


def test_the_same_rows_whichever_images_are_there(tmp_path):
    flags = [0] * 6 + [1] * 4
    paths = write_pictures(tmp_path, 10)
    rows = [f"{path},a,{flag}" for path, flag in zip(paths, flags, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,is_valid", *rows]))
    for path in paths[:3]:
        (tmp_path / path).unlink()
    train, val = (
        dp.Manifest.open(tmp_path / "t.csv", split=split, progress=False)
        for split in ("train", "val")
    )
    assert numbers(train) == [3, 4, 5] and numbers(val) == [6, 7, 8, 9]
    assert len(train.problems) == 3 and "(row 1)" in train.problems[0][1]


@pytest.mark.parametrize("name", ["partition", "split"])
def test_who_filters_has_chosen(name, tmp_path):
    csv(tmp_path, [0, 1, 0, 2], name)
    data = DataConfig(train=str(tmp_path / "t.csv"), filter=f"{name} == 0")
    assert numbers(open_images(data, "train", progress=False, strict=True)) == [0, 2]
    with pytest.raises(dp.OmissionError, match=f"numbers in {name}"):
        open_images(DataConfig(train=data.train), "train", progress=False, strict=True)
    write_pictures(tmp_path / "folders" / "a", 3)
    folder = DataConfig(train=str(tmp_path / "folders"), filter="width == 2")
    assert numbers(open_images(folder, "train", progress=False)) == [1]


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
        ("isTrain", {"train"}, "train", "test", [0, 2, 4]),
    ],
)
@pytest.mark.parametrize(
    "signs", [bool, int, float, "False True", "no YES", "n y", "F T", "0.0 1.0"]
)
def test_a_column_of_flags(kind, name, flagged, train, others, rest, signs, tmp_path):
    make = signs if callable(signs) else signs.split().__getitem__
    read = KINDS[kind](tmp_path, [make(split in flagged) for split in SPLITS], name)
    with pytest.raises(SeveralSplitsError, match=rf"column {name} has \d rows of"):
        read()
    assert numbers(read(split=train)) == rest
    assert numbers(read(split=others)) == [n for n in range(6) if n not in rest]
    assert numbers(read(split="all")) == list(range(6))


@pytest.mark.parametrize(
    ("name", "flagged", "train", "others", "rest"),
    [
        ("train", {"train"}, "train", "test", [0, 2, 4]),
        ("valid", {"val"}, "train", "val", [0, 2, 3, 4]),
        ("Test", {"test"}, "train", "test", [0, 1, 2, 4, 5]),
    ],
)
def test_a_column_that_may_be_a_class_is_in_doubt(name, flagged, train, others, rest, tmp_path):
    """Images of cars and trains have columns of these names."""
    read = of_flags(tmp_path, car=[0, 1] * 3, **{name: [int(s in flagged) for s in SPLITS]})
    (doubt,) = [each for each in read().omissions if each.unit == "doubt"]
    assert f"of several splits by column {name}" in doubt.kind and len(read()) == 6
    assert numbers(read(split=train)) == rest
    assert numbers(read(split=others)) == [n for n in range(6) if n not in rest]
    assert numbers(read(split="all", strict=True)) == list(range(6))


@pytest.mark.parametrize("column", [["lvis_train"] * 4 + ["openimages"] * 2, ["train"] * 6])
def test_names_of_data_sets_are_no_splits(column, tmp_path):
    assert len(of_flags(tmp_path, dataset=column)(strict=True)) == 6


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


@pytest.mark.parametrize("name", ["is_train"])
@pytest.mark.parametrize("signs", [("1", ""), ("True", "nan"), ("1.0", ""), ("yes", "")])
def test_rows_without_a_flag_are_refused(name, signs, tmp_path):
    read = of_flags(tmp_path, **{name: signs * 3})
    for split in (None, "train"):
        with pytest.raises(dp.ManifestError, match=f"3 rows have no {name}.*split='all'"):
            read(split=split)
    assert len(read(split="all", strict=True)) == 6


@pytest.mark.parametrize("kind", [pa.float16(), pa.decimal128(21, 0), pa.uint8(), pa.string()])
def test_flags_of_any_type(kind, tmp_path):
    flags = pa.array([1, 0, 1, 0]).cast(kind)
    if kind == pa.string():
        flags = flags.dictionary_encode()
    read = parquet(tmp_path, flags, "is_train")
    with pytest.raises(SeveralSplitsError, match="2 rows of train, 2 rows of test"):
        read()
    assert numbers(read(split="train")) == [0, 2]


def test_flags_beside_words_of_one_split(tmp_path):
    read = of_flags(tmp_path, subset=["train"] * 6, is_valid=[0, 0, 0, 0, 1, 1])
    with pytest.raises(SeveralSplitsError, match="column is_valid has 4 rows of train, 2 rows of"):
        read()


@pytest.mark.parametrize(
    "flags",
    [
        {"is_valid": [1, 1, 1, 1, 1, 0]},
        {"valid": [1, 1, 1, 0, 0, 0]},
        {"is_train": [0, 3, 2, 4, 1, 2]},
        {"test": [0, 1, 2, 0, 1, 0]},
        {"valid": [0] * 6},
        {"is_train": [""] * 6},
    ],
)
def test_other_numbers_are_no_flags_of_splits(flags, tmp_path):
    assert len(of_flags(tmp_path, **flags)(strict=True)) == 6
