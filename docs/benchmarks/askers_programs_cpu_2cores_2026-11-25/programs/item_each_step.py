"""A loop that reads the loss in each step, copies its batch late, in fp32 and from memory that is not pinned."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import resnet18

device = "cuda" if torch.cuda.is_available() else "cpu"
data = TensorDataset(torch.rand(2000, 3, 64, 64), torch.randint(0, 10, (2000,)))
train_loader = DataLoader(data, batch_size=512, shuffle=True, num_workers=2)

model = resnet18(num_classes=10).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
running = 0.0

for epoch in range(1000):
    for images, labels in train_loader:
        images, labels = images.to(device), labels.to(device)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()
