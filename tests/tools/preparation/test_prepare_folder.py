"""A folder of images to a folder of smaller JPEGs: the same samples in the same order, whole files
only, and nothing lost.
"""

import os

import numpy as np
import pytest
from odd_inputs import ODD, photo
from PIL import Image
from prepared import config, digests, killed, prepared, result, scan

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.system.locks import locked
from dali_pipes.tools.preparation.encode import suits_hardware
from dali_pipes.tools.preparation.run import prepare


def first_batch(manifest, loader, transform):
    with dp.build_loader(
        manifest, loader, transform=transform, batch_size=len(manifest), shuffle=False
    ) as batches:
        return next(iter(batches))


def test_ids_labels_and_classes_stay(image_folder, manifest, tmp_path):
    written = scan(prepared(image_folder, tmp_path / "out", resize=100))
    assert written.classes == manifest.classes
    assert [written.path(number).relative_to(written.root) for number in range(37)] == [
        manifest.path(number).relative_to(manifest.root) for number in range(37)
    ]
    assert np.array_equal(written.labels, manifest.labels)
    shorter = manifest.sizes.min(axis=1)
    assert np.array_equal(written.sizes.min(axis=1), np.minimum(shorter, 100))
    for number in range(37):
        with Image.open(written.path(number)) as image:
            assert suits_hardware(image)
    message = result(tmp_path / "out")
    assert message["images"] == 37 and message["left_out"] == [] and 0 < message["same_pixels"] < 37
    assert (
        message["bytes_after"]
        == written.bytes_in_all
        < message["bytes_before"]
        == manifest.bytes_in_all
    )


@pytest.mark.parametrize("exif", ["ignore", "apply"])
def test_training_sees_the_same_before_and_after_under_either_orientation(
    mixed_folder, tmp_path, exif
):
    """Evaluated at the size that they were made smaller to, images differ by what JPEG loses;
    turned wrongly, by tens.
    """
    transform = dp.EvalTransform(size=90, resize=90, dtype="uint8", exif=exif)
    written = scan(prepared(mixed_folder, tmp_path / "out", resize=90, quality=95))
    source = scan(mixed_folder)
    good = source.subset(
        np.array(
            [number for number in range(len(source)) if "half" not in str(source.path(number))]
        )
    )
    before = first_batch(good, dp.TorchConfig(num_workers=0), transform)
    for loader in (dp.TorchConfig(num_workers=0), dp.DaliConfig(device="cpu")):
        after = first_batch(written, loader, transform)
        assert after.labels.tolist() == before.labels.tolist()
        differ = (after.images.int() - before.images.int()).abs().float().mean(dim=(1, 2, 3))
        assert differ.max() < 8


def test_applied_orientation_is_what_loaders_see_without_asking(mixed_folder, tmp_path):
    transform = dp.EvalTransform(size=90, resize=90, dtype="uint8")
    written = scan(prepared(mixed_folder, tmp_path / "out", resize=90, exif="apply"))
    assert set(written.table["orientation"].to_pylist()) == {1}
    at = next(number for number in range(len(written)) if "turned" in str(written.path(number)))
    source = scan(mixed_folder)
    turned = source.subset(
        np.array([number for number in range(len(source)) if "turned" in str(source.path(number))])
    )
    (before,) = first_batch(
        turned,
        dp.TorchConfig(num_workers=0),
        dp.EvalTransform(size=90, resize=90, dtype="uint8", exif="apply"),
    ).images
    after = first_batch(written, dp.TorchConfig(num_workers=0), transform).images[at]
    assert (after.int() - before.int()).abs().float().mean() < 8


def test_bad_files_are_named_and_left_out(mixed_folder, tmp_path, capsys):
    folder = prepared(mixed_folder, tmp_path / "out", resize=90)
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*.*")) == [
        *("a/turned.jpg", "a/x.jpg", "a/x.png.jpg", "a/x.webp.jpg", "c/only.jpg")
    ]
    assert scan(folder).classes == ["a", "b", "c"]  # or the labels of c would change
    left_out = dict(result(tmp_path / "out")["left_out"])
    assert {*left_out} == {"a/empty.jpg", "a/half.jpg"} and left_out["a/empty.jpg"] == "empty file"
    message = capsys.readouterr().out
    assert (
        "left out: a/empty.jpg: empty file" in message
        and "left out: a/half.jpg: cannot be decoded" in message
    )
    assert f"Use them with data.train={folder}" in message


def test_a_name_that_is_not_utf8_is_kept_or_reported(tmp_path, capfd):
    (tmp_path / "set/a").mkdir(parents=True)
    for name in ("name that is not UTF-8", "baseline JPEG 4:2:0"):
        ODD[name](tmp_path / "set/a/x.jpg")
    (tmp_path / "set/a" / os.fsdecode(b"\xe9.png")).write_bytes(
        (tmp_path / "set/a/x.jpg").read_bytes()[:-99]
    )
    folder = prepared(tmp_path / "set", tmp_path / "out", resize=64)
    assert sorted(os.listdir(os.fsencode(folder / "a"))) == [b"caf\xe9.jpg", b"x.jpg"]
    assert r"left out: a/\xe9.png: cannot be decoded" in capfd.readouterr().out


def test_quality_alone_keeps_sizes(image_folder, manifest, tmp_path):
    low = scan(prepared(image_folder, tmp_path / "low", quality=30))
    high = scan(prepared(image_folder, tmp_path / "high", quality=95))
    assert np.array_equal(low.sizes, manifest.sizes) and low.bytes_in_all < high.bytes_in_all


def test_both_splits_of_a_root(image_folder, tmp_path):
    (tmp_path / "set").mkdir()
    for split in ("train", "val"):
        (tmp_path / "set" / split).symlink_to(image_folder)
    options = config(None, tmp_path / "out", resize=64)
    options.data = DataConfig(root=str(tmp_path / "set"))
    prepare(options)
    assert (
        digests(tmp_path / "out/train") == digests(tmp_path / "out/val")
        and len(scan(tmp_path / "out/val")) == 37
    )


def test_a_second_run_keeps_what_is_there(image_folder, tmp_path):
    folder = prepared(image_folder, tmp_path / "out", resize=64)
    before, stamps = (
        digests(folder),
        [file.stat().st_mtime_ns for file in sorted(folder.rglob("*.jpg"))],
    )
    prepared(image_folder, tmp_path / "out", resize=64)
    assert digests(folder) == before
    assert [file.stat().st_mtime_ns for file in sorted(folder.rglob("*.jpg"))] == stamps
    assert result(tmp_path / "out")["kept"] == 37


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on(large_folder, tmp_path):
    made = tmp_path / "out/train"
    killed(lambda: len(list(made.rglob("*.jpg"))) > 20, large_folder, tmp_path / "out", resize=300)
    there = digests(made)
    assert 20 < len(there) < 120 and not list(made.rglob(".*"))
    for file in made.rglob("*.jpg"):
        Image.open(file).load()
    prepared(large_folder, tmp_path / "out", resize=300)
    message = result(tmp_path / "out")
    assert message["kept"] == len(there) and message["images"] == 120
    whole = digests(prepared(large_folder, tmp_path / "whole", resize=300))
    assert digests(made) == whole and there.items() <= whole.items()
    assert sorted(os.listdir(tmp_path / "out")) == ["prepared.json", "train"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": 65}, "resize was 64, and now is 65"),
        ({"quality": 80}, "quality was 90, and now is 80"),
        ({"exif": "apply"}, "exif was keep, and now is apply"),
        ({"to": "shards"}, "to was folder, and now is shards"),
    ],
)
def test_other_options_into_the_same_folder_are_refused(image_folder, tmp_path, options, message):
    before = digests(prepared(image_folder, tmp_path / "out", resize=64))
    with pytest.raises(dp.DaliPipesError, match=message):
        prepared(image_folder, tmp_path / "out", **{"resize": 64} | options)
    assert digests(tmp_path / "out/train") == before


def test_other_images_into_the_same_folder_are_refused(image_folder, mixed_folder, tmp_path):
    prepared(image_folder, tmp_path / "out", resize=64)
    with pytest.raises(dp.DaliPipesError, match="was started with other options: fingerprint was"):
        prepared(mixed_folder, tmp_path / "out", resize=64)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "{}",
        "[]",
        '{"schema": 1, "options": 3, "splits": {}}',
        '{"schema": 1, "options": {}, "splits": {"train": 5}}',
    ],
)
def test_a_record_that_is_none_is_refused(image_folder, tmp_path, content):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/prepared.json").write_text(content)
    with pytest.raises(dp.DaliPipesError, match="cannot be read"):
        prepared(image_folder, tmp_path / "out", resize=64)


def test_a_folder_of_something_else_is_refused(image_folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("all of it")
    with pytest.raises(dp.DaliPipesError, match="not empty and was not made by"):
        prepared(image_folder, tmp_path / "out", resize=64)
    assert os.listdir(tmp_path / "out") == ["thesis.tex"]


@pytest.mark.parametrize("out", ["mixed", "mixed/small", "mixed/a", "."])
def test_out_within_the_images_or_around_them_is_refused(mixed_folder, tmp_path, out):
    before = digests(tmp_path)
    with pytest.raises(dp.ConfigError, match="one is inside the other"):
        prepared(mixed_folder, tmp_path / out, resize=64)
    assert digests(tmp_path) == before


def test_two_runs_at_once_are_refused(image_folder, tmp_path):
    (tmp_path / "out").mkdir()
    with (
        locked(tmp_path / "out" / ".unfinished_lock"),
        pytest.raises(dp.DaliPipesError, match="another run is writing there"),
    ):
        prepared(image_folder, tmp_path / "out", resize=64)


def test_images_that_do_not_belong_are_found(image_folder, tmp_path):
    folder = prepared(image_folder, tmp_path / "out", resize=64)
    photo(20, 20).save(folder / "checkers/stray.jpg")
    with pytest.raises(dp.DaliPipesError, match=r"checkers/stray.jpg was not written by this run"):
        prepared(image_folder, tmp_path / "out", resize=64)


def test_no_usable_image_is_an_error(tmp_path):
    (tmp_path / "set/a").mkdir(parents=True)
    photo(20, 20).save(tmp_path / "set/a/x.jpg")
    content = (tmp_path / "set/a/x.jpg").read_bytes()
    (tmp_path / "set/a/x.jpg").write_bytes(content[:-30])
    with pytest.raises(
        dp.DaliPipesError,
        match=r"none of its 1 images can be used, such as a/x.jpg: cannot be decoded",
    ):
        prepared(tmp_path / "set", tmp_path / "out", resize=64)


@pytest.mark.slow
def test_difference_is_none_where_no_pixel_changes_and_some_where_they_do(tmp_path):
    (tmp_path / "set/a").mkdir(parents=True)
    for number in range(5):
        photo(120 + number, 170).save(
            tmp_path / f"set/a/{number}.jpg", subsampling="4:2:0", quality=95
        )
    prepared(tmp_path / "set", tmp_path / "same", resize=200, agreement_images=4)
    same = result(tmp_path / "same")["difference"]
    assert same["images"] == 4 and same["evaluation"]["max"] == same["training"]["max"] == 0
    prepared(tmp_path / "set", tmp_path / "smaller", resize=110, agreement_images=4)
    smaller = result(tmp_path / "smaller")["difference"]
    assert 0 < smaller["evaluation"]["mean"] < smaller["training"]["mean"] < 20


def test_a_full_disk_is_reported_with_the_file(image_folder, tmp_path, monkeypatch):
    from pathlib import Path

    def full(self, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError) as raised:
        prepared(image_folder, tmp_path / "out", resize=64)
    assert raised.value.filename == str(tmp_path / "out/prepared.json")
