"""A heavy augmentation of each small image."""

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms


class CIFAR(Dataset):
    def __init__(self, transform):
        self.data = np.random.randint(0, 255, (10000, 32, 32, 3), dtype=np.uint8)
        self.targets = np.random.randint(0, 10, 10000)
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        image = Image.fromarray(self.data[index])
        return self.transform(image), int(self.targets[index])


transform = transforms.Compose(
    [
        transforms.Resize(224),
        transforms.RandomRotation(30, interpolation=transforms.InterpolationMode.BICUBIC),
        transforms.Resize(32),
        transforms.ToTensor(),
        transforms.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
    ]
)
train_loader = DataLoader(CIFAR(transform), batch_size=64, shuffle=True, num_workers=2)

model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(1000):
    for images, labels in train_loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
