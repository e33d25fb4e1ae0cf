import json
from dataclasses import replace

import pytest
from PIL import Image

import dali_pipes as dp
from dali_pipes.data import images
from dali_pipes.data.config import DataConfig
from dali_pipes.data.demo import make_demo_set


def test_opening_the_demo_set_makes_nothing(tmp_path):
    root = tmp_path / "demo"
    with pytest.raises(
        dp.ManifestError, match="the demo set is not there; dali-pipes scan data=demo"
    ):
        images.open_images(DataConfig(root=str(root), demo=True), "val")
    assert not root.exists()

    make_demo_set(root, train=10, val=10)
    assert len(images.open_images(DataConfig(root=str(root), demo=True), "val")) == 10


def test_images_of_ones_own_are_opened_beside_the_demo_set(image_folder):
    mixed = DataConfig(root="/no/such", train=str(image_folder), demo=True)
    assert len(images.open_images(mixed, "train")) == 37
    with pytest.raises(dp.ManifestError, match="no such folder"):
        images.open_images(DataConfig(root="/no/such"), "train")


def test_masks_and_coco_files_are_opened_by_their_options(tmp_path):
    for folder, mode in (("images", "RGB"), ("masks", "L")):
        (tmp_path / folder).mkdir()
        Image.new(mode, (8, 6)).save(tmp_path / folder / "a.png")
    Image.new("RGB", (8, 6)).save(tmp_path / "images/b.png")
    masks = DataConfig(
        val=str(tmp_path / "images"),
        val_masks=str(tmp_path / "masks"),
        classes=["sky"],
        missing="skip",
    )
    manifest = images.open_images(masks, "val", unchanged="file")
    assert len(manifest) == 1 and manifest.has_target("mask") and manifest.classes == ["sky"]
    with pytest.raises(
        dp.ConfigError,
        match=r"data\.val_masks is for a folder of images, and data\.val=.*a\.png is a file",
    ):
        images.open_images(replace(masks, val=str(tmp_path / "images/a.png")), "val")
    boxes = [
        {"image_id": 1, "bbox": [1, 1, 0, 1], "category_id": 1},
        {"image_id": 2, "bbox": [1, 1, 2, 1], "category_id": 1},
    ]
    coco = {
        "images": [
            {"id": number, "file_name": f"{name}.png"} for number, name in ((1, "a"), (2, "b"))
        ],
        "annotations": boxes,
    }
    (tmp_path / "a.json").write_text(json.dumps(coco | {"categories": [{"id": 1, "name": "cat"}]}))
    listed = DataConfig(
        train=str(tmp_path / "a.json"),
        train_images=str(tmp_path / "images"),
        targets=dp.Targets(bad_objects="problem"),
    )
    with pytest.raises(dp.ConfigError, match="missing is 'no'"):
        DataConfig(missing="no")
    assert (
        images.open_images(listed, "train")
        .problems[0][1]
        .startswith("bad object: its box is empty or inverted (annotations[0]: ")
    )
