"""The cases of `same_bits.py`, by their names.

Each option is changed alone, on the loaders in turn, and `draw_cases` makes some loaders of many
options at once.
"""

import random
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from same_bits_options import (
    ALL,
    AUGMENTS,
    GRAY,
    GRAY_AUGMENTS,
    IN_GRAPH,
    LOADERS,
    OWN,
    STEPS,
    TRANSFORMS,
    TWO,
    Made,
    augmented,
    crop,
    function,
    made,
    policy,
    train,
)


@dataclass(frozen=True)
class Case:
    """A loader, of which the first batches are compared.

    Attributes:
        source: a name in `SOURCES` of same_bits_images.py.
        transform: None: the source has its own.
        options: of `build_loader` or `from_torch`.
        epoch: the first one; of each of `epochs` the first `batches` are taken.
        resume_by: the config of another loader, which goes on from the state after one batch.
    """

    source: str
    transform: Made | None
    config: Made
    options: Mapping[str, Any] = field(default_factory=dict)
    epoch: int = 0
    epochs: int = 1
    batches: int = 3
    resume_by: Made | None = None


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
        *program_cases(),
        *draw_cases(50),
    ):
        assert name not in cases, name
        seed = {"seed": zlib.crc32(name.encode()) % 1000} if "seed" not in case.options else {}
        cases[name] = Case(**{**vars(case), "options": {**case.options, **seed}})
    return cases


Named = Iterator[tuple[str, Case]]


def on(
    loaders: Iterable[str], name: str, source: str, transform: Made | None, **fields: Any
) -> Named:
    for loader in loaders:
        yield f"{name} / {loader}", Case(source, transform, LOADERS[loader], **fields)


def in_turn(number: int) -> tuple[str, ...]:
    """DALI or PyTorch in this process; every second time both, and every fifth time another one."""
    few = TWO if number % 2 else (TWO[number // 2 % 2],)
    return (*few, ALL[2 + number // 5 % (len(ALL) - 2)]) if number % 5 == 0 else few


def transform_cases() -> Named:
    """Each transform, and each step before one."""
    for number, (name, transform) in enumerate(TRANSFORMS.items()):
        source = "orientations" if name == "upright" else "photos"
        yield from on(in_turn(number), name, source, transform)
    for number, (name, steps) in enumerate(STEPS.items()):
        loaders = (TWO[number % 2], "workers") if number % 5 == 0 else (TWO[number % 2],)
        yield from on(loaders, f"before: {name}", "photos", train(before=steps))
    drawing = train(before=[function("draw_from_numpy")])  # not in DALI's threads
    yield from on(("torch", "workers"), "before: function that draws", "photos", drawing)


def augment_cases() -> Named:
    for number, (name, policies) in enumerate(AUGMENTS.items()):
        loaders = [*in_turn(number), *["graph"] * (name in IN_GRAPH)]
        yield from on(dict.fromkeys(loaders), f"augment: {name}", "photos", augmented(*policies))
        if name in GRAY_AUGMENTS:
            gray = augmented(*policies, **GRAY)
            yield from on((TWO[number % 2],), f"augment: {name}, gray", "photos", gray)


def image_cases() -> Named:
    """Every kind and size of files."""
    for source in ("kinds", "sizes", "orientations"):
        yield from on(ALL[:5], f"{source}, train", source, train(vertical_flip=0.5))
        for number, (name, transform) in enumerate(
            {
                "stored": made(
                    "EvalTransform", size=60, resize=None, pad_if_needed=True, dtype="uint8"
                ),
                "gray": train(**GRAY),
                "bicubic": train(interpolation="bicubic"),
                "plain": train(antialias=False),
                "padded": crop(size=50, padding=30),
                "upright": crop(exif="apply"),
                "augmented": augmented("TrivialAugmentWide"),
            }.items()
        ):
            loaders = TWO if name in ("stored", "padded") else (TWO[number % 2],)
            yield from on(loaders, f"{source}, {name}", source, transform)
    yield from on(ALL, "orientations, upright, train", "orientations", train(exif="apply"))
    yield from on(ALL[:4], "shards", "shards", train())

    for name, transform in {
        "train": train(**OWN),
        "bicubic": train(interpolation="bicubic", dtype="fp16"),
        "padded": crop(size=50, padding=60),
        "gray": train(**GRAY),
        "upright": made("EvalTransform", size=40, resize=50, exif="apply"),
        "erasing": augmented(policy("TimmRandomErasing", p=0.8)),
    }.items():
        yield from on(TWO, f"16 bits, {name}", "wide", transform)
    yield from on(("workers", "sent bytes"), "16 bits, train", "wide", train(**OWN))


def form_cases() -> Named:
    """Dtypes and memory formats."""
    formats = ("contiguous", "channels_last")
    for number, loader in enumerate(ALL):
        for at, dtype in enumerate(("fp32", "fp16", "bf16", "uint8")):
            for memory_format in formats if number < 2 else formats[(number + at) % 2 :][:1]:
                form = {"dtype": dtype, "memory_format": memory_format}
                transform = augmented("TrivialAugmentWide", "RandomErasing", **form)
                yield from on((loader,), f"{dtype}, {memory_format}", "photos", transform)
    for at, dtype in enumerate(("fp16", "bf16", "uint8")):
        views = {"a": {"count": 2, "size": 32}, "b": {"size": 20}}
        form = {"dtype": dtype, "memory_format": "channels_last"}
        yield from on(TWO, f"{dtype}, views", "photos", made("ViewsTransform", views=views, **form))
        yield from on((TWO[at % 2],), f"{dtype}, gray", "photos", train(**GRAY, **form))
        some = made("ShortestSizeTransform", min_size=[40, 48], max_size=90, **form)
        yield from on((TWO[at % 2],), f"{dtype}, padded batches", "photos", some)


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
        "per class": {"sampling": policy("per_class", classes=2, samples=4), "batch_size": 8},
    }.items():
        options = {"batch_size": 4, **options}
        yield from on(TWO, name, "photos", train(), options=options)
    windows = {"sampling": policy("windows", lanes=2)}
    yield from on(TWO, "windows of shards", "shards", train(), options=windows)

    for first, second in (("dali", "torch"), ("torch", "dali"), ("workers", "graph")):
        case = Case("photos", train(), LOADERS[first], resume_by=LOADERS[second])
        yield f"resumed / {first}, {second}", case
    other = {"on_bad_sample": "substitute", "max_bad_fraction": 0.5}
    yield from on(ALL[:5], "bad images", "broken", train(), options=other)

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
        for number, (name, transform) in enumerate(transforms.items()):
            yield from on((TWO[number % 2],), f"{source}, {name}", source, transform)
        yield from on(("torch", "graph"), f"{source}, train", source, transforms["train"])
        yield from on(("dali", "workers"), f"{source}, moved", source, transforms["moved"])
    for source in ("painted", "coco"):
        yield from on(
            TWO, f"{source}, crop around boxes", source, made("IoUCropTransform", size=50)
        )
    yield from on(TWO, "numbers", "numbers", train())


def program_cases() -> Named:
    """Data sets of programs, for `from_torch`."""
    for source in ("pairs", "pairs, evaluation"):
        yield from on((*TWO, "workers"), source, source, None)


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
