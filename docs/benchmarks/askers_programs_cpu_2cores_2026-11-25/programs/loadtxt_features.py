"""Features in text files, read by np.loadtxt for each sample."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

folder = Path(tempfile.mkdtemp())
for number in range(200):
    np.savetxt(folder / f"{number}.txt", np.random.rand(64, 64))


class Features(Dataset):
    def __init__(self, folder):
        self.files = sorted(folder.glob("*.txt"))

    def __len__(self):
        return 10 * len(self.files)

    def __getitem__(self, index):
        features = np.loadtxt(self.files[index % len(self.files)])
        return torch.from_numpy(features).float(), index % 2


train_loader = DataLoader(Features(folder), batch_size=32, shuffle=True, num_workers=2)

model = nn.Sequential(nn.Flatten(), nn.Linear(64 * 64, 2))
optimizer = torch.optim.Adam(model.parameters())

for epoch in range(1000):
    for features, labels in train_loader:
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
