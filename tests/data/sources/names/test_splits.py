"""Words for splits in names, and what the operating system keeps beside data."""

import pytest

from dali_pipes import ManifestError
from dali_pipes.data.sources.names import (
    is_housekeeping,
    is_housekeeping_member,
    refuse_several_splits,
    split_of,
)


@pytest.mark.parametrize(
    ("names", "split"),
    [
        (
            (
                "train",
                "TRAIN",
                "Training",
                "train2017",
                "imagenet2012-train.tfrecord-00000-of-00002",
                "train_00.tar",
            ),
            "train",
        ),
        (
            (
                "val",
                "valid",
                "validation",
                "dev",
                "eval",
                "imagenet1k-validation-00.tar",
                "val2017",
                "VAL_1.tar",
            ),
            "val",
        ),
        (
            (
                "test",
                "testing",
                "tests",
                "test-00000-of-00001.parquet",
                "0001.test.tar",
                "Test2014",
            ),
            "test",
        ),
        (("trainval", "trainval2007.tar", "train_val-0.tar", "VOC2012_trainval"), "trainval"),
        (("test_data-train-0.tar", "validation_of_x-training.tar"), "train"),
        (
            (
                "medieval",
                "latest-0.tar",
                "constrained",
                "strain",
                "trains",
                "device",
                "value",
                "",
                "00000.tar",
                "évaltest",
            ),
            None,
        ),
    ],
)
def test_the_split_is_a_word_of_its_own_in_the_name(names, split):
    assert {name: split_of(name) for name in names} == dict.fromkeys(names, split)


def test_splits_are_refused():
    names = ["b-train-0", "b-train-1", "b-val-0", "extra"]
    with pytest.raises(
        ManifestError, match=r"^/x: holds 2 splits, .*: 2 of train and 1 of val; name those of one"
    ):
        refuse_several_splits("/x", names)
    refuse_several_splits("/x", ["b-train-0", "extra", "b-training"])


def test_housekeeping_is_known_by_its_name():
    for name in (
        "._0001.tar",
        ".DS_Store",
        "__MACOSX",
        "@eaDir",
        "lost+found",
        "Thumbs.db",
        "$RECYCLE.BIN",
        ".git",
        ".n02",
    ):
        assert is_housekeeping(name), name
    for name in ("0001.tar", "n01440764", ".", "..", "_x", "found", "a.b", "MACOSX"):
        assert not is_housekeeping(name), name
    assert is_housekeeping_member("__MACOSX/a/b.jpg") and is_housekeeping_member("a/._b.jpg")
    assert not is_housekeeping_member("./.a/b.jpg")
