"""Data sets of people whose samples are random, or of several files, as they write them: with PIL
and transforms of torchvision.
"""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from item_programs import CAPTIONS, Files
from PIL import Image
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

CROP = v1.Compose([v1.RandomResizedCrop(16), v1.RandomHorizontalFlip(), v1.ToTensor()])
EVAL = v1.Compose([v1.Resize((20, 24)), v1.CenterCrop(16), v1.ToTensor()])
JOINT = v2.Compose(
    [
        v2.RandomCrop(24),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
    ]
)


def read(path):
    with Image.open(path) as image:
        return image.convert("RGB")


@dataclass
class Noisy:
    """A sample with a label that is sometimes wrong."""

    picture: Any
    label: int


class UnalignedPair(Files):
    """As CycleGAN's: each image with one of the other half, at random."""

    def __len__(self):
        return len(self.paths) // 2

    def __getitem__(self, index):
        other = random.randint(len(self), len(self.paths) - 1)
        a, b = CROP(read(self.paths[index])), CROP(read(self.paths[other]))
        return {"A": a, "B": b, "A_paths": self.paths[index], "B_paths": self.paths[other]}


class Triplet(Files):
    """Anchor, positive and negative by random.choice."""

    def __getitem__(self, index):
        label = self.labels[index]
        anchor = CROP(read(self.paths[index]))
        same = [at for at, each in enumerate(self.labels) if each == label and at != index]
        positive = random.choice(same)
        near = CROP(read(self.paths[positive]))
        others = [at for at, each in enumerate(self.labels) if each != label]
        negative = random.choice(others)
        far = CROP(read(self.paths[negative]))
        return (anchor, near, far), torch.tensor([index, positive, negative])


class Captions(Files):
    """A caption of several, drawn from a generator of its own, and one word of it left out; the
    generator of PyTorch is that of the transform, too.
    """

    def __init__(self, paths, labels):
        super().__init__(paths, labels)
        self.rng = np.random.default_rng(5)

    def __getitem__(self, index):
        image = CROP(read(self.paths[index]))
        words = CAPTIONS[self.rng.integers(len(CAPTIONS))].split()
        words.pop(int(torch.randint(len(words), ())))
        return [image, " ".join(words), {"index": index}]


class LabelNoise(Files):
    """A label that is wrong once in four times, and noise for the model."""

    def __getitem__(self, index):
        wrong = np.random.rand() < 0.25
        label = int(np.random.randint(5)) if wrong else self.labels[index]
        return {"image": CROP(read(self.paths[index])), "label": label, "noise": torch.rand(3)}


class Clip(Files):
    """Eight frames from a random one on, all with the same crop: the states of the random numbers
    are set to one seed before each.
    """

    def __getitem__(self, index):
        start, step = random.randrange(len(self)), 1 + int(np.random.randint(2))
        seed, frames = int(np.random.randint(2**31)), []
        numbers = [(start + at * step) % len(self) for at in range(8)]
        for number in numbers:
            random.seed(seed)
            torch.manual_seed(seed)
            frames.append(CROP(read(self.paths[number])))
        return torch.stack(frames), np.array(numbers)


class Aligned(Files):
    """Before and after, in files of equal sizes, with one crop for both."""

    def __getitem__(self, index):
        after = random.choice([index, (index + 1) % len(self)])
        before, after = JOINT(
            tv_tensors.Image(np.array(read(self.paths[index])).transpose(2, 0, 1)),
            tv_tensors.Image(np.array(read(self.paths[after])).transpose(2, 0, 1)),
        )
        return before, after, index


# all but the last two, whose pictures have equal sizes, take files of any size
PROGRAMS = {
    "unaligned pair": UnalignedPair,
    "triplet": Triplet,
    "captions": Captions,
    "label noise": LabelNoise,
    "clip": Clip,
    "aligned pair": Aligned,
}
