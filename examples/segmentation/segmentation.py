"""DeepLabV3 on a folder of images and a folder of masks, and its mean intersection over union
(mIoU).

python examples/shapes.py data/shapes
dali-pipes train function=./examples/segmentation/segmentation.py:make \\
    data.train=data/shapes/images/train data.train_masks=data/shapes/masks/train \\
    data.val=data/shapes/images/val data.val_masks=data/shapes/masks/val \\
    data.classes=[ground,disc,square,triangle] \\
    transform.size=96 transform.scale=[0.5,1] optimizer=adamw batch_size=8 epochs=3 \\
    monitor=miou monitor_mode=max
"""

from torch import nn
from torch.nn.functional import cross_entropy
from torchmetrics import JaccardIndex
from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

IGNORED = 255  # the value of pixels that are of no class


class Segmenter(nn.Module):
    def __init__(self, model, classes):
        super().__init__()
        self.model = model
        options = {"num_classes": classes, "ignore_index": IGNORED}
        self.iou = JaccardIndex("multiclass", average="macro", **options)
        self.iou_by_class = JaccardIndex("multiclass", average="none", **options)

    def step(self, batch):
        return self.loss(self.model(batch.images.float())["out"], batch)

    def evaluate(self, batch):
        scores = self.model(batch.images.float())["out"].float()
        for metric in (self.iou, self.iou_by_class):
            metric.update(scores, batch["mask"].long())
        loss = self.loss(scores, batch)
        return {"loss": loss, "miou": self.iou, "iou_by_class": self.iou_by_class}

    def loss(self, scores, batch):
        return cross_entropy(scores, batch["mask"].long(), ignore_index=IGNORED)


def make(config, manifest):
    classes = len(manifest.classes)
    model = deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=classes)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 0.1  # for a few hundred steps from scratch; MobileNetV3 has 0.01
    return Segmenter(model, classes)
