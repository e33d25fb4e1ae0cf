"""torchvision's SSDlite on the boxes of a COCO file, in batches of images that are letterboxed to
one size; it ends in COCO's evaluation.

python examples/shapes.py data/shapes
dali-pipes train function=./examples/detection/detection.py:make \\
    data.train=data/shapes/train.json data.train_images=data/shapes/images/train \\
    data.val=data/shapes/val.json data.val_images=data/shapes/images/val \\
    transform=letterbox transform.size=192 transform@eval_transform=letterbox \\
    eval_transform.flip=0 optimizer=adamw batch_size=8 eval_batch_size=8 epochs=3 \\
    monitor=map monitor_mode=max
"""

from torch import nn
from torchmetrics.detection import MeanAveragePrecision
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

import dali_pipes as dp


class Detector(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.precision = MeanAveragePrecision(backend="pycocotools")
        # the model returns up to 300 of each image, of which COCO counts the best 100
        self.precision.warn_on_many_detections = False

    def step(self, batch):
        # A crowd is a box around many objects: torchvision's references leave it out of the loss as
        # well. Class 0 of torchvision is the background.
        targets = [
            {"boxes": boxes[~crowd], "labels": labels[~crowd] + 1}
            for boxes, labels, crowd in objects(batch)
        ]
        return sum(self.model(list(batch.images.float()), targets).values())

    def evaluate(self, batch):
        found = self.model(list(batch.images.float()))
        # COCO counts small and large objects in pixels of the files
        boxes = dp.boxes_to_image([each["boxes"] for each in found], batch)
        truth = dp.boxes_to_image(list(batch["boxes"]), batch)
        self.precision.update(
            [each | {"boxes": some} for each, some in zip(found, boxes, strict=True)],
            [
                {"boxes": some, "labels": labels + 1, "iscrowd": crowd.long()}
                for some, (_, labels, crowd) in zip(truth, objects(batch), strict=True)
            ],
        )
        return {"precision": self.precision}


def objects(batch):
    """The boxes, classes and crowds of each image, as many as it has."""
    return zip(batch["boxes"], batch["box_labels"], batch["crowd"], strict=True)


def make(config, manifest):
    return Detector(
        ssdlite320_mobilenet_v3_large(
            weights=None,
            weights_backbone=None,
            num_classes=1 + len(manifest.classes),
            image_mean=[0, 0, 0],  # the images are normalized and have their size
            image_std=[1, 1, 1],
            _skip_resize=True,
        )
    )
