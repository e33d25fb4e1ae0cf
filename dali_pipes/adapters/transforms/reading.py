"""What is read of a live transform: its steps, the transform that does the same, and the error for
what cannot be carried over.

The readers fill a `TransformReading`; its `built` then makes the transform.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import distribution, packages_distributions
from types import FunctionType
from typing import Any

from dali_pipes.errors import ConfigError, OptionError
from dali_pipes.plan.transforms import (
    CenterCropTransform,
    EvalTransform,
    RandomCropTransform,
    TrainTransform,
    Transform,
)
from dali_pipes.plan.transforms.base import shape_of
from dali_pipes.plan.transforms.classification import is_too_small

Size = int | tuple[int, int]  # the side of a square, or height and width

KEEP = "leave it out, or keep the DataLoader and pass it to from_torch, which runs it as it is"
# modules of transforms, and packages whose code the methods of these may be
_TRANSFORMS = (
    *("torchvision.transforms.", "timm.data.transforms.", "timm.data.auto_augment."),
    *("timm.data.random_erasing.", "albumentations."),
)
_LIBRARIES = ("torchvision", "timm", "albumentations", "albucore", "torch")


@dataclass(frozen=True, slots=True)
class ReadStep:
    """One step of a transform of a library.

    Attributes:
        text: the step as it prints itself.
        by: what carries it out now, or why nothing does.
    """

    text: str
    by: str


class NotConvertibleError(ConfigError):
    """A part of a transform that dali_pipes cannot carry out in the same way.

    Attributes:
        part: its name, such as "ElasticTransform".
        steps: all steps of the transform, if the part is one of them.
    """

    def __init__(self, part: str, problem: str, instead: str):
        super().__init__(f"{part} cannot be carried over: {problem}; {instead}")
        self.part, self.problem, self.instead = part, problem, instead
        self.steps: Sequence[ReadStep] = ()


class Alike:
    """A step of albumentations in the words of torchvision.

    Attributes:
        original: albumentations' step.
        name: of torchvision's step, by which the tables know it.
    """

    def __init__(self, original: Any, name: str, **options: Any):
        self.original, self.name = original, name
        self.__dict__.update(options)


def refuse_unless(holds: Any, part: Any, problem: str, instead: str = KEEP) -> None:
    """Raises a NotConvertibleError, with what is wrong with a part and what to do instead, unless
    `holds` is true.

    Args:
        part: a step, or a name.
    """
    if not holds:
        raise NotConvertibleError(part if isinstance(part, str) else title(part), problem, instead)


def title(step: Any) -> str:
    step = step.original if isinstance(step, Alike) else step
    name = type(step).__name__
    return f"albumentations' {name}" if is_of(step, "albumentations") else name


def is_of(value: Any, package: str, *names: str) -> bool:
    """Returns whether a value's class is defined in this package and has one of these names.

    A user's own subclass is defined elsewhere, so it does not count: it may do anything.
    """
    kind = type(value)
    is_there = f"{kind.__module__}.".startswith(f"{package}.")
    return (
        is_there
        and (not names or kind.__name__ in names)
        and not _is_shadowed(top := package.partition(".")[0], _file_of(top))
    )


def _file_of(module: str) -> str:
    return getattr(sys.modules.get(module), "__file__", None) or ""


@lru_cache
def _is_shadowed(package: str, file: str) -> bool:
    """Whether a module of the program has a library's name, such as a `datasets.py` of its own."""
    if not file or "site-packages" in file or "dist-packages" in file:
        return False
    # a library may be installed from a checkout
    return not any(
        '"editable": true' in (distribution(name).read_text("direct_url.json") or "")
        for name in packages_distributions().get(package, ())
    )


def find_alteration(step: Any) -> str:
    """Names a method of a library's step that the program has replaced, or a hook; "": none."""
    own = vars(step) if hasattr(step, "__dict__") else {}
    if any(own.get(name) for name in ("_forward_hooks", "_forward_pre_hooks")):
        return "a hook"

    for kind in type(step).__mro__:
        # libraries and programs put methods of their own into torch.nn.Module
        if not f"{kind.__module__}.".startswith(_TRANSFORMS):
            continue
        for name, member in vars(kind).items():
            method = getattr(member, "__func__", member)
            if not isinstance(method, FunctionType):
                continue
            module = str(method.__globals__.get("__name__", "")).partition(".")[0]
            if name in own or not (name.startswith("__") or module in _LIBRARIES):
                return f"a {name} of its own"
    return ""


def describe_options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in options.items())


def _short(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_short, value))
    return round(value, 4) if isinstance(value, float) else value


@dataclass(slots=True)
class TransformReading:
    """What has been read of a transform so far.

    Attributes:
        resize: the length of the shorter side, or height and width; None: the image keeps the size
            in which it is stored.
        crop: the kind of the crop: "center", "resized" or "random"; None: there is none.
        options: our transform's options for the crop.
        antialias: of the resize.
        before: the steps on the whole image with their options.
        settled: the size that the last step of `before` gives to all images; None: there is none.
        flips: the probability of each flip, by our transform's option.
        augment: the policies with their options.
        applied: the probability of the RandomApply around the step that is read.
        affine: whether a policy rotates or shears.
        tensor, floats: whether the image is a tensor by now, and one of floats.
        channels: of the image by now, 3 or 1.
        normalized: mean and std, and maybe the dtype; None: there is no Normalize.
        erased: whether RandomErasing has come.
        steps: all steps so far.
    """

    resize: Size | None = None
    crop: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    interpolation: str = "bilinear"
    antialias: bool = True
    before: list[dict[str, Any]] = field(default_factory=list)
    settled: Size | None = None
    flips: dict[str, float] = field(default_factory=dict)
    augment: list[dict[str, Any]] = field(default_factory=list)
    applied: float = 1.0
    affine: bool = False
    tensor: bool = False
    floats: bool = False
    channels: int = 3
    normalized: dict[str, Any] | None = None
    erased: bool = False
    steps: list[ReadStep] = field(default_factory=list)

    def built(self) -> Transform:
        """Builds the transform that does the same.

        Raises:
            NotConvertibleError: no transform does the same.
        """
        instead = "end it with ToTensor(), or PILToTensor() for bytes"
        refuse_unless(self.tensor, "the transform", "it ends in PIL images", instead)

        # ToTensor without Normalize leaves values from 0 to 1
        plain = {"mean": (0.0,) * self.channels, "std": (1.0,) * self.channels}
        common: dict[str, Any] = self.options | {
            "size": self._size(),
            "interpolation": self.interpolation,
            "antialias": self.antialias,
            "channels": self.channels,
            **((self.normalized or plain) if self.floats else {"dtype": "uint8"}),
        }
        random: dict[str, Any] = {"flip": 0.0, **self.flips, "augment": self.augment}
        random["before"] = self.before

        try:
            if self.crop == "resized":
                return TrainTransform(**common, **random)
            if self.crop == "random":
                return RandomCropTransform(**common, **random, resize=self.resize)
            # torchvision pads where the crop is larger
            pads = is_too_small(self.resize, shape_of(common["size"]))
            common |= {"resize": self.resize, "pad_if_needed": pads}
            if self.flips or self.augment or self.before:
                return CenterCropTransform(**common, **random)
            return EvalTransform(**common)
        # our transform may refuse an option that torchvision takes
        except OptionError as error:
            raise NotConvertibleError("the transform", str(error), "change that in it") from None

    def _size(self) -> Size:
        if self.crop:
            return self.options["size"]
        # images have one size after Resize((height, width)); a step before it may have given one
        size = self.resize or self.settled
        if isinstance(size, tuple):
            return size

        what = f"Resize({self.resize})" if self.resize else "a transform without Resize and crop"
        instead = "add CenterCrop(size), or resize to (height, width)"
        raise NotConvertibleError(
            what, "images keep their own sizes, so they make no batch", instead
        )


StepReader = Callable[[TransformReading, Any], str]


def refuse_after(wrong: Any, step: Any, others: str) -> None:
    """Refuses a step that comes after others, if `wrong` is true."""
    instead = (
        "put the steps in this order if your training may change so: resize and crop, flips, "
        "augmentation, ToTensor, Normalize, RandomErasing; else keep the DataLoader"
    )
    problem = f"it comes after {others}, in another order of steps than ours"
    refuse_unless(not wrong, step, problem, instead)
