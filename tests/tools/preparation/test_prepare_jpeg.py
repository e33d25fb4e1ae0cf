"""JPEG files taken apart and put together, against what Pillow says of them."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_inputs import ODD, jpeg, photo
from PIL import Image, JpegImagePlugin

from dali_pipes.data.image_files.headers import orientation_of
from dali_pipes.tools.preparation.encode import segments, suits_hardware, without_metadata

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
def test_without_metadata_are_the_same_pixels(content):
    with opened(content) as image:
        before, orientation = np.asarray(image), orientation_of(image)
    bare = without_metadata(content, orientation)
    with opened(bare) as image:
        assert np.array_equal(before, np.asarray(image))
        assert orientation_of(image) == orientation
        assert not {"icc_profile", "comment", "photoshop"} & {*image.info}
        assert dict(image.getexif()) == ({} if orientation == 1 else {0x0112: orientation})
    assert without_metadata(bare, orientation) == bare
    assert (
        b"where it was taken" not in bare and b"message" not in bare and bare.endswith(b"\xff\xd9")
    )


@given(jpegs())
@settings(max_examples=100, deadline=None)
def test_what_suits_the_hardware_is_baseline_and_gray_or_420(content):
    with opened(content) as image:
        is_rgb = b"Adobe\0\x64\0\0\0\0\0" in content or image.layer[0][0] == ord("R")
        color = image.mode == "RGB" and JpegImagePlugin.get_sampling(image) == 2 and not is_rgb
        gray = image.mode == "L"
        progressive = bool(image.info.get("progressive"))
    assert suits_hardware(content) == ((color or gray) and not progressive)


@pytest.mark.parametrize(
    "name", ["progressive JPEG", "baseline JPEG 4:4:4", "CMYK JPEG", "PNG named .jpg"]
)
def test_the_rest_does_not(tmp_path, name):
    ODD[name](tmp_path / "x.jpg")
    assert not suits_hardware((tmp_path / "x.jpg").read_bytes())


@pytest.mark.parametrize(
    "name",
    [
        "baseline JPEG 4:2:0",
        "gray JPEG",
        "JPEG with EXIF orientation 6",
        "JPEG with restart markers",
    ],
)
def test_these_do(tmp_path, name):
    ODD[name](tmp_path / "x.jpg")
    assert suits_hardware((tmp_path / "x.jpg").read_bytes())


def test_a_second_scan_is_not_for_the_hardware():
    *parts, end = segments(JPEG)
    assert suits_hardware(b"\xff\xd8" + b"".join(part.whole for part in [*parts, end]))
    assert not suits_hardware(
        b"\xff\xd8" + b"".join(part.whole for part in [*parts, parts[-1], end])
    )


@given(st.binary(max_size=60), st.integers(0, 3000), st.integers(0, 3000))
@settings(max_examples=200, deadline=None)
def test_broken_bytes_are_refused_in_words(junk, start, length):
    content = JPEG[:start] + junk + JPEG[start + length :]
    assert suits_hardware(content) in (True, False)
    try:
        parts = list(segments(content))
    except ValueError:
        return
    assert parts[-1].marker == 0xD9


@pytest.mark.parametrize("cut", [2, 3, 5, 20, 400, -2, -1])
def test_a_file_that_is_cut_short_has_no_end(cut):
    with pytest.raises(ValueError):
        list(segments(JPEG[:cut]))
