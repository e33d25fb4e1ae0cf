"""The JPEG decoders of loader=torch: what each is compared with Pillow, and what is said where one
is missing. TorchCodec is in the lock dev-newest only.
"""

import sys
import warnings
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from built_files import EVERY
from PIL import Image

import dali_pipes as dp
from dali_pipes.data.image_files import jpeg
from dali_pipes.errors import ConfigError

INSTALLED = ["torchvision", *(["torchcodec"] if find_spec("torchcodec") else [])]
HUGE = "400-megapixel PNG of 389 KB"  # seconds; no JPEG


@pytest.fixture
def forgotten():
    """The decoders are looked for anew, before and after."""
    decoder_of = jpeg.decoder_of
    decoder_of.cache_clear()
    yield
    decoder_of.cache_clear()


def decoded(folder, decoder):
    """The pixels of the one image of a folder; the error's class if it cannot be decoded."""
    manifest = dp.Manifest.scan(folder, progress=False)
    config = dp.TorchConfig(num_workers=0, decoder=decoder)
    transform = dp.EvalTransform(size=64, resize=72, dtype="uint8")
    with dp.build_loader(manifest, config, transform=transform, batch_size=1) as loader:
        try:
            return next(iter(loader)).images.numpy().astype(int)
        except (dp.BadSampleError, RuntimeError):
            return "named"


@pytest.mark.parametrize("decoder", INSTALLED)
def test_decoders_are_equal_to_pillow_and_warn_nobody(photograph_folder, decoder):
    decode = jpeg.decoder_of(decoder)
    for file in sorted(photograph_folder.rglob("*.jpg")):
        encoded = torch.from_numpy(np.fromfile(file, np.uint8))
        with Image.open(file) as image:
            expected = np.asarray(image.convert("RGB"))
        assert np.array_equal(decode(encoded).permute(1, 2, 0).numpy(), expected), file


@pytest.mark.parametrize("decoder", INSTALLED)
def test_decoders_leave_images_as_they_are_stored(tmp_path, decoder):
    """EXIF is for the manifest to say: docs/inputs.md."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(tmp_path / "a.jpg", exif=exif)
    encoded = torch.from_numpy(np.fromfile(tmp_path / "a.jpg", np.uint8))
    assert jpeg.decoder_of(decoder)(encoded).shape == (3, 20, 40)


@pytest.mark.skipif("torchcodec" not in INSTALLED, reason="TorchCodec is in dev-newest.txt only")
@pytest.mark.parametrize("name", [name for name in EVERY if name != HUGE])
def test_torchcodec_does_with_odd_files_what_torchvision_does(tmp_path, name):
    (tmp_path / "a").mkdir()
    EVERY[name](tmp_path / "a/x.jpg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not len(dp.Manifest.scan(tmp_path, progress=False)):
            return
        one, other = (decoded(tmp_path, each) for each in ("torchvision", "torchcodec"))
    assert np.array_equal(one, other), name


def test_a_decoder_that_is_missing_is_named_with_its_extra(manifest, monkeypatch, forgotten):
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    config = dp.TorchConfig(num_workers=0, decoder="torchcodec")
    with pytest.raises(dp.ConfigError) as caught:
        dp.build_loader(manifest, config, transform=dp.TrainTransform(size=32), batch_size=4)
    text = str(caught.value)
    assert text.startswith("TorchConfig.decoder is torchcodec, but TorchCodec 0.16 or newer is")
    assert "pip install 'dali_pipes[torchcodec]'" in text and "TorchConfig(decoder='pil')" in text


def test_auto_takes_the_fastest_that_is_there(manifest, monkeypatch, forgotten):
    config = dp.TorchConfig(num_workers=0, decoder="auto")
    assert config.on_device(torch.device("cpu")).decoder == jpeg.fastest_decoder() == "torchvision"
    how = {"transform": dp.TrainTransform(size=32), "batch_size": 4, "device": "cpu"}
    with dp.build_loader(manifest, config, **how) as loader:
        assert "with torchvision decodes" in loader.explain()

    def missing(name):
        raise ConfigError("missing")

    monkeypatch.setattr(jpeg, "decoder_of", missing)
    assert jpeg.fastest_decoder() == "pil"
