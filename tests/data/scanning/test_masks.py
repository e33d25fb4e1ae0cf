"""Images and masks of the same names, in the layouts that people have, and masks that cannot be used."""

import io
import zlib

import numpy as np
import pytest
from PIL import Image

from dali_pipes import ConfigError, Manifest, ManifestError
from dali_pipes.data.scanning.masks import mask_problem

LAYOUTS = {  # an image, a mask, and their folders
    "cityscapes": (
        "leftImg8bit/train/ulm/u_{}_leftImg8bit.png",
        "gtFine/train/ulm/u_{}_gtFine_labelIds.png",
        "leftImg8bit/train",
        "gtFine/train",
    ),
    "ade20k": ("images/training/A_{}.jpg", "annotations/training/A_{}.png", "images/training", "annotations/training"),
    "voc": ("JPEGImages/2007_{}.jpg", "SegmentationClass/2007_{}.png", "JPEGImages", "SegmentationClass"),
}


def saved(root, path, mode="RGB", size=(8, 6)):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size).save(root / path)


def layout(root, name, images=range(3), masks=range(3)):
    image, mask, first, second = LAYOUTS[name]
    for number in images:
        saved(root, image.format(number))
    for number in masks:
        saved(root, mask.format(number), "L")
        saved(root, mask.format(number).replace("labelIds", "color"), "P")  # another one of Cityscapes, or the same
    return root / first, root / second


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_image_has_the_mask_of_its_name(tmp_path, name):
    manifest = Manifest.from_masks(*layout(tmp_path, name), classes=["sky", "road"], progress=False)
    image, mask, *_ = LAYOUTS[name]
    assert not manifest.problems and manifest.classes == ["sky", "road"]
    for number in range(3):
        assert manifest.name(number) == str(tmp_path / image.format(number))
        assert str(manifest.mask_extent(number)) == str(tmp_path / mask.format(number))


def test_no_image_is_lost_beside_one_with_a_suffix_one_of_its_name_or_its_masks(tmp_path):
    for name in ("x_leftImg8bit.jpg", "p.jpg", "q.jpg", "q.jpeg"):
        saved(tmp_path, name)
    for name in ("x.png", "p.png", "q.png"):
        saved(tmp_path, f"masks/{name}", "L")
    manifest = Manifest.from_masks(tmp_path, tmp_path / "masks", progress=False)
    assert [manifest.name(number).rsplit("/", 1)[1] for number in range(3)] == ["p.jpg", "q.jpg", "x_leftImg8bit.jpg"]
    assert manifest.problems == [("q.jpeg", "another image has its name and its mask")]


def test_missing_pairs_are_listed_or_passed_over(tmp_path):
    folders = layout(tmp_path, "voc", range(3), range(1, 4))
    manifest = Manifest.from_masks(*folders, progress=False)
    assert manifest.problems == [
        ("JPEGImages/2007_0.jpg", "no mask of its name"),
        ("SegmentationClass/2007_3.png", "a mask without an image of its name"),
    ]
    assert len(manifest) == 2
    skipped = Manifest.from_masks(*folders, missing="skip", progress=False)
    assert len(skipped) == 2 and not skipped.problems


@pytest.mark.parametrize("verify", ["header", "full"])
def test_a_mask_that_cannot_be_used_is_named_with_its_image(tmp_path, verify):
    folders = layout(tmp_path, "ade20k", range(5))
    saved(tmp_path, "annotations/training/A_0.png", "L", (6, 8))
    saved(tmp_path, "annotations/training/A_1.png", "RGB")
    (tmp_path / "annotations/training/A_2.png").write_bytes(b"text")
    saved(tmp_path, "annotations/training/A_3.jpg", "L")
    saved(tmp_path, "annotations/training/A_4.png", "P")
    manifest = Manifest.from_masks(*folders, verify=verify, progress=False)
    lines = ["6 × 8, and the image is 8 × 6", "its pixels are RGB", "not an image, or broken", "JPEG format; save it as PNG"]
    assert len(manifest) == 1 and len(manifest.problems) == 4
    for number, ((path, why), line) in enumerate(zip(manifest.problems, lines, strict=True)):
        assert path == f"images/training/A_{number}.jpg" and line in why
        assert why.startswith(f"its mask annotations/training/A_{number}.")


def png(image, **options):
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file


def test_a_mask_is_accepted_if_its_values_are_read_as_they_are():
    values = np.arange(256, dtype=np.uint8).reshape(16, 16)
    for image, options in (
        (Image.fromarray(values), {}),
        (Image.fromarray(values.astype(np.uint16) * 257), {}),
        (Image.fromarray(values % 2 == 1), {}),
        *((Image.fromarray(values & 2**bits - 1).convert("P"), {"bits": bits}) for bits in (1, 2, 4, 8)),
    ):
        file = png(image, **options)
        assert mask_problem(file, 16, 16, "full") is None
        assert (np.array(Image.open(file)) == np.array(image)).all()


def test_gray_of_four_bits_is_refused_since_pillow_stretches_it():
    gray = bytearray(png(Image.fromarray(np.zeros((4, 4), np.uint8)).convert("P"), bits=4).getvalue())
    gray[25] = 0  # the colour type of the header
    gray[29:33] = zlib.crc32(gray[12:29]).to_bytes(4, "big")
    assert "L;4" in mask_problem(io.BytesIO(bytes(gray)), 4, 4, "header")


def test_a_mask_that_is_cut_off_is_named_with_the_reason():
    data = png(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8))).getvalue()
    assert mask_problem(io.BytesIO(data[:2000]), 64, 64, "header") is None
    assert mask_problem(io.BytesIO(data[:2000]), 64, 64, "full").startswith("broken (OSError: image file is truncated")


def test_folders_that_make_no_sense_are_refused(tmp_path):
    images, masks = layout(tmp_path, "voc")
    for arguments, line in (
        ((images, images), "folders of their own"),
        ((images, tmp_path / "gone"), "gone: no such folder"),
        ((images, layout(tmp_path / "other", "ade20k")[1]), "no image has a mask of its name"),
    ):
        with pytest.raises(ManifestError, match=line):
            Manifest.from_masks(*arguments, progress=False)
    with pytest.raises(ConfigError, match="missing is 'drop'"):
        Manifest.from_masks(images, masks, missing="drop")
