"""Headers of JPEGs and PNGs: what Pillow says of plain pictures, and None of all others."""

import io

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_pipes.adapters.lazy.headers import PictureHeader, header_of
from dali_pipes.adapters.lazy.recipes import STORES_RGB

ORIENTATION = 0x0112


def picture(mode="RGB", size=(37, 30)):
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return PIL.Image.fromarray(noise).convert(mode)


def encode(image, format, **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def turned(turn):
    """EXIF with an orientation, among other tags."""
    exif = PIL.Image.Exif()
    exif[0x010F], exif[ORIENTATION], exif[0x0131] = "a maker", turn, "a program"
    return exif.tobytes()


def read(data):
    return header_of(io.BytesIO(data))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_plain_pictures_have_one(format, mode):
    coding = {"RGB": "4:2:0", "L": "gray"}[mode] if format == "JPEG" else ""
    assert read(encode(picture(mode), format)) == PictureHeader((37, 30), mode, 1, coding)


@pytest.mark.parametrize(
    ("options", "coding"),
    [
        ({"progressive": True}, "4:2:0 progressive"),
        ({"subsampling": 0}, "4:4:4"),
        ({"keep_rgb": True}, STORES_RGB),
        ({"icc_profile": bytes(150_000)}, "4:2:0"),
    ],
)
def test_jpegs_say_how_they_are_coded(options, coding):
    assert read(encode(picture(), "JPEG", **options)).coding == coding


@pytest.mark.parametrize("turn", [None, 1, 6])
@pytest.mark.parametrize("order", "<>")
def test_the_turn_is_that_of_exif(turn, order):
    exif = PIL.Image.Exif()
    exif.endian, exif[0x010F] = order, "a maker"
    if turn:
        exif[ORIENTATION] = turn
    data = encode(picture(), "JPEG", exif=exif.tobytes())
    assert (b"MM\0*" in data) == (order == ">") and read(data).turn == (turn or 1)


def palette_with_transparency():
    return encode(picture().convert("P"), "PNG", transparency=3)


def colors_with_transparency():
    return encode(picture(), "PNG", transparency=(1, 2, 3))


def several_frames():
    return encode(picture(), "PNG", save_all=True, append_images=[picture()])


def two_exifs():
    data = encode(picture(), "JPEG", exif=turned(6))
    at = data.index(b"\xff\xe1")
    end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return data[:end] + data[at:]


@pytest.mark.parametrize(
    "make",
    [
        lambda: encode(picture("CMYK"), "JPEG"),
        lambda: encode(picture("RGBA"), "PNG"),
        lambda: encode(picture("LA"), "PNG"),
        lambda: encode(picture("P"), "PNG"),
        lambda: encode(picture("1"), "PNG"),
        lambda: encode(PIL.Image.fromarray(np.zeros((3, 4), np.uint16)), "PNG"),
        lambda: encode(picture(), "PNG", exif=turned(6)),
        lambda: encode(picture(), "JPEG", exif=turned(9)),
        lambda: encode(picture(), "GIF"),
        lambda: encode(picture(), "WEBP"),
        lambda: encode(picture(), "BMP"),
        palette_with_transparency,
        colors_with_transparency,
        several_frames,
        two_exifs,
        lambda: b"",
        lambda: b"no picture at all",
    ],
)
def test_others_have_none(make):
    assert read(make()) is None


@given(st.binary(max_size=300), st.sampled_from([b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n"]))
def test_any_bytes_may_come(data, start):
    found = read(start + data)
    assert found is None or min(found.size) > 0
