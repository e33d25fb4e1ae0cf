"""torchvision's preset for ImageNet (references/classification: ta_wide, random erasing 0.1) on the
images of $IMAGES.

IMAGES=/my/images dali-pipes benchmark my_train:make_loader loader=dali_cpu arms=[loader]
"""

import os

import torch
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import datasets, transforms
from torchvision.transforms import InterpolationMode


def make_loader() -> DataLoader:
    preset = transforms.Compose(
        [
            transforms.RandomResizedCrop(
                176, interpolation=InterpolationMode.BILINEAR, antialias=True
            ),
            transforms.RandomHorizontalFlip(0.5),
            transforms.TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR),
            transforms.PILToTensor(),
            transforms.ConvertImageDtype(torch.float),
            transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
            transforms.RandomErasing(p=0.1),
        ]
    )
    images = datasets.ImageFolder(os.environ["IMAGES"], preset)
    epoch = ConcatDataset(
        [images] * (5_000 // len(images))
    )  # workers start anew with each epoch: few images would have many starts
    return DataLoader(epoch, batch_size=64, shuffle=True, num_workers=2, drop_last=True)
