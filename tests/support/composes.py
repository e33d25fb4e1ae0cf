"""Transforms as people write them. EVALUATION, TRAINING and REFUSED map a name to a maker."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torchvision import models
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR = v1.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
BICUBIC, BILINEAR = InterpolationMode.BICUBIC, InterpolationMode.BILINEAR
TIMM_MODELS = (
    *(
        "resnet50.a1_in1k",
        "resnet18.tv_in1k",
        "resnetv2_50x1_bit.goog_in21k_ft_in1k",
        "convnext_tiny.fb_in1k",
    ),
    *(
        "convnextv2_base.fcmae_ft_in22k_in1k_384",
        "efficientnet_b0.ra_in1k",
        "tf_efficientnetv2_s.in21k_ft_in1k",
        "regnety_032.ra_in1k",
    ),
    *(
        "mobilenetv3_large_100.ra_in1k",
        "vit_base_patch16_224.augreg_in21k_ft_in1k",
        "vit_base_patch16_clip_224.openai_ft_in1k",
    ),
    *(
        "vit_small_patch14_dinov2.lvd142m",
        "deit3_small_patch16_224.fb_in1k",
        "swin_tiny_patch4_window7_224.ms_in1k",
    ),
    *(
        "beit_base_patch16_224.in22k_ft_in22k_in1k",
        "eva02_tiny_patch14_336.mim_in22k_ft_in1k",
        "maxvit_tiny_tf_384.in1k",
    ),
    *("mixer_b16_224.goog_in21k_ft_in1k", "coat_mini.in1k", "inception_v3.tv_in1k"),
)


def torchvision_train(*policy, erase=0.0, interpolation=BILINEAR, **crop):
    """references/classification/presets.py of torchvision 0.25, backend="pil"."""
    steps = [
        v1.RandomResizedCrop(224, interpolation=interpolation, antialias=True, **crop),
        v1.RandomHorizontalFlip(0.5),
        *policy,
    ]
    steps += [v1.PILToTensor(), v1.ConvertImageDtype(torch.float), v1.Normalize(MEAN, STD)]
    return v1.Compose([*steps, v1.RandomErasing(p=erase)] if erase else steps)


def torchvision_train_v2(*policy, tensor=True):
    """The same with use_v2 and backend="tensor"."""
    steps = [v2.PILToTensor()] if tensor else []
    steps += [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(0.5), *policy]
    steps += [] if tensor else [v2.PILToTensor()]
    return v2.Compose(
        [*steps, v2.ToDtype(torch.float, scale=True), v2.Normalize(MEAN, STD), v2.ToPureTensor()]
    )


def torchvision_eval(resize=256, size=224, interpolation=BILINEAR):
    steps = [v1.Resize(resize, interpolation=interpolation, antialias=True), v1.CenterCrop(size)]
    return v1.Compose(
        [*steps, v1.PILToTensor(), v1.ConvertImageDtype(torch.float), v1.Normalize(MEAN, STD)]
    )


def tensor_end(*steps, normalize=True):
    return v1.Compose([*steps, v1.ToTensor(), *([v1.Normalize(MEAN, STD)] if normalize else [])])


def timm_eval(model):
    import timm
    from timm.data import create_transform, resolve_data_config

    return create_transform(
        **resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(model).to_dict())
    )


def timm_train(size=224, **options):
    from timm.data import create_transform

    return create_transform(
        size, is_training=True, **{"color_jitter": 0.0, "interpolation": "bicubic"} | options
    )


def simclr(size=224, strength=1.0):
    jitter = v1.ColorJitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    blur = v1.GaussianBlur(size // 10 // 2 * 2 + 1)
    steps = [
        v1.RandomResizedCrop(size),
        v1.RandomHorizontalFlip(),
        v1.RandomApply([jitter], 0.8),
        v1.RandomGrayscale(0.2),
    ]
    return tensor_end(*steps, v1.RandomApply([blur], 0.5), normalize=False)


def moco_v2(size=224):
    jitter, blur = v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.GaussianBlur(23, (0.1, 2.0))
    steps = [
        v1.RandomResizedCrop(size, scale=(0.2, 1.0)),
        v1.RandomApply([jitter], 0.8),
        v1.RandomGrayscale(0.2),
    ]
    return tensor_end(*steps, v1.RandomApply([blur], 0.5), v1.RandomHorizontalFlip())


def dino_local():
    jitter = v1.ColorJitter(0.4, 0.4, 0.2, 0.1)
    flip_and_jitter = v1.Compose(
        [v1.RandomHorizontalFlip(0.5), v1.RandomApply([jitter], 0.8), v1.RandomGrayscale(0.2)]
    )
    return tensor_end(
        v1.RandomResizedCrop(96, scale=(0.05, 0.4), interpolation=BICUBIC), flip_and_jitter
    )


class Sharpened(v1.Resize):
    """A user's own."""


EVALUATION: dict[str, Callable] = {
    "torchvision reference": torchvision_eval,
    "torchvision reference, bicubic 232": partial(torchvision_eval, 232, 224, BICUBIC),
    "torchvision v2, tensors": lambda: v2.Compose(
        [
            v2.ToImage(),
            v2.Resize(256),
            v2.CenterCrop(224),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    ),
    "ResNet50_Weights.IMAGENET1K_V2": models.ResNet50_Weights.IMAGENET1K_V2.transforms,
    "ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1": (
        models.ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1.transforms
    ),
    "EfficientNet_B3_Weights": models.EfficientNet_B3_Weights.DEFAULT.transforms,
    "Swin_V2_T_Weights": models.Swin_V2_T_Weights.DEFAULT.transforms,
    "pytorch/examples imagenet, val": lambda: tensor_end(v1.Resize(256), v1.CenterCrop(224)),
    "squashed": lambda: tensor_end(v1.Resize((224, 224))),
    "squashed, not square": lambda: tensor_end(v1.Resize((160, 288)), normalize=False),
    "squashed, then cropped": lambda: tensor_end(v1.Resize((256, 256)), v1.CenterCrop(224)),
    "the centre as stored": lambda: tensor_end(v1.CenterCrop(96)),
    "smaller than the crop": lambda: tensor_end(v1.Resize(50), v1.CenterCrop(64)),
    "nearest": lambda: tensor_end(v1.Resize(256, InterpolationMode.NEAREST), v1.CenterCrop(224)),
    "bytes": lambda: v2.Compose([v2.Resize(256), v2.CenterCrop(224), v2.PILToTensor()]),
    "nn.Sequential": lambda: nn.Sequential(
        v2.Resize(256), v2.CenterCrop(224), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)
    ),
    **{f"timm {model}": partial(timm_eval, model) for model in TIMM_MODELS},
}
TRAINING: dict[str, Callable] = {
    "torchvision reference": torchvision_train,
    "torchvision reference, ta_wide": lambda: torchvision_train(
        v1.TrivialAugmentWide(interpolation=BILINEAR), erase=0.1
    ),
    "torchvision reference, ra": lambda: torchvision_train(
        v1.RandAugment(interpolation=BILINEAR, magnitude=9)
    ),
    "torchvision reference, imagenet": lambda: torchvision_train(
        v1.AutoAugment(interpolation=BILINEAR)
    ),
    "torchvision v2, tensors": lambda: torchvision_train_v2(
        v2.TrivialAugmentWide(interpolation=BILINEAR)
    ),
    "torchvision v2, PIL": lambda: torchvision_train_v2(tensor=False),
    "pytorch/examples imagenet, train": lambda: tensor_end(
        v1.RandomResizedCrop(224), v1.RandomHorizontalFlip()
    ),
    "transfer learning, centre": lambda: tensor_end(
        v1.Resize(256), v1.CenterCrop(224), v1.RandomHorizontalFlip()
    ),
    "squashed and flipped": lambda: tensor_end(
        v1.Resize((224, 224)), v1.RandomHorizontalFlip(), v1.RandomRotation(10)
    ),
    "shorter side, random crop": lambda: tensor_end(
        v1.Resize(256), v1.RandomCrop(224), v1.RandomHorizontalFlip()
    ),
    "not square": lambda: tensor_end(
        v1.RandomResizedCrop((96, 160), ratio=(1.0, 2.0)), v1.RandomVerticalFlip(0.3)
    ),
    "CIFAR": lambda: v1.Compose(
        [v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), v1.ToTensor(), CIFAR]
    ),
    "CIFAR, flip first": lambda: v1.Compose(
        [v1.RandomHorizontalFlip(), v1.RandomCrop(32, 4), v1.ToTensor(), CIFAR]
    ),
    "CIFAR, rotated": lambda: v1.Compose(
        [
            v1.RandomCrop(32, padding=4),
            v1.RandomHorizontalFlip(),
            v1.RandomRotation(15),
            v1.ToTensor(),
        ]
    ),
    "CIFAR, erased": lambda: v1.Compose(
        [
            v1.RandomCrop(32, padding=4),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            CIFAR,
            v1.RandomErasing(0.5, value=0),
        ]
    ),
    "padded if needed": lambda: tensor_end(v1.RandomCrop(400, pad_if_needed=True)),
    "reflected padding": lambda: tensor_end(v1.RandomCrop(32, padding=4, padding_mode="reflect")),
    "white padding": lambda: tensor_end(v1.RandomCrop(32, padding=4, fill=255)),
    "padded on two sides": lambda: tensor_end(
        v1.RandomCrop(40, padding=(4, 0)), v1.RandomHorizontalFlip()
    ),
    "padded on one side, v2": lambda: v2.Compose(
        [v2.RandomCrop(40, padding=(0, 6, 0, 20)), v2.ToImage()]
    ),
    "grey": lambda: tensor_end(v1.RandomResizedCrop(224), v1.Grayscale(3)),
    "SimCLR": simclr,
    "MoCo v2": moco_v2,
    "DINO, local": dino_local,
    "flip, then the centre": lambda: tensor_end(
        v1.RandomHorizontalFlip(), v1.Resize(120), v1.CenterCrop(111)
    ),
    "one operation each": lambda: tensor_end(
        v1.RandomResizedCrop(224),
        v1.RandomPosterize(3, 0.4),
        v1.RandomInvert(0.3),
        v1.RandomAutocontrast(),
        v1.RandomEqualize(),
        v1.RandomAdjustSharpness(1.5, 0.7),
    ),
    "applied at random": lambda: tensor_end(
        v1.RandomResizedCrop(224),
        v1.RandomApply([v1.RandomSolarize(128, 0.5)], 0.4),
        v1.RandomApply([v1.Grayscale(3)], 0.3),
    ),
    "BYOL, second view": lambda: tensor_end(
        v1.RandomResizedCrop(224),
        v1.RandomHorizontalFlip(),
        v1.RandomSolarize(threshold=127.2, p=0.2),
    ),
    "two resizings": lambda: tensor_end(v1.Resize(256), v1.RandomResizedCrop(224)),
    "rotated before the crop": lambda: tensor_end(
        v1.RandomHorizontalFlip(),
        v1.RandomRotation(30, BICUBIC),
        v1.RandomApply([v1.RandomPerspective(0.3)], 0.5),
        v1.Resize(256),
        v1.CenterCrop(224),
        v1.RandomVerticalFlip(),
    ),
    "affine after a Resize": lambda: tensor_end(
        v1.Resize((64, 48)), v1.RandomAffine(10, (0.1, 0.1)), v1.ColorJitter(0.3)
    ),
    "timm": timm_train,
    "timm, jitter and erasing": partial(timm_train, color_jitter=0.4, re_prob=0.25),
    "timm, random interpolation": partial(timm_train, interpolation="random"),
    "timm, both flips": partial(timm_train, vflip=0.5, interpolation="bilinear"),
}


class GaussianBlur:
    """MoCo's own."""

    def __init__(self):
        self.sigma = self.kernel_size = (3, 3)


# with the beginning of what is named
REFUSED: dict[str, tuple[Callable, str]] = {
    "timm's AugMix": (partial(timm_train, auto_augment="augmix-m5"), "AugMixAugment"),
    "Lambda": (lambda: tensor_end(v1.CenterCrop(224), v1.Lambda(lambda image: image)), "Lambda"),
    "AugMix": (lambda: torchvision_train(v1.AugMix()), "AugMix"),
    "erasing with a color": (
        lambda: v1.Compose(
            [v1.RandomResizedCrop(224), v1.ToTensor(), v1.RandomErasing(value=(1.0, 0.5, 0.0))]
        ),
        "RandomErasing",
    ),
    "bicubic rotation": (
        lambda: tensor_end(v1.RandomResizedCrop(224), v1.RandomRotation(15, BICUBIC)),
        "RandomRotation",
    ),
    "RandomAffine": (
        lambda: tensor_end(v1.RandomResizedCrop(224), v1.RandomAffine(10)),
        "RandomAffine",
    ),
    "augmented floats": (
        lambda: v1.Compose(
            [v1.RandomResizedCrop(224), v1.ToTensor(), v1.ColorJitter(0.4), v1.Normalize(MEAN, STD)]
        ),
        "ColorJitter",
    ),
    "flip after rotation": (
        lambda: tensor_end(
            v1.RandomResizedCrop(224), v1.RandomRotation(15), v1.RandomHorizontalFlip()
        ),
        "RandomHorizontalFlip",
    ),
    "lopsided jitter": (
        lambda: tensor_end(v1.RandomResizedCrop(224), v1.ColorJitter((0.5, 1.0))),
        "ColorJitter",
    ),
    "policy of CIFAR": (
        lambda: tensor_end(v1.CenterCrop(32), v1.AutoAugment(v1.AutoAugmentPolicy.CIFAR10)),
        "AutoAugment",
    ),
    "flips on both sides of the centre": (
        lambda: tensor_end(v1.RandomHorizontalFlip(), v1.CenterCrop(32), v1.RandomVerticalFlip()),
        "RandomVerticalFlip",
    ),
    "a blur of one's own": (
        lambda: tensor_end(v1.CenterCrop(32), v1.RandomApply([GaussianBlur()])),
        "RandomApply",
    ),
    "a function": (
        lambda: v1.Compose([v1.CenterCrop(224), v1.ToTensor(), torch.flatten]),
        "flatten",
    ),
    "a subclass": (lambda: tensor_end(Sharpened(256), v1.CenterCrop(224)), "Sharpened"),
    "Grayscale(1), then Normalize of three numbers": (
        lambda: tensor_end(v1.RandomResizedCrop(224), v1.Grayscale()),
        "Normalize",
    ),
    "Resize without crop": (lambda: tensor_end(v1.Resize(256)), "Resize(256)"),
    "erasing before Normalize": (
        lambda: v1.Compose(
            [v1.RandomResizedCrop(224), v1.ToTensor(), v1.RandomErasing(), v1.Normalize(MEAN, STD)]
        ),
        "Normalize",
    ),
    "no ToTensor": (lambda: v1.Compose([v1.RandomResizedCrop(224)]), "the transform"),
    "aliased": (
        lambda: v2.Compose([v2.ToImage(), v2.Resize(256, antialias=False), v2.CenterCrop(224)]),
        "Resize",
    ),
    "floats of PIL": (
        lambda: v2.Compose([v2.CenterCrop(32), v2.ToDtype(torch.float32, scale=True)]),
        "ToDtype",
    ),
    "jitter after erasing": (
        lambda: v2.Compose(
            [v2.RandomResizedCrop(32), v2.ToImage(), v2.RandomErasing(), v2.ColorJitter(0.5)]
        ),
        "ColorJitter",
    ),
    "lopsided padding after a flip": (
        lambda: v2.Compose(
            [v2.RandomHorizontalFlip(), v2.RandomCrop(32, padding=(1, 2, 3, 4)), v2.ToImage()]
        ),
        "RandomCrop",
    ),
    "timm's border": (
        lambda: __import__("timm").data.create_transform(224, crop_mode="border"),
        "ResizeKeepRatio",
    ),
}
