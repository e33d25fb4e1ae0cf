"""A model that needs longer than its loader."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import resnet18

data = TensorDataset(torch.rand(2000, 3, 64, 64), torch.randint(0, 10, (2000,)))
train_loader = DataLoader(data, batch_size=16, shuffle=True)

model = resnet18(num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(1000):
    for images, labels in train_loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
