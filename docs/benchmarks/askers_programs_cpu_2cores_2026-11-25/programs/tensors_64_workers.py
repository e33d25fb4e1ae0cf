"""Small images that are in memory as tensors, and 64 workers on a machine of two cores."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

images = torch.rand(20000, 3, 32, 32)
labels = torch.randint(0, 10, (20000,))
train_loader = DataLoader(TensorDataset(images, labels), batch_size=128, shuffle=True, num_workers=64, persistent_workers=True)

model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()

for epoch in range(1000):
    for inputs, targets in train_loader:
        loss = criterion(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
