"""Reads steps that become policies of `augment`: colours, blur, rotation, erasing, AutoAugment."""

import math
from typing import Any

from dali_pipes.adapters.transforms.readers.whole import read_fill
from dali_pipes.adapters.transforms.reading import (
    StepReader,
    TransformReading,
    describe_options,
    refuse_after,
    refuse_unless,
)

_HUE = (
    "; hue is computed in floats, as torchvision's of tensors: that of PIL images has 8 bits, and "
    "is up to 16 of 255 from it (docs/steps.md)"
)


def note_policy(reading: TransformReading, step: Any, name: str, **options: Any) -> str:
    """Notes a policy of `augment` with its options."""
    refuse_after(reading.floats or reading.erased, step, "ToTensor or RandomErasing")
    if reading.applied < 1:
        options["p"] = reading.applied * options.get("p", 1.0)
    reading.augment.append({"name": name, **options})

    # torchvision keeps the edges of PIL images sharp (docs/steps.md)
    edges = options.get("interpolation") == "bilinear" and not (reading.tensor or "fill" in options)
    note = "; edges blend with the black around them, as torchvision's of tensors do" * edges
    return f"augment: {name}({describe_options(options)}){note}"


def make_reader(*names: str, **fixed: Any) -> StepReader:
    """Returns the reader of a policy that has torchvision's name, and these options of it."""

    def read(reading: TransformReading, step: Any) -> str:
        options = {name: getattr(step, name) for name in names} | fixed
        return note_policy(reading, step, type(step).__name__, **options)

    return read


def make_auto_augment_reader(*names: str) -> StepReader:
    """Returns the reader of AutoAugment or one of its successors, which have these options."""

    def read(reading: TransformReading, step: Any) -> str:
        policy = getattr(step, "policy", "imagenet")
        policy = str(getattr(policy, "value", policy))
        refuse_unless(policy == "imagenet", step, f"policy={policy}", "use that of ImageNet")

        mode = _read_warp(reading, step)
        return make_reader(*names, interpolation=mode, equalize="torchvision")(reading, step)

    return read


def _read_warp(reading: TransformReading, step: Any) -> str:
    """Returns the interpolation of a step that rotates or shears, and checks its fill."""
    reading.affine = True
    mode = str(getattr(step.interpolation, "value", step.interpolation))
    known = mode in ("nearest", "bilinear")
    refuse_unless(known, step, f"interpolation={mode}", "use nearest or bilinear")
    refuse_unless(not any(read_fill(step)), step, f"fill={step.fill}", "use black: fill=0")
    return mode


def read_color_jitter(reading: TransformReading, step: Any) -> str:
    found = {}
    # torchvision keeps v as [max(0, 1 - v), 1 + v]
    for name in ("brightness", "contrast", "saturation"):
        low, high = getattr(step, name) or (1.0, 1.0)
        problem, instead = f"{name} is drawn from [{low}, {high}]", "give it one number"
        refuse_unless(math.isclose(low, max(0.0, 2 - high)), step, problem, instead)
        found[name] = float(high) - 1
    low, high = step.hue or (0.0, 0.0)
    problem = f"hue is drawn from [{low}, {high}]"
    refuse_unless(math.isclose(low, -high), step, problem, "give it one number")

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


def read_gray_colours(reading: TransformReading, step: Any) -> str:
    """Reads Grayscale(3)."""
    refuse_unless(reading.channels == 3, "Grayscale(3)", "images of one channel reach it")
    return note_policy(reading, step, "RandomGrayscale", p=1.0)


def read_one_channel(reading: TransformReading, step: Any) -> str:
    """Reads Grayscale(1), which a plan has before all other steps.

    After geometry, ToTensor or ToImage it differs by rounding, and after anything else by more.
    """
    if reading.channels == 1:
        return "nothing: images have one channel already"
    changed = reading.augment or reading.normalized or reading.erased
    fills = [each.get("fill") or (0, 0, 0) for each in reading.before]
    refuse_unless(
        not changed and all(len(set(fill)) == 1 for fill in fills),
        "Grayscale(1)",
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
    return note_policy(reading, step, "RandomGrayscale", p=step.p)


def read_solarize(reading: TransformReading, step: Any) -> str:
    # values from the threshold on are inverted, and values are whole numbers from 0 to 255
    threshold = min(max(math.ceil(step.threshold), 0), 256)
    return note_policy(reading, step, "RandomSolarize", threshold=threshold, p=step.p)


def read_blur(reading: TransformReading, step: Any) -> str:
    kernel, sigma = tuple(step.kernel_size), tuple(map(float, step.sigma))
    square = len(set(kernel)) == 1
    refuse_unless(square, step, f"kernel_size={kernel}", "use a square kernel")
    return note_policy(reading, step, "GaussianBlur", kernel_size=kernel[0], sigma=sigma)


def read_rotation(reading: TransformReading, step: Any) -> str:
    low, high = step.degrees
    refuse_unless(low == -high, step, f"degrees={(low, high)}", "give it one number")
    plain = not step.expand and step.center is None
    refuse_unless(plain, step, "expand or center is set", "leave both out")
    mode = _read_warp(reading, step)
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
    zeros = all(each == 0 for each in value)
    refuse_unless(zeros, step, "it fills with a color", "erase with zeros or noise")
    return note_erasing(reading, "RandomErasing", options)


def note_erasing(reading: TransformReading, name: str, options: dict[str, Any]) -> str:
    reading.erased = True
    reading.augment.append({"name": name, **options})
    return f"augment: {name}({describe_options(options)})"
