"""What `dali-pipes scan` prints."""

import json
import re
import shutil

import pytest
from odd_inputs import ODD
from PIL import Image

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.data.image_files.headers import read_header
from dali_pipes.tools.scan import run
from dali_pipes.tools.scan.run import ScanConfig, scan

EXPECTED = {
    "baseline JPEG 4:2:0": "4:2:0",
    "baseline JPEG 4:4:4": "4:4:4",
    "progressive JPEG": "4:2:0 progressive",
    "gray JPEG": "gray",
    "CMYK JPEG": "CMYK",
    "gray PNG": "",
    "empty file": "",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_how_a_jpeg_is_coded_is_read_from_the_header(name, tmp_path):
    ODD[name](tmp_path / "a.jpg")
    assert read_header(tmp_path / "a.jpg").jpeg == EXPECTED[name]


@pytest.mark.parametrize(("subsampling", "factors"), [(0, ""), (1, " 2x1"), (2, " 2x2")])
def test_the_sampling_factors_of_a_gray_jpeg_are_read(tmp_path, subsampling, factors):
    Image.new("L", (40, 30)).save(tmp_path / "a.jpg", subsampling=subsampling)
    assert read_header(tmp_path / "a.jpg").jpeg == "gray" + factors


@pytest.fixture
def folder(image_folder, tmp_path):
    shutil.copytree(image_folder, tmp_path / "set")
    broken = next((tmp_path / "set").iterdir())
    for number in range(3):
        (broken / f"empty {number}.jpg").touch()
    (broken / "page.jpg").write_text("<!doctype html>")
    return tmp_path / "set"


def test_a_summary_with_problems_by_kind(folder, capsys):
    scan(ScanConfig(data=DataConfig(train=str(folder))))
    lines = capsys.readouterr().out.splitlines()
    rows = {
        cells[0]: cells[1]
        for line in lines
        if len(cells := [each.strip() for each in re.split("[│┃]", line)[1:-1]]) == 2
    }
    assert rows["images"] == "37" and rows["not used"] == "4" and "4:2:0" in rows["JPEGs"]
    assert rows["empty file"] == "3" and rows["not an image, or its header is broken"] == "1"
    assert sum(line.endswith(": empty file") for line in lines) == 3


def test_objects_are_counted_and_those_left_out_listed(tmp_path, capsys):
    Image.new("RGB", (8, 6)).save(tmp_path / "a.png")
    boxes = [[1, 1, 2, 2], [1, 1, 0, 2], [9, 9, 1, 1]]
    objects = [
        {"id": number, "image_id": 1, "category_id": 1, "bbox": box}
        for number, box in enumerate(boxes)
    ]
    content = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "annotations": objects,
        "categories": [{"id": 1, "name": "cat"}],
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    scan(ScanConfig(data=DataConfig(train=str(tmp_path / "a.json"))))
    said = capsys.readouterr().out
    assert "1 (2 left out)" in said and "2 objects left out of images that are used" in said
    assert (
        "a.png: its box is empty or inverted (annotation 1: " in said
        and "a.png: its box is outside the image (annotation 2: " in said
    )


def test_images_without_a_class_have_a_summary(tmp_path, capsys):
    for folder, mode in (("images", "RGB"), ("masks", "L")):
        (tmp_path / folder).mkdir()
        Image.new(mode, (8, 6)).save(tmp_path / folder / "a.png")
    data = DataConfig(train=str(tmp_path / "images"), train_masks=str(tmp_path / "masks"))
    scan(ScanConfig(data=data))
    assert "mask" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("set", dp.ManifestError),
        ("file/m.arrow", NotADirectoryError),
        ("file", dp.ManifestError),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_scan(
    folder, tmp_path, monkeypatch, file, error
):
    (tmp_path / "file").write_text("precious")
    monkeypatch.setattr(run, "open_images", None)
    with pytest.raises(error):
        scan(ScanConfig(data=DataConfig(train=str(folder)), out=str(tmp_path / file)))
    assert (tmp_path / "file").read_text() == "precious"


def test_the_summary_says_how_many_images_have_a_rotation(tmp_path, capsys):
    (tmp_path / "cat").mkdir()
    for orientation in (1, 6):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.new("RGB", (8, 6)).save(tmp_path / f"cat/{orientation}.jpg", exif=exif)
    scan(ScanConfig(data=DataConfig(train=str(tmp_path))))
    said = capsys.readouterr().out
    assert re.search(r"with an EXIF rotation\W+1\b", said) and "ignored" not in said
