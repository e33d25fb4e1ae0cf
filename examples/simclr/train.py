"""SimCLR (Chen et al., ICML 2020, arXiv:2002.05709): a ResNet learns from two random views of each
image, without labels.

dali-pipes demo out=data/demo
python examples/simclr/train.py data/demo/train

Lines that end in "# dali_pipes" are those that differ from a training with torchvision's
transforms.
"""

import sys

import torch
import torchvision
from torch.nn.functional import cross_entropy, normalize

import dali_pipes as dp  # dali_pipes


def main(images, size=64, batch_size=64, epochs=5, lr=1e-3):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torchvision.models.resnet18()
    layers = (
        torch.nn.Linear(512, 512),
        torch.nn.BatchNorm1d(512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 128),
    )
    model.fc = torch.nn.Sequential(*layers, torch.nn.BatchNorm1d(128))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=1e-4)
    # dali_pipes
    jitter = {
        "name": "ColorJitter",
        "brightness": 0.4,
        "contrast": 0.4,
        "saturation": 0.4,
        "hue": 0.1,
        "p": 0.8,
    }
    augment = [jitter, {"name": "RandomGrayscale", "p": 0.2}]  # dali_pipes
    # dali_pipes: each file is read once
    views = {"global": {"count": 2, "size": size, "scale": (0.2, 1), "augment": augment}}
    transform = dp.ViewsTransform(views=views)  # dali_pipes
    history = []
    manifest = dp.Manifest.open(images)  # dali_pipes
    # dali_pipes
    with dp.build_loader(
        manifest, dp.DaliConfig(), transform=transform, batch_size=batch_size
    ) as loader:
        for epoch in range(epochs):
            losses = [step(model, optimizer, batch.views["global"]) for batch in loader]
            history.append(torch.stack(losses).mean().item())
            print(f"epoch {epoch}: loss {history[-1]:.3f}")
    return history


def step(model, optimizer, views):
    """
    Args:
        views: (N, 2, 3, H, W).
    """
    loss = nt_xent(model(views.transpose(0, 1).flatten(0, 1)))  # dali_pipes: so they lie in memory
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def nt_xent(embeddings, temperature=0.2):
    """Each view should be more similar to the other one of its image than to those of all other
    images.

    Args:
        embeddings: (2 N, D), the first views of all images, then the second ones.
    """
    unit = normalize(embeddings)
    similarity = (unit @ unit.T / temperature).fill_diagonal_(-torch.inf)
    return cross_entropy(
        similarity, torch.arange(len(unit), device=unit.device).roll(len(unit) // 2)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
