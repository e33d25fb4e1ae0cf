"""Epochs of a few batches, for each of which the workers are started anew."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Small(Dataset):
    def __init__(self):
        self.images = np.random.rand(256, 3, 64, 64).astype(np.float32)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return torch.from_numpy(self.images[index]), index % 10


train_loader = DataLoader(Small(), batch_size=32, shuffle=True, num_workers=4)

model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(100000):
    for images, labels in train_loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
