"""Images to prepare."""

import os
from pathlib import Path

import pytest
from odd_inputs import ODD, photo


@pytest.fixture(scope="session")
def large_folder(tmp_path_factory) -> Path:
    """120 images in 2 classes that take a while: two large photos under many names."""
    root = tmp_path_factory.mktemp("large")
    for number in range(120):
        folder = root / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        first = root / "ab"[number % 2] / f"{number % 2:03d}.jpg"
        if number < 2:
            photo(700, 900 + number).save(first, quality=95, subsampling="4:4:4")
        else:
            os.link(first, folder / f"{number:03d}.jpg")
    return root


@pytest.fixture
def mixed_folder(tmp_path) -> Path:
    """Class a: JPEG, PNG and WebP of one stem, turned images, a broken and a truncated file; b:
    nothing; c: one image.
    """
    root = tmp_path / "mixed"
    for name in "abc":
        (root / name).mkdir(parents=True)
    photo(120, 160).save(root / "a/x.jpg", quality=90)
    photo(130, 160).save(root / "a/x.png")
    photo(140, 160).save(root / "a/x.webp")
    ODD["JPEG with EXIF orientation 6"](root / "a/turned.jpg")
    ODD["empty file"](root / "a/empty.jpg")
    ODD["JPEG cut in half"](root / "a/half.jpg")
    ODD["CMYK JPEG"](root / "c/only.jpg")
    return root
