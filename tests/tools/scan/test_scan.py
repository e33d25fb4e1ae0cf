"""What `dali-pipes scan` prints and draws."""

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odd_inputs import ODD
from PIL import Image

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.data.image_files.headers import read_header
from dali_pipes.tools.scan import run
from dali_pipes.tools.scan.picture import _SHADES
from dali_pipes.tools.scan.run import ScanConfig, scan

EXPECTED = {
    "baseline JPEG 4:2:0": "4:2:0",
    "baseline JPEG 4:4:4": "4:4:4",
    "progressive JPEG": "4:2:0",
    "gray JPEG": "gray",
    "gray PNG": "",
    "empty file": "",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_chroma_subsampling_is_read_from_the_header(name, tmp_path):
    ODD[name](tmp_path / "a.jpg")
    assert read_header(tmp_path / "a.jpg").subsampling == EXPECTED[name]


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
    assert (
        rows["images"] == "37" and rows["not used"] == "4" and "4:2:0" in rows["chroma subsampling"]
    )
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
    scan(
        ScanConfig(
            data=DataConfig(train=str(tmp_path / "a.json")), picture=str(tmp_path / "scan.png")
        )
    )
    said = capsys.readouterr().out
    assert (
        "1 (2 left out)" in said
        and "2 objects, or parts of them, left out of images that are used" in said
    )
    assert (
        "a.png: annotation 1: its box is empty" in said
        and "a.png: annotation 2: its box is outside" in said
    )


def test_images_without_a_class_are_drawn(tmp_path, capsys):
    for folder, mode in (("images", "RGB"), ("masks", "L")):
        (tmp_path / folder).mkdir()
        Image.new(mode, (8, 6)).save(tmp_path / folder / "a.png")
    data = DataConfig(train=str(tmp_path / "images"), train_masks=str(tmp_path / "masks"))
    scan(ScanConfig(data=data, picture=str(tmp_path / "scan.png")))
    assert "mask" in capsys.readouterr().out and (tmp_path / "scan.png").exists()


@pytest.mark.parametrize("name", ["scan.png", "scan.svg"])
def test_a_picture(folder, tmp_path, name):
    scan(ScanConfig(data=DataConfig(train=str(folder)), picture=str(tmp_path / name)))
    if name.endswith("png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.size[0] > 1000 and len(picture.convert("RGB").getcolors(1_000_000)) > 20
    else:
        text = (tmp_path / name).read_text()
        assert all(
            f"<!-- {title} -->" in text
            for title in ("Images of each class", "Images by chroma subsampling of JPEG", "4:2:0")
        )


def texts(tmp_path, source):
    """The texts of the picture of a source: Matplotlib names each in a comment of the SVG."""
    scan(ScanConfig(data=DataConfig(train=str(source)), picture=str(tmp_path / "scan.svg")))
    return re.findall(r"<!-- (.*?) -->", (tmp_path / "scan.svg").read_text())


def save_images(folder, *sizes):
    folder.mkdir(parents=True)
    for number, size in enumerate(sizes):
        pixels = np.random.default_rng(number).integers(0, 256, (*size[::-1], 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


def test_labels_of_a_picture_are_numbers_and_its_charts_say_what_they_count(tmp_path):
    """Also where names of classes have what Matplotlib takes for a formula."""
    save_images(tmp_path / "set" / "$5", (8, 8), (30, 30), (200, 200))
    save_images(tmp_path / "set" / "$6", (9, 8))
    labels = texts(tmp_path, tmp_path / "set")
    assert not any("mathdefault" in label for label in labels)
    assert {"1", "10", "100", "KiB", "images", "$5", "width in pixels", "no JPEG"} <= {*labels}


def test_a_picture_of_images_that_are_all_alike(tmp_path):
    """One bar with its number, and not a histogram of a range that there is not."""
    for number in range(20):
        (tmp_path / "set" / f"class {number}").mkdir(parents=True)
        Image.new("RGB", (8, 6)).save(tmp_path / "set" / f"class {number}" / "a.bmp")
    labels = texts(tmp_path, tmp_path / "set")
    assert "20 classes of 1 image each" in labels and labels.count("all 20") == 2
    assert "Size: every image is 8 × 6 pixels" in labels


def test_the_end_of_a_long_name_stays(tmp_path):
    for name in ("the first of two classes of long names", "the other of two classes, as long"):
        save_images(tmp_path / "set" / name, (8, 8))
    assert {"the first of… long names", "the other of…es, as long"} <= {
        *texts(tmp_path, tmp_path / "set")
    }


def test_a_picture_says_which_images_are_too_large_for_it(tmp_path):
    save_images(tmp_path / "set" / "a", *[(8, 8)] * 300, (80, 8))
    assert "Width and height; 1 larger image not drawn" in texts(tmp_path, tmp_path / "set")


def test_a_single_image_is_plain_to_see():
    """The lightest color stands out from white as the guidelines want of pictures."""
    light = _SHADES(0.0)[:3]
    parts = [each / 12.92 if each <= 0.04 else ((each + 0.055) / 1.055) ** 2.4 for each in light]
    assert 1.05 / (np.dot(parts, [0.2126, 0.7152, 0.0722]) + 0.05) > 3


def test_a_picture_of_many_classes_and_of_numbers(manifest, tmp_path):
    for label, message in (("{}", "numbers"), ("class {}", "classes")):
        table = tmp_path / "t.csv"
        rows = (
            f"{manifest.path(number)},{label.format(number / 2 if label == '{}' else number)}\n"
            for number in range(20)
        )
        table.write_text("path,label\n" + "".join(rows))
        scan(
            ScanConfig(data=DataConfig(train=str(table)), picture=str(tmp_path / f"{message}.svg"))
        )
    assert "First number to predict" in (tmp_path / "numbers.svg").read_text()
    assert "20 classes of 1 image each" in (tmp_path / "classes.svg").read_text()


def test_a_picture_of_a_format_that_there_is_not(folder, tmp_path):
    with pytest.raises(dp.ConfigError, match=r"end its name in \.png or \.svg"):
        scan(ScanConfig(data=DataConfig(train=str(folder)), picture=str(tmp_path / "scan.txt")))


@pytest.mark.parametrize(
    ("option", "file", "error"),
    [
        ("out", "set", dp.ManifestError),
        ("out", "file/m.arrow", NotADirectoryError),
        ("out", "file", dp.ManifestError),
        ("picture", "set", dp.ConfigError),
        ("picture", "file/scan.png", NotADirectoryError),
        ("picture", "scan.txt", dp.ConfigError),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_scan(
    folder, tmp_path, monkeypatch, option, file, error
):
    (tmp_path / "file").write_text("precious")
    monkeypatch.setattr(run, "open_images", None)
    with pytest.raises(error):
        scan(ScanConfig(data=DataConfig(train=str(folder)), **{option: str(tmp_path / file)}))
    assert (tmp_path / "file").read_text() == "precious"


def test_an_index_that_cannot_be_written_is_refused_before_images_are_read(
    folder, tmp_path, monkeypatch
):
    (folder / "index.arrow").mkdir()
    monkeypatch.setattr(run, "read_images", None)
    with pytest.raises(IsADirectoryError, match=r"index\.arrow"):
        run.index(str(folder), "header")

    # Parquet files with images are indexed where they lie
    image = {"bytes": b"", "path": "a.jpg"}
    pq.write_table(pa.table({"image": [image], "label": [0]}), tmp_path / "x.parquet")
    monkeypatch.setattr(run, "read_table", None)
    with pytest.raises(dp.ManifestError, match="is written where they lie"):
        run.index(str(tmp_path), "header")


def test_the_summary_says_how_many_images_have_a_rotation(tmp_path, capsys):
    (tmp_path / "cat").mkdir()
    for orientation in (1, 6):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.new("RGB", (8, 6)).save(tmp_path / f"cat/{orientation}.jpg", exif=exif)
    scan(ScanConfig(data=DataConfig(train=str(tmp_path))))
    said = capsys.readouterr().out
    assert re.search(r"with an EXIF rotation\W+1\b", said) and "ignored" not in said
