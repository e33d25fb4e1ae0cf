import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

import dali_pipes as dp
from dali_pipes.loader.batch import Batch, Ragged
from dali_pipes.tools.preview.picture import (
    COLUMNS,
    GAP,
    LARGEST,
    LINE,
    SHOWN,
    SHOWN_WITH_VIEWS,
    save_picture,
)

GRAY, BLUE, ORANGE = (100, 100, 100), ImageColor.getrgb("#1f77b4"), ImageColor.getrgb("#ff7f0e")
TRANSFORM = dp.EvalTransform(size=160, resize=160, dtype="uint8")


@pytest.fixture
def draw(tmp_path):
    """Draws a batch of two images or more, and returns the picture without its margin."""

    def pixels(batch, classes=(), transform=TRANSFORM):
        save_picture(batch, transform, list(classes), tmp_path / "batch.png")
        with Image.open(tmp_path / "batch.png") as picture:
            return np.asarray(picture)[GAP:-GAP, GAP:-GAP]

    return pixels


def batch(count=2, size=160, targets=None, views=None):
    images = torch.full((count, 3, size, size), 100, dtype=torch.uint8)
    return Batch(images, torch.zeros(count), torch.arange(count), targets or {}, views or {})


def ragged(lengths, values, *form, dtype=torch.float32):
    return Ragged(torch.tensor(values, dtype=dtype).reshape(sum(lengths), *form), lengths)


def objects(scale=1.0, **more):
    """A box of class 1 in the second image of two, none in the first."""
    box = [40 * scale, 50 * scale, 100 * scale, 120 * scale]
    return {
        "boxes": ragged([0, 1], box, 4),
        "box_labels": ragged([0, 1], [1], dtype=torch.int64),
        **more,
    }


def covered(color):
    return [round(100 + 0.55 * (each - 100)) for each in color]


def close(pixel, color):
    return np.abs(np.array(pixel, int) - color).max() <= 1


@pytest.mark.parametrize("scale", [1, 8])
def test_boxes_keypoints_and_names_lie_where_they_are(draw, scale):
    """In an image that is made smaller as well."""
    points = [60, 100, 2, 90, 80, 1, 60, 110, 0]
    points = ragged(
        [0, 1], [value * scale if at % 3 < 2 else value for at, value in enumerate(points)], 3, 3
    )
    picture = draw(batch(size=160 * scale, targets=objects(scale, keypoints=points)), "ab")
    side = min(160 * scale, LARGEST)
    assert picture.shape == (side, 2 * side + GAP, 3)
    first, second = picture[:, :side], picture[:, side + GAP :]
    factor = side / 160

    def at(x, y):
        return tuple(second[round(y * factor), round(x * factor)].tolist())

    assert (first == GRAY).all()
    assert at(40, 100) == at(100, 70) == at(70, 50) == at(70, 120) == ORANGE
    assert at(60, 100) == at(90, 80) == ORANGE  # keypoints that are seen, and hidden
    assert at(60, 110) == GRAY  # one that is not known
    top, left = round(50 * factor), round(40 * factor)
    named = second[top + 2 : top + 16, left + 2 : left + 14]
    assert (named == ORANGE).all(-1).mean() > 0.4 and (named.max(-1) < 50).any()


def test_masks_cover_what_they_are_of(draw):
    mask = torch.zeros(2, 160, 160, dtype=torch.int64)
    mask[1, :80], mask[1, 80:, 80:], mask[0, :, :20] = 1, 255, 70_000
    picture = draw(batch(targets={"mask": mask}), ["ground", "cat"])
    first, second = picture[:, :160], picture[:, 164:]
    assert close(second[5, 5], covered(ORANGE)) and tuple(second[155, 5]) == GRAY
    assert close(second[155, 155], covered((128, 128, 128)))
    # 70,000 has no name
    assert close(first[5, 5], covered(BLUE)) and tuple(first[5, 155]) == GRAY
    # the name of a class is at a pixel of it
    assert (second[30:60] == ORANGE).all(-1).any() and not (second[90:] == ORANGE).all(-1).any()


def test_objects_have_masks_of_their_own(draw):
    masks = torch.zeros(1, 160, 160, dtype=torch.bool)
    masks[0, 80:110, 50:90] = True
    second = draw(batch(targets=objects(masks=Ragged(masks, [0, 1]))), ["cat", "dog"])[:, 164:]
    assert close(second[90, 70], covered(ORANGE)) and tuple(second[90, 45]) == GRAY


def test_views_stand_side_by_side(draw):
    big, small = (
        torch.full((10, 2, 3, 40, 40), 10, dtype=torch.uint8),
        torch.full((10, 3, 3, 16, 16), 20, dtype=torch.uint8),
    )
    small[1, 2] = 200
    picture = draw(batch(10, 40, views={"global": big, "local": small}))
    assert picture.shape == (SHOWN_WITH_VIEWS * 44 - GAP, 5 * 44 - GAP, 3)
    width = (picture.shape[1] + GAP) // 5
    first, second = picture[:44], picture[44:88]
    assert (first[20, width + 20] == 10).all() and (first[10, 2 * width + 10] == 20).all()
    assert (second[5, 4 * width + 5] == 200).all() and (second[30, 4 * width + 30] == 255).all()


def test_texts_stand_below_their_images(draw):
    picture = draw(batch(targets={"text": ["", "a very long text " * 20]}))
    assert picture.shape[0] == 160 + 4 * LINE + GAP
    assert (picture[160:, :160] == 255).all() and (picture[160:, 164:] < 50).any()


def test_a_batch_without_targets_is_a_grid_of_its_images(draw):
    images = torch.randint(0, 256, (30, 3, 8, 12), dtype=torch.uint8)
    picture = draw(Batch(images, torch.zeros(30), torch.arange(30)))
    assert picture.shape == (SHOWN // COLUMNS * 12 - GAP, COLUMNS * 16 - GAP, 3)
    assert np.array_equal(picture[12:20, 32:44], images[COLUMNS + 2].permute(1, 2, 0).numpy())


@pytest.fixture
def labeled(draw):
    def pixels(labels, size=160, targets=None, classes=("cat", "дом")):
        images = torch.full((len(labels), 3, size, size), 100, dtype=torch.uint8)
        one = Batch(images, torch.tensor(labels), torch.arange(len(labels)), targets or {})
        return draw(one, classes)

    return pixels


def is_written(pixels):
    return (pixels < 50).any()


def test_the_name_of_an_image_s_class_stands_below_it(labeled):
    """As far as it has one; a letter that the font lacks would be a box, the same for each."""
    picture = labeled([0, 1, -1])
    assert picture.shape == (160 + LINE + GAP, 3 * 164 - GAP, 3)
    captions = [picture[160:, left : left + 160] for left in (0, 164, 328)]
    assert list(map(is_written, captions)) == [True, True, False]
    assert not np.array_equal(*(labeled([0, 0], classes=[letter])[160:] for letter in ("д", "ж")))


def test_the_names_of_several_classes_stand_below_an_image(labeled):
    several, one = (labeled([label] * 2)[160:] for label in ([1.0, 1.0], [1.0, 0.0]))
    assert np.array_equal(one, labeled([0, 0])[160:]) and (several < 50).sum() > (one < 50).sum()


def test_numbers_to_predict_and_classes_of_objects_are_no_captions(draw, labeled):
    mask = {"mask": torch.zeros(2, 160, 160, dtype=torch.int64)}
    assert labeled([0.5, 0.5], classes=[]).shape[0] == 160
    assert labeled([0, 0], targets=mask).shape[0] == 160
    assert draw(batch(targets=objects()), ["cat", "dog"]).shape[0] == 160


def test_a_small_image_has_room_for_a_caption(labeled):
    picture = labeled([0, 1], 32, classes=["a class with a long name", "cat"])
    assert picture.shape == (32 + 2 * LINE + GAP, 2 * 96 + GAP, 3)
    assert (picture[:32, 32:96] == 255).all() and is_written(picture[32:, 50:96])


def test_normalized_images_and_columns_of_numbers(draw):
    numbers = {"mask": torch.zeros(2), "boxes": torch.zeros(2, 4)}
    normalized = Batch(torch.zeros(2, 3, 8, 8), torch.zeros(2), torch.arange(2), numbers)
    picture = draw(normalized, transform=dp.EvalTransform(size=8, resize=8))
    assert picture[3, 3].tolist() == [round(255 * each) for each in (0.485, 0.456, 0.406)]


def test_images_of_one_channel_are_gray_under_the_colors_of_boxes(draw):
    images = torch.full((2, 1, 160, 160), 100, dtype=torch.uint8)
    gray = Batch(images, torch.zeros(2), torch.arange(2), objects())
    transform = dp.EvalTransform(size=160, resize=160, dtype="uint8", channels=1)
    ours, colored = (draw(gray, "ab", transform), draw(batch(targets=objects()), "ab"))
    assert np.array_equal(ours, colored)
