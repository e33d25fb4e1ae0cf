"""Photographs that one worker decodes, with a step that takes little."""

import io

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

photos = []
for number in range(64):
    buffer = io.BytesIO()
    noise = Image.fromarray(np.random.randint(0, 255, (40, 50, 3), dtype=np.uint8))
    noise.resize((500, 400), Image.BICUBIC).save(buffer, "jpeg", quality=90)
    photos.append(buffer.getvalue())


class Photos(Dataset):
    transform = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])

    def __len__(self):
        return 5000

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(photos[index % 64])).convert("RGB")
        return self.transform(image), index % 10


train_loader = DataLoader(Photos(), batch_size=32, shuffle=True, num_workers=1, persistent_workers=True)

model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(1000):
    for images, labels in train_loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
