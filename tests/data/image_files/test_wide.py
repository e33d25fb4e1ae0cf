"""Which images of 16 bits a channel a scan takes with bits=16, and their values."""

from io import BytesIO

import cv2
import numpy as np
import pytest
from built_files import png, tiff
from PIL import Image, ImageFile
from wide_images import colors, exif, write_wide

import dali_pipes as dp
from dali_pipes.data.image_files.wide import decode_wide
from dali_pipes.errors import ConfigError, ManifestError

RGB, GRAY = colors(37, 53), colors(37, 53, 1)


def cv2_file(ending, *options):
    return cv2.imencode(ending, RGB[..., ::-1], list(options))[1].tobytes()


def saved_gray(**options):
    file = BytesIO()
    Image.fromarray(GRAY[..., 0]).save(file, **options)
    return file.getvalue()


def big_tiff():
    """Big-endian: the header and each number the other way round."""
    body = RGB.astype(">u2").tobytes()
    entries = [(256, 53), (257, 37), (258, 16), (259, 1), (262, 2), (277, 3), (278, 37)]
    entries += [(273, 200), (279, len(body))]
    entries = [(tag, 3 if tag in (258, 259, 262, 277) else 4, value) for tag, value in entries]
    packed = b""
    for tag, kind, value in sorted(entries):
        count = 3 if tag == 258 else 1
        cell = (190 if count == 3 else value << 16 if kind == 3 else value).to_bytes(4, "big")
        packed += tag.to_bytes(2, "big") + kind.to_bytes(2, "big") + count.to_bytes(4, "big") + cell
    head = b"MM\0*\0\0\0\x08" + len(entries).to_bytes(2, "big") + packed + bytes(4)
    return head.ljust(190, b"\0") + b"\0\x10" * 3 + bytes(4) + body


TAKEN = {
    "RGB PNG": lambda: png(RGB.astype(">u2"), 2, 16),
    "RGB PNG of cv2": lambda: cv2_file(".png"),
    "gray PNG": lambda: png(GRAY.astype(">u2"), 0, 16),
    "gray PNG of Pillow": lambda: saved_gray(format="PNG"),
    "RGB TIFF": lambda: tiff(RGB.astype("<u2"), 2, 16),
    "big-endian RGB TIFF": big_tiff,
    "RGB TIFF in strips": lambda: cv2_file(".tif", cv2.IMWRITE_TIFF_COMPRESSION, 1),
    "RGB TIFF with LZW": lambda: cv2_file(".tif", cv2.IMWRITE_TIFF_COMPRESSION, 5),
    "RGB TIFF with Deflate": lambda: cv2_file(".tif", cv2.IMWRITE_TIFF_COMPRESSION, 8),
    "RGB TIFF with PackBits": lambda: cv2_file(".tif", cv2.IMWRITE_TIFF_COMPRESSION, 32773),
    "gray TIFF": lambda: tiff(GRAY[..., 0].astype("<u2"), 1, 16),
    "gray TIFF with LZW": lambda: saved_gray(format="TIFF", compression="tiff_lzw"),
}
REFUSED = {
    "RGBA PNG": (lambda: png(np.dstack([RGB, GRAY]).astype(">u2"), 6, 16), "neither gray nor RGB"),
    "gray PNG with alpha": (
        lambda: png(np.dstack([GRAY, GRAY]).astype(">u2"), 4, 16),
        "neither gray nor RGB",
    ),
    "signed TIFF": (lambda: tiff(GRAY[..., 0].astype("<i2"), 1, 16, format=2), "signed numbers"),
    "planar TIFF": (lambda: tiff(RGB.astype("<u2"), 2, 16, planar=2), "planar"),
    "TIFF whose 0 is white": (
        lambda: tiff(GRAY[..., 0].astype("<u2"), 0, 16),
        "whose 0 is not black",
    ),
    "TIFF of 32 bits": (lambda: tiff(GRAY[..., 0].astype("<u4"), 1, 32), "more than 8 bits"),
    "TIFF of fractions": (
        lambda: tiff(GRAY[..., 0].astype("<f4"), 1, 32, format=3),
        "more than 8 bits",
    ),
}


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("lenient", [False, True], ids=["", "LOAD_TRUNCATED_IMAGES"])
def test_values_of_16_bits_are_exact(name, lenient, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    encoded = TAKEN[name]()
    values = decode_wide(BytesIO(encoded))
    assert values.dtype == np.uint16
    assert np.array_equal(values, GRAY if "gray" in name else RGB)
    with pytest.raises(Exception, match=r"."):
        decode_wide(BytesIO(encoded[: len(encoded) // 2]))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "set" / "a").mkdir(parents=True)
    return tmp_path / "set"


def write(folder, kinds):
    for number, make in enumerate(kinds):
        content = make()
        ending = "png" if content.startswith(b"\x89PNG") else "tif"
        (folder / "a" / f"{number:02d}.{ending}").write_bytes(content)


@pytest.mark.parametrize("verify", ["header", "full"])
def test_a_scan_takes_them_if_it_is_asked_to(folder, verify):
    write(folder, TAKEN.values())
    usual = dp.Manifest.scan(folder, verify=verify, progress=False)
    assert not len(usual) and not usual.has_wide
    assert all(
        why.startswith("more than 8 bits a channel; convert") and "bits=16" in why
        for _, why in usual.problems
    )

    manifest = dp.Manifest.scan(folder, verify=verify, bits=16, progress=False)
    assert manifest.problems == [] and manifest.has_wide
    assert set(manifest.samples["format"].to_pylist()) == {"PNG16", "TIFF16"}
    assert manifest.take_wide(np.arange(len(TAKEN))).all()


@pytest.mark.parametrize("name", REFUSED)
def test_other_images_of_more_than_8_bits_are_problems(folder, name):
    make, why = REFUSED[name]
    write(folder, [make])
    ((_, problem),) = dp.Manifest.scan(folder, bits=16, progress=False).problems
    assert why in problem
    ((_, usual),) = dp.Manifest.scan(folder, progress=False).problems
    assert "bits=16" not in usual  # it would not help


def test_a_damaged_one_is_found_by_a_full_scan(folder):
    write(folder, [lambda: cv2_file(".png")[:-900] + png(RGB.astype(">u2"), 2, 16)[-12:]])
    check = {"bits": 16, "progress": False}
    assert len(dp.Manifest.scan(folder, **check)) == 1
    ((_, why),) = dp.Manifest.scan(folder, verify="full", **check).problems
    assert why.startswith("cannot be decoded by Pillow")


def test_bits_is_8_or_16(folder):
    write(folder, [TAKEN["RGB PNG"]])
    for bits in (12, 32):
        with pytest.raises(ConfigError, match=f"bits is {bits}; it takes 8, or 16"):
            dp.Manifest.scan(folder, bits=bits)


@pytest.mark.parametrize("unchanged", ["file", "folder"])
@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_a_cached_scan_of_other_bits_is_not_taken(folder, tmp_path, unchanged, ending):
    write_wide(folder / "a")
    options = {"cache": tmp_path / f"c.{ending}", "unchanged": unchanged, "progress": False}
    counts = [len(dp.Manifest.scan(folder, bits=bits, **options)) for bits in (8, 16, 16, 8, 8, 16)]
    assert counts == [2, 14, 14, 2, 2, 14]


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_a_saved_manifest_and_its_parts_know_them(folder, tmp_path, ending):
    write_wide(folder / "a")
    manifest = dp.Manifest.scan(folder, bits=16, progress=False)
    manifest.save(tmp_path / f"m.{ending}")
    loaded = dp.Manifest.load(tmp_path / f"m.{ending}")
    assert loaded.has_wide and loaded.fingerprint == manifest.fingerprint
    assert loaded.take_wide(np.arange(14)).tolist() == manifest.take_wide(np.arange(14)).tolist()

    few, wide = loaded.filter("format == 'PNG'"), loaded.filter("format == 'PNG16'")
    assert not few.has_wide and wide.has_wide and dp.Manifest.concat([few, wide]).has_wide
    few.save(tmp_path / f"few.{ending}")
    assert not dp.Manifest.load(tmp_path / f"few.{ending}").has_wide
    # from rows alone
    assert dp.Manifest.from_rows(loaded.root, loaded.classes, loaded.table).has_wide

    # a manifest without such images says nothing of them
    usual = dp.Manifest.scan(folder, progress=False)
    assert "has_wide" not in usual.facts.write()
    with pytest.raises(ManifestError, match="cannot be used"):
        usual.refuse_bad_images(0.5)


def test_every_way_to_open_images_takes_bits(folder, tmp_path):
    stored = write_wide(folder / "a")
    names = sorted(stored)
    rows = "".join(f"{folder}/a/{name},0\n" for name in names)
    (tmp_path / "table.csv").write_text("path,label\n" + rows)
    for source in (folder, tmp_path / "table.csv"):
        assert len(dp.Manifest.open(source, bits=16, progress=False)) == 14
        assert len(dp.Manifest.open(source, progress=False)) == 2
    assert len(dp.Manifest.from_table(tmp_path / "table.csv", bits=16, progress=False)) == 14

    (tmp_path / "masks").mkdir()
    for name, pixels in stored.items():
        shape = pixels.shape[1::-1]
        Image.new("L", shape).save(tmp_path / "masks" / f"{name.partition('.')[0]}.png")
    # of two images with one name only one has the mask
    for name in names:
        if name.endswith("tif"):
            (folder / "a" / name).unlink()
    options = {"classes": ["0"], "annotated": "stored", "progress": False}
    masks = tmp_path / "masks"
    assert len(dp.Manifest.from_masks(folder / "a", masks, bits=16, **options)) == 8
    assert len(dp.Manifest.from_masks(folder / "a", masks, **options)) == 2


def test_the_orientation_of_a_wide_image_is_read(folder):
    write(
        folder,
        [
            lambda: png(RGB.astype(">u2"), 2, 16, exif(6)),
            lambda: tiff(GRAY[..., 0].astype("<u2"), 1, 16, orientation=8),
        ],
    )
    manifest = dp.Manifest.scan(folder, bits=16, verify="full", progress=False)
    assert manifest.take_orientations(np.arange(2)).tolist() == [6, 8]
    assert manifest.sizes.tolist() == [[37, 53]] * 2
