"""Data sets of people whose `__getitem__` has to run for every item of every epoch, with an
`Encoded` in place of each picture.
"""

import random
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import dali_pipes as dp

Sides = namedtuple("Sides", "before after")
CAPTIONS = ("a photograph", "noise", "some colours", "a very small picture")


@dataclass
class Noisy:
    """An item with a label that is sometimes wrong."""

    picture: Any
    label: int

    def __post_init__(self):
        assert isinstance(self.label, int), "__init__ is for the values of one item"


class Files(Dataset):
    """The base of them.

    Args:
        paths: of all images.
        labels: their class numbers.
    """

    def __init__(self, paths, labels):
        self.paths, self.labels = list(map(str, paths)), list(map(int, labels))

    def __len__(self):
        return len(self.paths)


class UnalignedPair(Files):
    """As CycleGAN's: each image with one of the other half, at random."""

    def __len__(self):
        return len(self.paths) // 2

    def __getitem__(self, index):
        other = random.randint(len(self), len(self.paths) - 1)
        return {
            "A": dp.Encoded(self.paths[index]),
            "B": dp.Encoded(self.paths[other]),
            "A_paths": self.paths[index],
            "B_paths": self.paths[other],
        }


class Triplet(Files):
    """Anchor, positive and negative by random.choice."""

    def __getitem__(self, index):
        label = self.labels[index]
        same = [at for at, each in enumerate(self.labels) if each == label and at != index]
        others = [at for at, each in enumerate(self.labels) if each != label]
        chosen = [index, random.choice(same), random.choice(others)]
        return tuple(dp.Encoded(self.paths[at]) for at in chosen), torch.tensor(chosen)


class Captions(Files):
    """A caption of several, and one word of it left out."""

    def __getitem__(self, index):
        words = CAPTIONS[np.random.randint(len(CAPTIONS))].split()
        words.pop(int(torch.randint(len(words), ())))
        return [dp.Encoded(self.paths[index]), " ".join(words), {"index": index}]


class LabelNoise(Files):
    """A label that is wrong once in four times, and noise for the model."""

    def __getitem__(self, index):
        wrong = np.random.rand() < 0.25
        label = int(np.random.randint(5)) if wrong else self.labels[index]
        return Noisy(dp.Encoded(self.paths[index]), label), torch.rand(3)


class Clip(Files):
    """Eight frames from a random one on, all with the same crop, and a speed."""

    def __getitem__(self, index):
        start, step = random.randrange(len(self)), 1 + int(np.random.randint(2))
        frames = [(start + at * step) % len(self) for at in range(8)]
        return [dp.Encoded(self.paths[at], draws="clip") for at in frames], np.array(frames)


class Aligned(Files):
    """Before and after, in files of equal sizes, with one crop for both; the second is smaller."""

    after = dp.TrainTransform(size=16, dtype="uint8")

    def __getitem__(self, index):
        after = self.paths[(index + 1) % len(self)]
        sides = Sides(
            dp.Encoded(self.paths[index], draws="crop"),
            dp.Encoded(after, self.after, draws="crop"),
        )
        return sides, random.random()


# those whose pictures of one item have equal sizes need `same_size` files
PROGRAMS = {
    "unaligned pair": UnalignedPair,
    "triplet": Triplet,
    "captions": Captions,
    "label noise": LabelNoise,
    "clip": Clip,
    "aligned pair": Aligned,
}
