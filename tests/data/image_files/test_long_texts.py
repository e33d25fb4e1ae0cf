"""PNGs whose texts are longer than Pillow reads: no pixel depends on them."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

import dali_pipes as dp
from dali_pipes.data.image_files.stored import open_stored

LONG = 2 * PngImagePlugin.MAX_TEXT_CHUNK


def chunk(name, content):
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


TEXTS = {
    "zTXt": chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"x" * LONG)),
    "iTXt": chunk(b"iTXt", b"Comment\0\1\0\0\0" + zlib.compress(b"x" * LONG)),
    "many": chunk(b"tEXt", b"Comment\0" + b"x" * LONG) * 40,
}
IMAGES = {
    "RGB": np.random.default_rng(0).integers(0, 255, (9, 7, 3), np.uint8),
    "gray": np.random.default_rng(0).integers(0, 255, (9, 7), np.uint8),
}


def written(pixels, text, place):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    png = file.getvalue()
    # after the header, or before the end
    at = 33 if place == "before" else len(png) - 12
    return png[:at] + TEXTS[text] + png[at:]


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", IMAGES)
def test_its_pixels_are_read(kind, text, place):
    encoded = written(IMAGES[kind], text, place)
    with pytest.raises(ValueError, match=r"MAX_TEXT_CHUNK|text chunks"):
        Image.open(io.BytesIO(encoded)).load()
    assert np.array_equal(np.asarray(open_stored(io.BytesIO(encoded))), IMAGES[kind])


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize(
    "config",
    [
        dp.TorchConfig(num_workers=0),
        dp.TorchConfig(num_workers=0, decoder="torchvision"),
        dp.DaliConfig(device="cpu", num_threads=2),
    ],
    ids=["pillow", "torchvision", "dali_cpu"],
)
def test_every_loader_reads_it(config, place, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/0.png").write_bytes(written(IMAGES["RGB"], "zTXt", place))
    manifest = dp.Manifest.scan(tmp_path, verify="full", progress=False)
    assert not manifest.problems
    transform = dp.EvalTransform(size=(9, 7), resize=None, dtype="uint8")
    loader = dp.build_loader(manifest, config, transform=transform, batch_size=1, device="cpu")
    with loader:
        (batch,) = loader
    assert np.array_equal(batch.images[0].permute(1, 2, 0).numpy(), IMAGES["RGB"])


def test_a_mask_may_have_such_a_text(tmp_path):
    for name in "im":
        (tmp_path / name).mkdir()
    Image.new("RGB", (7, 9)).save(tmp_path / "i/0.png")
    (tmp_path / "m/0.png").write_bytes(written(IMAGES["gray"] % 3, "zTXt", "before"))
    manifest = dp.Manifest.from_masks(tmp_path / "i", tmp_path / "m", progress=False)
    assert len(manifest) == 1 and not manifest.problems


def test_a_broken_png_is_broken():
    encoded = bytearray(written(IMAGES["RGB"], "zTXt", "before"))
    encoded[20] = 0xFF
    with pytest.raises(Exception):  # noqa: B017 – of almost any type
        open_stored(io.BytesIO(bytes(encoded))).load()
