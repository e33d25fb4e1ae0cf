"""Manifest.from_hf: the rows of an open data set of Hugging Face's `datasets`, whose images are
parts of the Arrow file that it has mapped.
"""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from every_kind import picture
from later import later
from PIL import Image

import dali_pipes as dp

hf = later("datasets")
NAMES = ["cat", "dog", "eel"]


@pytest.fixture(scope="module")
def files(photograph_folder):
    return sorted(str(path) for path in Path(photograph_folder).rglob("*.*"))[:12]


@pytest.fixture(scope="module")
def embedded(files, tmp_path_factory):
    """A data set on disk whose Arrow files hold the images, in several record batches."""
    rows = {
        "image": [{"bytes": Path(file).read_bytes(), "path": Path(file).name} for file in files],
        "number": list(range(len(files))),
        "label": [at % 3 for at in range(len(files))],
    }
    features = hf.Features(
        {"image": hf.Image(), "number": hf.Value("int64"), "label": hf.ClassLabel(names=NAMES)}
    )
    folder = tmp_path_factory.mktemp("set")
    hf.Dataset.from_dict(rows, features).save_to_disk(folder, num_shards=2)
    return hf.load_from_disk(str(folder))


def numbers(manifest):
    return manifest.columns["number"].tolist()


def assert_images(manifest, files):
    assert len(manifest) == len(files)
    for sample, file in enumerate(files):
        assert bytes(manifest.read(sample)) == Path(file).read_bytes()


def test_images_are_parts_of_the_arrow_files(embedded, files):
    before = {
        path: path.stat() for path in Path(embedded.cache_files[0]["filename"]).parent.iterdir()
    }
    manifest = dp.Manifest.from_hf(embedded)
    assert_images(manifest, files)
    assert numbers(manifest) == list(range(12))
    assert manifest.classes == NAMES and manifest.labels.tolist() == [0, 1, 2] * 4
    assert {Path(manifest.extent(at).file).suffix for at in range(12)} == {".arrow"}
    assert len({manifest.extent(at).file for at in range(12)}) == 2
    assert [manifest.extent(at).member for at in range(12)] == [Path(file).name for file in files]

    # nothing was written
    after = {path: path.stat() for path in before}
    assert {path: stat.st_mtime_ns for path, stat in before.items()} == {
        path: stat.st_mtime_ns for path, stat in after.items()
    }
    assert set(before) == set(Path(embedded.cache_files[0]["filename"]).parent.iterdir())


CHOICES = {
    "select": lambda ds: ds.select([7, 2, 2, 11]),
    "a contiguous select": lambda ds: ds.select(range(3, 9)),
    "filter": lambda ds: ds.filter(lambda number: number % 2 == 1, input_columns="number"),
    "shuffle": lambda ds: ds.shuffle(seed=3),
    "train_test_split": lambda ds: ds.train_test_split(0.4, seed=1)["test"],
    "shard": lambda ds: ds.shard(3, 1),
    "sort": lambda ds: ds.sort("label"),
    "concatenate": lambda ds: hf.concatenate_datasets([ds.select([5]), ds.shuffle(seed=1)]),
    "columns": lambda ds: ds.rename_column("image", "picture").add_column("more", [1.5] * len(ds)),
    "a format": lambda ds: ds.with_format("numpy", columns=["label"]),
    "a transform": lambda ds: ds.with_transform(lambda batch: {"nothing": batch["label"]}),
    "decode=False": lambda ds: ds.cast_column("image", hf.Image(decode=False)),
    "the mode RGB": lambda ds: ds.cast_column("image", hf.Image(mode="RGB")),
}


# of `sort` of `datasets`, which is written for an earlier pyarrow
@pytest.mark.filterwarnings("ignore:Specifying null_placement")
@pytest.mark.parametrize("choice", CHOICES)
def test_rows_are_those_of_the_data_set_in_its_order(embedded, files, choice):
    chosen = CHOICES[choice](embedded)
    wanted = chosen.with_format(None)["number"]
    manifest = dp.Manifest.from_hf(chosen)
    assert numbers(manifest) == list(wanted)
    assert_images(manifest, [files[number] for number in wanted])
    assert manifest.labels.tolist() == [number % 3 for number in wanted]


@pytest.mark.parametrize("mode", ["L", "CMYK", "I;16", "RGBA"])
def test_another_mode_is_refused(embedded, files, mode, tmp_path):
    other = embedded.cast_column("image", hf.Image(mode=mode))
    with pytest.raises(dp.ManifestError, match=rf"declared as Image\(mode='{mode}'\).*channels=1"):
        dp.Manifest.from_hf(other)
    other.select([]).to_parquet(str(tmp_path / "t.parquet"))
    with pytest.raises(dp.ManifestError, match=rf"declared as Image\(mode='{mode}'\)"):
        dp.Manifest.open(tmp_path / "t.parquet")


@pytest.mark.parametrize("exif", ["ignore", "apply"])
def test_images_that_datasets_turns_are_told_unless_the_transform_does(tmp_path, caplog, exif):
    tag = Image.Exif()
    tag[0x112] = 6
    Image.new("RGB", (8, 6)).save(tmp_path / "turned.jpg", exif=tag)
    Image.new("RGB", (8, 6)).save(tmp_path / "other.jpg")
    paths = [str(tmp_path / name) for name in ("turned.jpg", "other.jpg")]
    rows = hf.Dataset.from_dict({"image": paths, "label": [0, 1]})
    manifest = dp.Manifest.from_hf(rows.cast_column("image", hf.Image()), strict=True)
    transform = dp.EvalTransform(size=4, resize=4, exif=exif)
    config = dp.TorchConfig(num_workers=0)
    with dp.build_loader(manifest, config, transform=transform, batch_size=2, device="cpu"):
        pass
    said = "takes them as they are stored: 1; set exif='apply'" in caplog.text
    assert said == (exif == "ignore")


def test_images_may_be_files(files):
    table = hf.Dataset.from_dict({"image": files, "label": [0, 1] * 6})
    manifest = dp.Manifest.from_hf(table.cast_column("image", hf.Image()).shuffle(seed=2))
    order = table.shuffle(seed=2)["image"]
    assert [str(manifest.path(at)) for at in range(12)] == list(order)
    assert manifest.whole_files
    # a column of text needs its name
    named = dp.Manifest.from_hf(table, image="image")
    assert_images(named, files)


def test_files_and_bytes_may_be_mixed(files, tmp_path):
    rows = [
        {"bytes": Path(file).read_bytes(), "path": None}
        if at % 2
        else {"bytes": None, "path": file}
        for at, file in enumerate(files)
    ]
    features = hf.Features({"image": hf.Image(decode=False)})
    hf.Dataset.from_dict({"image": rows}, features).save_to_disk(tmp_path / "set")
    manifest = dp.Manifest.from_hf(hf.load_from_disk(str(tmp_path / "set")), with_labels=False)
    assert_images(manifest, files)


def test_a_loader_has_the_pixels_of_the_files(embedded, files, tmp_path):
    chosen = embedded.shuffle(seed=5)
    manifest = dp.Manifest.from_hf(chosen)
    manifest.save(tmp_path / "set.arrow")
    manifest = dp.Manifest.load(tmp_path / "set.arrow")
    table = pa.table({"path": [files[at] for at in chosen["number"]], "label": chosen["label"]})
    pa.parquet.write_table(table, tmp_path / "files.parquet")
    whole = dp.Manifest.from_table(tmp_path / "files.parquet")

    transform = dp.EvalTransform(resize=40, size=32)
    batches = []
    for source in (manifest, whole):
        with dp.build_loader(
            source, dp.DaliConfig(), transform=transform, batch_size=5, device="cpu"
        ) as loader:
            batches.append([(each.images.numpy(), each.labels.tolist()) for each in loader])
    for (ours, labels), (theirs, wanted) in zip(*batches, strict=True):
        assert np.array_equal(ours, theirs) and labels == wanted


def test_labels(embedded, files):
    several = hf.Features(
        {
            "image": hf.Image(),
            "tags": hf.List(hf.ClassLabel(names=NAMES)),
            "score": hf.Value("float32"),
        }
    )
    rows = {"image": files[:3], "tags": [[0, 2], [], [1]], "score": [0.5, 1.25, 3.0]}
    table = hf.Dataset.from_dict(rows, several)
    manifest = dp.Manifest.from_hf(table, label="tags")
    assert manifest.task == "multilabel" and manifest.classes == NAMES
    assert dp.Manifest.from_hf(table, label="score").task == "regression"

    # the first ClassLabel, and the training images' numbers
    renamed = embedded.rename_column("label", "animal")
    assert dp.Manifest.from_hf(renamed).labels.tolist() == [0, 1, 2] * 4
    turned = dp.Manifest.from_hf(renamed, classes=NAMES[::-1])
    assert turned.labels.tolist() == [2, 1, 0] * 4


def test_rows_that_cannot_be_used_are_named(files, tmp_path):
    rows = {
        "image": [
            {"bytes": Path(files[0]).read_bytes(), "path": None},
            None,
            {"bytes": b"no image", "path": "odd.jpg"},
            {"bytes": b"", "path": None},
            {"bytes": Path(files[1]).read_bytes(), "path": None},
        ],
        "label": [0, 1, 2, 0, -1],
    }
    features = hf.Features({"image": hf.Image(decode=False), "label": hf.ClassLabel(names=NAMES)})
    hf.Dataset.from_dict(rows, features).save_to_disk(tmp_path / "set")
    manifest = dp.Manifest.from_hf(hf.load_from_disk(str(tmp_path / "set")))
    assert len(manifest) == 1
    reasons = [reason for _, reason in manifest.problems]
    assert [reason.partition(";")[0] for reason in reasons] == [
        "no image in this row",
        "not an image, or its header is broken",
        "empty file",
        "no label (row 5)",
    ]


def two_images(ds):
    return ds.add_column("second", ds.with_format("arrow")["image"], feature=hf.Image())


def refused():
    here = {"image": ["https://example.org/1.jpg"], "label": [0]}
    far = lambda: hf.Dataset.from_dict(here).cast_column("image", hf.Image())  # noqa: E731
    nothing = hf.Features({"image": hf.Image(), "label": hf.Value("int64")})
    return {
        "one of them, such as from_hf(dataset['train'])": lambda ds: hf.DatasetDict(train=ds),
        "streaming=False": lambda ds: ds.to_iterable_dataset(),
        "it takes a Dataset of Hugging Face's datasets": lambda ds: list(range(3)),
        "several columns of images, image, second": two_images,
        "of lists of images make a row of each": lambda ds: hf.Dataset.from_dict(
            {"image": [["a.jpg"]], "label": [0]},
            hf.Features({"image": hf.List(hf.Image()), "label": hf.Value("int64")}),
        ),
        "no column with an image in each row among number, label": lambda ds: ds.remove_columns(
            "image"
        ),
        "columns label; it has number; rename one, or name it with label=": lambda ds: (
            ds.remove_columns("label")
        ),
        "in memory, and in no file; write the data set": lambda ds: hf.Dataset.from_dict(
            {"image": [{"bytes": b"1", "path": None}], "label": [0]}, nothing
        ),
        "not on this machine": lambda ds: far(),
        "no row has an image": lambda ds: hf.Dataset.from_dict(
            {"image": [None, None], "label": [0, 1]}, nothing
        ),
    }


@pytest.mark.parametrize("text", list(range(10)))
def test_what_is_refused_and_what_to_do(embedded, text):
    text, make = list(refused().items())[text]
    with pytest.raises((dp.ConfigError, dp.ManifestError)) as raised:
        dp.Manifest.from_hf(make(embedded))
    assert text in str(raised.value)


def test_a_column_that_holds_no_images_is_refused(embedded):
    with pytest.raises(dp.ManifestError, match="the column number is of type int64"):
        dp.Manifest.from_hf(embedded, image="number")
    with pytest.raises(dp.ManifestError, match="with the columns nothing; it has image"):
        dp.Manifest.from_hf(embedded, image="nothing")
    with pytest.raises(dp.ManifestError, match="with the columns nothing; it has"):
        dp.Manifest.from_hf(embedded, label="nothing")
    # who names the column means it
    with pytest.raises(dp.ManifestError, match="columns label; it has number, kind"):
        dp.Manifest.from_hf(embedded.rename_column("label", "kind"), label="label")


@pytest.mark.parametrize("how", ["replaced", "deleted"])
def test_an_arrow_file_that_changed_is_refused(files, tmp_path, how):
    rows = {"image": [{"bytes": Path(file).read_bytes(), "path": None} for file in files[:3]]}
    features = hf.Features({"image": hf.Image(decode=False)})
    hf.Dataset.from_dict(rows, features).save_to_disk(tmp_path / "set")
    table = hf.load_from_disk(str(tmp_path / "set"))
    file = Path(table.cache_files[0]["filename"])
    content = file.read_bytes()
    file.unlink()
    if how == "replaced":
        file.write_bytes(content[:100] + os.urandom(len(content) - 100))
    with pytest.raises(dp.ManifestError, match=r"was changed|No such file"):
        dp.Manifest.from_hf(table, with_labels=False)


@pytest.mark.parametrize("embeds", [False, True])
def test_of_several_columns_of_classes_one_has_to_be_named(embeds, tmp_path):
    names = {"fine": ["a", "b", "c"], "coarse": ["x", "y"], "split": ["train", "test"]}
    features = {name: hf.ClassLabel(names=of_name) for name, of_name in names.items()}
    columns = {"fine": [0, 1, 2], "coarse": [0, 1, 1], "split": [0, 0, 1]}
    cells = [{"bytes": picture(number), "path": None} for number in range(3)]
    rows = hf.Dataset.from_dict(
        {"image": cells, **columns}, hf.Features({"image": hf.Image(), **features})
    )
    if embeds:
        rows.to_parquet(str(tmp_path / "t.parquet"))
        read, option = partial(dp.Manifest.open, tmp_path / "t.parquet"), "label_column"
    else:
        rows.save_to_disk(tmp_path / "s")
        read, option = partial(dp.Manifest.from_hf, hf.load_from_disk(str(tmp_path / "s"))), "label"
    with pytest.raises(dp.ManifestError, match=rf"classes, fine, coarse; name one: {option}="):
        read(split="train", progress=False)
    assert len(read(split="train", with_labels=False, progress=False)) == 2
    manifest = read(split="train", progress=False, **{option: "coarse"})
    assert manifest.classes == ["x", "y"] and manifest.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("labels", "kind", "options", "task"),
    [
        ([0.0, 1.0, 2.0], "float32", {"task": "classification"}, "classification"),
        ([0.0, 1.0, 2.0], "float32", {"task": "regression"}, "regression"),
        (["a|b", "b", "a"], "string", {"label_separator": "|"}, "multilabel"),
    ],
)
def test_what_the_labels_of_a_data_set_mean_is_said_as_of_a_table(
    labels, kind, options, task, tmp_path
):
    cells = [{"bytes": picture(number), "path": None} for number in range(3)]
    features = hf.Features({"image": hf.Image(), "label": hf.Value(kind)})
    hf.Dataset.from_dict({"image": cells, "label": labels}, features).save_to_disk(tmp_path / "s")
    rows = hf.load_from_disk(str(tmp_path / "s"))
    manifest = dp.Manifest.from_hf(rows, progress=False, **options)
    assert manifest.task == task and len(manifest) == 3


def test_a_column_of_images_may_be_called_path(embedded):
    """Who names it means it, though tables call their paths so."""
    with pytest.raises(dp.ManifestError, match=r"with the columns path; it has image.*image="):
        dp.Manifest.from_hf(embedded, image="path")
    renamed = embedded.rename_column("image", "path")
    assert len(dp.Manifest.from_hf(renamed, image="path", progress=False)) == 12
    with pytest.raises(dp.ConfigError, match="image is ''; it takes the name of a column"):
        dp.Manifest.from_hf(embedded, image="")
    with pytest.raises(dp.ConfigError, match="image and label are both 'label'"):
        dp.Manifest.from_hf(embedded, image="label", label="label")
