"""A data set whose reads wait, as those of a network file system do."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Remote(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.zeros(3, 32, 32), index % 10


train_loader = DataLoader(Remote(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)

model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(1000):
    for images, labels in train_loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
