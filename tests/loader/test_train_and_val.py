"""A class number means the same class in training and in evaluation, in one program."""

import gc

import pytest
from PIL import Image

import dali_pipes as dp


@pytest.fixture
def folder(tmp_path):
    for name in (
        "train/a/0.jpg",
        "train/b/0.jpg",
        "train/c/0.jpg",
        "val/a/0.jpg",
        "val/c/0.jpg",
        "other/c/0.jpg",
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        Image.new("RGB", (8, 6)).save(tmp_path / name)
    return tmp_path


EVAL = dp.EvalTransform(size=8, resize=8)


def loader(manifest, transform=EVAL):
    return dp.build_loader(
        manifest, dp.TorchConfig(num_workers=0), transform=transform, batch_size=1, device="cpu"
    )


def test_the_split_of_a_set_with_other_numbers_is_refused(folder):
    train = dp.Manifest.scan(folder / "train", progress=False)
    val = dp.Manifest.scan(folder / "val", progress=False)
    with loader(train, dp.TrainTransform(size=8)):
        with pytest.raises(
            dp.ManifestError,
            match=(
                r"not the same classes: 1 only in the first "
                r"\(b\).*with_classes\(train\.classes\)"
            ),
        ):
            loader(val)
        for good in (
            val.with_classes(train.classes),
            dp.Manifest.scan(folder / "val", classes=train.classes, progress=False),
        ):
            with loader(good) as batches:
                assert [batch.labels.tolist() for batch in batches] == [[0], [2]]
        # another set, not a split of this one
        loader(dp.Manifest.scan(folder / "other", progress=False)).close()
    del train
    gc.collect()
    loader(val).close()


def test_other_classes_of_the_same_images_are_no_mistake(folder):
    train = dp.Manifest.scan(folder / "train", progress=False)
    with loader(train, dp.TrainTransform(size=8)):
        loader(train.map_classes({"a": "vowel", "b": "consonant", "c": "consonant"})).close()
        loader(
            dp.Manifest.scan(folder / "val", classes=["a", "b", "c", "d"], progress=False)
        ).close()


def test_it_does_not_matter_which_loader_is_built_first(folder):
    val = dp.Manifest.scan(folder / "val", progress=False)
    train = dp.Manifest.scan(folder / "train", progress=False)
    with loader(val), pytest.raises(dp.ManifestError, match="not the same classes"):
        loader(train, dp.TrainTransform(size=8))


def test_classes_that_are_written_in_another_way_are_refused(folder):
    for old, new in (("a", "A"), ("c", "C")):
        (folder / "val" / old).rename(folder / "val" / new)
    (folder / "val/b").mkdir()
    Image.new("RGB", (8, 6)).save(folder / "val/b/0.jpg")
    train = dp.Manifest.scan(folder / "train", progress=False)
    val = dp.Manifest.scan(folder / "val", classes=["A", "b", "C"], progress=False)
    refused = pytest.raises(dp.ManifestError, match="give both the same")
    with loader(train, dp.TrainTransform(size=8)), refused:
        loader(val)
