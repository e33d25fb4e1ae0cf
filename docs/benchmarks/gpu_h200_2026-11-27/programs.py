"""Programs as people write them, converted and run on a GPU, with check=True; and how far the first
batch of each loader is from the DataLoader's.

    python docs/benchmarks/gpu_h200_2026-11-27/programs.py IMAGEFOLDER
"""

import random
import sys

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

import dali_pipes as dp

NORMALIZE = T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
PROGRAMS = {
    "imagenet": [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), NORMALIZE],
    "trivial": [T.RandomResizedCrop(176), T.TrivialAugmentWide(), T.ToTensor(), NORMALIZE],
    "rotation": [
        T.RandomRotation(20),
        T.RandomResizedCrop(128),
        T.ColorJitter(0.4, 0.4, 0.4),
        T.ToTensor(),
        NORMALIZE,
    ],
    "pad": [
        T.Resize(160),
        T.Pad(16, padding_mode="reflect"),
        T.RandomCrop(128),
        T.ToTensor(),
        NORMALIZE,
        T.RandomErasing(0.5),
    ],
}


class Pairs(Dataset):
    """Each image with one that is drawn anew in each epoch."""

    def __init__(self, folder, steps):
        self.base, self.steps = ImageFolder(folder), steps

    def __len__(self):
        return len(self.base)

    def __getitem__(self, number):
        other = random.randrange(len(self.base))
        first, second = (
            Image.open(self.base.samples[each][0]).convert("RGB") for each in (number, other)
        )
        return self.steps(first), self.steps(second), self.base.samples[number][1]


def first_batch(images, config, device="cuda"):
    form = dp.TrainTransform(size=224, dtype="uint8")
    with dp.build_loader(images, config, transform=form, batch_size=64, device=device) as loader:
        return next(iter(loader))


def main(folder):
    images = dp.Manifest.scan(folder, progress=False)
    expected = first_batch(images, dp.TorchConfig(num_workers=8), "cpu")
    for config in (
        dp.DaliConfig(device="gpu"),
        dp.DaliConfig(device="gpu", exact=True),
        dp.TorchvisionGpuConfig(),
    ):
        batch = first_batch(images, config)
        apart = (batch.images.cpu().int() - expected.images.int()).abs().float()
        same = batch.ids.tolist() == expected.ids.tolist()
        print(type(config).__name__, same, round(apart.mean().item(), 3), apart.max().item())

    for name, steps in PROGRAMS.items():
        old = DataLoader(ImageFolder(folder, T.Compose(steps)), 32, shuffle=True, num_workers=4)
        with dp.from_torch(old, dp.DaliConfig(device="gpu"), check=True) as loader:
            pictures, _ = next(iter(loader))
            print(name, tuple(pictures.shape), pictures.dtype, pictures.device)

    pairs = Pairs(folder, T.Compose(PROGRAMS["imagenet"]))
    old = DataLoader(pairs, 32, shuffle=True, num_workers=2)
    with dp.from_torch(old, dp.DaliConfig(device="gpu"), every_epoch=True, check=True) as loader:
        first, second, _ = next(iter(loader))
        print("pairs", tuple(first.shape), tuple(second.shape), second.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main(sys.argv[1])
