"""FFCV's ResNet for the recipe `progressive`: a blur before each convolution with a stride, and an
evaluation that adds the logits of the mirrored images.

dali-pipes train experiment=progressive model.function=./examples/ffcv/resnet.py:make \\
    data.root=/imagenet
"""

import torch
from torch import nn
from torch.nn.functional import conv2d
from torchvision import models


class BlurPool(nn.Module):
    """Blurs each channel with a binomial filter of 3 × 3 before a convolution.

    Zhang, "Making Convolutional Networks Shift-Invariant Again" (2019), in the form that
    train_imagenet.py of libffcv/ffcv-imagenet has as BlurPoolConv2d.
    """

    def __init__(self, conv):
        super().__init__()
        line = torch.tensor([1.0, 2.0, 1.0]) / 4
        self.conv = conv
        self.register_buffer(
            "blur_filter", torch.outer(line, line).repeat(conv.in_channels, 1, 1, 1)
        )

    def forward(self, images):
        return self.conv(conv2d(images, self.blur_filter, padding=1, groups=self.conv.in_channels))


class MirroredInEvaluation(nn.Module):
    """In evaluation, adds the logits of the mirrored images to those of the images, as FFCV's
    validation.lr_tta.
    """

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        logits = self.network(images)
        return logits if self.training else logits + self.network(images.flip(3))


def add_blur(module):
    """Puts a blur before each convolution with a stride, except the one that takes the image."""
    for name, child in module.named_children():
        if isinstance(child, nn.Conv2d) and max(child.stride) > 1 and child.in_channels >= 16:
            setattr(module, name, BlurPool(child))
        else:
            add_blur(child)


def make(num_classes, arch="resnet50"):
    network = models.get_model(arch, num_classes=num_classes)
    add_blur(network)
    return MirroredInEvaluation(network)
