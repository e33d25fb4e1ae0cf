"""A small network that removes noise, trained on pairs of a noisy and a clean image.

python examples/restoration/train.py pairs.csv

The table has the columns path and clean: two files of equal height and width for each row. Lines
that end in "# dali_pipes" are those that differ from a loop around a DataLoader.
"""

import sys

import torch

import dali_pipes as dp  # dali_pipes


def main(table, size=64, batch_size=16, epochs=5, lr=2e-3):
    torch.manual_seed(0)
    targets = dp.Targets(images={"clean": "clean"})  # dali_pipes
    manifest = dp.Manifest.from_table(table, targets=targets)  # dali_pipes
    # dali_pipes: both images have values from 0 to 1, and the same crop and flips
    transform = dp.RandomCropTransform(  # dali_pipes
        size=size,
        resize=None,
        vertical_flip=0.5,
        mean=(0, 0, 0),
        std=(1, 1, 1),  # dali_pipes
    )  # dali_pipes
    loader = dp.build_loader(  # dali_pipes
        manifest,
        dp.DaliConfig(),
        transform=transform,
        batch_size=batch_size,  # dali_pipes
    )  # dali_pipes
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 24, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(24, 3, 3, padding=1),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    history = []
    with loader:
        for epoch in range(epochs):
            losses = [step(model, optimizer, batch.images, batch["clean"]) for batch in loader]
            history.append(torch.stack(losses).mean().item())
            print(f"epoch {epoch}: loss {history[-1]:.5f}")
    return history


def step(model, optimizer, noisy, clean):
    """The network predicts the noise."""
    loss = torch.nn.functional.mse_loss(noisy - model(noisy), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


if __name__ == "__main__":
    main(*sys.argv[1:])
