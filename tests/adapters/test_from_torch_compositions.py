"""Random compositions of what programs do, with a known truth: without a defect the batches are
those of the old loader, with one it is refused. A wrong conversion is the worst outcome.
"""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchvision import transforms as v1
from torchvision.io import ImageReadMode, read_image
from torchvision.transforms import v2

import dali_pipes as dp
from dali_pipes.adapters.from_torch.structure import leaves
from dali_pipes.adapters.transforms.reading import NotConvertibleError

V1 = v1.Compose([v1.Resize((32, 40)), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.25] * 3)])
V2 = v2.Compose([v2.Resize((32, 40)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
CLASSES = [2, 0, 1, 2, 1, 0, 2]


def opened(path):
    with Image.open(path) as image:
        return image.convert("RGB")


def opened_file(path):
    with Path(path).open("rb") as file:
        return Image.open(file).convert("RGB")


OPENERS = {
    "PIL": opened,
    "a file object": opened_file,
    "read_image": lambda path: v1.functional.to_pil_image(read_image(path, ImageReadMode.RGB)),
}
CONVERSIONS = {
    "nothing": lambda x: x,
    "a copy": lambda x: x.copy(),
    "an array and back": lambda x: Image.fromarray(np.asarray(x)),
    "twice the other way": lambda x: ImageOps.mirror(ImageOps.mirror(x)),
}
TRANSFORMS = {
    "v1": V1,
    "v2": V2,
    "steps": lambda x: v1.ToTensor()(v1.Resize((32, 40))(x)),
    "a closure": (lambda inner: lambda x: inner(x))(V1),
    "crops": v1.Compose([v1.Resize(48), v1.CenterCrop((32, 40)), v1.PILToTensor()]),
}
AFTER = {
    "nothing": lambda x: x,
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: x.permute(1, 2, 0),
    "twice as large": lambda x: x.float() * 2 - 1,
    "an array": lambda x: x.numpy(),
}
LABELS = {
    "a class": lambda at: CLASSES[at],
    "of NumPy": lambda at: np.int64(CLASSES[at]),
    "a float": lambda at: CLASSES[at] / 2,
    "one-hot": lambda at: torch.eye(3)[CLASSES[at]],
    "a text": lambda at: f"class {CLASSES[at]}",
}
STRUCTURES = {
    "a pair": lambda x, y, at: (x, y),
    "with an index": lambda x, y, at: (x, y, at),
    "a dictionary": lambda x, y, at: {"pixel_values": x, "labels": y},
    "nested": lambda x, y, at: {"in": [x, at], "out": (y,)},
    "twice": lambda x, y, at: (at, x, {"y": y, "again": y}),
}
WRAPPERS = {
    "nothing": lambda data: data,
    "a Subset": lambda data: Subset(data, [4, 0, 4, 2, 6]),
    "a ConcatDataset": lambda data: ConcatDataset([data, Subset(data, [1])]),
}


class Program(Dataset):
    """A data set that is composed of one of each, and of a defect."""

    def __init__(self, files, parts, defect):
        self.files, self.parts, self.defect = files, parts, defect
        self.kept, self.calls = {}, 0

    def __len__(self):
        return len(self.files)

    def __getitem__(self, at):
        opener, conversion, transform, after, label, structure = self.parts
        self.calls += self.defect == "counts"
        file = random.choice(self.files) if self.defect == "random file" else self.files[at]
        if self.defect == "keeps" and at in self.kept:
            picture = self.kept[at]
        else:
            picture = conversion(opener(file))
        if self.defect == "keeps":
            self.kept[at] = picture

        picture = self.before(picture, at)
        x, y = transform(picture), label(at)
        if self.defect == "in place":
            x[..., 0] = 0
        if self.defect == "flips" and random.random() < 0.5:
            x = x.flip(-1)
        if self.defect == "label of pixels":
            y = float(np.asarray(picture).mean())
        if self.defect == "counts":
            y = self.calls
        sample = structure(after(x), y, at)
        if self.defect == "the one before":
            sample, self.kept["last"] = self.kept.get("last", sample), sample
        return sample

    def before(self, picture, at):
        if self.defect == "resizes":
            return picture.resize((70, 60))
        if self.defect == "turns some" and at % 5 == 4:
            return picture.transpose(Image.Transpose.ROTATE_180)
        if self.defect == "turns a class" and CLASSES[at] == 2:
            return ImageOps.mirror(picture)
        if self.defect == "cuts a frame" and picture.getbbox():
            return picture.crop(picture.getbbox())
        if self.defect == "shrinks large ones" and max(picture.size) > 1200:
            return picture.resize((100, 100))
        if self.defect == "equalizes dark ones" and np.asarray(picture).mean() < 12:
            return ImageOps.autocontrast(picture)
        if self.defect == "gray":
            return ImageOps.grayscale(picture).convert("RGB")
        if self.defect == "noise":
            return Image.fromarray(np.asarray(picture) ^ np.uint8(random.randrange(2)))
        return picture


DEFECTS = (
    *("counts", "random file", "keeps", "in place", "flips", "label of pixels", "the one before"),
    *("resizes", "turns some", "turns a class", "cuts a frame", "shrinks large ones"),
    *("equalizes dark ones", "gray", "noise"),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, noise = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(len(CLASSES)):
        size = 50 + 7 * number, 90 - 5 * number
        coarse = Image.fromarray(noise.integers(0, 255, (8, 9, 3), np.uint8))
        coarse.resize(size, Image.Resampling.BICUBIC).save(folder / f"{number}.jpg", quality=95)
    return sorted(map(str, folder.iterdir()))


def check(files, names, wrapper, defect):
    tables = (OPENERS, CONVERSIONS, TRANSFORMS, AFTER, LABELS, STRUCTURES)
    parts = [table[name] for table, name in zip(tables, names, strict=True)]
    old = DataLoader(WRAPPERS[wrapper](Program(files, parts, defect)), 3)
    config = dp.TorchConfig(num_workers=0)
    if defect:
        with pytest.raises(NotConvertibleError):
            dp.from_torch(old, config, device="cpu", check=False)
        return

    with dp.from_torch(old, config, device="cpu", check=False) as loader:
        for theirs, ours in zip(old, loader, strict=True):
            for (path, one), (other_path, other) in zip(leaves(theirs), leaves(ours), strict=True):
                assert path == other_path and type(one) is type(other)
                if isinstance(one, torch.Tensor):
                    assert one.dtype == other.dtype and one.shape == other.shape
                    least = 2e-6 * max(50, float(one.abs().max()))
                    assert (one.double() - other.double()).abs().max() <= least
                else:
                    assert one == other


DRAWN = {
    "names": st.tuples(
        *(
            st.sampled_from(sorted(table))
            for table in (OPENERS, CONVERSIONS, TRANSFORMS, AFTER, LABELS, STRUCTURES)
        )
    ),
    "wrapper": st.sampled_from(sorted(WRAPPERS)),
    "defect": st.sampled_from(["", "", *DEFECTS]),
}
OPTIONS = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@settings(max_examples=50, **OPTIONS)
@given(**DRAWN)
def test_some_compositions(files, names, wrapper, defect):
    check(files, names, wrapper, defect)


@pytest.mark.release
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@settings(max_examples=200, **OPTIONS)
@given(**DRAWN)
def test_two_hundred_compositions(files, names, wrapper, defect):
    check(files, names, wrapper, defect)
