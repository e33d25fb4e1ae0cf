"""A program's `LOAD_TRUNCATED_IMAGES` is for its own images: a scan and every loader refuse
truncated ones all the same.
"""

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageFile

import dali_pipes as dp
from dali_pipes.data.image_files.stored import open_stored


@pytest.fixture
def lenient(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """8 images, of which number 3 is cut in half."""
    root = tmp_path_factory.mktemp("cut")
    (root / "a").mkdir()
    for number in range(8):
        encoded = encode(number)
        (root / f"a/{number}.jpg").write_bytes(
            encoded[: len(encoded) // 2] if number == 3 else encoded
        )
    return root


def encode(number, form="JPEG"):
    made = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (48, 40, 3), np.uint8)).save(
        made, form
    )
    return made.getvalue()


@pytest.mark.parametrize(
    "config",
    [
        dp.TorchConfig(num_workers=0),
        dp.TorchConfig(num_workers=1),
        dp.TorchConfig(num_workers=0, decoder="torchvision"),
        dp.DaliConfig(device="cpu"),
    ],
    ids=["pil", "pil_worker", "torchvision", "dali_cpu"],
)
def test_every_loader_names_a_truncated_image(folder, lenient, config):
    manifest = dp.Manifest.scan(folder, progress=False)
    transform = dp.EvalTransform(size=32, resize=32)
    named = pytest.raises(dp.BadSampleError, match=r"1 of 8 images cannot be loaded")
    with dp.build_loader(manifest, config, transform=transform, batch_size=8) as loader, named:
        list(loader)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def test_a_scan_says_the_same(folder, lenient, monkeypatch):
    found = dp.Manifest.scan(folder, verify="full", progress=False).problems
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
    assert found == dp.Manifest.scan(folder, verify="full", progress=False).problems != []


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "TIFF", "WEBP", "PPM"])
def test_every_format(lenient, form):
    encoded = encode(1, form)
    assert np.asarray(open_stored(io.BytesIO(encoded))).shape == (48, 40, 3)
    with pytest.raises((OSError, SyntaxError, ValueError)):
        np.asarray(open_stored(io.BytesIO(encoded[: len(encoded) // 2])))
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def test_the_programs_own_images_are_as_it_wants_when_many_threads_have_decoded(folder, lenient):
    def decode(number):
        try:
            return np.asarray(
                open_stored(io.BytesIO((folder / f"a/{number % 8}.jpg").read_bytes()))
            ).shape
        except OSError:
            return None

    with ThreadPoolExecutor(4) as pool:
        assert [each is None for each in pool.map(decode, range(64))] == [
            number % 8 == 3 for number in range(64)
        ]
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True
    with Image.open(folder / "a/3.jpg") as image:
        image.load()
