"""torchvision's SSDlite on the boxes of a COCO file, in batches of images that are letterboxed to one size.

python scripts/make_demo_data.py --objects --out data/shapes
python examples/detection/train.py data/shapes/train.json data/shapes/images/train

Lines that end in "# dali_pipes" are those that differ from torchvision's own references.
"""

import sys

import torch
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

import dali_pipes as dp  # dali_pipes


def main(annotations, images, size=192, batch_size=8, epochs=3, lr=1e-3):
    torch.manual_seed(0)
    manifest = dp.Manifest.from_coco(annotations, root=images)  # dali_pipes
    transform = dp.LetterboxTransform(size=size)  # dali_pipes: boxes move with the pixels, what has left the image is gone
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = ssdlite320_mobilenet_v3_large(
        weights=None,
        weights_backbone=None,
        num_classes=1 + len(manifest.classes),  # torchvision's class 0 is the background
        image_mean=[0, 0, 0],  # dali_pipes: the images are normalized and have their size
        image_std=[1, 1, 1],  # dali_pipes
        _skip_resize=True,  # dali_pipes
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    history = []
    with dp.build_loader(manifest, dp.DaliConfig(), transform=transform, batch_size=batch_size) as loader:  # dali_pipes
        for epoch in range(epochs):
            losses = [step(model, optimizer, batch) for batch in loader]
            history.append(torch.stack(losses).mean().item())
            print(f"epoch {epoch}: loss {history[-1]:.3f}")
    return history


def step(model, optimizer, batch):
    boxes, labels = batch["boxes"], batch["box_labels"]  # dali_pipes: of each image as many as it has
    targets = [{"boxes": some, "labels": classes + 1} for some, classes in zip(boxes, labels, strict=True)]  # dali_pipes
    loss = sum(model(list(batch.images), targets).values())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10)
    optimizer.step()
    return loss.detach()


if __name__ == "__main__":
    main(*sys.argv[1:])
