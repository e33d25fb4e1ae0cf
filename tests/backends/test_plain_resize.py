"""Resizing without antialiasing: that of OpenCV, on every backend."""

import sys

import cv2
import numpy as np
import pytest

import dali_pipes as dp
from dali_pipes.backends.pixels import plain_resize
from dali_pipes.backends.pixels.plain_resize import resize_plain
from dali_pipes.errors import OptionError

SHAPES = [(40, 56), (75, 100), (150, 33), (1, 1), (90, 240), (37, 50), (76, 100)]
SOURCES = [(75, 100), (150, 200), (40, 31), (1, 7)]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_that_of_opencv(source, shape, channels):
    # noise, in which more values differ than in photographs
    image = np.random.default_rng(0).integers(0, 256, (*source, channels), np.uint8)
    theirs = cv2.resize(image, shape[::-1], interpolation=cv2.INTER_LINEAR)
    difference = np.abs(resize_plain(image, shape).astype(int) - theirs.reshape(*shape, channels))
    assert difference.max() <= 1 and difference.mean() < 1e-4


@pytest.fixture
def forgets_opencv():
    plain_resize._find_opencv.cache_clear()
    yield
    plain_resize._find_opencv.cache_clear()


def test_opencv_makes_it_if_it_computes_the_same(forgets_opencv, monkeypatch):
    assert plain_resize._find_opencv() is cv2.resize
    plain_resize._find_opencv.cache_clear()
    resize = cv2.resize
    monkeypatch.setattr(cv2, "resize", lambda *args: resize(*args) ^ 1)
    assert plain_resize._find_opencv() is None


def test_it_needs_no_opencv(forgets_opencv, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert plain_resize._find_opencv() is None
    for source in SOURCES:
        for shape in SHAPES:
            test_it_is_that_of_opencv(source, shape, 3)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_cubic_one_is_that_of_opencv(source, shape, channels):
    image = np.random.default_rng(0).integers(0, 256, (*source, channels), np.uint8)
    theirs = cv2.resize(image, shape[::-1], interpolation=cv2.INTER_CUBIC)
    ours = resize_plain(image, shape, cubic=True)
    difference = np.abs(ours.astype(int) - theirs.reshape(*shape, channels))
    # of a few pixels many values are halves, which are rounded up or down by their last bit
    least = min(*source, *shape)
    assert difference.max() <= 1 and difference.mean() < (0.002 if least > 7 else 0.1)


def batches(folder, config, **options):
    manifest = dp.Manifest.scan(folder, progress=False)
    transform = dp.CenterCropTransform(
        size=(48, 60), resize=(56, 64), dtype="uint8", antialias=False, **options
    )
    with dp.build_loader(manifest, config, transform=transform, batch_size=3, seed=1) as loader:
        return np.concatenate([batch.images.cpu().numpy().astype(int) for batch in loader])


@pytest.mark.parametrize(
    ("config", "largest"),
    [
        (dp.TorchConfig(num_workers=0, decoder="torchvision"), 0),
        (dp.DaliConfig(device="cpu", num_threads=2, resize="torch"), 0),
        (dp.DaliConfig(device="cpu", num_threads=2, resize="dali"), 1),
    ],
    ids=["torchvision", "dali_cpu", "dali_cpu_graph"],
)
def test_backends_agree(photograph_folder, config, largest):
    expected = batches(photograph_folder, dp.TorchConfig(num_workers=0))
    smooth = dp.CenterCropTransform(size=(48, 60), resize=(56, 64), dtype="uint8")
    assert smooth.antialias and expected.std() > 0
    ours = batches(photograph_folder, config)
    difference = np.abs(ours - expected)
    assert difference.max() <= largest and difference.mean() < 0.3


def test_with_a_bicubic_filter_it_is_refused():
    with pytest.raises(OptionError, match="antialias is False, which needs interpolation bilinear"):
        dp.EvalTransform(antialias=False, interpolation="bicubic")
