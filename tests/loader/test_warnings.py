"""What `build_loader` warns of before anything is loaded."""

import logging

import pytest
from later import later
from PIL import Image

import dali_pipes as dp

hf = later("datasets")
ORIENTATION = 0x0112
SIZES = [(40, 40), (40, 30), (20, 60), (64, 64)]  # width, height


@pytest.fixture
def images(tmp_path):
    for number, size in enumerate(SIZES):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.new("RGB", size).save(tmp_path / "a" / f"{number}.png")
    return dp.Manifest.scan(tmp_path, progress=False)


def warnings_of(transform, images, caplog, what="smaller than the crop"):
    config = dp.TorchConfig(num_workers=0)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        options = {"transform": transform, "batch_size": 2, "device": "cpu"}
        dp.build_loader(images, config, **options).close()
    return [line for line in caplog.messages if what in line]


@pytest.mark.parametrize(
    ("transform", "small"),
    [
        (dp.EvalTransform(size=32, resize=None), 2),
        (dp.EvalTransform(size=40, resize=None), 2),
        (dp.EvalTransform(size=41, resize=None), 3),
        (dp.EvalTransform(size=(32, 48), resize=32), 4),
        (dp.EvalTransform(size=(32, 42), resize=32), 3),
        (dp.CenterCropTransform(size=61, resize=None), 3),
    ],
)
def test_images_that_get_black_around_them(transform, small, images, caplog):
    said = warnings_of(transform, images, caplog)
    assert len(said) == 1
    assert f"{small} of 4 images" in said[0] and str(images.root) in said[0]


@pytest.mark.parametrize(
    "transform",
    [
        dp.EvalTransform(size=20, resize=None),
        dp.EvalTransform(size=32, resize=32),
        dp.EvalTransform(size=(64, 64), resize=(64, 64)),
        dp.EvalTransform(size=64, resize=None, pad_if_needed=True),
        dp.CenterCropTransform(size=24, resize=24),
        dp.CenterCropTransform(size=64, resize=None, before=[{"name": "Resize", "size": 64}]),
    ],
)
def test_what_is_large_enough_or_meant_is_silent(transform, images, caplog):
    assert warnings_of(transform, images, caplog) == []


@pytest.mark.parametrize(("exif", "said"), [("ignore", 1), ("apply", 0)])
def test_images_that_datasets_turns(exif, said, tmp_path, caplog):
    for number in range(3):
        tags = Image.Exif()
        tags[ORIENTATION] = 6 if number else 1
        Image.new("RGB", (40, 30)).save(tmp_path / f"{number}.jpg", exif=tags)
    images = [str(tmp_path / f"{number}.jpg") for number in range(3)]
    columns = hf.Features({"image": hf.Image(), "label": hf.Value("int64")})
    rows = hf.Dataset.from_dict({"image": images, "label": [0, 1, 1]}, columns)
    manifest = dp.Manifest.from_hf(rows, progress=False)
    transform = dp.EvalTransform(size=24, resize=24, exif=exif)
    lines = warnings_of(transform, manifest, caplog, "turns images by their EXIF tag")
    assert [line.count(": 2;") for line in lines] == [1] * said


def test_another_rank_is_silent(images, caplog, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert warnings_of(dp.EvalTransform(size=32, resize=None), images, caplog) == []
