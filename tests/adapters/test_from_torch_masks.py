"""from_torch converts a picture and its mask that one transform moves: what comes out is what came
out, value for value, or a refusal names what stands in the way.
"""

# ruff: noqa: E731  programs have lambdas, and transforms as defaults, too

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, tv_tensors
from torchvision import transforms as v1
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

import dali_pipes as dp
from dali_pipes.adapters.from_torch.structure import leaves
from dali_pipes.adapters.transforms.reading import NotConvertibleError

# programs leave files open, as many do
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

NEAREST = v2.InterpolationMode.NEAREST
FLOATS = v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)
JOINT_EVAL = v2.Compose([v2.Resize(40), v2.CenterCrop(32), FLOATS])
JOINT_TRAIN = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), FLOATS])
IMAGE_EVAL = v1.Compose([v1.Resize((40, 32)), v1.ToTensor()])
MASK_EVAL = v1.Resize((40, 32), interpolation=v1.InterpolationMode.NEAREST)
COUNT, CLASSES = 10, 5


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Smooth pictures, and for each masks of its brightness, of several modes."""
    folder, noise = tmp_path_factory.mktemp("masks"), np.random.default_rng(0)
    found = []
    for number in range(COUNT):
        size = 60 + 7 * number, 95 - 4 * number
        coarse = Image.fromarray(noise.integers(0, 255, (7, 6, 3), np.uint8))
        image = coarse.resize(size, Image.Resampling.BICUBIC)
        values = np.asarray(image.convert("L")) // 52
        # the last one is empty, as masks often are
        values = values * np.uint8(number < COUNT - 1)
        image.save(folder / f"{number}.png")

        mask = Image.fromarray(values)
        mask.save(folder / f"{number}_L.png")
        mask.putpalette([value * 40 % 256 for value in range(768)])
        mask.save(folder / f"{number}_P.png")
        Image.fromarray(values > 2).save(folder / f"{number}_1.png")
        Image.fromarray(np.stack([values] * 3, axis=2)).save(folder / f"{number}_RGB.png")
        found.append(str(folder / f"{number}.png"))
    return found


def mask_of(path, mode="L"):
    return path.replace(".png", f"_{mode}.png")


class Masked(Dataset):
    """A data set of pairs; `sample` says what it returns of the picture, the mask and the index."""

    def __init__(self, files, sample, mode="L"):
        self.files, self.sample, self.mode = files, sample, mode

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path = self.files[index]
        image, mask = Image.open(path).convert("RGB"), Image.open(mask_of(path, self.mode))
        return self.sample(image, mask, index)


def joint(image, mask, transform=JOINT_EVAL):
    return transform(tv_tensors.Image(image), tv_tensors.Mask(np.array(mask)))


def convert(loader, **options):
    return dp.from_torch(loader, dp.TorchConfig(num_workers=0), device="cpu", **options)


def assert_same(dataset, **options):
    """All leaves but pixels of tensors that torchvision resized are equal, masks too."""
    loader = DataLoader(dataset, 4, **options)
    old = list(loader)
    with convert(loader) as converted:
        new = list(converted)
    assert len(old) == len(new)
    for theirs, ours in zip(old, new, strict=True):
        for (path, one), (other_path, other) in zip(leaves(theirs), leaves(ours), strict=True):
            assert path == other_path
            if not isinstance(one, torch.Tensor):
                assert one == other
                continue
            assert one.dtype == other.dtype and one.shape == other.shape, path
            if one.ndim == 4 and one.is_floating_point() and one.shape[1] == 3:
                assert (one - other).abs().max() < 0.02
            else:
                assert torch.equal(one.as_subclass(torch.Tensor), other), path


def squeezed(image, mask, at):
    image, mask = JOINT_EVAL(tv_tensors.Image(image), tv_tensors.Mask(mask))
    return image, mask.squeeze().long()


def binary(image, mask, at):
    image, mask = joint(image, mask)
    return [image, mask > 2]


def as_one_hot(image, mask, at):
    image, mask = joint(image, mask)
    return image, one_hot(mask)


def in_two_forms(image, mask, at):
    image, mask = joint(image, mask)
    return image, mask.long(), (mask > 0)[None].float()


def of_pil_image(image, mask, at):
    steps = v2.Compose([v2.Resize((36, 30)), v2.ToImage(), FLOATS])
    return steps(image, tv_tensors.Mask(mask))


def one_hot(mask):
    return torch.nn.functional.one_hot(mask.long(), 256).permute(2, 0, 1)[:CLASSES].float()


LUT = np.array([4, 3, 255, 1, 0])


def looked_up(image, mask, at):
    """A table of five classes, which fails for a sixth."""
    image, mask = joint(image, mask)
    return {"image": image, "mask": torch.from_numpy(LUT[np.asarray(mask)])}


def nested(image, mask, at):
    out = JOINT_EVAL(
        {"x": tv_tensors.Image(image), "y": {"mask": tv_tensors.Mask(mask), "id": at}, "n": f"{at}"}
    )
    return out["x"], out["y"], out["n"]


def wrapped(image, mask, at):
    image = v2.functional.to_image(image)
    plain = torch.from_numpy(np.array(mask))[None]
    return JOINT_EVAL(image, tv_tensors.wrap(plain, like=tv_tensors.Mask(plain)))


def in_parallel(image, mask, at):
    return IMAGE_EVAL(image), torch.from_numpy(np.array(MASK_EVAL(mask))).long()


def in_parallel_as_floats(image, mask, at):
    return IMAGE_EVAL(image), v1.Compose([MASK_EVAL, v1.ToTensor()])(mask)


def before_the_transform(image, mask, at):
    """Classes are replaced before the geometry."""
    values = np.array(mask)
    values[values == 3] = 255
    return joint(image, values)


def mask_first(image, mask, at):
    mask, image = JOINT_EVAL(tv_tensors.Mask(np.array(mask)), tv_tensors.Image(image))
    return mask.numpy().astype(np.int32), image


CONVERTED = {
    "as it is": lambda image, mask, at: joint(image, mask),
    "squeezed and long": squeezed,
    "with a channel": wrapped,
    "binary": binary,
    "looked up": looked_up,
    "one-hot": as_one_hot,
    "nested": nested,
    "in parallel": in_parallel,
    "in parallel as floats": in_parallel_as_floats,
    "replaced before": before_the_transform,
    "mask first": mask_first,
    "converted to L": lambda image, mask, at: joint(image, mask.convert("L")),
    "in two forms": in_two_forms,
    "a PIL image": of_pil_image,
}


@pytest.mark.few(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", CONVERTED)
def test_evaluations_are_equal(pairs, name):
    assert_same(Masked(pairs, CONVERTED[name]))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["P", "1"])
def test_masks_of_other_modes_are_equal(pairs, mode):
    """A palette's numbers, and black and white."""
    assert_same(Masked(pairs, lambda image, mask, at: joint(image, mask), mode))


@pytest.mark.slow
def test_black_and_white_masks_in_gray_are_equal(pairs):
    to_gray = lambda image, mask, at: joint(image, mask.convert("L"))
    assert_same(Masked(pairs, to_gray, "1"))


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("size", [24, 57, 91, 140])
def test_masks_of_any_size_are_torchvisions(pairs, size):
    """Larger and smaller than the pictures."""
    steps = v2.Compose([v2.Resize(size), v2.CenterCrop((size - 8, size - 3)), FLOATS])
    assert_same(Masked(pairs, lambda image, mask, at: joint(image, mask, steps)))


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("size", [24, 57, 91, 140])
def test_masks_of_pil_are_pillows(pairs, size):
    image_steps = v1.Compose([v1.Resize((size, size + 9)), v1.ToTensor()])
    mask_steps = v1.Compose([v1.Resize((size, size + 9), NEAREST), v1.PILToTensor()])
    pair = lambda image, mask, at: (image_steps(image), mask_steps(mask)[0])
    assert_same(Masked(pairs, pair))


@pytest.mark.slow
def test_replaced_values_are_padded_with_zeros(pairs):
    """No stored value is 0 after the replacement, and padding is."""
    steps = v2.Compose([v2.CenterCrop(150), FLOATS])
    replace = lambda image, mask, at: joint(image, np.array(mask) // 2 + 9, steps)
    assert_same(Masked(pairs, replace))


@pytest.mark.slow
def test_masks_may_be_read_by_torchvision(pairs):
    class Read(Dataset):
        def __len__(self):
            return len(pairs)

        def __getitem__(self, at):
            image = tv_tensors.Image(decode_image(pairs[at], ImageReadMode.RGB))
            mask = tv_tensors.Mask(decode_image(mask_of(pairs[at]), ImageReadMode.GRAY))
            return JOINT_EVAL(image, mask)

    assert_same(Read())


@pytest.mark.slow
def test_a_data_set_of_torchvision(pairs, tmp_path):
    """VOCSegmentation, whose masks have palettes, wrapped for v2; and with labels of pictures."""
    root = tmp_path / "VOCdevkit" / "VOC2012"
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / folder).mkdir(parents=True)
    for path in pairs:
        Image.open(path).save(root / "JPEGImages" / f"{Path(path).stem}.jpg", quality=95)
        Image.open(mask_of(path, "P")).save(root / "SegmentationClass" / Path(path).name)
    names = "\n".join(Path(path).stem for path in pairs)
    (root / "ImageSets/Segmentation/train.txt").write_text(names)

    steps = v2.Compose([v2.ToImage(), JOINT_EVAL])
    dataset = datasets.VOCSegmentation(tmp_path, image_set="train", transforms=steps)
    assert_same(datasets.wrap_dataset_for_transforms_v2(dataset))


@pytest.mark.slow
def test_gray_pictures_and_their_masks(pairs, tmp_path):
    """A mask is told from a gray picture by its class."""
    files = []
    for path in pairs:
        Image.open(path).convert("L").save(tmp_path / Path(path).name)
        Image.open(mask_of(path)).save(tmp_path / Path(mask_of(path)).name)
        files.append(str(tmp_path / Path(path).name))
    assert_same(Masked(files, lambda image, mask, at: joint(image, mask)))


@pytest.mark.slow
def test_an_upright_picture_has_an_upright_mask(pairs, tmp_path):
    """Pictures are turned as their tag says, and masks were made of what is seen then."""
    files = []
    for number, path in enumerate(pairs):
        exif = Image.Exif()
        exif[0x0112] = (1, 6, 3)[number % 3]
        turned = {1: None, 6: Image.Transpose.ROTATE_90, 3: Image.Transpose.ROTATE_180}
        way = turned[exif[0x0112]]
        image = Image.open(path)
        image = image.transpose(way) if way is not None else image
        image.save(tmp_path / f"{number}.jpg", quality=95, exif=exif.tobytes())
        Image.open(mask_of(path)).save(tmp_path / f"{number}_mask.png")
        files.append(str(tmp_path / f"{number}.jpg"))

    class Turned(Masked):
        def __getitem__(self, at):
            image = ImageOps.exif_transpose(Image.open(self.files[at])).convert("RGB")
            return joint(image, Image.open(self.files[at].replace(".jpg", "_mask.png")))

    assert_same(Turned(files, None))


TRAINED = {
    "resized crop": JOINT_TRAIN,
    "crop": v2.Compose([v2.RandomCrop(70, pad_if_needed=True), v2.RandomHorizontalFlip(), FLOATS]),
    "crop with a fill for masks": v2.Compose(
        [v2.RandomCrop(90, pad_if_needed=True, fill={tv_tensors.Mask: 200, "others": 0}), FLOATS]
    ),
    "resize, flip, colours": v2.Compose(
        [
            v2.Resize((48, 40)),
            v2.RandomHorizontalFlip(),
            v2.RandomVerticalFlip(),
            v2.ColorJitter(0.1, 0.1),
            FLOATS,
        ]
    ),
    "rotation": v2.Compose([v2.Resize((48, 40)), v2.RandomRotation(40), FLOATS]),
}


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_training_masks_follow_their_pictures(pairs, name):
    """Masks are those of the brightness of their pictures, wherever these were moved."""
    dataset = Masked(pairs[:-1], lambda image, mask, at: joint(image, mask, TRAINED[name]))
    loader = DataLoader(dataset, 3, shuffle=True)

    def agreement(loader):
        """The share of pixels whose mask is that of their brightness; values; flips."""
        shares, values = [], set()
        for _ in range(6):
            for images, masks in loader:
                gray = (images * 255).permute(0, 2, 3, 1) @ torch.tensor([0.299, 0.587, 0.114])
                inside = images.amax(dim=1) > 0
                expected = (gray / 52).floor().clip(0, 4)
                shares.append(((expected == masks) & inside).sum() / inside.sum())
                values |= set(masks.unique().tolist())
        return float(torch.stack(shares).mean()), values

    theirs, values = agreement(loader)
    with convert(loader) as converted:
        ours, found = agreement(converted)
    assert found == values
    # masks that do not belong to them agree in less than half of their pixels
    assert theirs > 0.8 and abs(ours - theirs) < 0.03


@pytest.mark.slow
def test_what_it_says(pairs):
    loader = DataLoader(Masked(pairs, lambda image, mask, at: joint(image, mask)), 4)
    with convert(loader) as converted:
        text = converted.explain()
        assert "mask: Resize(size=[40]" in text and "mask_interpolation=nearest" in text
        assert "10 masks are equal" in text


@pytest.mark.slow
def test_a_value_that_no_mask_had(pairs, tmp_path):
    """Code with a table of five classes, and a sixth in a mask that was not run with its values."""
    files = []
    for copy in range(4):
        for path in pairs:
            name = tmp_path / f"{copy}_{Path(path).name}"
            Image.open(path).save(name)
            Image.open(mask_of(path)).save(mask_of(str(name)))
            files.append(str(name))
    values = np.array(Image.open(mask_of(files[18])))
    values[20:40, 20:40] = 9
    Image.fromarray(values).save(mask_of(files[18]))

    with (
        convert(DataLoader(Masked(files, looked_up), 4), check=False) as converted,
        pytest.raises(NotConvertibleError, match=r"mask of sample 18 .* value 9"),
    ):
        list(converted)


def seeded(image, mask, at):
    """The mask with the seed of the image, by code of its own."""
    seed = random.randrange(2**31)
    torch.manual_seed(seed)
    image = JOINT_TRAIN(tv_tensors.Image(image))
    torch.manual_seed(seed)
    return image, JOINT_TRAIN(tv_tensors.Mask(np.array(mask)))


def with_another_seed(image, mask, at):
    return JOINT_TRAIN(tv_tensors.Image(image)), JOINT_TRAIN(tv_tensors.Mask(np.array(mask)))


def bilinear(image, mask, at):
    return IMAGE_EVAL(image), v1.Compose([v1.Resize((40, 32)), v1.PILToTensor()])(mask)


def of_another_size(image, mask, at):
    return IMAGE_EVAL(image), v1.Compose([v1.Resize((41, 33), NEAREST), v1.PILToTensor()])(mask)


def with_random_labels(image, mask, at):
    image, mask = joint(image, mask)
    mask[torch.rand(mask.shape) < 0.1] = 255
    return image, mask


def turned(image, mask, at):
    return joint(image, np.ascontiguousarray(np.fliplr(np.array(mask))))


def shifted(image, mask, at):
    image, mask = joint(image, mask)
    return image, torch.roll(mask, 1, 0)


def cleaned(image, mask, at):
    """Small regions are removed: values depend on what is around them."""
    image, mask = joint(image, mask)
    return image, mask * (torch.nn.functional.max_pool2d(-mask[None].float(), 3, 1, 1)[0] < 0)


def scaled_by_the_largest(image, mask, at):
    image, mask = joint(image, mask)
    return image, mask.float() / mask.max().clip(1)


def label_of_the_mask(image, mask, at):
    image, mask = joint(image, mask)
    return image, mask, int(mask.max())


def plain_tensor(image, mask, at):
    """v2 leaves a plain tensor beside an image as it is."""
    steps = v2.Compose([v2.RandomHorizontalFlip(), FLOATS])
    return steps(tv_tensors.Image(image), torch.from_numpy(np.array(mask)))


def early_flip(image, mask, at):
    return joint(image, mask, v2.Compose([v2.RandomHorizontalFlip(), v2.RandomResizedCrop(32)]))


def image_alone_flipped(image, mask, at):
    image, mask = joint(image, mask, v2.Compose([v2.Resize((40, 32)), FLOATS]))
    return v2.RandomHorizontalFlip()(image), mask


def policy_for_the_image_alone(image, mask, at):
    steps = v1.Compose([v1.Resize((40, 32)), v1.TrivialAugmentWide(), v1.ToTensor()])
    return steps(image), v1.PILToTensor()(MASK_EVAL(mask))


def palette_colours(image, mask, at):
    return joint(image, mask.convert("L"))


def of_another_sample(image, mask, at):
    # read at once: a file that is left open is closed with a warning, in any test after this one
    mask = Image.open(mask_of(PAIRS[at], random.choice("L1")))
    mask.load()
    return joint(image, mask)


def two_images(image, mask, at):
    return (*joint(image, mask), v1.ToTensor()(image.resize((32, 32))))


PAIRS: list[str] = []
REFUSED = {
    "two calls with one seed": (seeded, "L", "sets a random state again"),
    "two calls with two seeds": (with_another_seed, "L", "RandomResizedCrop draws once for"),
    "bilinear": (bilinear, "L", "interpolation=bilinear"),
    "another size": (of_another_size, "L", r"Resize\(size=\(41, 33\)"),
    "random labels": (with_random_labels, "L", "changes it|draws random numbers"),
    "turned by own code": (turned, "L", "code of its own has changed"),
    "shifted after the transform": (shifted, "L", "code of its own changes it"),
    "cleaned": (cleaned, "L", "code of its own changes"),
    "scaled by the largest value": (scaled_by_the_largest, "L", "code of its own changes"),
    "a label of the mask": (label_of_the_mask, "L", "depends on pixels|another one|each time"),
    "a plain tensor": (plain_tensor, "L", "leaves a mask as it is"),
    "a flip before the resize": (early_flip, "L", "flip after it"),
    "only the image is flipped": (image_alone_flipped, "L", "RandomHorizontalFlip moves the image"),
    "only the image is augmented": (
        policy_for_the_image_alone,
        "L",
        "TrivialAugmentWide moves the image",
    ),
    "colours of a palette": (palette_colours, "P", "palette"),
    "masks in colour": (lambda image, mask, at: joint(image, mask), "RGB", "of Pillow's mode RGB"),
    "a random mask": (of_another_sample, "L", "which files it opens|draws random numbers"),
}


@pytest.mark.few(6)
@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_defects_are_refused_by_name(pairs, name):
    PAIRS[:] = pairs
    sample, mode, text = REFUSED[name]
    with pytest.raises(NotConvertibleError, match=text):
        convert(DataLoader(Masked(pairs, sample, mode), 4), check=False)
