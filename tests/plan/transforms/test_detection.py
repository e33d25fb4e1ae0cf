"""Detection's transforms against torchvision's."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from later import later
from planned import labelled

import dali_pipes as dp
from dali_pipes.data.objects import Objects
from dali_pipes.plan.coordinates import move_objects
from dali_pipes.plan.draws import Draws
from dali_pipes.plan.geometry import Geometry
from dali_pipes.plan.steps.operations import Augmentation
from dali_pipes.plan.transforms import Transform

stats, v2, tensors = (
    later("scipy.stats"),
    later("torchvision.transforms.v2"),
    later("torchvision.tv_tensors"),
)
sides = st.integers(1, 4000)


def geometry(
    transform: Transform, height: int, width: int, count: int = 1, seed: int = 0
) -> Geometry:
    return transform.geometry(np.array([[height, width]] * count), Draws(seed, 0, np.arange(count)))


@given(sides, sides, st.integers(1, 900), st.integers(900, 1400))
def test_the_shorter_side_is_torchvisions(height, width, least, most):
    theirs = v2.RandomShortestSize(least, most).make_params(
        [torch.empty(3, 1, 1).expand(3, height, width)]
    )["size"]
    planned = geometry(dp.ShortestSizeTransform(min_size=least, max_size=most), height, width)
    assert planned.resize[0].tolist() == [max(each, 1) for each in theirs]
    assert planned.region[0].tolist() == [0, 0, height, width]


def test_one_of_several_sizes_is_drawn_for_each_image():
    transform = dp.ShortestSizeTransform(min_size=[480, 512, 544], max_size=1333, flip=0)
    found, counts = np.unique(
        geometry(transform, 1000, 1000, 30_000).resize[:, 0], return_counts=True
    )
    assert found.tolist() == [480, 512, 544] and stats.chisquare(counts).pvalue > 1e-3


def test_images_of_a_padded_batch_stand_at_its_top_left_also_flipped():
    transform = dp.ShortestSizeTransform(min_size=60, max_size=100, flip=0.5, vertical_flip=0.5)
    source = np.array([[50, 100], [100, 50], [80, 80]] * 20)
    planned = transform.geometry(source, Draws(0, 0, np.arange(len(source))))
    _, of_first = transform.place_in_batch(planned.take(slice(0, 1)))
    planned, shape = transform.place_in_batch(planned)
    assert shape == (128, 128) and of_first == (64, 128) and transform.shape == (128, 128)
    boxes = np.concatenate([np.zeros_like(source), source[:, ::-1]], axis=1).astype(np.float32)
    objects = Objects(np.ones(len(source), int), boxes, np.zeros(len(source), int))
    n = len(source)
    nothing = Augmentation(
        *np.zeros((2, n, 0)), np.zeros((n, 4)), np.zeros((n, 0)), np.zeros((n, 0, 2, 3))
    )
    moved, _ = move_objects(objects, planned, nothing, shape)
    assert (moved.boxes[:, :2] == 0).all() and (moved.boxes[:, 2:] == planned.resize[:, ::-1]).all()
    assert planned.flip.any() and planned.vertical_flip.any() and not planned.flip.all()


@given(sides, sides, st.integers(1, 700), st.integers(1, 700))
def test_a_letterbox_holds_the_whole_image_in_its_centre(height, width, rows, columns):
    planned = geometry(dp.LetterboxTransform(size=(rows, columns), flip=0), height, width)
    (h, w), (top, left) = planned.resize[0].tolist(), (-planned.crop[0]).tolist()
    assert (h == rows or w == columns) and 1 <= h <= rows and 1 <= w <= columns
    assert (top, left) == ((rows - h) // 2, (columns - w) // 2)
    assert abs(h * width / height - w) <= 0.51 * max(1, width / height) or w == 1 or h == 1


@pytest.mark.parametrize(("height", "width"), [(375, 500), (900, 300)])
def test_scale_jitter_is_distributed_as_torchvisions(height, width):
    """And the crop is FixedSizeCrop's: one number for both sides, nothing but black beyond the
    image.
    """
    planned = geometry(dp.ScaleJitterTransform(size=256), height, width, 20_000)
    torch.manual_seed(0)
    jitter, image = v2.ScaleJitter((256, 256)), [torch.empty(3, 1, 1).expand(3, height, width)]
    theirs = np.array([jitter.make_params(image)["size"] for _ in range(5000)])
    for axis in (0, 1):
        assert stats.ks_2samp(planned.resize[:, axis], theirs[:, axis]).pvalue > 1e-3
    room = np.maximum(planned.resize - 256, 0)
    assert (
        (planned.crop >= 0).all()
        and (planned.crop <= room).all()
        and ((planned.crop == 0) | (room > 0)).all()
    )
    wide = (room > 100).all(axis=1) if height == 375 else room[:, 0] > 100
    share = planned.crop[wide, 0] / room[wide, 0]
    assert stats.kstest(share, "uniform", alternative="less").pvalue > 1e-3
    if height == 375:
        assert np.abs(share - planned.crop[wide, 1] / room[wide, 1]).max() < 0.02


BOXES = np.array(
    [[20, 30, 120, 150], [200, 50, 380, 290], [300, 200, 330, 240], [5, 240, 60, 298]], np.float32
)


def iou_regions(count: int, **options) -> np.ndarray:
    source, objects = (
        np.array([[300, 400]] * count),
        Objects(np.full(count, 4), np.tile(BOXES, (count, 1)), np.zeros(4 * count, int)),
    )
    transform = dp.IoUCropTransform(**options)
    return transform.geometry_around(source, objects, Draws(0, 0, np.arange(count))).region


@pytest.mark.slow
@pytest.mark.parametrize("least", [None, 0.0, 0.5])
def test_regions_around_boxes_are_distributed_as_torchvisions(least):
    options = {} if least is None else {"sampler_options": [least]}
    ours, crop = iou_regions(10_000, **options), v2.RandomIoUCrop(**options)
    given = [
        torch.empty(3, 300, 400),
        tensors.BoundingBoxes(BOXES, format="XYXY", canvas_size=(300, 400)),
    ]
    torch.manual_seed(0)
    drawn = [crop.make_params(given) for _ in range(600)]
    theirs = np.array([[each.get(name, whole) for name, whole in WHOLE.items()] for each in drawn])
    for at in range(4):
        assert stats.ks_2samp(ours[:, at], theirs[:, at]).pvalue > 1e-3
    for of in (ours, theirs):
        assert of[:, 2:].min() > 0
    whole = [(of == list(WHOLE.values())).all(axis=1).sum() for of in (ours, theirs)]
    assert stats.fisher_exact([whole, [10_000 - whole[0], 600 - whole[1]]]).pvalue > 1e-3


WHOLE = {"top": 0, "left": 0, "height": 300, "width": 400}


def test_images_without_boxes_or_without_a_region_are_taken_as_they_are():
    transform, source = (
        dp.IoUCropTransform(sampler_options=[0.9], trials=3),
        np.array([[300, 400]] * 3),
    )
    objects = Objects(np.array([0, 1, 0]), np.array([[0, 0, 2, 2]], np.float32), np.array([1]))
    planned = transform.geometry_around(source, objects, Draws(0, 0, np.arange(3)))
    assert (
        planned.region.tolist() == [[0, 0, 300, 400]] * 3
        and planned.resize.tolist() == [[300, 300]] * 3
    )


def test_regions_depend_on_their_own_image_alone():
    transform, rng = dp.IoUCropTransform(flip=0.5), np.random.default_rng(0)
    source, counts = rng.integers(50, 600, (200, 2)), rng.integers(0, 9, 200)
    corners = np.sort(rng.random((counts.sum(), 2, 2)), axis=1) * np.repeat(
        source[:, None, ::-1], counts, axis=0
    )
    objects = Objects(
        counts, corners.reshape(-1, 4).astype(np.float32), np.zeros(counts.sum(), int)
    )
    together = transform.geometry_around(source, objects, Draws(0, 0, np.arange(200)))
    for part in (np.arange(70), np.arange(70, 200)):
        mine = np.isin(objects.images, part)
        some = replace(objects.keep(mine), counts=counts[part])
        apart = transform.geometry_around(source[part], some, Draws(0, 0, part))
        assert (apart.region == together.region[part]).all() and (
            apart.flip == together.flip[part]
        ).all()


def with_boxes(orientation: int) -> dp.Manifest:
    """Images of 400 × 300 or so; each has one box in its stored top left quarter, around (60,
    40).
    """
    table, count = labelled(np.zeros(40, int)).samples, 40
    table = table.set_column(
        table.column_names.index("orientation"),
        "orientation",
        pa.array([orientation] * count, pa.int8()),
    )
    boxes = pa.array([[10.0, 10.0, 110.0, 70.0]] * count, pa.large_list(pa.float32()))
    table = table.append_column("target:boxes", boxes)
    return dp.Manifest.from_rows(
        "/nowhere",
        ["0"],
        table.append_column(
            "target:box_labels", pa.array([[0]] * count, pa.large_list(pa.int64()))
        ),
    )


@pytest.mark.parametrize("exif", ["ignore", "apply"])
def test_a_plan_crops_around_the_boxes_of_its_images_as_they_are_turned(exif):
    manifest = with_boxes(6)
    transform = dp.IoUCropTransform(sampler_options=[0.0], exif=exif, scale=(0.3, 0.6))
    transform.check(manifest)
    plan = dp.Plan(manifest, transform, 10)
    for step in range(4):
        rows = plan.batch(0, step)
        height = rows.geometry.source[:, 1 if exif == "apply" else 0]
        x, y = (height - 40, 60) if exif == "apply" else (60, 40)
        top, left, rest, width = rows.geometry.region.T
        assert ((left < x) & (x < left + width) & (top < y) & (y < top + rest)).all() and (
            width < 250
        ).all()
        assert (
            len(
                move_objects(
                    plan.objects(rows.ids),
                    rows.geometry,
                    rows.augmentation,
                    rows.shape,
                    centered=True,
                )[0].boxes
            )
            == 10
        )


def test_cropping_around_boxes_needs_boxes():
    with pytest.raises(
        dp.ConfigError, match="IoUCropTransform crops around boxes, and /nowhere has none"
    ):
        dp.IoUCropTransform().check(labelled([0]))


def test_a_plan_makes_each_batch_as_large_as_its_largest_image():
    plan = dp.Plan(
        labelled(np.zeros(40, int)),
        dp.ShortestSizeTransform(min_size=303, max_size=400, size_divisor=1),
        3,
    )
    for step in range(3):
        rows = plan.batch(0, step)
        assert rows.shape == tuple(rows.geometry.resize.max(axis=0).tolist())
        at_right = rows.geometry.crop[:, 1] + rows.shape[1] == rows.geometry.resize[:, 1]
        assert np.where(rows.geometry.flip, at_right, rows.geometry.crop[:, 1] == 0).all()


@pytest.mark.parametrize(
    ("build", "training"),
    [
        (lambda: dp.ShortestSizeTransform(), True),
        (lambda: dp.ShortestSizeTransform(flip=0), False),
        (lambda: dp.ShortestSizeTransform(flip=0, min_size=[640, 672]), True),
        (lambda: dp.LetterboxTransform(flip=0), False),
        (lambda: dp.LetterboxTransform(flip=0, augment=["TrivialAugmentWide"]), True),
        (lambda: dp.IoUCropTransform(flip=0), True),
        (lambda: dp.ScaleJitterTransform(flip=0), True),
    ],
)
def test_what_is_random_is_of_training(build, training):
    assert build().training is training


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: dp.ShortestSizeTransform(size=500), "set these instead of size"),
        (lambda: dp.ShortestSizeTransform(sizes={3: 500}), "set these instead of size"),
        (lambda: dp.ShortestSizeTransform(min_size=[800, 1400]), "more than max_size=1333"),
        (
            lambda: dp.ShortestSizeTransform(min_size="800"),
            "min_size is '800'; it takes whole numbers",
        ),
        (lambda: dp.ShortestSizeTransform(min_size=[0]), "min_size is 0"),
        (
            lambda: dp.ShortestSizeTransform(augment=["RandomErasing"]),
            "RandomErasing would take what fills up a batch",
        ),
        (
            lambda: dp.ShortestSizeTransform(augment=[{"name": "RandomRotation"}]),
            "Rotate would take what fills up a batch",
        ),
        (lambda: dp.IoUCropTransform(scale=(0.3, 1.2)), "1 is the most"),
        (lambda: dp.IoUCropTransform(sampler_options=[]), "sampler_options is empty"),
        (lambda: dp.IoUCropTransform(sampler_options=[-1]), "sampler_options is -1"),
        (lambda: dp.TrainTransform(ignore_index=70_000), "ignore_index is 70000"),
        (lambda: dp.TrainTransform(min_box_size=-1), "min_box_size is -1"),
    ],
)
def test_wrong_options_are_refused(build, message):
    with pytest.raises(dp.ConfigError, match=message):
        build()


def test_colours_may_change_in_padded_batches():
    dp.ShortestSizeTransform(
        augment=[{"name": "ColorJitter", "brightness": 0.2, "hue": 0.1}, "RandomGrayscale"]
    )
    assert dp.ShortestSizeTransform(size=1344) == dp.ShortestSizeTransform()


def test_a_shortest_size_can_be_replaced():
    changed = replace(
        dp.ShortestSizeTransform(min_size=100, max_size=200), max_size=300, size_divisor=50
    )
    assert changed == dp.ShortestSizeTransform(min_size=100, max_size=300, size_divisor=50)
    assert (
        changed.shape == changed.largest_shape == (300, 300)
        and changed.every_size == {300}
        and changed.at(1) is changed
    )
