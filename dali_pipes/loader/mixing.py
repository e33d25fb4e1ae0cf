"""MixUp, CutMix and RandomChoice: batch transforms that `build_loader` takes.

Random numbers come from the plan (`BatchDraws`), so a resumed run mixes as it would have. A batch
transform with a method `check(manifest)` is asked by the loader whether it fits (`check_fits`).
`symmetric_beta` and `cut_box` make shares and boxes of the numbers, and mixing_kernels.py mixes the
pixels.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dali_pipes.checks import check_int, check_number, describe_value
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.loader.batch import Batch, BatchTransform
from dali_pipes.loader.mixing_kernels import blend_with_previous, paste_previous
from dali_pipes.options import check_options
from dali_pipes.plan.draws import BatchDraws
from dali_pipes.system.modes import in_own_modes

# Numbers of the draws of one batch. A number is never reused for something else; those from 16 on
# are the user's.
MIX_DRAW = 0  # the first two values give λ, the others the box's centre
CHOICE_DRAW = 1  # whether to mix at all, and which of several transforms


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mix(ABC):
    """What MixUp and CutMix share: λ is drawn once for each batch, and image i is mixed with image
    i - 1, the first with the last.

    The result is a new batch; the tensors of the old one are not written to. Class numbers become
    (N, num_classes) float32, whether the batch is mixed or not; labels that are float32 already
    keep their shape. The targets stay those of image i.

    Attributes:
        alpha: λ ~ Beta(alpha, alpha) is the share of image i.
        num_classes: needed where labels are class numbers.
        probability: that a batch is mixed.
    """

    alpha: float = 1.0
    num_classes: int | None = None
    probability: float = 1.0

    def __post_init__(self) -> None:
        check_options(self)
        if not 0 < self.alpha < math.inf:
            raise ConfigError(
                f"alpha of {type(self).__name__} is {self.alpha}; it must be positive"
            )
        if self.num_classes is not None:
            check_int(f"num_classes of {type(self).__name__}", self.num_classes, 1, 2**31 - 1)
        check_number(f"probability of {type(self).__name__}", self.probability, 0, 1)

    def check(self, manifest: Manifest) -> None:
        """Raises a ConfigError if these images have boxes or masks, or more classes than
        `num_classes`.
        """
        if unmixed := [
            name
            for name, column in (("boxes", "boxes"), ("masks", "mask"))
            if manifest.has_target(column)
        ]:
            raise ConfigError(
                f"{type(self).__name__} mixes images and labels, not {' and '.join(unmixed)}; "
                "leave it out"
            )

        classes = len(manifest.classes)
        if manifest.task == "classification" and (self.num_classes or 0) < classes:
            mismatch = (
                f"{type(self).__name__}(num_classes={self.num_classes}), but the images have "
                f"{classes} classes"
            )
            raise ConfigError(f"{mismatch}; pass num_classes=len(manifest.classes)")

    @in_own_modes
    def __call__(self, batch: Batch, draws: BatchDraws) -> Batch:
        if batch.views:
            raise ConfigError(
                f"{type(self).__name__} mixes one view of each image, and this batch has "
                "several; leave it out"
            )

        # soft labels also where this batch is not mixed: all batches have them in one shape
        labels = soft_labels(batch.labels, self.num_classes)
        if draws.uniform(CHOICE_DRAW)[0] >= self.probability:
            return replace(batch, labels=labels)

        images, own = self.mix(batch.images, draws.uniform(MIX_DRAW))
        # torchvision's operations in its order, so that the labels are equal bit for bit
        mixed = labels.roll(1, 0).mul_(1.0 - own).add_(labels.mul(own))
        return replace(batch, images=images, labels=mixed)

    @abstractmethod
    def mix(self, images: Tensor, numbers: NDArray[np.float64]) -> tuple[Tensor, float]:
        """Returns new images in the same dtype and memory format, and the share of each image's own
        label. `numbers` are four in [0, 1).
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class MixUp(_Mix):
    """λ × each image + (1 - λ) × the one before it: Zhang et al., mixup: Beyond Empirical Risk
    Minimization (2018).

    In float32 the arithmetic is that of torchvision's v2.MixUp; float16, bfloat16 and uint8 images
    are computed in float32 and rounded once, to nearest (halves to even). On a GPU numbers below
    1.2e-38 (float32's denormal ones) count as 0.
    """

    def mix(self, images: Tensor, numbers: NDArray[np.float64]) -> tuple[Tensor, float]:
        own = symmetric_beta(self.alpha, *numbers[:2].tolist())
        return blend_with_previous(images, own), own


@dataclass(frozen=True, kw_only=True, slots=True)
class CutMix(_Mix):
    """A box of each image is that of the one before it: Yun et al., CutMix (2019), with the box of
    torchvision's v2.CutMix.
    """

    def mix(self, images: Tensor, numbers: NDArray[np.float64]) -> tuple[Tensor, float]:
        height, width = images.shape[-2:]
        box = cut_box(
            symmetric_beta(self.alpha, *numbers[:2].tolist()), height, width, *numbers[2:].tolist()
        )
        left, top, right, bottom = box
        return paste_previous(images, box), 1.0 - (right - left) * (bottom - top) / (width * height)


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """One of several batch transforms for each batch, all equally likely: torchvision's recipe is
    RandomChoice([CutMix, MixUp]).
    """

    transforms: Sequence[BatchTransform]

    def __post_init__(self) -> None:
        is_list = isinstance(self.transforms, (list, tuple))
        for transform in self.transforms if is_list else [self.transforms]:
            if isinstance(transform, type) or not callable(transform) or not is_list:
                raise ConfigError(
                    f"RandomChoice is given {describe_value(transform)}; it takes a list: "
                    "RandomChoice([MixUp(…), CutMix(…)])"
                )

        if not self.transforms:
            raise ConfigError(
                "RandomChoice has nothing to choose from; pass at least one batch transform"
            )
        if any(isinstance(transform, RandomChoice) for transform in self.transforms):
            raise ConfigError(
                "RandomChoice inside a RandomChoice would choose by the same number; pass all "
                "transforms to one"
            )

    def check(self, manifest: Manifest) -> None:
        for transform in self.transforms:
            check_fits(transform, manifest)

    def __call__(self, batch: Batch, draws: BatchDraws) -> Batch:
        return self.transforms[int(draws.uniform(CHOICE_DRAW)[1] * len(self.transforms))](
            batch, draws
        )


def check_fits(transform: BatchTransform, manifest: Manifest) -> None:
    """Calls the `check` of a batch transform that has one; it raises if it cannot work on these
    images.
    """
    if check := getattr(transform, "check", None):
        check(manifest)


def transform_batch(transform: BatchTransform, batch: Batch, draws: BatchDraws) -> Batch:
    """Calls a batch transform, maybe the user's own.

    Raises:
        ConfigError: it returns something else than a batch.
    """
    mixed = transform(batch, draws)
    # None would end the epoch without a word
    if not isinstance(mixed, Batch):
        returned = "None" if mixed is None else f"a {type(mixed).__name__}"
        instead = "a Batch, such as dataclasses.replace(batch, images=…)"
        raise ConfigError(f"batch_transform returned {returned}; it must return {instead}")
    return mixed


def soft_labels(labels: Tensor, num_classes: int | None) -> Tensor:
    """Turns (N,) class numbers into (N, num_classes) float32; float labels stay as they are.

    Raises:
        ConfigError: num_classes is missing, or too small for a label. Values on a GPU are not
            checked.
    """
    if labels.is_floating_point():
        return labels

    if num_classes is None:
        raise ConfigError(
            "labels are class numbers, and mixing needs the number of classes; pass "
            "num_classes=len(manifest.classes)"
        )
    # on a GPU the look at the largest label would wait for it
    if labels.device.type == "cpu" and labels.max() >= num_classes:
        raise ConfigError(
            f"a label is {labels.max()}, but num_classes is {num_classes}; pass "
            "num_classes=len(manifest.classes)"
        )

    return torch.zeros(
        len(labels), num_classes, dtype=torch.float32, device=labels.device
    ).scatter_(1, labels[:, None], 1.0)


def symmetric_beta(alpha: float, radius: float, angle: float) -> float:
    """A number with distribution Beta(alpha, alpha), made of two numbers uniform in [0, 1). It is
    exact for any alpha, needs no rejection, and is computed in plain floats.

    Bailey's polar method (Mathematics of Computation 62, 1994) gives Student's t with 2 × alpha
    degrees of freedom, which becomes a beta: 1/2 + T / (2 √(2 alpha + T²)), as in Devroye, Random
    variate generation in one line of code (1996).
    """
    cosine, power = math.cos(2 * math.pi * angle), radius ** (1 / alpha)
    outside = (1 - power) * cosine**2
    return 0.5 + math.copysign(0.5 * math.sqrt(outside / (power + outside)), cosine)


def cut_box(share: float, height: int, width: int, x: float, y: float) -> tuple[int, int, int, int]:
    """A box of about 1 - share of the area, cut off at the edges, as in torchvision: left, top,
    right, bottom in pixels, the latter two exclusive.

    x and y are the centre as shares of width and height, uniform in [0, 1).
    """
    half = 0.5 * math.sqrt(1.0 - share)
    column, row, half_width, half_height = (
        int(x * width),
        int(y * height),
        int(half * width),
        int(half * height),
    )
    left, top = max(column - half_width, 0), max(row - half_height, 0)
    return left, top, min(column + half_width, width), min(row + half_height, height)
