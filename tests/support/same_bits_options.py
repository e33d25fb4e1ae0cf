"""What the loaders of `same_bits.py` are made of, as plain data: configs, transforms, steps and
policies. An older and a newer dali_pipes make objects of them, of which one may lack a name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Made:
    """A public object of dali_pipes: the name of its class, and its arguments."""

    name: str
    options: Mapping[str, Any]


def made(name: str, **options: Any) -> Made:
    return Made(name, options)


CPU = {"device": "cpu", "num_threads": 2}
LOADERS = {
    "dali": made("DaliConfig", **CPU),
    "torch": made("TorchConfig", num_workers=0),
    "graph": made("DaliConfig", **CPU, resize="dali"),
    "torchvision": made("TorchConfig", num_workers=0, decoder="torchvision"),
    "workers": made("TorchConfig", num_workers=2),
    "sent bytes": made("TorchConfig", num_workers=2, normalize_on="device"),
    "dali whole": made("DaliConfig", **CPU, decode="whole"),
    "bytes here": made("TorchConfig", num_workers=0, normalize_on="device"),
    "dali, one thread": made("DaliConfig", device="cpu", num_threads=1, prefetch_queue_depth=1),
}
TWO = ("dali", "torch")
ALL = tuple(LOADERS)
OWN = {"mean": (0.4, 0.5, 0.3), "std": (0.2, 0.3, 0.25)}
GRAY = {"channels": 1, "mean": [0.45], "std": [0.22]}


def train(**options: Any) -> Made:
    return made("TrainTransform", **{"size": 40, **options})


def crop(**options: Any) -> Made:
    return made("RandomCropTransform", **{"size": 40, "pad_if_needed": True, **options})


def augmented(*policies: Any, **options: Any) -> Made:
    return train(augment=list(policies), **options)


def policy(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, **options}


def function(name: str, **options: Any) -> dict[str, Any]:
    return policy("Augment", function=f"own_functions:{name}", **options)


# what is made of the photos
TRANSFORMS = {
    "train": train(),
    "train, no flip": train(flip=0.0),
    "train, always flipped": train(flip=1.0, vertical_flip=1.0),
    "train, vertical flips": train(flip=0.0, vertical_flip=0.5),
    "train, both flips": train(size=(37, 50), vertical_flip=0.5),
    "train, own mean": train(**OWN),
    "train, bicubic": train(interpolation="bicubic"),
    "train, nearest": train(interpolation="nearest-exact"),
    "train, random interpolation": train(interpolation="random"),
    "train, plain": train(antialias=False),
    "train, small": train(size=9),
    "train, one row": train(size=(1, 30)),
    "train, enlarged": train(size=(96, 110)),
    "train, enlarged, bicubic": train(size=100, interpolation="bicubic"),
    "train, enlarged, plain": train(size=100, antialias=False),
    "train, small regions": train(scale=(0.001, 0.02), ratio=(0.1, 10.0)),
    "train, whole images": train(scale=(1.0, 1.0), ratio=(0.5, 2.0)),
    "train, no region fits": train(scale=(3.0, 4.0), ratio=(1.0, 1.0)),
    "evaluation": made("EvalTransform", size=44, resize=50),
    "evaluation, bicubic": made("EvalTransform", size=44, resize=50, interpolation="bicubic"),
    "evaluation, nearest": made("EvalTransform", size=44, resize=50, interpolation="nearest-exact"),
    "evaluation, plain": made("EvalTransform", size=44, resize=50, antialias=False),
    "evaluation, no resize": made("EvalTransform", size=64, resize=None, pad_if_needed=True),
    "evaluation, no crop": made("EvalTransform", size=(40, 56), resize=(40, 56)),
    "evaluation, both sides": made("EvalTransform", size=40, resize=(45, 60)),
    "evaluation, padded": made("EvalTransform", size=(60, 75), resize=50, pad_if_needed=True),
    "center crop": made("CenterCropTransform", size=39, resize=48),
    "center crop, flip before": made(
        "CenterCropTransform", size=39, resize=48, flip_before_crop=True, vertical_flip=0.5
    ),
    "center crop, no resize": made("CenterCropTransform", size=55, resize=None),
    "random crop": crop(),
    "random crop, resized": crop(resize=52),
    "random crop, both sides": crop(resize=(45, 60), vertical_flip=0.5),
    "random crop, padding": crop(size=48, resize=(44, 44), padding=6),
    "random crop, four paddings": crop(padding=(1, 20, 30, 4), vertical_flip=0.3),
    "random crop, larger than images": crop(size=(130, 140)),
    "random crop, outside": crop(padding=60),
    "random crop, no crop": crop(size=(40, 50), resize=(40, 50)),
    "letterbox": made("LetterboxTransform", size=64),
    "letterbox, enlarged": made("LetterboxTransform", size=(150, 130), vertical_flip=0.5),
    "letterbox, no flip": made("LetterboxTransform", size=(40, 64), flip=0.0),
    "shortest size": made("ShortestSizeTransform", min_size=[40, 48, 56], max_size=90),
    "shortest size, divisor": made(
        "ShortestSizeTransform",
        min_size=50,
        max_size=60,
        size_divisor=7,
        vertical_flip=0.5,
        augment=[policy("ColorJitter", brightness=0.4, saturation=0.4)],
    ),
    "scale jitter": made("ScaleJitterTransform", size=64),
    "scale jitter, enlarged": made("ScaleJitterTransform", size=(50, 64), scale=(0.8, 3.0)),
    "ten crops": made("TenCropTransform", size=32, resize=44),
    "ten crops, vertical": made("TenCropTransform", size=(32, 20), resize=41, vertical_flip=True),
    "five crops": made("TenCropTransform", size=32, resize=(44, 51), mirrored=False),
    "ten crops, no resize": made("TenCropTransform", size=33, resize=None),
    "views": made(
        "ViewsTransform",
        views={"large": {"count": 2, "size": 40}, "small": {"count": 3, "size": 24}},
    ),
    "views, each its own": made(
        "ViewsTransform",
        vertical_flip=0.3,
        views={
            "global": [
                {
                    "size": 40,
                    "scale": (0.4, 1.0),
                    "augment": [policy("GaussianBlur", kernel_size=5)],
                },
                {"size": 40, "interpolation": "bicubic", "augment": ["RandomSolarize"]},
            ],
            "local": {"count": 2, "size": (20, 24), "scale": (0.05, 0.3), "flip": 0.0},
            "plain": {"size": 40, "before": [policy("RandomRotation", degrees=20)]},
        },
        augment=["TrivialAugmentWide"],
    ),
    "views, gray": made("ViewsTransform", views={"a": {"count": 2, "size": 32}}, **GRAY),
    "gray": train(**GRAY),
    "gray, bicubic": train(**GRAY, interpolation="bicubic"),
    "gray, evaluation": made("EvalTransform", size=44, resize=50, **GRAY),
    "upright": train(exif="apply"),
}

STEPS: dict[str, list[Any]] = {
    **{
        f"pad, {mode}": [policy("Pad", padding=(3, 9, 14, 1), padding_mode=mode, fill=(9, 99, 200))]
        for mode in ("constant", "edge", "reflect", "symmetric")
    },
    "pad, min size": [policy("Pad", min_size=(90, 120), missing="halved", fill=30)],
    "pad, twice": [policy("Pad", min_size=110, padding=2, p=0.5)],
    "resize": [policy("Resize", size=50)],
    "resize, bicubic": [policy("Resize", size=(50, 81), interpolation="bicubic")],
    "resize, nearest": [policy("Resize", size=50, interpolation="nearest")],
    "resize, longer side": [policy("Resize", size=150, side="longer", rounding="nearest")],
    "resize, plain": [policy("Resize", size=(41, 150), antialias=False)],
    "resize, plain bicubic": [
        policy("Resize", size=55, antialias=False, interpolation="bicubic", rounding="nearest")
    ],
    **{
        f"rotation, {how}": [policy("RandomRotation", degrees=30, interpolation=how)]
        for how in ("nearest", "bilinear", "bicubic")
    },
    "rotation, expand": [
        policy("RandomRotation", degrees=(-90, 45), expand=True, fill=(255, 1, 60))
    ],
    "rotation, center": [policy("RandomRotation", degrees=60, center=(10, 12.5), p=0.7)],
    **{
        f"affine, {how}": [
            policy(
                "RandomAffine",
                degrees=20,
                translate=(0.2, 0.1),
                scale=(0.7, 1.4),
                shear=(-10, 10, -5, 5),
                interpolation=how,
                fill=77,
            )
        ]
        for how in ("nearest", "bilinear", "bicubic")
    },
    "perspective": [policy("RandomPerspective", p=0.8)],
    "perspective, bicubic": [
        policy("RandomPerspective", distortion_scale=0.9, interpolation="bicubic", fill=200)
    ],
    "flips": ["RandomHorizontalFlip", policy("RandomVerticalFlip", p=0.3)],
    "turns": ["RandomRotate90", "Transpose"],
    "sized crop": [policy("RandomSizedCrop", min_max_height=(20, 45), w2h_ratio=1.2)],
    "function": [function("brighten", draws=2)],
    "many": [
        policy("Resize", size=70),
        policy("RandomRotation", degrees=15, expand=True),
        function("brighten", draws=2),
        policy("Pad", padding=4, padding_mode="reflect"),
        policy("RandomPerspective"),
        "RandomRotate90",
    ],
}

AUGMENTS: dict[str, list[Any]] = {
    "TrivialAugment": ["TrivialAugmentWide"],
    "TrivialAugment, two bins": [policy("TrivialAugmentWide", num_magnitude_bins=2)],
    "TrivialAugment, bilinear": [
        policy("TrivialAugmentWide", interpolation="bilinear", equalize="torchvision")
    ],
    **{
        f"RandAugment, {ops} of {magnitude}": [
            policy("RandAugment", num_ops=ops, magnitude=magnitude)
        ]
        for ops, magnitude in ((1, 0), (1, 5), (1, 30), (2, 9), (3, 15), (6, 20))
    },
    "RandAugment, bilinear": [
        policy("RandAugment", interpolation="bilinear", equalize="torchvision", magnitude=14)
    ],
    "AutoAugment": ["AutoAugment"],
    "AutoAugment, bilinear": [
        policy("AutoAugment", interpolation="bilinear", equalize="torchvision")
    ],
    **{
        f"{part} {value}": [policy("ColorJitter", **{part: value})]
        for part in ("brightness", "contrast", "saturation")
        for value in (0.3, 2.0)
    },
    "hue 0.1": [policy("ColorJitter", hue=0.1)],
    "hue 0.5": [policy("ColorJitter", hue=0.5, p=0.8)],
    "color jitter": [
        policy("ColorJitter", brightness=0.4, contrast=0.4, saturation=0.4, hue=0.2, p=0.8)
    ],
    "grayscale": [policy("RandomGrayscale", p=0.5)],
    **{
        f"solarize {threshold}": [policy("RandomSolarize", threshold=threshold)]
        for threshold in (0, 128, 256)
    },
    **{f"posterize {bits}": [policy("RandomPosterize", bits=bits)] for bits in (0, 1, 4, 7)},
    "invert": ["RandomInvert"],
    "autocontrast": ["RandomAutocontrast"],
    "equalize": ["RandomEqualize"],
    "equalize, torchvision": [policy("RandomEqualize", equalize="torchvision")],
    **{
        f"sharpness {factor}": [policy("RandomAdjustSharpness", sharpness_factor=factor, p=0.8)]
        for factor in (0.0, 0.4, 5.0)
    },
    **{
        f"blur {size}": [policy("GaussianBlur", kernel_size=size, sigma=(0.1, 3.0), p=0.8)]
        for size in (1, 3, 9, 23)
    },
    "rotation": [policy("RandomRotation", degrees=45)],
    "rotation, bilinear": [policy("RandomRotation", degrees=180, interpolation="bilinear")],
    "timm": ["TimmRandAugment"],
    "timm, bilinear": [
        policy("TimmRandAugment", config="rand-m5-n3", interpolation="bilinear", fill=(120, 9, 250))
    ],
    "timm, random interpolation": [
        policy("TimmRandAugment", config="rand-m10-n2-p1-mstdinf-inc1", interpolation="random")
    ],
    "timm, weights": [policy("TimmRandAugment", config="rand-m9-n3-p1-tweights", fill=(0, 0, 0))],
    "erasing": [policy("RandomErasing", p=0.7)],
    "erasing, wide": [policy("RandomErasing", p=1.0, scale=(0.5, 0.9), ratio=(0.1, 9.0))],
    **{
        f"erasing, timm's {mode}": [policy("TimmRandomErasing", p=0.8, mode=mode, max_count=3)]
        for mode in ("const", "rand", "pixel")
    },
    "function of bytes": [function("brighten", draws=2)],
    "function of normalized images": [function("add_noise", where="normalized")],
    "function of batches": [function("shift_batch", draws=1, per="batch")],
    "function of normalized batches": [
        function("shift_batch", draws=1, per="batch", where="normalized")
    ],
    "function that draws from torch": [function("add_bytes")],
    "function that draws from numpy": [function("draw_from_numpy")],
    "function that draws from random": [function("draw_from_random")],
    "function that moves": [function("move_right", draws=1, geometry="own_functions:moves_right")],
    "much": [
        "TrivialAugmentWide",
        policy("ColorJitter", brightness=0.3, hue=0.1),
        policy("GaussianBlur", kernel_size=3, p=0.5),
        function("brighten", draws=2),
        function("draw_from_numpy"),
        function("add_noise", where="normalized"),
        policy("TimmRandomErasing", p=0.5),
    ],
}
# what an image of one channel may have, or what has colors of its own for it
GRAY_AUGMENTS = ("TrivialAugment", "RandAugment, 3 of 15", "AutoAugment", "timm, weights", "blur 9")
GRAY_AUGMENTS += ("autocontrast", "equalize", "sharpness 5.0", "erasing, timm's pixel")
# what DALI's graph carries out by itself
IN_GRAPH = ("TrivialAugment", "RandAugment, 2 of 9", "AutoAugment", "color jitter", "blur 9")
IN_GRAPH += ("much", "erasing", "erasing, timm's rand", "timm", "rotation, bilinear", "equalize")
