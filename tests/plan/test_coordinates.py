"""Where boxes, keypoints and masks go, against torchvision's own functions."""

import math

import numpy as np
import pytest
import torch
from later import later
from PIL import Image, ImageOps

from dali_pipes.data.objects import Keypoints, Objects
from dali_pipes.plan.coordinates import mask_indices, move_objects, turn_upright
from dali_pipes.plan.draws import Draws
from dali_pipes.plan.geometry import Geometry
from dali_pipes.plan.steps.operations import CODE, OPS, Augmentation
from dali_pipes.plan.transforms import CenterCropTransform, RandomCropTransform, TrainTransform

F, v2, tensors = (
    later("torchvision.transforms.v2.functional"),
    later("torchvision.transforms.v2"),
    later("torchvision.tv_tensors"),
)

PAIR = Keypoints(["nose", "left_eye", "right_eye"], [0, 2, 1])


def made_up(source: np.ndarray, each: int, seed: int = 0) -> Objects:
    """Boxes of all sizes within their images, and keypoints, some of them without a label."""
    random = np.random.default_rng(seed)
    sizes = np.repeat(source[:, ::-1], each, axis=0)[:, None]
    boxes = (
        np.sort(random.random((len(sizes), 2, 2)) ** 2 * sizes, axis=1)
        .reshape(-1, 4)
        .astype(np.float32)
    )
    points = (random.random((len(sizes), 3, 2)) * sizes).astype(np.float32)
    labels = random.integers(0, 3, (len(sizes), 3, 1))
    keypoints = np.concatenate([points, labels], axis=2).astype(np.float32)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    return Objects(np.full(len(source), each), boxes, np.arange(len(sizes)), areas, None, keypoints)


def augmentation(count: int, ops: list[str], seed: int = 0) -> Augmentation:
    random = np.random.default_rng(seed)
    most = {"Rotate": 180.0, "ShearX": 0.9, "ShearY": 0.9, "TranslateX": 80.0, "TranslateY": 80.0}
    codes = [[CODE[op] if random.random() < 0.8 else 0 for op in ops] for _ in range(count)]
    magnitudes = [[most[op] * random.uniform(-1, 1) for op in ops] for _ in range(count)]
    form = count, len(ops)
    return Augmentation(
        np.reshape(codes, form).astype(np.int8),
        np.reshape(magnitudes, form).astype(np.float32),
        np.zeros((count, 4), int),
        *no_functions(count),
    )


def no_functions(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and moves of images without functions of the user's."""
    return np.zeros((count, 0)), np.zeros((count, 0, 2, 3))


def geometries(count: int) -> dict[str, tuple[Geometry, tuple[int, int]]]:
    random = np.random.default_rng(1)
    source, draws = random.integers(60, 1500, (count, 2)), Draws(3, 0, np.arange(count))
    padded = {"pad_if_needed": True, "vertical_flip": 0.3}
    transforms = {
        "a resized region": TrainTransform(size=(224, 320), ratio=(0.5, 2), vertical_flip=0.5),
        "a padded crop": RandomCropTransform(
            size=(224, 256), resize=200, padding=(9, 3, 30, 20), **padded
        ),
        "a crop as stored": RandomCropTransform(size=(300, 280), **padded),
        "the centre": CenterCropTransform(size=(224, 300)),
    }
    return {name: (each.geometry(source, draws), each.shape) for name, each in transforms.items()}


def theirs(
    one: torch.Tensor,
    planned: Geometry,
    ops: list[int],
    magnitudes: list[float],
    shape: tuple[int, int],
) -> torch.Tensor:
    """What torchvision's functions make of the boxes or keypoints of one image."""
    one = F.resized_crop(one, *planned.region.tolist(), planned.resize.tolist())
    one = F.crop(one, *planned.crop.tolist(), *shape)
    one = F.horizontal_flip(one) if planned.flip else one
    one = F.vertical_flip(one) if planned.vertical_flip else one
    still = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "center": [0, 0]}
    for code, magnitude in zip(ops, magnitudes, strict=True):
        degrees, pixels = math.degrees(math.atan(magnitude)), int(magnitude)
        match OPS[code]:
            case "Rotate":
                one = F.rotate(one, magnitude)
            case "ShearX":
                one = F.affine(one, shear=[degrees, 0.0], **still)
            case "ShearY":
                one = F.affine(one, shear=[0.0, degrees], **still)
            case "TranslateX":
                one = F.pad(one, [pixels, 0, -pixels, 0])
            case "TranslateY":
                one = F.pad(one, [0, pixels, 0, -pixels])
    return one


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("a resized region", []),
        ("a padded crop", []),
        ("a crop as stored", ["ShearX", "TranslateY"]),
        ("the centre", ["ShearY", "TranslateX", "Rotate"]),
    ],
)
def test_boxes_and_keypoints_go_where_torchvision_moves_them(name, ops):
    """25,000 boxes and 75,000 keypoints each, float64 on their side, which leaves the rounding of
    float32 out.
    """
    geometry, shape = geometries(50)[name]
    drawn, objects = augmentation(len(geometry), ops), made_up(geometry.source, 500)
    moved, kept = move_objects(objects, geometry, drawn, shape, PAIR)
    boxes, points, valid = [], [], []
    for at, rows in enumerate(np.split(np.arange(len(kept)), len(geometry))):
        planned, canvas = geometry.take(at), tuple(geometry.source[at].tolist())
        step = planned, drawn.ops[at].tolist(), drawn.magnitudes[at].tolist(), shape
        one = theirs(
            tensors.BoundingBoxes(
                objects.boxes[rows].astype(float), format="XYXY", canvas_size=canvas
            ),
            *step,
        )
        boxes.append(one.numpy())
        valid.append(F.sanitize_bounding_boxes(one)[1].numpy())
        one = theirs(
            tensors.KeyPoints(objects.keypoints[rows, :, :2].astype(float), canvas_size=canvas),
            *step,
        ).numpy()
        mirrored = planned.flip != planned.vertical_flip
        points.append(one[:, PAIR.flipped] if mirrored else one)
        objects.keypoints[rows, :, 2] = objects.keypoints[rows][
            :, PAIR.flipped if mirrored else [0, 1, 2], 2
        ]
    boxes, points, valid = (np.concatenate(each) for each in (boxes, points, valid))
    near = np.abs(boxes[:, 2:] - boxes[:, :2] - 1).min(axis=1) < 1e-3  # where rounding decides
    assert (kept == valid)[~near].all() and 0.05 < kept.mean() < 0.99
    np.testing.assert_allclose(moved.boxes, boxes[kept], atol=1e-4, rtol=0)
    seen = moved.keypoints[..., 2] > 0
    np.testing.assert_allclose(moved.keypoints[seen][:, :2], points[kept][seen], atol=1e-4, rtol=0)
    assert (moved.keypoints[~seen] == 0).all() and 0.05 < seen.mean() < 0.9
    if not ops:
        labels, inside = (
            objects.keypoints[kept, :, 2],
            ((points >= 0) & (points < shape[::-1])).all(axis=2)[kept],
        )
        edge = (np.abs(points[kept]) < 1e-3) | (np.abs(points[kept] - shape[::-1]) < 1e-3)
        assert ((moved.keypoints[..., 2] == np.where(inside, labels, 0)) | edge.any(axis=2)).all()
    assert (moved.labels == np.flatnonzero(kept)).all() and moved.counts.sum() == kept.sum()


def planned(source, region, resize, crop, flip=False, vertical=False) -> Geometry:
    return Geometry(*(np.array([each]) for each in (source, region, resize, crop, flip, vertical)))


NOTHING = augmentation(1, [])


def test_what_is_not_visible_is_removed():
    boxes = np.array(
        [
            [0, 0, 10, 10],
            [10, 0, 30, 40],
            [49.2, 0, 60, 30],
            [50, 5, 60, 30],
            [5, 5, 5, 9],
            [20, 20, 10, 10],
            [np.nan] * 4,
        ]
    )
    objects = Objects(
        np.array([len(boxes)]),
        boxes.astype(np.float32),
        np.arange(len(boxes)),
        np.full(len(boxes), 100, np.float32),
    )
    geometry = planned([50, 60], [0, 0, 50, 50], [50, 50], [0, 0])
    for least, expected in ((1.0, [0, 1]), (0.5, [0, 1, 2]), (0.0, [0, 1, 2]), (15.0, [1])):
        moved, kept = move_objects(objects, geometry, NOTHING, (50, 50), min_size=least)
        assert moved.labels.tolist() == np.flatnonzero(kept).tolist() == expected
    moved, _ = move_objects(
        objects, planned([50, 60], [0, 0, 50, 60], [100, 60], [20, 20]), NOTHING, (50, 50)
    )
    assert moved.boxes.tolist() == [
        [0, 0, 10, 50],
        [29.0 + np.float32(0.2), 0, 40, 40],
        [30, 0, 40, 40],
    ]
    np.testing.assert_allclose(
        moved.areas, [100 * 2 * 0.5 * 50 / 80, 100 * 2 * 40 / 60, 100 * 2 * 40 / 50]
    )


def test_boxes_whose_centre_is_outside_the_region_are_removed_where_that_is_asked_for():
    boxes = np.array([[0, 0, 20, 20], [5, 5, 26, 26], [10, 10, 11, 11]], np.float32)
    objects = Objects(np.array([3]), boxes, np.arange(3))
    geometry = planned([100, 100], [10, 10, 50, 50], [50, 50], [0, 0])
    assert move_objects(objects, geometry, NOTHING, (50, 50), centered=True)[0].labels.tolist() == [
        1,
        2,
    ]
    assert move_objects(objects, geometry, NOTHING, (50, 50))[0].labels.tolist() == [0, 1, 2]


def test_keypoints_that_left_the_image_do_not_come_back():
    """Nor does the part of a box that was cut off, nor its area."""
    keypoints = np.array([[[10, 10, 2], [30, 10, 1], [39.5, 0, 2]]], np.float32)
    objects = Objects(
        np.array([1]),
        np.array([[10, 5, 30, 15]], np.float32),
        np.array([0]),
        np.array([200], np.float32),
        None,
        keypoints,
    )
    there_and_back = Augmentation(
        np.full((1, 2), CODE["TranslateX"], np.int8),
        np.array([[-20.9, 20.9]], np.float32),
        np.zeros((1, 4), int),
        *no_functions(1),
    )
    moved, _ = move_objects(
        objects, planned([40, 40], [0, 0, 40, 40], [40, 40], [0, 0]), there_and_back, (40, 40)
    )
    assert moved.keypoints.tolist() == [[[0, 0, 0], [30, 10, 1], [39.5, 0, 2]]]
    assert moved.boxes.tolist() == [[20, 5, 30, 15]] and moved.areas.tolist() == [100]


def test_a_keypoint_that_a_flip_moves_off_the_first_pixel_is_outside():
    """As torchvision has it: width - 1 - 39.5 is less than 0."""
    keypoints = np.array([[[39.5, 10, 2]]], np.float32)
    objects = Objects(
        np.array([1]), np.array([[10, 5, 30, 15]], np.float32), np.array([0]), None, None, keypoints
    )
    moved, _ = move_objects(
        objects, planned([40, 40], [0, 0, 40, 40], [40, 40], [0, 0], True), NOTHING, (40, 40)
    )
    assert moved.keypoints.tolist() == [[[0, 0, 0]]] and moved.boxes.tolist() == [[10, 5, 30, 15]]


def test_images_without_objects_stay():
    objects = Objects(
        np.array([0, 1, 0]),
        np.array([[0, 0, 5, 5]], np.float32),
        np.array([7]),
        keypoints=np.ones((1, 3, 3), np.float32),
    )
    geometry, shape = geometries(3)["the centre"]
    moved, kept = move_objects(
        objects.keep(np.array([False])), geometry, augmentation(3, ["Rotate"]), shape, PAIR
    )
    assert (
        moved.counts.tolist() == [0, 0, 0]
        and moved.boxes.shape == (0, 4)
        and moved.keypoints.shape == (0, 3, 3)
        and not len(kept)
    )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_objects_turn_with_their_image(orientation):
    """On a picture whose pixels are numbered: the box holds the same ones, and the keypoint is on
    the same one.
    """
    stored = np.arange(12 * 20, dtype=np.uint8).reshape(12, 20)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(stored)
    image.info["exif"] = exif.tobytes()
    image.getexif()[0x0112] = orientation
    turned = np.asarray(ImageOps.exif_transpose(image))
    keypoints = np.array([[[0, 0, 1], [4, 6, 2], [9, 3, 1]]], np.float32)
    objects = Objects(
        np.array([1]), np.array([[3, 2, 8, 11]], np.float32), np.array([0]), None, None, keypoints
    )
    upright = turn_upright(objects, np.array([orientation]), np.array([turned.shape]), PAIR)
    left, top, right, bottom = upright.boxes[0].astype(int)
    assert sorted(turned[top:bottom, left:right].ravel()) == sorted(stored[2:11, 3:8].ravel())
    names = [0, 2, 1] if orientation in (2, 4, 5, 7) else [0, 1, 2]
    found = [int(turned[y, x]) for x, y, _ in upright.keypoints[0].astype(int)]
    assert found == [[0, 6 * 20 + 4, 3 * 20 + 9][name] for name in names]
    assert upright.keypoints[0, :, 2].tolist() == [[1, 2, 1][name] for name in names]


def torchvision_line(
    source: int, region: tuple[int, int], resize: list[int], axis: int, dtype: torch.dtype
) -> np.ndarray:
    """Which pixels of `region` F.resize_image takes along one axis."""
    line = torch.arange(source)[region[0] : region[0] + region[1]]
    digits = torch.stack([line // 128, line % 128]).to(dtype)  # uint8 holds them too
    image = digits[:, :, None] if axis == 0 else digits[:, None, :]
    full = image.expand(2, *((region[1], 2) if axis == 0 else (2, region[1]))).contiguous()
    made = (
        F.resize_image(full, resize, interpolation=v2.InterpolationMode.NEAREST_EXACT)
        .long()
        .select(2 - axis, 0)
    )
    return (made[0] * 128 + made[1]).numpy()


@pytest.mark.slow
def test_masks_are_torchvisions_value_for_value():
    """2,000 regions, sizes, places and flips; half of them small enough for ATen's other kernel."""
    random = np.random.default_rng(5)
    for number in range(2000):
        source, resize, shape = (
            random.integers(1, most, 2) for most in (900, 900 if number % 2 else 64, 400)
        )
        size = random.integers(1, source + 1)
        start = random.integers(0, source - size + 1)
        place = random.integers(-shape, resize + 1)
        geometry = planned(
            source, [*start, *size], resize, place, random.random() < 0.5, random.random() < 0.5
        ).take(0)
        found = mask_indices(geometry, tuple(shape.tolist()))
        axis = number // 2 % 2
        line = torchvision_line(
            source[axis],
            (start[axis], size[axis]),
            resize.tolist(),
            axis,
            (torch.uint8, torch.float32)[number // 4 % 2],
        )
        at = np.arange(shape[axis]) + place[axis]
        expected = np.where((at >= 0) & (at < resize[axis]), line[at.clip(0, resize[axis] - 1)], -1)
        np.testing.assert_array_equal(
            found[axis],
            expected[::-1] if (geometry.vertical_flip, geometry.flip)[axis] else expected,
        )


@pytest.mark.parametrize(
    ("size", "to"), [(2, 41), (2, 47), (2, 109), (2, 293), (6, 123), (10, 205)]
)
@pytest.mark.parametrize("width", [5, 200])
def test_masks_round_ties_as_torchvision(size, to, width):
    geometry = planned([size, 2], [0, 0, size, 2], [to, width], [0, 0]).take(0)
    np.testing.assert_array_equal(
        mask_indices(geometry, (to, width))[0],
        torchvision_line(size, (0, size), [to, width], 0, torch.uint8),
    )


@pytest.mark.parametrize("interpolation", ["nearest", "pillow"])
def test_masks_are_resized_as_old_programs_do(interpolation):
    """As torchvision resizes a `tv_tensors.Mask`, and Pillow a mask: 300 regions and sizes."""
    random = np.random.default_rng(7)
    for number in range(300):
        source, resize = (random.integers(1, most, 2) for most in (400, 300))
        size = random.integers(1, source + 1)
        start = random.integers(0, source - size + 1)
        geometry = planned(source, [*start, *size], resize, [0, 0], number % 2 == 1).take(0)
        found = mask_indices(geometry, tuple(resize.tolist()), interpolation)

        for axis in (0, 1):
            # a mask of its own rows, or columns
            (top, left), (bottom, right) = start, start + size
            places = np.indices(source, np.int32)[axis, top:bottom, left:right].copy()
            if interpolation == "nearest":
                made = F.resize(tensors.Mask(torch.from_numpy(places)[None]), resize.tolist())[0]
            else:
                image = Image.fromarray(places)
                made = image.resize(resize[::-1].tolist(), Image.Resampling.NEAREST)
            line = np.asarray(made).take(0, axis=1 - axis)
            expected = line[::-1] if axis == 1 and geometry.flip else line
            np.testing.assert_array_equal(found[axis], expected)


def test_a_mask_has_no_value_that_was_not_there():
    random = np.random.default_rng(6)
    mask = random.integers(0, 250, (90, 130), dtype=np.uint8)
    geometry = planned([90, 130], [10, 20, 70, 100], [64, 150], [-10, 30], True, False).take(0)
    rows, columns = mask_indices(geometry, (96, 80))
    out = np.where((rows[:, None] < 0) | (columns < 0), 255, mask[rows][:, columns])
    one = F.resize_image(
        torch.from_numpy(mask[None, 10:80, 20:120].copy()),
        [64, 150],
        interpolation=v2.InterpolationMode.NEAREST_EXACT,
    )
    expected = F.pad_image(one, [0, 10, 0, 22], fill=[255])[:, :, 30:110].flip(2)
    np.testing.assert_array_equal(out, expected[0].numpy())
