"""DeepLabV3 on a folder of images and a folder of masks, and its mean intersection over union
(mIoU).

dali-pipes demo objects=true out=data/shapes
python examples/segmentation/train.py data/shapes ground,cross,disc,square,star,triangle

The folder holds images/train, images/val, masks/train and masks/val. Lines that end in "#
dali_pipes" are those that differ from torchvision's own references.
"""

import sys

import torch
from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

import dali_pipes as dp  # dali_pipes


def main(folder, classes, size=96, batch_size=8, epochs=3, lr=1e-3):
    torch.manual_seed(0)
    names = classes.split(",")
    folders = [
        (f"{folder}/images/{split}", f"{folder}/masks/{split}") for split in ("train", "val")
    ]
    parts = [dp.Manifest.from_masks(*each, classes=names) for each in folders]  # dali_pipes
    # dali_pipes: a mask has the crop and the flip of its image
    random = dp.TrainTransform(size=size, scale=(0.5, 1))
    fixed = dp.EvalTransform(resize=size, size=size)  # dali_pipes
    train, val = (  # dali_pipes
        dp.build_loader(part, dp.DaliConfig(), transform=each, batch_size=batch_size)  # dali_pipes
        for part, each in zip(parts, (random, fixed), strict=True)  # dali_pipes
    )  # dali_pipes
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = deeplabv3_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=len(names)
    ).to(device)
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = 0.1  # for a few hundred steps from scratch; MobileNetV3 has 0.01
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    history = []
    with train, val:
        for epoch in range(epochs):
            losses = [step(model, optimizer, batch.images, batch["mask"]) for batch in train]
            history.append(torch.stack(losses).mean().item())
            print(
                f"epoch {epoch}: loss {history[-1]:.3f}, mIoU "
                f"{100 * mean_iou(model, val, len(names)):.1f} %"
            )
    return history


def step(model, optimizer, images, masks):
    model.train()
    loss = torch.nn.functional.cross_entropy(model(images)["out"], masks, ignore_index=255)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


@torch.inference_mode()
def mean_iou(model, loader, classes):
    """Of the classes that occur, over all pixels of all images."""
    model.eval()
    counts = 0
    for batch in loader:
        masks, found = batch["mask"], model(batch.images)["out"].argmax(1)
        known = masks != 255
        counts += (
            torch.bincount(masks[known] * classes + found[known], minlength=classes**2)
            .reshape(classes, classes)
            .cpu()
        )
    union = counts.sum(0) + counts.sum(1) - counts.diag()
    return (counts.diag()[union > 0] / union[union > 0]).mean().item()


if __name__ == "__main__":
    main(*sys.argv[1:])
