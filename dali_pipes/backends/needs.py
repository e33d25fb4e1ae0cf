"""What a transform and its images may need of a backend, and the one place that refuses it."""

from collections.abc import Iterator
from typing import Any

from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.data.loose_images import LooseImages
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ChoiceError, Mention
from dali_pipes.plan.transforms import Transform, views_of
from dali_pipes.plan.transforms.base import RANDOM

# images of 16 bits a channel, and images that are in no manifest
WIDE, LOOSE = "wide", "loose"
# what pixels/ makes, and so each backend that decodes or turns, and finishes, its images with it
EVERYTHING = frozenset(
    {
        *("augment", "functions", "noise", "before"),
        *("interpolation", "antialias", "channels"),
        *("views", "padding", "exif"),
    }
)


def refuse_needs(
    transform: Transform,
    images: Manifest | LooseImages,
    makes: frozenset[str],
    config: type[Any],
) -> None:
    """Raises a ConfigError if a backend that makes this, with options of this class, lacks
    something that the transform or its images need.
    """
    for need, text in _needs(transform, images):
        if need in makes:
            continue
        others: tuple[Any, ...] = (Mention(DaliConfig), " or ", Mention(TorchConfig))
        if need == WIDE:
            others = (Mention(TorchConfig), ", or read the images without bits=16")
        raise ChoiceError(config, "does not support ", *text, "; use ", *others)


def _needs(
    transform: Transform, images: Manifest | LooseImages
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The name of each need, and its text for an error."""
    kind, views = type(transform), views_of(transform)

    def mention(option: str, value: Any) -> tuple[Any, ...]:
        return (Mention(kind, option, value),)

    if any(view.augmenter.slots or view.augmenter.erases for view in views):
        yield "augment", ("augment",)
    if any(view.augmenter.functions for view in views):
        yield "functions", ("functions in augment",)
    if any(view.augmenter.fills for view in views):
        yield "noise", ("TimmRandomErasing",)
    if transform.has_steps_before:
        yield "before", ("before",)

    if any(view.interpolation == RANDOM for view in views):
        yield "interpolation", mention("interpolation", RANDOM)
    if any(view.resizes and not view.antialias for view in views):
        yield "antialias", mention("antialias", False)
    if transform.channels == 1:
        yield "channels", mention("channels", 1)

    if len(views) > 1:
        yield "views", ("more than one view of each image, as ", Mention(kind), " has")
    if transform.pads_batches:
        yield "padding", ("batches of different sizes, as ", Mention(kind), " has")
    if transform.exif == "apply":
        yield "exif", mention("exif", "apply")

    if isinstance(images, LooseImages):
        yield LOOSE, ("images that are in no manifest",)
    if images.has_wide:
        yield WIDE, ("images of 16 bits a channel, which the manifest has",)
