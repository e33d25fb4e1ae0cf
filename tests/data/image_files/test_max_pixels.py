"""`max_pixels` is the only limit on pixels: Pillow's own neither stops what a scan allows, nor is
it changed for the program.
"""

import warnings

import numpy as np
import pytest
from odd_inputs import BACKENDS
from PIL import Image

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.data.image_files.headers import MAX_PIXELS
from dali_pipes.data.images import open_images

# its limit here; twice as many it refuses, which large images would need seconds and gigabytes to
# show
PILLOW = 1_000
FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "PPM", "WEBP")


@pytest.fixture
def large(tmp_path, monkeypatch):
    """Images of nine times what Pillow is allowed, in each format; of TIFFs one in strips, and one
    that is turned.
    """
    image = Image.fromarray(
        np.random.default_rng(1).integers(0, 256, (90, 100, 3), np.uint8)
    ).resize((100, 90))
    (tmp_path / "set/train/a").mkdir(parents=True)
    for form in FORMATS:
        image.save(tmp_path / f"set/train/a/{form}.jpg", form)
    image.save(tmp_path / "set/train/a/LZW.tif", compression="tiff_lzw", tiffinfo={274: 6})
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", PILLOW)
    return tmp_path / "set"


WITHOUT_WEBP = {"JPEG.jpg", "PNG.jpg", "BMP.jpg", "TIFF.jpg", "PPM.jpg", "LZW.tif"}


def names(manifest):
    return {manifest.name(number).rpartition("/")[2] for number in range(len(manifest))}


@pytest.mark.parametrize("verify", ["header", "full"])
def test_a_scan_has_its_own_limit(large, verify):
    scan = dp.Manifest.scan(large / "train", verify=verify, max_pixels=9_000, progress=False)
    assert names(scan) == WITHOUT_WEBP
    assert [problem for _, problem in scan.problems] == [
        "more pixels than Pillow opens in this format; save it as JPEG or PNG"
    ]
    scan = dp.Manifest.scan(large / "train", verify=verify, max_pixels=8_999, progress=False)
    assert not len(scan) and "more than 8,999 pixels (100 × 90)" in {
        problem for _, problem in scan.problems
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "transform", [dp.EvalTransform(size=64, resize=72), dp.TrainTransform(size=64, scale=(0.5, 1))]
)
def test_every_loader_delivers_them(large, backend, transform):
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        scan = dp.Manifest.scan(large / "train", progress=False)
        usable = scan.subset(np.arange(len(scan)))
        with dp.build_loader(
            usable, BACKENDS[backend], transform=transform, batch_size=len(usable)
        ) as loader:
            assert len(next(iter(loader))) == len(WITHOUT_WEBP)


def test_they_are_not_named_bad_when_another_file_is(large):
    scan = dp.Manifest.scan(large / "train", progress=False)
    usable = scan.subset(np.arange(len(scan)))
    broken = large / "train/a/JPEG.jpg"
    broken.write_bytes(broken.read_bytes()[:2000])
    transform = dp.EvalTransform(size=64)
    with (
        dp.build_loader(
            usable, BACKENDS["torch"], transform=transform, batch_size=len(usable)
        ) as loader,
        pytest.raises(dp.BadSampleError) as caught,
    ):
        next(iter(loader))
    assert [usable.name(bad[0]).rpartition("/")[2] for bad in caught.value.bad_samples] == [
        "JPEG.jpg"
    ]


def test_every_job_asks_data_max_pixels(large):
    assert len(open_images(DataConfig(root=str(large), max_pixels=9_000), "train")) == len(
        WITHOUT_WEBP
    )
    with pytest.raises(dp.ManifestError):
        len(
            open_images(
                DataConfig(root=str(large), max_pixels=8_999), "train", max_bad_fraction=0.5
            )
        )
    assert len(
        open_images(DataConfig(root=str(large), max_pixels=1), "train", max_pixels=9_000)
    ) == len(WITHOUT_WEBP)
    assert DataConfig().max_pixels == MAX_PIXELS
    with pytest.raises(
        dp.ConfigError, match="max_pixels is 0; it takes whole numbers from 1 to 2147483647"
    ):
        DataConfig(max_pixels=0)


def test_a_saved_manifest_of_them_is_loaded(large, tmp_path):
    dp.Manifest.scan(large / "train", progress=False).save(tmp_path / "m.arrow")
    assert len(dp.Manifest.load(tmp_path / "m.arrow")) == len(WITHOUT_WEBP)


def test_masks_have_no_other_limit_than_their_images(large, tmp_path):
    (tmp_path / "masks").mkdir()
    for each in ("JPEG", "PNG"):
        Image.fromarray(np.full((90, 100), 3, np.uint8)).save(tmp_path / f"masks/{each}.png")
    scan = dp.Manifest.from_masks(
        large / "train/a", tmp_path / "masks", missing="skip", verify="full", progress=False
    )
    with dp.build_loader(
        scan, BACKENDS["torch"], transform=dp.EvalTransform(size=64), batch_size=2
    ) as loader:
        assert next(iter(loader))["mask"].unique().tolist() == [3]


def test_pillows_limit_is_the_programs():
    assert Image.MAX_IMAGE_PIXELS == MAX_PIXELS
