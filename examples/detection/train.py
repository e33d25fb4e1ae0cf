"""torchvision's SSDlite on the boxes of a COCO file, in batches of images that are letterboxed to
one size.

dali-pipes demo objects=true out=data/shapes
python examples/detection/train.py data/shapes/train.json data/shapes/images/train \\
    data/shapes/val.json data/shapes/images/val

Lines that end in "# dali_pipes" are those that differ from torchvision's own references.
"""

import sys

import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

import dali_pipes as dp  # dali_pipes


def main(
    annotations,
    images,
    val_annotations=None,
    val_images=None,
    size=192,
    batch_size=8,
    epochs=3,
    lr=1e-3,
):
    torch.manual_seed(0)
    manifest = dp.Manifest.from_coco(annotations, root=images)  # dali_pipes
    # dali_pipes: boxes move with the pixels, what has left the image is gone
    transform = dp.LetterboxTransform(size=size)
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
    # dali_pipes
    with dp.build_loader(
        manifest, dp.DaliConfig(), transform=transform, batch_size=batch_size
    ) as loader:
        for epoch in range(epochs):
            losses = [step(model, optimizer, batch) for batch in loader]
            history.append(torch.stack(losses).mean().item())
            print(f"epoch {epoch}: loss {history[-1]:.3f}")
    if val_annotations:
        evaluate(model, val_annotations, val_images, size, batch_size)
    return history


def step(model, optimizer, batch):
    # dali_pipes: of each image as many as it has
    each = zip(batch["boxes"], batch["box_labels"], batch["crowd"], strict=True)
    # A crowd is a box around many objects: torchvision's references leave it out of the loss as
    # well. dali_pipes
    targets = [
        {"boxes": boxes[~crowd], "labels": labels[~crowd] + 1} for boxes, labels, crowd in each
    ]
    loss = sum(model(list(batch.images), targets).values())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10)
    optimizer.step()
    return loss.detach()


def evaluate(model, annotations, images, size=192, batch_size=8):
    """COCO's twelve figures, of which the first is the mean average precision."""
    manifest = dp.Manifest.from_coco(annotations, root=images)  # dali_pipes
    transform = dp.LetterboxTransform(size=size, flip=0)  # dali_pipes
    model.eval()
    found = []
    with (
        dp.build_loader(
            manifest, dp.DaliConfig(), transform=transform, batch_size=batch_size
        ) as loader,
        torch.no_grad(),
    ):
        for batch in loader:
            outputs = model(list(batch.images))
            # dali_pipes: in pixels of the files
            boxes = dp.boxes_to_image([each["boxes"] for each in outputs], batch)
            for image_id, some, each in zip(
                batch["image_id"].tolist(), boxes, outputs, strict=True
            ):
                found += results(
                    image_id, some, each["labels"], each["scores"], manifest.category_ids
                )
    truth = COCO(annotations)
    if not found:
        print("nothing was found")
        return [0.0] * 12
    figures = COCOeval(truth, truth.loadRes(found), "bbox")
    figures.evaluate()
    figures.accumulate()
    figures.summarize()
    return figures.stats.tolist()


def results(image_id, boxes, labels, scores, category_ids):
    """As COCO writes what was found: left, top, width, height."""
    sides = torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], dim=1).tolist()
    return [
        {"image_id": image_id, "category_id": category_ids[label - 1], "bbox": box, "score": score}
        for box, label, score in zip(sides, labels.tolist(), scores.tolist(), strict=True)
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
