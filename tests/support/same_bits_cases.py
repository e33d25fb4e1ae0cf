"""The cases of `same_bits.py`: loaders as plain data, so that they can be made by an older and by a
newer dali_pipes, of which one may lack a name.

Each option is changed alone, and `draw_cases` makes some loaders of many options at once.
"""

import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Made:
    """A public object of dali_pipes: the name of its class, and its arguments."""

    name: str
    options: Mapping[str, Any]


def made(name: str, **options: Any) -> Made:
    return Made(name, options)


@dataclass(frozen=True)
class Case:
    """A loader, of which the first batches are compared.

    Attributes:
        source: a name in `SOURCES` of same_bits_images.py.
        options: of `build_loader`.
        epoch: the first one; of each of `epochs` the first `batches` are taken.
        resume_by: the config of another loader, which goes on from the state after one batch.
    """

    source: str
    transform: Made
    config: Made
    options: Mapping[str, Any] = field(default_factory=dict)
    epoch: int = 0
    epochs: int = 1
    batches: int = 3
    resume_by: Made | None = None


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


# what is made of the photos, on two loaders and a third one in turn
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
    "train, enlarged": train(size=(150, 170)),
    "train, enlarged, bicubic": train(size=150, interpolation="bicubic"),
    "train, enlarged, plain": train(size=150, antialias=False),
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
        function("draw_from_numpy"),
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
    "timm, weights": [policy("TimmRandAugment", config="rand-m9-n3-p1-tweights", fill=0)],
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
    "function of batches that draws": [function("draw_for_batches", per="batch")],
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


def list_cases() -> dict[str, Case]:
    """All cases by their names."""
    cases = {}
    for name, case in (
        *transform_cases(),
        *augment_cases(),
        *image_cases(),
        *form_cases(),
        *order_cases(),
        *target_cases(),
        *draw_cases(100),
    ):
        assert name not in cases, name
        seed = {"seed": zlib.crc32(name.encode()) % 1000} if "seed" not in case.options else {}
        cases[name] = Case(**{**vars(case), "options": {**case.options, **seed}})
    return cases


Named = Iterator[tuple[str, Case]]


def on(loaders: Sequence[str], name: str, source: str, transform: Made, **fields: Any) -> Named:
    for loader in loaders:
        yield f"{name} / {loader}", Case(source, transform, LOADERS[loader], **fields)


def transform_cases() -> Named:
    """Each transform, and each step before one."""
    for number, (name, transform) in enumerate(TRANSFORMS.items()):
        third = ALL[2 + number % (len(ALL) - 2)]
        source = "orientations" if name == "upright" else "photos"
        yield from on((*TWO, third), name, source, transform)
    for number, (name, steps) in enumerate(STEPS.items()):
        yield from on((ALL[number % 2],), f"before: {name}", "photos", train(before=steps))
        yield from on(
            ("workers",) * (number % 5 == 0), f"before: {name}", "photos", train(before=steps)
        )


def augment_cases() -> Named:
    for number, (name, policies) in enumerate(AUGMENTS.items()):
        third = ("workers", "sent bytes", "bytes here", "dali whole", "torchvision")[number % 5]
        loaders = (*TWO, third) if number % 3 == 0 else TWO
        yield from on(loaders, f"augment: {name}", "photos", augmented(*policies))
        if name in IN_GRAPH:
            yield from on(("graph",), f"augment: {name}", "photos", augmented(*policies))
        if name in GRAY_AUGMENTS:
            yield from on(TWO, f"augment: {name}, gray", "photos", augmented(*policies, **GRAY))


def image_cases() -> Named:
    """Every kind and size of files on every loader."""
    stored = made("EvalTransform", size=60, resize=None, pad_if_needed=True, dtype="uint8")
    for source in ("kinds", "sizes", "orientations"):
        yield from on(ALL, f"{source}, train", source, train(vertical_flip=0.5))
    for source in ("kinds", "sizes", "orientations"):
        yield from on(ALL[:4], f"{source}, stored", source, stored)
        yield from on(TWO, f"{source}, gray", source, train(**GRAY))
        yield from on(TWO, f"{source}, bicubic", source, train(interpolation="bicubic"))
        yield from on(TWO, f"{source}, plain", source, train(antialias=False))
        yield from on(TWO, f"{source}, padded", source, crop(size=50, padding=30))
        yield from on(TWO, f"{source}, upright", source, crop(exif="apply"))
        yield from on(TWO, f"{source}, augmented", source, augmented("TrivialAugmentWide"))
    yield from on(ALL, "orientations, upright, train", "orientations", train(exif="apply"))
    yield from on(ALL[:4], "shards", "shards", train())

    for loader in ("dali", "torch", "workers"):
        for name, transform in {
            "train": train(**OWN),
            "bicubic": train(interpolation="bicubic", dtype="fp16"),
            "padded": crop(size=50, padding=60),
            "gray": train(**GRAY),
            "upright": made("EvalTransform", size=40, resize=50, exif="apply"),
            "erasing": augmented(policy("TimmRandomErasing", p=0.8)),
        }.items():
            yield from on((loader,), f"16 bits, {name}", "wide", transform)


def form_cases() -> Named:
    """Dtypes and memory formats."""
    formats = ("contiguous", "channels_last")
    for number, loader in enumerate(ALL):
        for dtype in ("fp32", "fp16", "bf16", "uint8"):
            for at, memory_format in enumerate(formats):
                if number < 4 or (number + at) % 2:
                    form = {"dtype": dtype, "memory_format": memory_format}
                    transform = augmented("TrivialAugmentWide", "RandomErasing", **form)
                    name = f"{dtype}, {memory_format}"
                    yield from on((loader,), name, "photos", transform)
    for dtype in ("fp16", "bf16", "uint8"):
        views = {"a": {"count": 2, "size": 32}, "b": {"size": 20}}
        form = {"dtype": dtype, "memory_format": "channels_last"}
        yield from on(TWO, f"{dtype}, views", "photos", made("ViewsTransform", views=views, **form))
        yield from on(TWO, f"{dtype}, gray", "photos", train(**GRAY, **form))
        some = made("ShortestSizeTransform", min_size=[40, 48], max_size=90, **form)
        yield from on(TWO, f"{dtype}, padded batches", "photos", some)


def order_cases() -> Named:
    """Samplings, ranks, sizes that grow, a resume, bad images, and mixing."""
    growing = train(sizes={0: 32, 1: 48})
    yield from on(ALL[:5], "growing sizes", "photos", growing, epochs=2, batches=2)
    yield from on(TWO, "second epoch", "photos", train(), epoch=3, epochs=2)
    for name, options in {
        "batches of one": {"batch_size": 1},
        "one batch": {"batch_size": 64},
        "dropped": {"batch_size": 9, "last_batch": "drop"},
        "rank 1 of 3, padded": {"rank": made("Rank", index=1, count=3), "last_batch": "pad"},
        "rank 2 of 3, even": {"rank": made("Rank", index=2, count=3), "last_batch": "even"},
        "in order": {"shuffle": False},
        "balanced": {"sampling": "balanced"},
        "repeated": {"sampling": policy("repeated", times=3)},
        "per class": {"sampling": policy("per_class", classes=2, samples=4)},
    }.items():
        options = {"batch_size": 4, **options}
        yield from on((*TWO, "workers"), name, "photos", train(), options=options)
    windows = {"sampling": policy("windows", lanes=2)}
    yield from on(TWO, "windows of shards", "shards", train(), options=windows)

    for first, second in (("dali", "torch"), ("torch", "dali"), ("workers", "graph")):
        case = Case("photos", train(), LOADERS[first], resume_by=LOADERS[second])
        yield f"resumed / {first}, {second}", case
    other = {"on_bad_sample": "substitute", "max_bad_fraction": 0.5}
    yield from on(ALL[:6], "bad images", "broken", train(), options=other)

    mix = {name: made(name, num_classes=3) for name in ("MixUp", "CutMix")}
    mix["RandomChoice"] = made("RandomChoice", transforms=list(mix.values()))
    for name, transform in mix.items():
        for dtype in ("fp32", "uint8"):
            options = {"batch_transform": transform}
            yield from on(TWO, f"{name}, {dtype}", "photos", train(dtype=dtype), options=options)
    options = {"batch_transform": mix["MixUp"], "sampling": policy("repeated", times=3)}
    yield from on(TWO, "MixUp of repeated images", "photos", train(), options=options)


def target_cases() -> Named:
    """Boxes, keypoints, masks and texts, which move as their images do."""
    moves = [policy("RandAugment", num_ops=2, magnitude=25), policy("RandomRotation", degrees=30)]
    transforms = {
        "train": train(scale=(0.3, 1.0), vertical_flip=0.5),
        "moved": augmented(*moves, scale=(0.3, 1.0)),
        "moved by timm": augmented("TimmRandAugment", scale=(0.5, 1.0)),
        "moved by a function": augmented(
            function("move_right", draws=1, geometry="own_functions:moves_right")
        ),
        "padded": crop(size=60, padding=40, ignore_index=200),
        "upright": crop(size=60, resize=70, exif="apply", mask_interpolation="nearest"),
        "evaluation": made("EvalTransform", size=44, resize=50, mask_interpolation="pillow"),
        "letterbox": made("LetterboxTransform", size=64, min_box_size=6),
        "shortest size": made("ShortestSizeTransform", min_size=[40, 56], max_size=90),
        "scale jitter": made("ScaleJitterTransform", size=64),
    }
    for source in ("painted", "coco", "masks"):
        for name, transform in transforms.items():
            yield from on(TWO, f"{source}, {name}", source, transform)
        yield from on(("graph", "workers"), f"{source}, train", source, transforms["train"])
        yield from on(("workers",), f"{source}, moved", source, transforms["moved"])
    for source in ("painted", "coco"):
        yield from on(
            TWO, f"{source}, crop around boxes", source, made("IoUCropTransform", size=50)
        )
    yield from on(TWO, "numbers", "numbers", train())


def draw_cases(count: int) -> Named:
    """Loaders of many options at once, the same ones in every run."""
    rng = random.Random(7)
    for number in range(count):
        options: dict[str, Any] = {
            "size": rng.choice([24, 40, (33, 50), (64, 21), 90]),
            "interpolation": rng.choice(["bilinear", "bilinear", "bicubic", "nearest-exact"]),
            "dtype": rng.choice(["fp32", "fp16", "bf16", "uint8"]),
            "memory_format": rng.choice(["contiguous", "channels_last"]),
            "exif": rng.choice(["ignore", "apply"]),
            "flip": rng.choice([0.0, 0.5, 1.0]),
            "vertical_flip": rng.choice([0.0, 0.5]),
        }
        options["antialias"] = options["interpolation"] != "bilinear" or rng.random() < 0.7
        names = (
            list(AUGMENTS)
            if options["dtype"] != "uint8"
            else [
                name
                for name in AUGMENTS
                if "normalized" not in name and "timm's" not in name and name != "much"
            ]
        )
        options["augment"] = AUGMENTS[rng.choice(names)] if rng.random() < 0.6 else []
        options["before"] = STEPS[rng.choice(list(STEPS))] if rng.random() < 0.25 else []
        transform = rng.choice([train(), crop(padding=rng.choice([0, 9]))])
        transform = made(transform.name, **{**transform.options, **options})
        loaders = [name for name in ALL if name != "graph" or not (options["before"])]
        source = rng.choice(["photos", "kinds", "sizes", "orientations"])
        loader_options = {"batch_size": rng.choice([3, 7, 13])}
        yield from on(
            (rng.choice(loaders),), f"drawn {number}", source, transform, options=loader_options
        )
