"""Headers of JPEGs and PNGs: what Pillow says of plain pictures, and None of all others."""

import io

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_pipes.adapters.lazy.headers import PictureHeader, header_of

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
@pytest.mark.parametrize("size", [(37, 30), (1, 1), (1, 300)])
def test_plain_pictures_have_pillows(size, format, mode):
    assert read(encode(picture(mode, size), format)) == PictureHeader(format, size, mode, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"progressive": True},
        {"subsampling": 2},
        {"comment": b"\xff\xd9 a comment"},
        {"icc_profile": bytes(150_000)},
        {"restart_marker_blocks": 1},
        {"keep_rgb": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_jpegs_of_many_kinds_have_one(options):
    data = encode(picture(), "JPEG", **options)
    assert read(data) == PictureHeader("JPEG", (37, 30), "RGB", 1)


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("is_big", [False, True])
def test_the_turn_is_that_of_exif(turn, is_big):
    exif = turned(turn)
    if is_big:
        # Pillow writes what it is told to
        made = PIL.Image.Exif()
        made.endian = ">"
        made[ORIENTATION] = turn
        exif = made.tobytes()
        assert b"MM\0*" in exif
    data = encode(picture(), "JPEG", exif=exif)
    with PIL.Image.open(io.BytesIO(data)) as header:
        assert header.getexif().get(ORIENTATION) == turn
    assert read(data) == PictureHeader("JPEG", (37, 30), "RGB", turn)


def test_exif_without_a_turn_has_none():
    exif = PIL.Image.Exif()
    exif[0x010F] = "a maker"
    assert read(encode(picture(), "JPEG", exif=exif.tobytes())).turn == 1


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


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_a_file_that_ends_in_its_header_has_none(format):
    data = encode(picture(), format, exif=turned(1) if format == "JPEG" else b"")
    end = data.index(b"\xff\xc0") if format == "JPEG" else data.index(b"IDAT")
    assert all(read(data[:count]) is None for count in range(end))


@given(st.binary(max_size=300), st.sampled_from([b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n"]))
def test_any_bytes_may_come(data, start):
    found = read(start + data)
    assert found is None or found.format in ("JPEG", "PNG")
