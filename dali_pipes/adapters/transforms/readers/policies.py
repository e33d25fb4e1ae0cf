"""Reads steps that become policies of `augment`: colours, blur, rotation, erasing, AutoAugment."""

import math
from typing import Any

from dali_pipes.adapters.transforms.readers.common import (
    StepReader,
    check_fill,
    describe_options,
    note_policy,
)
from dali_pipes.adapters.transforms.reading import TransformReading, refuse_unless

_HUE = (
    "; hue is computed in floats, as torchvision's of tensors: that of PIL images has 8 bits, and "
    "is up to 16 of 255 from it (docs/steps.md)"
)


def make_auto_augment_reader(*names: str) -> StepReader:
    """Returns the reader of AutoAugment or one of its successors, which have these options."""

    def read(reading: TransformReading, step: Any) -> str:
        mode, reading.affine = _read_warp(step), True

        policy = getattr(step, "policy", "imagenet")
        policy = str(getattr(policy, "value", policy))
        refuse_unless(
            policy == "imagenet", "AutoAugment", f"policy={policy}", "use that of ImageNet"
        )

        options = {name: getattr(step, name) for name in names} | {"interpolation": mode}
        return note_policy(reading, step, type(step).__name__, **options, equalize="torchvision")

    return read


def _read_warp(step: Any) -> str:
    """Returns the interpolation of a step that rotates or shears, and checks its fill."""
    name, mode = type(step).__name__, str(getattr(step.interpolation, "value", step.interpolation))
    refuse_unless(
        mode in ("nearest", "bilinear"), name, f"interpolation={mode}", "use nearest or bilinear"
    )
    check_fill(step, name)
    return mode


def read_color_jitter(reading: TransformReading, step: Any) -> str:
    found = {}
    # torchvision keeps v as [max(0, 1 - v), 1 + v]
    for name in ("brightness", "contrast", "saturation"):
        low, high = getattr(step, name) or (1.0, 1.0)
        # low is max(0, 1 - v) and high is 1 + v for one v
        fits = math.isclose(low, max(0.0, 2 - high))
        refuse_unless(
            fits,
            "ColorJitter",
            f"{name} is drawn from [{low}, {high}]",
            "ours is drawn from [max(0, 1 - v), 1 + v]",
        )
        found[name] = float(high) - 1

    low, high = step.hue or (0.0, 0.0)
    refuse_unless(
        math.isclose(low, -high),
        "ColorJitter",
        f"hue is drawn from [{low}, {high}]",
        "ours is drawn from [-hue, hue]",
    )
    # rounded, since high - 1 has the rounding error of 1 + v
    found = {
        name: round(value, 12) for name, value in (found | {"hue": float(high)}).items() if value
    }
    gray = ""
    if reading.channels == 1 and found.keys() & {"saturation", "hue"}:
        found = {name: found[name] for name in ("brightness", "contrast") if name in found}
        gray = "; saturation and hue leave gray images as they are"

    if not found:
        return f"nothing: it changes nothing{gray}"
    note = _HUE * ("hue" in found and not reading.tensor)
    return note_policy(reading, step, "ColorJitter", **found) + gray + note


def read_grayscale(reading: TransformReading, step: Any) -> str:
    if step.num_output_channels == 1:
        return _note_one_channel(reading)
    refuse_unless(
        reading.channels == 3,
        "Grayscale(3)",
        "images of one channel reach it",
        "leave out what makes them so",
    )
    return note_policy(reading, step, "RandomGrayscale", p=1.0)


def _note_one_channel(reading: TransformReading) -> str:
    """Reads Grayscale(1), which a plan has before all other steps.

    After geometry, ToTensor or ToImage it differs by rounding, and after anything else by more.
    """
    name = "Grayscale(1)"
    if reading.channels == 1:
        return "nothing: images have one channel already"
    refuse_unless(
        reading.applied == 1,
        name,
        "RandomApply leaves some images in three channels",
        "use RandomGrayscale or Grayscale(3)",
    )
    steps = [each for each in reading.before if not isinstance(each, dict)] + reading.augment
    changed = steps or reading.normalized or reading.erased
    fills = [each.get("fill") or (0, 0, 0) for each in reading.before if isinstance(each, dict)]
    refuse_unless(
        not changed and all(len(set(fill)) == 1 for fill in fills),
        name,
        "steps that change colours come before it, and a plan makes images gray first",
        "make it the first step if your training may change so (1 line)",
    )

    reading.channels = 1
    sized = reading.crop or reading.resize is not None or reading.flips
    first = not (sized or reading.before or reading.tensor)
    return "channels=1" if first else "channels=1, first, which differs by rounding"


def read_random_grayscale(reading: TransformReading, step: Any) -> str:
    if reading.channels == 1:
        return "nothing: images have one channel already"
    return note_policy(reading, step, "RandomGrayscale", p=float(step.p))


def read_solarize(reading: TransformReading, step: Any) -> str:
    # values from the threshold on are inverted, and values are whole numbers from 0 to 255
    threshold = min(max(math.ceil(step.threshold), 0), 256)
    return note_policy(reading, step, "RandomSolarize", threshold=threshold, p=float(step.p))


def read_posterize(reading: TransformReading, step: Any) -> str:
    return note_policy(reading, step, "RandomPosterize", bits=int(step.bits), p=float(step.p))


def read_sharpness(reading: TransformReading, step: Any) -> str:
    factor = float(step.sharpness_factor)
    return note_policy(
        reading, step, "RandomAdjustSharpness", sharpness_factor=factor, p=float(step.p)
    )


def read_equalize(reading: TransformReading, step: Any) -> str:
    return note_policy(reading, step, "RandomEqualize", p=float(step.p), equalize="torchvision")


def read_chance(reading: TransformReading, step: Any) -> str:
    """Reads an operation that has no option but its probability."""
    return note_policy(reading, step, type(step).__name__, p=float(step.p))


def read_blur(reading: TransformReading, step: Any) -> str:
    kernel = set(step.kernel_size)
    refuse_unless(
        len(kernel) == 1,
        "GaussianBlur",
        f"kernel_size={tuple(step.kernel_size)}",
        "use a square kernel",
    )

    return note_policy(
        reading,
        step,
        "GaussianBlur",
        kernel_size=kernel.pop(),
        sigma=tuple(map(float, step.sigma)),
    )


def read_rotation(reading: TransformReading, step: Any) -> str:
    low, high = step.degrees
    refuse_unless(
        low == -high,
        "RandomRotation",
        f"degrees={(low, high)}",
        "ours is drawn from [-degrees, degrees]",
    )

    plain = not step.expand and step.center is None
    refuse_unless(plain, "RandomRotation", "expand or center is set", "leave both out")
    mode, reading.affine = _read_warp(step), True
    return note_policy(reading, step, "RandomRotation", degrees=float(high), interpolation=mode)


def read_erasing(reading: TransformReading, step: Any) -> str:
    """Reads torchvision's RandomErasing."""
    value = step.value if isinstance(step.value, (list, tuple)) else [step.value]
    options: dict[str, Any] = {
        "p": float(step.p),
        "scale": tuple(map(float, step.scale)),
        "ratio": tuple(round(float(each), 12) for each in step.ratio),
    }
    # torchvision keeps None for "random", which is noise
    if value in (["random"], [None]):
        return note_erasing(reading, "TimmRandomErasing", options | {"mode": "pixel"})

    refuse_unless(
        all(each == 0 for each in value),
        "RandomErasing",
        "it fills with a color",
        "erase with zeros or noise",
    )
    return note_erasing(reading, "RandomErasing", options)


def note_erasing(reading: TransformReading, name: str, options: dict[str, Any]) -> str:
    reading.erased = True
    reading.augment.append({"name": name, **options})
    return f"augment: {name}({describe_options(options)})"
