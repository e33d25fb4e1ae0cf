"""What can go wrong with boxes and masks while a loader runs, and outlines."""

import json
import threading

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

import dali_pipes as dp
from dali_pipes import Manifest
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.objects import Keypoints
from dali_pipes.data.outlines import rasterize
from dali_pipes.plan.coordinates import mask_indices

HEIGHT, WIDTH = 40, 60
TRANSFORM = dp.TrainTransform(size=(24, 32), scale=(0.5, 1))
CONFIGS = {
    "torch": dp.TorchConfig(num_workers=1),
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=2),
}
by_both = pytest.mark.parametrize("name", CONFIGS)


@pytest.fixture
def masked(tmp_path):
    """Twelve images; the mask of each is full of its number."""
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(12):
        Image.fromarray(np.full((HEIGHT, WIDTH, 3), 20 * number, np.uint8)).save(
            tmp_path / f"images/{number:02d}.jpg"
        )
        Image.fromarray(np.full((HEIGHT, WIDTH), number, np.uint8)).save(
            tmp_path / f"masks/{number:02d}.png"
        )
    return dp.Manifest.from_masks(
        tmp_path / "images",
        tmp_path / "masks",
        classes=[str(each) for each in range(12)],
        progress=False,
    )


@pytest.fixture
def outlined(tmp_path):
    """Six images with as many objects as their number: triangles, each in run lengths as well."""
    images, objects = [], []
    for number in range(6):
        Image.fromarray(np.full((HEIGHT, WIDTH, 3), 100, np.uint8)).save(tmp_path / f"{number}.jpg")
        images.append(
            {"id": number, "file_name": f"{number}.jpg", "height": HEIGHT, "width": WIDTH}
        )
        for at in range(number):
            polygon = [5 + 4 * at, 5, 45 + at, 10, 20, 35 - at]
            runs = np.diff(
                np.flatnonzero(
                    np.diff(rasterize([polygon], HEIGHT, WIDTH).T.ravel(), prepend=0, append=0)
                ),
                prepend=0,
            )
            counts = [*runs.tolist(), HEIGHT * WIDTH - int(runs.sum())]
            outline = {"size": [HEIGHT, WIDTH], "counts": counts} if at % 2 else [polygon]
            box = [5 + 4 * at, 5, 40 - 3 * at, 30 - at]
            objects.append(
                {
                    "id": len(objects),
                    "image_id": number,
                    "category_id": 1,
                    "bbox": box,
                    "segmentation": outline,
                }
            )
    content = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "thing"}]}
    (tmp_path / "coco.json").write_text(json.dumps(content))
    return dp.Manifest.from_coco(tmp_path / "coco.json", progress=False)


def build(manifest, name="dali_cpu", **options):
    options = {
        "transform": TRANSFORM,
        "batch_size": 4,
        "last_batch": "partial",
        "device": "cpu",
    } | options
    return dp.build_loader(manifest, CONFIGS[name], **options)


def remove(file):
    file.unlink()


def cut(file):
    file.write_bytes(file.read_bytes()[:40])


def as_jpeg(file):
    Image.open(file).save(file, "JPEG")


def smaller(file):
    Image.new("L", (WIDTH - 1, HEIGHT)).save(file)


def of_another_class(file):
    Image.new("L", (WIDTH, HEIGHT), 12).save(file)


FAULTS = {
    remove: "no such file",
    cut: "not an image, or broken",
    as_jpeg: "JPEG format; save it as PNG",
    of_another_class: "its values include 12; the 12 classes are numbered from 0",
    smaller: f"{WIDTH - 1} × {HEIGHT}, and the image is {WIDTH} × {HEIGHT}",
}


@by_both
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_mask_that_has_become_bad_is_named_and_costs_nothing_else(masked, tmp_path, name, fault):
    fault(tmp_path / "masks/05.png")
    delivered = []
    with (
        build(masked, name, shuffle=False) as loader,
        pytest.raises(dp.BadSampleError, match=FAULTS[fault]) as caught,
    ):
        for batch in loader:
            delivered += batch.ids.tolist()
    assert delivered == [0, 1, 2, 3]
    ((sample_id, path, why),) = caught.value.bad_samples
    assert (
        sample_id == 5
        and path.endswith("images/05.jpg")
        and "masks/05.png" in why
        and "\n" not in why
    )
    assert "from_masks lists all, also masks" in str(caught.value)


@by_both
def test_values_of_masks_are_replaced_and_those_that_are_ignored_are_the_transforms(
    masked, tmp_path, name
):
    folders = tmp_path / "images", tmp_path / "masks"
    classes = ["low", "high"]
    becomes = {number: int(number > 5) for number in range(11)} | {11: 250}
    manifest = dp.Manifest.from_masks(
        *folders, classes=classes, mask_values=becomes, verify="full", progress=False
    )
    transform = dp.TrainTransform(size=(24, 32), scale=(0.5, 1), ignore_index=250)
    with build(manifest, name, shuffle=False, transform=transform) as loader:
        found = [mask.unique().tolist() for batch in loader for mask in batch["mask"]]
    assert found == [[0]] * 6 + [[1]] * 5 + [[250]]
    with (
        build(manifest, name, shuffle=False) as loader,
        pytest.raises(dp.BadSampleError, match="its values include 250"),
    ):
        list(loader)


@by_both
def test_the_substitute_brings_its_own_mask(masked, tmp_path, name):
    remove(tmp_path / "masks/05.png")
    with build(
        masked, name, shuffle=False, on_bad_sample="substitute", max_bad_fraction=0.2
    ) as loader:
        batches = list(loader)
        assert [sample_id for sample_id, _, _ in loader.bad_samples] == [5]
    assert [batch.ids.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 6, 6, 7], [8, 9, 10, 11]]
    for batch in batches:
        for sample_id, mask, image in zip(
            batch.ids.tolist(), batch["mask"], batch.images, strict=True
        ):
            assert mask.unique().tolist() == [sample_id]
            assert torch.equal(image, batch.images[batch.ids.tolist().index(sample_id)])


def test_resuming_on_three_ranks_delivers_the_same_masks(masked):
    with build(masked, batch_size=6) as whole:
        stream = iter(whole)
        next(stream)
        state, expected = json.loads(json.dumps(whole.state_dict())), next(stream)
    found = []
    for index in range(3):
        with build(masked, "torch", batch_size=2, rank=dp.Rank(index, 3)) as rank:
            rank.load_state_dict(state)
            found.append(next(iter(rank)))
    assert torch.equal(torch.cat([batch["mask"] for batch in found]), expected["mask"])
    assert torch.equal(torch.cat([batch.ids for batch in found]), expected.ids)


def test_masks_are_read_by_threads_that_end_with_the_loader(masked):
    loader = build(masked)
    next(iter(loader))
    assert any(thread.name.startswith("masks") for thread in threading.enumerate())
    loader.close()
    loader.close()
    assert not any(thread.name.startswith("masks") for thread in threading.enumerate())


@by_both
def test_every_object_that_is_left_has_its_outline(outlined, name):
    """What `rasterize` draws in the whole image, at the places that `mask_indices` gives."""
    with build(outlined, name, batch_size=3) as loader:
        for step, batch in enumerate(loader):
            planned = loader.plan.batch(0, step)
            assert (
                batch["masks"].lengths == batch["boxes"].lengths
                and batch["masks"].values.dtype == torch.bool
            )
            for place, (sample_id, masks) in enumerate(
                zip(batch.ids.tolist(), batch["masks"], strict=True)
            ):
                assert len(masks) == sample_id
                outlines = json.loads(
                    outlined.take_texts("outlines", np.array([sample_id]))[0] or "[]"
                )
                lines, columns = mask_indices(planned.geometry.take(place), planned.shape)
                inside = (lines >= 0)[:, None] & (columns >= 0)
                for outline, mask in zip(outlines, masks.numpy(), strict=True):
                    assert np.array_equal(
                        mask, rasterize(outline, HEIGHT, WIDTH)[lines[:, None], columns] & inside
                    )
                    assert mask.any()


def test_a_column_with_the_name_of_a_target_is_refused(outlined):
    """Which would otherwise be lost in the batch."""
    own = Manifest.from_rows(
        outlined.root,
        outlined.classes,
        outlined.table.append_column("column:areas", pa.array(np.arange(6.0))),
    )
    with pytest.raises(
        dp.ConfigError,
        match="has columns of its own named areas, as targets of a batch are; rename them",
    ):
        build(own)


def test_other_names_of_keypoints_are_another_state(outlined):
    """A flip would swap others."""
    table = outlined.table.append_column(
        "target:keypoints",
        pa.array([[0.0] * 6 * each for each in range(6)], pa.large_list(pa.float32())),
    )
    states = []
    for names in (["left", "right"], ["a", "b"]):
        with build(
            Manifest.from_rows(
                outlined.root,
                outlined.classes,
                table,
                facts=ManifestFacts(keypoints=Keypoints.from_names(names)),
            )
        ) as loader:
            states.append(loader.state_dict())
            if len(states) == 2:
                with pytest.raises(
                    dp.ConfigError, match="cannot resume, since these have changed: keypoints"
                ):
                    loader.load_state_dict(states[0])


@pytest.mark.parametrize(
    ("options", "name"),
    [({"annotated": "upright"}, "masks_upright"), ({"mask_values": {2: 1}}, "mask_values")],
)
def test_masks_that_mean_something_else_are_another_state(tmp_path, options, name):
    """States with the defaults stay as earlier versions made them."""
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
        for at in range(4):
            pixels = np.full((8, 8), at % 3, np.uint8)
            Image.fromarray(pixels).save(tmp_path / folder / f"{at}.png")

    def build_with(**options):
        manifest = dp.Manifest.from_masks(
            tmp_path / "images", tmp_path / "masks", progress=False, **options
        )
        return build(manifest, batch_size=2)

    with build_with() as plain, build_with(**options) as other, build_with(**options) as same:
        assert not {"masks_upright", "mask_values"} & plain.state_dict()["fingerprint"].keys()
        for one, state in ((plain, other.state_dict()), (other, plain.state_dict())):
            with pytest.raises(dp.ConfigError, match=f"these have changed: {name}"):
                one.load_state_dict(state)
        # as a checkpoint keeps it
        same.load_state_dict(json.loads(json.dumps(other.state_dict())))


def test_a_batch_without_any_object(outlined):
    with build(outlined.subset([0]), batch_size=1) as loader:
        batch = next(iter(loader))
    assert (
        batch["boxes"][0].shape == (0, 4)
        and batch["masks"][0].shape == (0, 24, 32)
        and batch["box_labels"][0].shape == (0,)
    )
    with pytest.raises(IndexError):
        batch["boxes"][1]
    assert batch.to("cpu")["boxes"].offsets.tolist() == [0, 0]


@pytest.mark.parametrize(
    "mixing", [dp.MixUp(num_classes=12), dp.RandomChoice([dp.CutMix(num_classes=12)])]
)
def test_nothing_is_mixed_that_has_masks_or_several_views(masked, manifest, mixing):
    with pytest.raises(dp.ConfigError, match="mixes images and labels, not masks; leave it out"):
        build(masked, batch_transform=mixing)
    views = dp.ViewsTransform(views={"pair": {"count": 2}}, size=16)
    with (
        build(manifest, transform=views, batch_transform=mixing) as loader,
        pytest.raises(dp.ConfigError, match="has several"),
    ):
        next(iter(loader))
