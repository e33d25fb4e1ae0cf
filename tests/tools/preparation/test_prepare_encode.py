"""One image file to one prepared file: its pixels, its size, and what is dropped."""

import io
import warnings

import numpy as np
import pytest
from later import later
from odd_inputs import ODD, photo
from PIL import Image, JpegImagePlugin
from turned_files import WAYS

from dali_pipes.data.image_files.headers import ScanOptions, read_header
from dali_pipes.tools.preparation.encode import Encoding, LeftOutError, encode, suits_hardware

v2 = later("torchvision.transforms.v2")

KEEP = Encoding(resize=100, quality=95, exif="keep")
APPLY = Encoding(resize=100, quality=95, exif="apply")
USABLE_SCAN = [name for name in ODD if "megapixel" not in name]


def encoded(path, encoding):
    header = read_header(path)
    assert header.problem is None
    return encode(path.read_bytes, (header.height, header.width), header.orientation, encoding)


def as_loaded(path, upright=False):
    """What a loader decodes of a file, before it crops."""
    from PIL import ImageOps

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(path) as image:
            return (ImageOps.exif_transpose(image) if upright else image).convert("RGB")


@pytest.mark.parametrize("name", USABLE_SCAN)
def test_every_odd_input_becomes_what_loaders_see_of_it_or_is_left_out(tmp_path, name):
    """As close as JPEG of quality 95 is; the mean of |difference| of another image would be
    tens.
    """
    ODD[name](tmp_path / "x.jpg")
    (path,) = tmp_path.iterdir()
    header = read_header(path)
    if header.problem:
        return
    if "by Pillow" in (read_header(path, ScanOptions(verify="full")).problem or ""):
        with pytest.raises(LeftOutError, match="cannot be decoded"):
            encoded(path, KEEP)
        return
    made = encoded(path, KEEP)
    with Image.open(io.BytesIO(made.content)) as image:
        assert suits_hardware(image) and made.extension == "jpg"
    expected = as_loaded(path)
    scale = min(1, 100 / min(expected.size))
    expected = expected.resize(
        [int(side * scale + 1e-9) for side in expected.size], Image.Resampling.BILINEAR
    )
    with Image.open(io.BytesIO(made.content)) as image:
        assert image.size == expected.size and image.info.get("progressive") is None
        got = np.asarray(image.convert("RGB")).astype(int)
    assert np.abs(got - np.asarray(expected)).mean() < 6


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_kept_as_a_tag_or_applied(tmp_path, orientation):
    path = tmp_path / "x.jpg"
    ODD[f"JPEG with EXIF orientation {orientation}"](path)
    for encoding in (KEEP, Encoding(None, 95, "keep")):  # encoded anew, and copied
        (tmp_path / "kept.jpg").write_bytes(encoded(path, encoding).content)
        assert read_header(tmp_path / "kept.jpg").orientation == orientation
        for upright in (False, True):
            kept, source = (
                as_loaded(tmp_path / "kept.jpg", upright),
                as_loaded(path, upright).resize,
            )
            assert (
                np.abs(
                    np.asarray(kept).astype(int)
                    - np.asarray(source(kept.size, Image.Resampling.BILINEAR))
                ).mean()
                < 6
            )
    (tmp_path / "applied.jpg").write_bytes(encoded(path, APPLY).content)
    assert read_header(tmp_path / "applied.jpg").orientation == 1
    applied = as_loaded(tmp_path / "applied.jpg")
    upright = as_loaded(path, upright=True).resize(applied.size, Image.Resampling.BILINEAR)
    assert np.abs(np.asarray(applied).astype(int) - np.asarray(upright)).mean() < 6


@pytest.mark.parametrize("way", WAYS)
def test_an_image_is_turned_as_the_scan_has_found_and_not_as_the_file_may_say_elsewhere(
    tmp_path, way
):
    write, expected = WAYS[way]
    (tmp_path / "x.jpg").write_bytes(write(6))
    for encoding in (KEEP, Encoding(None, 95, "apply")):
        content = encoded(tmp_path / "x.jpg", encoding).content
        (tmp_path / "made.jpg").write_bytes(content)
        made, turns = read_header(tmp_path / "made.jpg"), encoding.exif == "apply"
        assert made.orientation == (1 if turns else expected(6))
        assert (made.height > made.width) == (turns and expected(6) == 6)


@pytest.mark.parametrize("size", [(150, 200), (375, 500), (101, 1999), (333, 100), (2, 7)])
@pytest.mark.parametrize("limit", [1, 64, 100, 224])
def test_the_size_is_that_of_torchvision_and_never_larger(tmp_path, size, limit):
    photo(*size).save(tmp_path / "x.png")
    with Image.open(
        io.BytesIO(encoded(tmp_path / "x.png", Encoding(limit, 90, "keep")).content)
    ) as image:
        got = image.size
    if min(size) <= limit:
        assert got == size[::-1]
    else:
        assert (
            got == v2.functional.resize(photo(*size), [limit], v2.InterpolationMode.BILINEAR).size
        )


def test_a_small_baseline_jpeg_is_copied(tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "where it was taken"
    photo(90, 120).save(
        tmp_path / "x.jpg",
        subsampling="4:2:0",
        quality=70,
        exif=exif,
        icc_profile=b"p" * 500,
        comment=b"mine",
    )
    made = encoded(tmp_path / "x.jpg", KEEP)
    assert made.same_pixels and made.content == (tmp_path / "x.jpg").read_bytes()
    assert not encoded(tmp_path / "x.jpg", Encoding(80, 90, "keep")).same_pixels


def test_an_encoded_file_has_no_metadata_and_is_420(tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "where it was taken"
    photo().save(
        tmp_path / "x.jpg",
        subsampling="4:4:4",
        exif=exif,
        icc_profile=b"p" * 500,
        comment=b"mine",
        dpi=(72, 72),
    )
    made = encoded(tmp_path / "x.jpg", Encoding(None, 90, "keep"))
    assert not made.same_pixels
    assert not any(word in made.content for word in (b"where", b"pppp", b"mine", b"Exif"))
    with Image.open(io.BytesIO(made.content)) as image:
        assert JpegImagePlugin.get_sampling(image) == 2


def test_without_an_encoding_bytes_stay_and_the_extension_says_the_format(tmp_path):
    for form, extension in {
        "JPEG": "jpg",
        "PNG": "png",
        "WEBP": "webp",
        "BMP": "bmp",
        "TIFF": "tif",
        "PPM": "ppm",
    }.items():
        photo().save(tmp_path / "x.jpg", form)
        made = encoded(tmp_path / "x.jpg", None)
        assert made == ((tmp_path / "x.jpg").read_bytes(), extension, True, None)
    ODD["MPO (two pictures in one JPEG)"](tmp_path / "x.jpg")
    assert encoded(tmp_path / "x.jpg", None).extension == "jpg"


def test_a_file_that_has_changed_or_gone_is_left_out(tmp_path):
    photo(50, 60).save(tmp_path / "x.jpg")
    with pytest.raises(LeftOutError, match="60 × 50 pixels, but 40 × 30 when it was scanned"):
        encode((tmp_path / "x.jpg").read_bytes, (30, 40), 1, KEEP)
    with pytest.raises(LeftOutError, match="no such file"):
        encode((tmp_path / "none.jpg").read_bytes, (30, 40), 1, KEEP)


def test_what_jpeg_cannot_hold_is_left_out(tmp_path):
    Image.new("RGB", (70_000, 1)).save(tmp_path / "x.png")
    with pytest.raises(
        LeftOutError, match="70000 × 1 pixels, and libjpeg writes 65,500 a side at most"
    ):
        encoded(tmp_path / "x.png", KEEP)
