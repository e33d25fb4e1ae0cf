"""Which files need not be encoded again."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_inputs import ODD, jpeg, photo
from PIL import Image

from dali_pipes.tools.preparation.encode import suits_hardware

PHOTO, JPEG = photo(), jpeg()


@st.composite
def jpegs(draw):
    height, width = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    mode = draw(st.sampled_from(["RGB", "L", "CMYK"]))
    image = PHOTO.resize((width, height)).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = draw(st.integers(1, 8))
    exif[0x010E] = "where it was taken"
    options = {
        "quality": draw(st.integers(1, 100)),
        "progressive": draw(st.booleans()),
        "optimize": draw(st.booleans()),
        "restart_marker_blocks": draw(st.integers(0, 3)),
        "comment": draw(st.sampled_from([b"", b"said \xff\xd9 of it"])),
        "icc_profile": draw(st.sampled_from([None, b"\xff\xda" * 500])),
        "dpi": draw(st.sampled_from([(1, 1), (72, 72)])),
        "exif": draw(st.sampled_from([b"", exif])),
    }
    if mode == "RGB":
        options |= draw(
            st.sampled_from(
                [{"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"keep_rgb": True}]
            )
        )
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue() + draw(st.sampled_from([b"", b"garbage \xff\xd9", JPEG]))


def opened(content):
    return Image.open(io.BytesIO(content), formats=["JPEG"])


@given(jpegs())
@settings(max_examples=100, deadline=None)
def test_what_suits_the_hardware_is_baseline_and_gray_or_420(content):
    with opened(content) as image:
        sampling = [image.layer[0][1:3], *image.layer[1:]]
        is_rgb = b"Adobe\0\x64\0\0\0\0\0" in content or image.layer[0][0] == ord("R")
        color = image.mode == "RGB" and sampling[0] == (2, 2) and not is_rgb
        is_baseline = b"\xff\xc0" in content.partition(b"\xff\xda" + b"\x00")[0]
        assert suits_hardware(image) == ((color or image.mode == "L") and is_baseline)


@pytest.mark.parametrize(
    "name", ["progressive JPEG", "baseline JPEG 4:4:4", "CMYK JPEG", "PNG named .jpg"]
)
def test_others_do_not_suit_it(tmp_path, name):
    ODD[name](tmp_path / "x.jpg")
    with Image.open(tmp_path / "x.jpg") as image:
        assert not suits_hardware(image)


@pytest.mark.parametrize(
    "name",
    [
        "baseline JPEG 4:2:0",
        "gray JPEG",
        "JPEG with EXIF orientation 6",
        "JPEG with restart markers",
    ],
)
def test_odd_ones_that_suit_it(tmp_path, name):
    ODD[name](tmp_path / "x.jpg")
    with Image.open(tmp_path / "x.jpg") as image:
        assert suits_hardware(image)
