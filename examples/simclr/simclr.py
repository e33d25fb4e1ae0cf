"""SimCLR (Chen et al., ICML 2020, arXiv:2002.05709): a ResNet learns from two random views of each
image, without labels.

dali-pipes train function=./examples/simclr/simclr.py:make data=demo \\
    transform=two_views eval_with=transform optimizer=adamw epochs=5

The views of an image are read and decoded once.
"""

import torch
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy, normalize


class SimCLR(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torchvision.models.resnet18()
        self.encoder.fc = nn.Sequential(
            nn.Linear(512, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 128),
            nn.BatchNorm1d(128),
        )

    def step(self, batch):
        views = batch.views["global"]  # (N, 2, 3, H, W)
        return nt_xent(self.encoder(views.transpose(0, 1).flatten(0, 1).float()))

    def evaluate(self, batch):
        return {"loss": self.step(batch)}


def nt_xent(embeddings, temperature=0.2):
    """Each view should be more similar to the other one of its image than to those of all other
    images.

    Args:
        embeddings: (2 N, D), the first views of all images, then the second ones.
    """
    unit = normalize(embeddings.float())
    similarity = (unit @ unit.T / temperature).fill_diagonal_(-torch.inf)
    return cross_entropy(
        similarity, torch.arange(len(unit), device=unit.device).roll(len(unit) // 2)
    )


def make(config, manifest):
    return SimCLR()
