"""What a model finds in a batch, in pixels of the files, with the ids of a COCO file."""

import contextlib
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

import dali_pipes as dp

CONFIGS = [dp.TorchConfig(num_workers=0), dp.DaliConfig(device="cpu", num_threads=1)]
CATEGORIES = [{"id": each, "name": f"n{each}"} for each in (90, 3, 17)]
TRANSFORMS = {
    "letterbox": dp.LetterboxTransform(size=(300, 200), flip=0),
    "letterbox, flips": dp.LetterboxTransform(size=333, flip=0.5, vertical_flip=0.5),
    "letterbox, upright": dp.LetterboxTransform(
        size=(200, 320), flip=0.5, vertical_flip=0.5, exif="apply"
    ),
    "shortest size": dp.ShortestSizeTransform(min_size=[150], max_size=400, flip=0),
    "shortest size, flips": dp.ShortestSizeTransform(
        min_size=[100, 150, 201], max_size=333, flip=0.5, vertical_flip=0.5
    ),
    "shortest size, upright": dp.ShortestSizeTransform(
        min_size=[128, 201], max_size=300, flip=0.5, exif="apply"
    ),
    "two sides": dp.CenterCropTransform(resize=(120, 180), size=(120, 180), flip=0.5),
}


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    """24 images of many sizes and EXIF orientations, each with two boxes but every fourth, which
    has none.
    """
    root, random = tmp_path_factory.mktemp("coco"), np.random.default_rng(0)
    images, objects = [], []
    for number in range(24):
        height, width = random.integers(60, 900, 2).tolist()
        tag = Image.Exif()
        tag[0x112] = number % 8 + 1
        Image.new("L", (width, height), 9).save(root / f"{number}.jpg", exif=tag)
        images.append(
            {
                "id": 1000 - 7 * number,
                "file_name": f"{number}.jpg",
                "height": height,
                "width": width,
            }
        )
        for _ in range(2 * (number % 4 < 3)):
            left, top = random.uniform(0, 0.5, 2) * (width, height)
            sides = random.uniform(0.3, 0.5, 2) * (width, height)
            one = {
                "id": len(objects) + 1,
                "image_id": images[-1]["id"],
                "category_id": [3, 17, 90][number % 3],
                "iscrowd": 0,
            }
            objects.append(
                one | {"bbox": [left, top, *sides.tolist()], "area": float(sides.prod())}
            )
    (root / "a.json").write_text(
        json.dumps({"images": images, "annotations": objects, "categories": CATEGORIES})
    )
    return root / "a.json"


def batches(manifest, transform, config=CONFIGS[0]):
    with dp.build_loader(
        manifest,
        config,
        transform=transform,
        batch_size=5,
        device="cpu",
        shuffle=False,
        last_batch="partial",
    ) as loader:
        yield from loader


@pytest.mark.parametrize("name", TRANSFORMS)
def test_boxes_come_back_to_a_thousandth_of_a_pixel(coco, name):
    manifest = dp.Manifest.from_coco(coco, progress=False)
    for batch in batches(manifest, TRANSFORMS[name]):
        wanted = manifest.take_objects(batch.ids.numpy())
        found = dp.boxes_to_image(batch["boxes"], batch)
        assert [len(each) for each in found] == wanted.counts.tolist()
        np.testing.assert_allclose(torch.cat(found), wanted.boxes, atol=1e-3)
        np.testing.assert_array_equal(batch["image_sizes"], manifest.take_sizes(batch.ids.numpy()))


@pytest.mark.parametrize(
    "name",
    ["letterbox, flips", "letterbox, upright", "shortest size, flips", "shortest size, upright"],
)
def test_boxes_of_upright_pictures_come_back_to_these(coco, tmp_path, name):
    """COCO's evaluation compares them with the JSON, whichever way round the batch is."""
    content = json.loads(coco.read_text())
    # as a program that shows them upright writes them
    for number, image in enumerate(content["images"]):
        if number % 8 + 1 >= 5:
            image["height"], image["width"] = image["width"], image["height"]
    inside = {image["id"]: image for image in content["images"]}
    for each in content["annotations"]:
        image, (left, top, *_) = inside[each["image_id"]], each["bbox"]
        each["bbox"] = [left % 20, top % 20, image["width"] / 3, image["height"] / 4]
        each["area"] = image["width"] / 3 * image["height"] / 4
    (tmp_path / "a.json").write_text(json.dumps(content))
    scanned = dp.Manifest.from_coco(
        tmp_path / "a.json", root=coco.parent, annotated="upright", strict=True, progress=False
    )
    scanned.save(tmp_path / "saved.arrow")

    for manifest in (
        scanned,
        dp.Manifest.load(tmp_path / "saved.arrow").subset(np.arange(24)[::-1]),
    ):
        for batch in batches(manifest, TRANSFORMS[name]):
            every = zip(
                batch["image_id"].tolist(),
                dp.boxes_to_image(batch["boxes"], batch),
                batch["image_sizes"],
                strict=True,
            )
            for image_id, found, size in every:
                wanted = [
                    each["bbox"] for each in content["annotations"] if each["image_id"] == image_id
                ]
                wanted = [[left, top, left + wide, top + high] for left, top, wide, high in wanted]
                np.testing.assert_allclose(found, np.reshape(wanted, (-1, 4)), atol=1e-3)
                assert size.tolist() == [inside[image_id]["height"], inside[image_id]["width"]]


def test_turned_images_that_were_annotated_in_both_ways_cannot_be_joined(coco):
    content = json.loads(coco.read_text())
    content["images"] = [image for number, image in enumerate(content["images"]) if number % 8 < 4]
    kept = {image["id"] for image in content["images"]}
    content["annotations"] = [each for each in content["annotations"] if each["image_id"] in kept]
    (coco.parent / "b.json").write_text(json.dumps(content))
    stored, upright = (
        dp.Manifest.from_coco(coco.parent / "b.json", annotated=each, progress=False)
        for each in ("stored", "upright")
    )
    with pytest.raises(dp.ManifestError, match="scan them with the same annotated"):
        dp.Manifest.concat([stored, upright])
    straight = stored.filter("orientation == 1")
    assert (
        dp.Manifest.concat([straight, upright]).facts.boxes_upright
        and not dp.Manifest.concat([straight, stored]).facts.boxes_upright
    )


@pytest.mark.parametrize("config", CONFIGS)
def test_the_truth_has_an_average_precision_of_1(coco, config):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    manifest = dp.Manifest.from_coco(coco, progress=False)
    assert manifest.classes == ["n3", "n17", "n90"] and manifest.category_ids == [3, 17, 90]
    found = []
    for batch in batches(manifest, TRANSFORMS["shortest size, flips"], config):
        for image_id, boxes, labels in zip(
            batch["image_id"].tolist(),
            dp.boxes_to_image(batch["boxes"], batch),
            batch["box_labels"],
            strict=True,
        ):
            for (left, top, right, bottom), label in zip(
                boxes.tolist(), labels.tolist(), strict=True
            ):
                one = {
                    "image_id": image_id,
                    "category_id": manifest.category_ids[label],
                    "score": 1.0,
                }
                found.append(one | {"bbox": [left, top, right - left, bottom - top]})
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(coco)
        figures = COCOeval(truth, truth.loadRes(found), "bbox")
        figures.evaluate()
        figures.accumulate()
        figures.summarize()
    assert figures.stats[0] == 1


@pytest.mark.parametrize(
    ("ids", "values"),
    [
        ([5, 9, 7], np.array([5, 9, 7])),
        ([5, 9.0, 7], np.array([5, 9, 7])),
        (["5", 9.0, "7"], ["5", "9.0", "7"]),
        (["5", "b", 7], ["5", "b", "7"]),
        ([5, 9, 2**70], ["5", "9", str(2**70)]),
    ],
)
def test_ids_of_images_are_a_column(tmp_path, ids, values):
    for number in range(3):
        Image.new("L", (9, 9)).save(tmp_path / f"{number}.png")
    images = [{"id": each, "file_name": f"{number}.png"} for number, each in enumerate(ids)]
    (tmp_path / "a.json").write_text(
        json.dumps({"images": images, "annotations": [], "categories": CATEGORIES})
    )
    manifest = dp.Manifest.from_coco(tmp_path / "a.json", progress=False)
    assert (
        list(manifest.columns["image_id"]) == list(values)
        or manifest.columns["image_id"].to_pylist() == values
    )
    assert ("image_id" in manifest.numeric_columns) == isinstance(values, np.ndarray)


def test_ids_of_categories_follow_their_classes(coco, tmp_path):
    manifest = dp.Manifest.from_coco(coco, progress=False)
    manifest.save(tmp_path / "m.arrow")
    for each in (
        dp.Manifest.load(tmp_path / "m.arrow"),
        manifest.subset(np.arange(3)),
        dp.Manifest.concat([manifest, manifest]),
    ):
        assert each.category_ids == [3, 17, 90]
    more = manifest.with_classes(["more", "n90", "n17", "n3"])
    assert more.category_ids == [None, 90, 17, 3]
    assert manifest.map_classes({"n3": "x"}).category_ids == [3, 17, 90]
    assert manifest.map_classes({"n3": "n17"}).category_ids is None
    assert dp.Manifest.concat([manifest, manifest.map_classes({"n3": "x"})]).category_ids is None


def test_what_cannot_be_taken_back_is_refused(coco):
    manifest = dp.Manifest.from_coco(coco, progress=False)
    (batch, *_) = batches(manifest, TRANSFORMS["letterbox"])
    with pytest.raises(dp.ConfigError, match="boxes of 1 images, and the batch has 5"):
        dp.boxes_to_image([torch.zeros(0, 4)], batch)
    batch.targets["to_image"][0] = float("nan")
    with pytest.raises(dp.ConfigError, match="sheared, moved or rotated"):
        dp.boxes_to_image(batch["boxes"], batch)
    del batch.targets["to_image"]
    with pytest.raises(dp.ConfigError, match="needs a batch of a manifest with boxes"):
        dp.boxes_to_image(batch["boxes"], batch)
