"""What from_torch refuses is named in the words of the program, with what would do instead; and
what it proposes does.
"""

import random
import re
from functools import partial

import albumentations as A
import numpy as np
import pytest
import torch
from PIL import Image
from test_from_torch_programs import Own, convert
from timm.data.transforms import CenterCropOrPad
from torch.utils.data import DataLoader, IterableDataset, default_collate
from torchvision import transforms as v1
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import v2

from dali_pipes.adapters.from_torch import tracer
from dali_pipes.adapters.from_torch.recording import made_up
from dali_pipes.adapters.transforms.readers.albumentations import alike, parts_of
from dali_pipes.adapters.transforms.reading import NotConvertibleError

SIZE = v1.Compose([v1.Resize((40, 48)), v1.ToTensor()])
CROP = v1.RandomResizedCrop(32)
COUNT = 8


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    for at in range(COUNT):
        pixels = np.repeat(np.repeat(rng.integers(0, 256, (9, 8, 3), np.uint8), 8, 0), 8, 1)
        Image.fromarray(pixels[: 60 + at]).save(root / f"{at}.png")
    return sorted(map(str, root.iterdir()))


@pytest.fixture(autouse=True)
def quickly(few_made_up):
    """With few of the made-up pictures: what is refused here shows without them."""


def open_gray(path):
    return Image.open(path).convert("L").convert("RGB")


def open_part(path):
    image = Image.open(path).convert("RGB")
    return image.crop((0, 0, 30, image.height))


class Front(Own):
    """Each sample has another file too, whose number `other` returns."""

    def __init__(self, files, other):
        super().__init__(files, None)
        self.other = other

    def __getitem__(self, index):
        names = (self.files[index], self.files[self.other(index)])
        return tuple(SIZE(pil_loader(name)) for name in names)


class Frames(Front):
    def __getitem__(self, index):
        return torch.stack(super().__getitem__(index)).flip(-1)


def flipped_by_hand(picture, index):
    return SIZE(picture).flip(-1)


def with_boxes(picture, index):
    return v1.functional.to_tensor(picture)[:, :30], {"boxes": torch.ones(2, 4)}


class Stream(IterableDataset):
    def __iter__(self):
        yield 0


def steps(*made):
    transform = v1.Compose(made)
    return lambda picture, index: (transform(picture), index)


IN_ALBUMENTATIONS = A.Compose([A.Resize(40, 48), A.Transpose(p=1), A.Normalize()])
TEN = v1.Compose([v1.Resize((40, 40)), v1.TenCrop(32)])
PROGRAMS = {
    "in gray": (
        lambda files: Own(files, lambda x, at: (SIZE(x), at), open_gray),
        r"Own \(test_from_torch_programs.py:\d+\) .* what reaches Resize .* three channels of gray",
        r"torchvision\'s Grayscale\(1\) as the first step of the transform, .* \(2 lines\)",
    ),
    "a crop by hand": (
        lambda files: Own(files, lambda x, at: (SIZE(x), at), open_part),
        "not the decoded file, but 30 × 60 pixels of 64 × 60, made by code before it",
        r"save what it makes once, as PNG files, and open those \(about 6 lines\)",
    ),
    "two files": (
        lambda files: Front(files, lambda at: COUNT - 1 - at),
        "pictures of 2 files",
        "give two that belong together to one call of torchvision.transforms.v2",
    ),
    "frames": (
        lambda files: Frames(files, lambda at: COUNT - 1 - at),
        "no picture in its samples is what ToTensor .* returned",
        "keep your DataLoader: a plan has one file for each sample, and this sample has 2",
    ),
    "a random file": (
        lambda files: Front(files, lambda at: random.randrange(COUNT)),
        "which files it opens differs each time",
        r"sampling=PerClass\(…\) of build_loader",
    ),
    "a flip by hand": (
        lambda files: Own(files, flipped_by_hand),
        r"no picture in its samples is what ToTensor .* changes it after that",
        r"as a tensor .* move the code after it into the collate function",
    ),
    "boxes": (
        lambda files: Own(files, with_boxes),
        r"what PIL.Image.open \(.*\) decoded: all pixel code is its own",
        "use build_loader with targets.boxes, which moves boxes too",
    ),
    "a label that is drawn": (
        lambda files: Own(files, lambda x, at: (SIZE(x), at + random.random())),
        r"sample\[1\] differs each time",
        r"compute it in the collate function, which is called as it is \(about 3 lines\)",
    ),
    "ten crops": (
        lambda files: Own(files, lambda x, at: torch.stack([SIZE(each) for each in TEN(x)])),
        "Resize cannot be carried over: it comes after a resize or a crop",
        "resize once, first",
    ),
    "albumentations": (
        lambda files: Own(
            files, lambda x, at: IN_ALBUMENTATIONS(image=np.asarray(x))["image"].transpose(2, 0, 1)
        ),
        r"albumentations' Transpose cannot be carried over: dali_pipes has no such step",
        r"write the same with steps of torchvision .*\(1 line\)",
    ),
    "a step that is not there": (
        lambda files: Own(files, steps(CROP, v1.Pad(3), v1.ToTensor())),
        r"Pad\(.*\) cannot be carried over: dali_pipes has no such step",
        r"^end the transform before it with PILToTensor\(\), and apply it and what follows to each "
        r"image in the collate function \(about 4 lines\)",
    ),
    "a step that comes before the crop": (
        lambda files: Own(
            files, steps(v1.Lambda(lambda picture: picture.resize((70, 60))), CROP, v1.ToTensor())
        ),
        "dali_pipes has no such step",
        r"^move it behind the crop if your training may change so, then end the transform before",
    ),
    "a step of timm": (
        lambda files: Own(files, steps(CROP, CenterCropOrPad(40), v1.ToTensor())),
        "dali_pipes has no such step",
        r"to_pil_image\(image\) in the collate function",
    ),
    "two ways": (
        lambda files: Own(files, lambda x, at: SIZE(v1.CenterCrop(50)(x)) if at % 2 else SIZE(x)),
        "something else than to the first sample: CenterCrop, Resize, ToTensor, and not Resize, ",
        "treat all samples alike",
    ),
    "a stream": (
        lambda files: Stream(),
        r"an IterableDataset, Stream \(test_from_torch_refusals.py:\d+\), cannot be carried over",
        "use Manifest.open and build_loader",
    ),
}


@pytest.mark.few
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_refusal_says_what_would_do(program, files):
    make, problem, instead = PROGRAMS[program]
    with pytest.raises(NotConvertibleError, match=problem) as error:
        convert(DataLoader(make(files), batch_size=4))
    assert re.search(instead, error.value.instead)


def test_pictures_of_16_bits(tmp_path):
    files = [str(tmp_path / f"{at}.png") for at in range(COUNT)]
    for at, file in enumerate(files):
        pixels = np.full((40, 30), 999 * at, np.uint16) + np.arange(30, dtype=np.uint16)
        Image.fromarray(pixels).save(file)
    problem = r"what reaches ToTensor .* is a picture of 16 bits a channel .*mode I;16"
    with pytest.raises(NotConvertibleError, match=problem) as error:
        convert(DataLoader(Own(files, steps(v1.ToTensor()), Image.open), batch_size=4))
    assert "Manifest.open(…, bits=16) and build_loader" in error.value.instead


@pytest.mark.parametrize("mode", ["1", "P", "LA"])
def test_pictures_in_the_mode_of_their_file(mode, tmp_path):
    files, noise = [str(tmp_path / f"{at}.png") for at in range(COUNT)], np.random.default_rng(0)
    for file in files:
        Image.fromarray(noise.integers(0, 256, (40, 30, 3), np.uint8)).convert(mode).save(file)
    resize = v1.Resize((40, 48)), v1.PILToTensor()
    problem = f"what reaches Resize .* is a picture of Pillow's mode {mode}, as it is stored"
    with pytest.raises(NotConvertibleError, match=problem) as error:
        convert(DataLoader(Own(files, steps(*resize), Image.open), batch_size=4))
    assert 'convert("RGB"), or with .convert("L")' in error.value.instead


def stack_bytes(batch):
    return torch.stack([v1.functional.pil_to_tensor(image) for image, _ in batch])


@pytest.mark.slow
def test_pictures_that_a_collate_function_takes(files):
    resize = v1.Resize((40, 48))
    messages = {
        steps(resize): r"end it with PILToTensor\(\), and leave collate_fn=stack_bytes out",
        lambda x, at: (x, at): "give the data set the transforms that collate_fn=stack_bytes does",
    }
    for sample, message in messages.items():
        with pytest.raises(NotConvertibleError, match=message):
            convert(DataLoader(Own(files, sample), 4, collate_fn=partial(stack_bytes)))
    # what is proposed has the same bytes
    old = DataLoader(Own(files, steps(resize)), 4, collate_fn=stack_bytes)
    with convert(DataLoader(Own(files, steps(resize, v1.PILToTensor())), 4)) as new:
        for theirs, (ours, _) in zip(old, new, strict=True):
            assert ours.dtype == torch.uint8 and torch.equal(theirs, ours)


def test_pictures_that_are_larger_than_all_noise_show_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tracer, "_SCALES", (1,))
    side = made_up.SQUARE.size[0] + 10
    for at in range(COUNT):
        Image.new("RGB", (side, side), (at, 0, 0)).save(tmp_path / f"{at}.png")
    dataset = Own(
        sorted(map(str, tmp_path.iterdir())), steps(v1.RandomCrop(side - 5), v1.ToTensor())
    )
    with pytest.raises(NotConvertibleError, match=r"Required crop .* so nothing shows"):
        convert(DataLoader(dataset, batch_size=4))


# What is proposed is carried over


@pytest.mark.slow
def test_what_follows_in_the_collate_function(files):
    rest = v2.Compose([v2.RandomPerspective(), v2.ToDtype(torch.float32, scale=True)])

    def collate(samples):
        return default_collate([(rest(picture), label) for picture, label in samples])

    dataset = Own(files, steps(CROP, v1.PILToTensor()))
    with convert(DataLoader(dataset, batch_size=4, shuffle=True, collate_fn=collate)) as loader:
        images, labels = next(iter(loader))
    assert images.shape == (4, 3, 32, 32) and images.dtype == torch.float32 and len(labels) == 4


@pytest.mark.slow
def test_two_loaders_of_one_seed(files):
    sides = [Own(files, lambda x, at: (SIZE(x), at)), Own(files[::-1], lambda x, at: (SIZE(x), at))]
    loaders = [
        convert(DataLoader(side, batch_size=4, shuffle=True), seed=3, check=False) for side in sides
    ]
    for (one, labels), (other, same) in zip(*loaders, strict=True):
        assert torch.equal(labels, same) and not torch.equal(one, other)
    for loader in loaders:
        loader.close()


def test_an_old_albumentations_is_refused_in_one_line(files, monkeypatch):
    monkeypatch.setattr(A, "__version__", "1.4.24")
    for steps in (A.Resize(40, 48), A.Compose([A.Resize(40, 48), A.ToFloat(255)])):
        with pytest.raises(NotConvertibleError, match=r"1\.4\.24 is installed, and 2\.0\.8"):
            list(map(alike, parts_of(steps)))
