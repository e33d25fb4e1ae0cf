"""What several readers of steps check, note and say."""

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from dali_pipes.adapters.transforms.reading import (
    NotConvertibleError,
    TransformReading,
    refuse_unless,
)

StepReader = Callable[[TransformReading, Any], str]
# modules of transforms, and packages whose code the methods of these may be
_TRANSFORMS = (
    *("torchvision.transforms.", "timm.data.transforms.", "timm.data.auto_augment."),
    *("timm.data.random_erasing.", "albumentations."),
)
_LIBRARIES = ("torchvision", "timm", "albumentations", "albucore", "torch")
KEEP = "else keep your DataLoader"
AS_OURS = (
    "put the steps in this order if your training may change so: resize and crop, flips, "
    f"augmentation, ToTensor, Normalize, RandomErasing; {KEEP}"
)


def refuse_after(wrong: Any, step: Any, others: str, instead: str = AS_OURS) -> None:
    problem = f"it comes after {others}, in another order of steps than ours"
    refuse_unless(not wrong, type(step).__name__, problem, instead)


def refuse_altered(step: Any) -> None:
    """Refuses a step of a library whose methods the program has replaced, or that has hooks."""
    own = vars(step) if hasattr(step, "__dict__") else {}
    hooks = "a hook" * any(own.get(name) for name in ("_forward_hooks", "_forward_pre_hooks"))
    methods = {
        name: getattr(member, "__func__", member)
        for kind in type(step).__mro__[::-1]
        # libraries and programs put methods of their own into torch.nn.Module
        if f"{kind.__module__}.".startswith(_TRANSFORMS)
        for name, member in vars(kind).items()
        if isinstance(getattr(member, "__func__", member), FunctionType)
    }
    replaced = [
        name
        for name, method in methods.items()
        if name in own or not (name.startswith("__") or _is_of_library(method))
    ]
    what = hooks or (f"a {replaced[0]} of its own" if replaced else "")
    refuse_unless(
        not what,
        type(step).__name__,
        f"it has {what}, which may do anything",
        "write that as a transform of its own",
    )


def _is_of_library(method: FunctionType) -> bool:
    module = str(method.__globals__.get("__name__", ""))
    return module.partition(".")[0] in _LIBRARIES


def describe_step(step: Any) -> str:
    # some transforms print themselves over several lines
    text = getattr(step, "__name__", " ".join(repr(step).split()))
    return text if len(text) <= 150 else f"{type(step).__name__}(…)"


def describe_options(options: dict[str, Any]) -> str:
    def short(value: Any) -> Any:
        return (
            tuple(map(short, value))
            if isinstance(value, tuple)
            else round(value, 4)
            if isinstance(value, float)
            else value
        )

    return ", ".join(f"{name}={short(value)}" for name, value in options.items())


def check_fill(step: Any, name: str) -> None:
    """Refuses a step that fills what comes from outside the image with anything but black."""
    refuse_unless(
        is_black(step),
        name,
        f"fill={getattr(step, 'fill', None)}",
        "areas from outside the image are black here: fill=0",
    )


def is_black(step: Any) -> bool:
    try:
        return not any(read_fill(step))
    except NotConvertibleError:
        return False


def read_fill(step: Any) -> tuple[int, int, int]:
    """The color of what comes from outside the image."""
    fill = getattr(step, "fill", None)
    fills = [fill]
    if isinstance(fill, dict):
        # v2 has a dict of fills by type, in which that of masks says nothing about images; a type
        # that is not in it gets black
        images = {key: each for key, each in fill.items() if getattr(key, "__name__", "") != "Mask"}
        fills = [*images.values(), fill.get("others")]

    # either version may have one number for each channel
    colors = {tuple(each) if isinstance(each, (list, tuple)) else (each or 0,) for each in fills}
    colors = {each * 3 if len(each) == 1 else each for each in colors}
    is_color = all(len(each) == 3 and all(value in range(256) for value in each) for each in colors)
    refuse_unless(
        is_color and len(colors) == 1,
        type(step).__name__,
        f"fill={fill}",
        "use one color for all images, of whole numbers from 0 to 255",
    )
    red, green, blue = map(int, colors.pop())
    return red, green, blue


def is_v2(step: Any) -> bool:
    return type(step).__module__.startswith("torchvision.transforms.v2.")


def read_padding(step: Any) -> Any:
    """The pixels that Pad or RandomCrop adds, as our option `padding`."""
    padding = step.padding or 0
    sides = tuple(padding) if isinstance(padding, Sequence) else (padding,)
    refuse_unless(
        all(isinstance(each, int) and each >= 0 for each in sides),
        type(step).__name__,
        f"padding={padding}",
        "use whole numbers from 0 on",
    )
    # v2's RandomCrop keeps left, right, top, bottom (v2/_geometry.py); all others left, top, right,
    # bottom
    if len(sides) == 4 and is_v2(step) and type(step).__name__ == "RandomCrop":
        sides = sides[0], sides[2], sides[1], sides[3]
    return sides[0] if len(set(sides)) == 1 else sides


def note_policy(reading: TransformReading, step: Any, name: str, **options: Any) -> str:
    """Notes a policy of `augment` with its options."""
    refuse_unless(
        not reading.early,
        type(step).__name__,
        "it comes before a crop or a resize, in another order of steps than ours",
        AS_OURS,
    )
    late = reading.floats or reading.erased or reading.has_functions
    refuse_after(late, step, "ToTensor or RandomErasing")
    if reading.applied < 1:
        options["p"] = reading.applied * options.get("p", 1.0)
    reading.augment.append({"name": name, **options})
    # torchvision keeps the edges of PIL images sharp (docs/steps.md)
    edges = options.get("interpolation") == "bilinear" and not (reading.tensor or "fill" in options)
    note = (
        "; edges blend with the black around them, as torchvision's of tensors do" if edges else ""
    )
    return f"augment: {name}({describe_options(options)}){note}"
