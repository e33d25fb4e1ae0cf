import numpy as np
import pytest
import torch
from PIL import ImageColor

import dali_pipes as dp
from dali_pipes.backends.base import Batch, Ragged
from dali_pipes.tools.preview.picture import COLUMNS, GAP, LARGEST, SHOWN, SHOWN_WITH_VIEWS, draw

GRAY, BLUE, ORANGE = (100, 100, 100), ImageColor.getrgb("#1f77b4"), ImageColor.getrgb("#ff7f0e")
TRANSFORM = dp.EvalTransform(size=160, resize=160, dtype="uint8")


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
    return np.abs(np.array(pixel) - color).max() <= 1


@pytest.mark.parametrize("scale", [1, 8])
def test_boxes_keypoints_and_names_lie_where_they_are(scale):
    """In an image that is made smaller as well."""
    points = [60, 80, 2, 90, 80, 1, 60, 100, 0]
    points = ragged(
        [0, 1], [value * scale if at % 3 < 2 else value for at, value in enumerate(points)], 3, 3
    )
    picture = draw(
        batch(size=160 * scale, targets=objects(scale, keypoints=points)), TRANSFORM, ["cat", "dog"]
    )
    side = min(160 * scale, LARGEST)
    assert picture.size == (2 * side + GAP, side)
    factor = side / 160

    def at(x, y):
        return picture.getpixel((side + GAP + round(x * factor), round(y * factor)))

    assert set(picture.crop((0, 0, side, side)).getcolors()) == {(side * side, GRAY)}
    assert at(40, 100) == at(100, 70) == at(70, 50) == at(70, 120) == ORANGE
    assert at(60, 80) == ORANGE  # a keypoint that is seen
    assert at(90, 80) == at(60, 100) == GRAY  # one that is hidden, and one that is not known
    named = np.asarray(picture)[
        round(50 * factor) - 14 : round(50 * factor), side + GAP + round(40 * factor) :
    ][:, :20]
    assert (named == ORANGE).all(-1).mean() > 0.4 and (named.max(-1) < 50).any()


def test_names_are_black_or_white_whichever_is_plainer_on_their_color():
    """Orange is too pale for white letters, and blue too dark for black ones."""

    def letters(label):
        box = {"boxes": ragged([1], [40, 50, 100, 120], 4)}
        box["box_labels"] = ragged([1], [label], dtype=torch.int64)
        picture = np.asarray(draw(batch(1, targets=box), TRANSFORM, ["cat", "dog"]))
        named = picture[36:50, 40:70]
        return (named.min(-1) > 240).any(), (named.max(-1) < 15).any()

    assert letters(0) == (True, False) and letters(1) == (False, True)


def test_masks_cover_what_they_are_of():
    mask = torch.zeros(2, 160, 160, dtype=torch.int64)
    mask[1, :80], mask[1, 80:, 80:], mask[0, :, :20] = 1, 255, 70_000
    picture = draw(batch(targets={"mask": mask}), TRANSFORM, ["ground", "cat"])
    assert close(picture.getpixel((164 + 5, 5)), covered(ORANGE))
    assert picture.getpixel((164 + 5, 155)) == GRAY and close(
        picture.getpixel((323, 155)), covered((128, 128, 128))
    )
    # 70,000 has no name
    assert close(picture.getpixel((5, 5)), covered(BLUE)) and picture.getpixel((155, 5)) == GRAY


def test_objects_have_masks_of_their_own():
    masks = torch.zeros(1, 160, 160, dtype=torch.bool)
    masks[0, 60:110, 50:90] = True
    picture = draw(batch(targets=objects(masks=Ragged(masks, [0, 1]))), TRANSFORM, ["cat", "dog"])
    assert (
        close(picture.getpixel((164 + 70, 80)), covered(ORANGE))
        and picture.getpixel((164 + 45, 80)) == GRAY
    )


def test_views_stand_side_by_side():
    big, small = (
        torch.full((10, 2, 3, 40, 40), 10, dtype=torch.uint8),
        torch.full((10, 3, 3, 16, 16), 20, dtype=torch.uint8),
    )
    small[1, 2] = 200
    picture = draw(batch(10, 40, views={"global": big, "local": small}), TRANSFORM, [])
    assert picture.size == (2 * 44 + 3 * 20 - GAP, SHOWN_WITH_VIEWS * 44 - GAP)
    assert picture.getpixel((60, 20)) == (10,) * 3 and picture.getpixel((90, 10)) == (20,) * 3
    assert (
        picture.getpixel((2 * 44 + 2 * 20 + 5, 44 + 5)) == (200,) * 3
        and picture.getpixel((130, 30)) == (255,) * 3
    )


def test_texts_stand_below_their_images():
    text = ["", "a very long text " * 20]
    picture = np.asarray(draw(batch(targets={"text": text}), TRANSFORM, []))
    assert (
        picture.shape[0] == 160 + 4 * 16
        and (picture[160:, :160] == 255).all()
        and (picture[160:, 164:] < 50).any()
    )


def test_a_batch_without_targets_is_a_grid_of_its_images():
    images = torch.randint(0, 256, (30, 3, 8, 12), dtype=torch.uint8)
    picture = np.asarray(draw(Batch(images, torch.zeros(30), torch.arange(30)), TRANSFORM, []))
    assert picture.shape == (SHOWN // COLUMNS * 12 - GAP, COLUMNS * 16 - GAP, 3)
    assert np.array_equal(picture[12:20, 32:44], images[COLUMNS + 2].permute(1, 2, 0).numpy())


def labeled(labels, size=160, targets=None, classes=("cat", "дом")):
    images = torch.full((len(labels), 3, size, size), 100, dtype=torch.uint8)
    one = Batch(images, torch.tensor(labels), torch.arange(len(labels)), targets or {})
    return np.asarray(draw(one, TRANSFORM, list(classes)))


def is_written(pixels):
    return (pixels < 50).any()


def test_the_name_of_an_image_s_class_stands_below_it():
    """As far as it has one; a letter that the font lacks would be a box, the same for each."""
    picture = labeled([0, 1, -1])
    assert picture.shape == (160 + 16, 3 * 164 - GAP, 3)
    captions = [picture[160:, left : left + 160] for left in (0, 164, 328)]
    assert list(map(is_written, captions)) == [True, True, False]
    assert not np.array_equal(*(labeled([0], classes=[letter])[160:] for letter in ("д", "ж")))


def test_the_names_of_several_classes_stand_below_an_image():
    several, one = (labeled([label])[160:] for label in ([1.0, 1.0], [1.0, 0.0]))
    assert np.array_equal(one, labeled([0])[160:]) and (several < 50).sum() > (one < 50).sum()


def test_numbers_to_predict_and_classes_of_objects_are_no_captions():
    mask = {"mask": torch.zeros(1, 160, 160, dtype=torch.int64)}
    assert labeled([0.5], classes=[]).shape[0] == labeled([0], targets=mask).shape[0] == 160
    assert np.asarray(draw(batch(targets=objects()), TRANSFORM, ["cat", "dog"])).shape[0] == 160


def test_a_caption_is_no_wider_than_its_image():
    """A small image gets room for it, and a long name loses its middle and not its end."""
    names = [f"a class with a very long name, number {number}" for number in range(2)]
    assert labeled([0, 1], 160, classes=names).shape[1] == 2 * 164 - GAP
    first, second = (labeled([label], 32, classes=names) for label in (0, 1))
    assert first.shape[1] == 96 and (first[:32, 32:] == 255).all()
    assert (first[32:, -1] == 255).all() and is_written(first[32:, 80:])
    assert not np.array_equal(first[32:], second[32:])


def test_normalized_images_and_columns_of_numbers():
    images = torch.zeros(1, 3, 8, 8)
    numbers = {"mask": torch.zeros(1), "boxes": torch.zeros(1, 4)}
    picture = draw(
        Batch(images, torch.zeros(1), torch.arange(1), numbers),
        dp.EvalTransform(size=8, resize=8),
        [],
    )
    assert picture.getpixel((3, 3)) == tuple(round(255 * each) for each in (0.485, 0.456, 0.406))


def test_images_of_one_channel_are_gray_under_the_colors_of_boxes():
    images = torch.full((2, 1, 160, 160), 100, dtype=torch.uint8)
    gray = Batch(images, torch.zeros(2), torch.arange(2), objects())
    transform = dp.EvalTransform(size=160, resize=160, dtype="uint8", channels=1)
    ours, colored = (
        np.asarray(draw(*each, ["cat", "dog"]))
        for each in ((gray, transform), (batch(targets=objects()), TRANSFORM))
    )
    assert np.array_equal(ours, colored)
