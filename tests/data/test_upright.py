"""Annotations of upright pictures are those of the stored ones, turned: with exif=apply they come
back as they were made.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import dali_pipes as dp
from dali_pipes.data.outlines import rasterize

HEIGHT, WIDTH = 40, 60  # upright
BOX, POINTS = [6, 4, 20, 10], [8, 5, 2, 20, 11, 2]  # left, top, width, height
# Pillow's transpositions, from upright to stored
BACK = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
ORIENTATIONS = range(1, 9)


def painted(folder, orientation, **image):
    """A picture with a bright box, stored as this orientation says, and a COCO file of the upright
    one.
    """
    pixels = np.zeros((HEIGHT, WIDTH), np.uint8)
    pixels[4:14, 6:26] = 255
    upright, tag = Image.fromarray(pixels), Image.Exif()
    tag[0x112] = orientation
    stored = upright if BACK[orientation] is None else upright.transpose(BACK[orientation])
    stored.save(folder / "a.png", exif=tag)
    flat = np.flatnonzero(np.diff((pixels.T > 0).ravel().astype(int), prepend=0, append=0))
    counts = [*np.diff(flat, prepend=0).tolist(), HEIGHT * WIDTH - int(flat[-1])]
    polygon = [6, 4, 26, 4, 26, 14, 6, 14]
    shared = {"image_id": 1, "category_id": 1, "bbox": BOX, "keypoints": POINTS}
    objects = [
        shared | {"id": 1, "segmentation": [polygon]},
        shared | {"id": 2, "segmentation": {"size": [HEIGHT, WIDTH], "counts": counts}},
        shared | {"id": 3, "segmentation": [[float(each) for each in polygon]]},
        shared | {"id": 4},
    ]
    kinds = [{"id": 1, "name": "x", "keypoints": ["left_eye", "right_eye"]}]
    content = {
        "images": [{"id": 1, "file_name": "a.png"} | image],
        "annotations": objects,
        "categories": kinds,
    }
    (folder / "a.json").write_text(json.dumps(content))
    return folder / "a.json", np.array(stored)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_boxes_and_outlines_are_where_the_stored_picture_has_them(tmp_path, orientation):
    file, stored = painted(tmp_path, orientation, height=HEIGHT, width=WIDTH)
    manifest = dp.Manifest.from_coco(file, annotated="upright", strict=True, progress=False)
    rows, columns = np.nonzero(stored)
    box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert manifest.take_objects(np.array([0])).boxes.tolist() == [box] * 4
    outlines = json.loads(manifest.take_texts("outlines", np.array([0]))[0])
    for outline in outlines[:3]:
        np.testing.assert_array_equal(rasterize(outline, *stored.shape), stored > 0)
    assert outlines[3] == []


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_with_exif_applied_they_are_those_that_were_made(tmp_path, orientation):
    file, _ = painted(tmp_path, orientation)
    manifest = dp.Manifest.open(file, targets=dp.Targets(annotated="upright"), progress=False)
    transform = dp.LetterboxTransform(size=(HEIGHT, WIDTH), flip=0, exif="apply")
    with dp.build_loader(
        manifest, dp.TorchConfig(num_workers=0), transform=transform, batch_size=1, device="cpu"
    ) as loader:
        batch = next(iter(loader))
    torch.testing.assert_close(batch["boxes"][0], torch.tensor([[6.0, 4, 26, 14]] * 4))
    torch.testing.assert_close(batch["keypoints"][0][0], torch.tensor(POINTS).reshape(2, 3).float())
    bright = batch.images[0, 0] > batch.images.min()
    assert (batch["masks"][0][0] == bright).all() and bright.sum() == 200


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("format", ["xywh", "relative_xyxy"])
def test_those_of_a_table_too(tmp_path, orientation, format):
    painted(tmp_path, orientation)
    box, points = BOX, POINTS
    if format != "xywh":
        box, points = [6 / 60, 4 / 40, 26 / 60, 14 / 40], [8 / 60, 5 / 40, 2, 20 / 60, 11 / 40, 2]
    pq.write_table(
        pa.table({"path": ["a.png"], "b": [[box]], "l": [[0]], "k": [[points]]}),
        tmp_path / "t.parquet",
    )
    named = {
        "boxes": "b",
        "box_labels": "l",
        "keypoints": "k",
        "keypoint_names": ["left", "right"],
        "box_format": format,
    }
    of_table = dp.Manifest.open(
        tmp_path / "t.parquet", targets=dp.Targets(**named, annotated="upright"), progress=False
    )
    of_coco = dp.Manifest.from_coco(tmp_path / "a.json", annotated="upright", progress=False)
    for name in ("boxes", "keypoints"):
        found, wanted = (
            getattr(each.take_objects(np.array([0])), name)[0] for each in (of_table, of_coco)
        )
        np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_a_size_of_the_other_way_names_exif_and_the_option(tmp_path, orientation):
    file, _ = painted(tmp_path, orientation, height=HEIGHT, width=WIDTH)
    ((_, why),) = dp.Manifest.from_coco(file, progress=False).problems
    assert why == (
        "its EXIF tag turns it, and by its stated size it was annotated upright (in a.json 60 × 40 "
        "pixels, and the file has 40 × 60); set annotated='upright'"
    )
    file, _ = painted(tmp_path, orientation, height=WIDTH, width=HEIGHT)
    ((_, why),) = dp.Manifest.from_coco(file, annotated="upright", progress=False).problems
    assert "it was annotated as stored (" in why and why.endswith("; set annotated='stored'")


@pytest.mark.parametrize("annotated", [None, "stored", "upright"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_what_nothing_shows_is_said_until_it_is_said_how_they_were_annotated(
    tmp_path, caplog, orientation, annotated
):
    file, stored = painted(tmp_path, orientation)
    table = pa.table(
        {"path": ["a.png"], "boxes": [[BOX]], "box_labels": [[0]], "mask": ["m/a.png"]}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "m").mkdir()
    shown = Image.fromarray((stored > 0).astype(np.uint8))
    to_upright = {5: 5, 6: 4, 7: 6, 8: 2}.get(orientation)
    (shown.transpose(to_upright) if annotated == "upright" and to_upright else shown).save(
        tmp_path / "m/a.png"
    )
    boxes = {
        "boxes": "boxes",
        "box_labels": "box_labels",
        "box_format": "xywh",
        "annotated": annotated,
    }

    dp.Manifest.from_coco(file, annotated=annotated, progress=False)
    dp.Manifest.from_table(tmp_path / "a.parquet", targets=dp.Targets(**boxes), progress=False)
    said = 0 if orientation == 1 or annotated else 2
    assert caplog.text.count("in doubt: annotated images are turned by their EXIF tag") == said
    assert caplog.text.count("though most programs show them upright: 1 (a.png)") == said

    # The sizes of masks, and of images in the JSON, show it where height and width change places.
    caplog.clear()
    (tmp_path / "images").mkdir()
    (tmp_path / "a.png").rename(tmp_path / "images/a.png")
    dp.Manifest.from_masks(tmp_path / "images", tmp_path / "m", annotated=annotated, progress=False)
    assert ("set annotated to" in caplog.text) == (orientation in (2, 3, 4) and not annotated)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_size_that_is_the_stored_one_says_so_where_it_is_another_than_upright(
    tmp_path, caplog, orientation
):
    height, width = (WIDTH, HEIGHT) if orientation >= 5 else (HEIGHT, WIDTH)
    file, _ = painted(tmp_path, orientation, height=height, width=width)
    dp.Manifest.from_coco(file, progress=False)
    assert ("set annotated to" in caplog.text) == (orientation in (2, 3, 4))
    caplog.clear()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"annotations": []}))
    dp.Manifest.from_coco(file, progress=False)
    assert not caplog.text


def test_options_that_cannot_work_are_refused(tmp_path):
    with pytest.raises(
        dp.ConfigError, match="annotated is 'turned'; choose one of stored, upright"
    ):
        dp.Manifest.from_coco(tmp_path / "a.json", annotated="turned")


@pytest.mark.few
@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("exif", ["ignore", "apply"])
@pytest.mark.parametrize(
    "config",
    [dp.TorchConfig(num_workers=0), dp.DaliConfig(device="cpu", num_threads=1)],
    ids=["torch", "dali"],
)
def test_masks_of_upright_pictures_lie_on_what_they_are_of(tmp_path, orientation, exif, config):
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    painted(tmp_path / "images", orientation)
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[4:14, 6:26] = 1
    Image.fromarray(mask).save(tmp_path / "masks/a.png")
    folders = tmp_path / "images", tmp_path / "masks"
    options = {
        "classes": ["ground", "box"],
        "annotated": "upright",
        "strict": True,
        "verify": "full",
        "progress": False,
    }
    (tmp_path / "images/a.json").unlink()
    manifest = dp.Manifest.from_masks(*folders, **options)
    manifest.save(tmp_path / "m.arrow")
    for made in (manifest, dp.Manifest.load(tmp_path / "m.arrow"), manifest.subset(np.array([0]))):
        size = tuple(made.take_sizes(np.array([0]), upright=exif == "apply")[0].tolist())
        transform = dp.EvalTransform(size=size, resize=size, exif=exif, dtype="uint8")
        with dp.build_loader(
            made, config, transform=transform, batch_size=1, device="cpu"
        ) as loader:
            (batch,) = list(loader)
        bright = batch.images[0, 0] > 127
        assert bright.sum() == 200 and torch.equal(batch["mask"][0] == 1, bright)
    if orientation >= 5:
        # of another size than the image as stored
        assert len(dp.Manifest.from_masks(*folders, progress=False)) == 0
