"""The job prepare as a user runs it, and its options."""

import pytest

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.tools.preparation.config import PrepareConfig


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out": None}, "set out=DIR"),
        ({}, "nothing to do: resize=N makes the images smaller"),
        ({"resize": 0}, "resize is 0; it takes whole numbers from 1 on"),
        ({"quality": 101}, "quality is 101; it takes whole numbers from 1 to 100"),
        ({"to": "lmdb"}, "to is 'lmdb'; choose one of folder, shards"),
        ({"to": "shards", "shard_mib": 0}, "shard_mib is 0"),
        ({"to": "shards", "exif": "apply"}, "exif=apply turns pixels"),
        ({"exif": "strip"}, "exif is 'strip'"),
    ],
)
def test_options_that_cannot_work_are_reported(options, message):
    with pytest.raises(dp.ConfigError, match=message):
        PrepareConfig(**{"data": DataConfig(train="/images"), "out": "/out"} | options)


def test_a_mistake_ends_in_one_clear_line(command, tmp_path):
    done = command("prepare", "data.train=none", f"out={tmp_path / 'out'}", "resize=64")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and "none: no such folder" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_from_the_command_line(command, image_folder, tmp_path):
    sizes = ["transform.size=64", "eval_transform.size=64", "eval_transform.resize=64"]
    folders = [f"data.train={image_folder}", f"data.cache_dir={tmp_path / 'cache'}"]
    asked = ["resize=64", "quality=80", "agreement_images=10", f"out={tmp_path / 'out'}"]
    done = command("prepare", *folders, *asked, *sizes)
    assert done.returncode == 0, done.stderr
    assert "pixels, evaluation" in done.stdout and "over 10 images" in done.stdout
    assert f"Use them with data.train={tmp_path / 'out/train'}" in done.stdout
