"""A deep small network that is trained on one image at a time."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(4000, 3, 32, 32), torch.randint(0, 10, (4000,)))
train_loader = DataLoader(data, batch_size=1, shuffle=True)

blocks = [layer for _ in range(20) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]
model = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(1000):
    for images, labels in train_loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
