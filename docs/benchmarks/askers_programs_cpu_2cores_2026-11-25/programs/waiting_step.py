"""A step that waits for something else each time, such as a logging server."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(4000, 3, 32, 32), torch.randint(0, 10, (4000,)))
train_loader = DataLoader(data, batch_size=32, shuffle=True)


def log(value):
    time.sleep(0.03)  # the server's answer


model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(1000):
    for images, labels in train_loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(loss.item())
