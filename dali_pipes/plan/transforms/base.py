"""What all transforms have in common: the options of every transform, and those of the random ones.

A transform sets size, dtype, layout, normalization, crop and augmentation, and it only plans:
`geometry` draws where the pixels of each image come from, and `augmenter` draws the operations on
them. Backends carry that out. `groups` lists the views that are made of an image.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_choice, check_int, check_number, check_pixels, describe_value
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.objects import Objects
from dali_pipes.errors import ConfigError, OptionError
from dali_pipes.options import Options, check_options, option
from dali_pipes.plan.coordinates import MASK_INTERPOLATIONS
from dali_pipes.plan.draws import INTERPOLATION_DRAW, Draws
from dali_pipes.plan.geometry import Geometry, Pair
from dali_pipes.plan.steps.functions import Augment
from dali_pipes.plan.steps.lists import Augmenter, check_policies, check_steps, draw_steps
from dali_pipes.plan.steps.whole import DrawnStep, fill_of

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
INTERPOLATIONS = ("bilinear", "bicubic", "nearest-exact")
# PyTorch's names for them
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "uint8": "uint8"}
CHANNELS = (3, 1)  # red, green and blue; gray
RANDOM = "random"  # the interpolation of a random transform: one of the first two for each image
# with others a pixel in half precision would be infinite or 0
_MEANS, _STDS = (-10, 10), (1e-4, 1e4)


def _check_colors(
    option: str, values: Sequence[float], positive: bool = False
) -> tuple[float, ...]:
    """A number for each channel, three or one, as a tuple; YAML has only lists."""
    if not isinstance(values, (list, tuple)) or len(values) not in CHANNELS:
        raise ConfigError(
            f"{option} is {describe_value(values)}; it takes three numbers, for red, green and "
            "blue, or one in a list with channels=1"
        )

    for value in values:
        try:
            check_number(option, value, -math.inf, math.inf)
        except ConfigError:
            raise ConfigError(
                f"{option} is {describe_value(list(values))}; it takes three finite numbers, "
                "or one with channels=1"
            ) from None

    if positive and min(values) <= 0:
        raise ConfigError(f"{option} is {list(values)}; it must be positive")
    low, high = _STDS if positive else _MEANS
    if not all(low <= value <= high for value in values):
        # such as 123.7 in place of 0.485
        instead = "divide those of values from 0 to 255 by 255"
        raise ConfigError(
            f"{option} is {describe_value(list(values))}, of values from 0 to 1; it takes "
            f"{low:g} to {high:g}: {instead}"
        )

    return tuple(values)


def _check_channels(option: str, value: object) -> None:
    if type(value) is not int or value not in CHANNELS:
        raise ConfigError(
            f"{option} is {describe_value(value)}; it takes 3, for red, green and blue, or 1, for "
            "gray"
        )


def check_size(option: str, value: object) -> Any:
    height, width = shape_of(check_pixels(option, value, 1, "(height, width)"))
    return height if height == width else (height, width)


def check_resize(option: str, value: object) -> Any:
    return None if value is None else check_pixels(option, value, 1, "(height, width)")


def _check_sizes(option: str, value: object) -> dict[int, Any]:
    """The sizes by integer epochs; JSON has only strings as keys."""
    # what is no mapping is refused like a wrong epoch, with the same text
    pairs = list(value.items()) if isinstance(value, Mapping) else [("", 0)]
    try:
        sizes = {
            int(epoch): check_size("size", size) for epoch, size in pairs if str(epoch).isdecimal()
        }
    except ConfigError:
        sizes = {}

    if len(sizes) < len(pairs):
        raise ConfigError(
            f"{option} is {value}; it takes epochs from 0 and sizes in pixels from 1, such as "
            "{0: 128, 10: 192}"
        )

    return sizes


def shape_of(size: Any) -> Pair:
    """Height and width of a `Transform.size`."""
    return (size, size) if isinstance(size, int) else size


# targets that follow the pixels of an image
MOVED_TARGETS = ("boxes", "mask", "mask_bytes")


@dataclass(kw_only=True, slots=True)
class Transform(Options, ABC):
    """Size, dtype, layout and normalization of the delivered images; the base of all transforms.

    Attributes:
        size: sides of the images in pixels: one number for squares, or (height, width).
        interpolation: of every resize, "bilinear", "bicubic" or "nearest-exact".
        antialias: whether bilinear and bicubic are antialiased, as Pillow's and torchvision's are.
            Without it, bilinear takes the four nearest pixels only, as OpenCV's INTER_LINEAR does.
        mean, std: per channel, of values in [0, 1]; not applied to uint8.
        channels: 3 for red, green and blue; or 1 for gray, Pillow's `convert("L")` of each image as
            soon as it is decoded, before any other step. `mean` and `std` then have one number.
        dtype: "fp32", "fp16", "bf16" (fp32 rounded once, to nearest), or "uint8" (0 … 255, not
            normalized).
        memory_format: PyTorch's "contiguous" or "channels_last"; the shape is (N, channels, height,
            width) in both.
        exif: "ignore" takes the pixels as stored, as torchvision's ImageFolder does; "apply" turns
            them upright.
        min_box_size: objects whose box is narrower or lower than this in the output, in pixels, are
            removed.
        ignore_index: the value of a mask's pixels outside the image.
        mask_interpolation: of every resize of a mask: "nearest-exact"; or "nearest" as torchvision
            resizes a `tv_tensors.Mask`, half a pixel off; or "pillow" as Pillow resizes.
    """

    size: Any = option(224, check_size)
    interpolation: str = option("bilinear", check_choice, INTERPOLATIONS)
    mean: tuple[float, ...] = option(IMAGENET_MEAN, _check_colors)
    std: tuple[float, ...] = option(IMAGENET_STD, _check_colors, True)
    dtype: str = option("fp32", check_choice, tuple(DTYPES))
    memory_format: str = option("contiguous", check_choice, ("contiguous", "channels_last"))
    exif: str = option("ignore", check_choice, ("ignore", "apply"))
    min_box_size: float = option(1.0, check_number, 0, 2**16)
    # masks have 16 bits at most
    ignore_index: int = option(255, check_int, 0, 2**16 - 1)
    mask_interpolation: str = option("nearest-exact", check_choice, MASK_INTERPOLATIONS)
    antialias: bool = True
    channels: int = option(3, _check_channels)

    # whether each batch has a height and width of its own, which hold all of its images
    pads_batches: ClassVar[bool] = False
    # whether `geometry_around` depends on the objects; those whose box's centre is outside the
    # region are then removed
    crops_around_boxes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_options(self)
        # libraries have different cubic filters, so backends would differ
        if self.interpolation in ("bicubic", RANDOM) and not self.antialias:
            raise OptionError(
                type(self),
                "antialias is False, which needs interpolation bilinear: without antialiasing each "
                "library has another bicubic filter",
            )
        self._check_numbers_of_channels()

    def _check_numbers_of_channels(self) -> None:
        """Refuses a `mean` or `std` of another number of channels."""
        for name in ("mean", "std"):
            values = getattr(self, name)
            # uint8 images are not normalized, and may keep the default of three channels
            unused = self.dtype == "uint8" and len(values) == 3
            if len(values) == self.channels or unused:
                continue
            takes = (
                "channels=1 takes one number, such as mean=[0.5] and std=[0.5]"
                if self.channels == 1
                else "it takes three numbers, for red, green and blue, unless channels=1"
            )
            raise OptionError(type(self), f"{name} is {list(values)}; {takes}")

    @property
    def is_plain(self) -> bool:
        """Whether images are resized without antialiasing, to weighted sums of pixels."""
        return not self.antialias and self.interpolation == "bilinear"

    @property
    def training(self) -> bool:
        """Whether it is for training.

        Training shuffles and drops the last partial batch by default; evaluation does neither.
        """
        return True

    @property
    def crops(self) -> bool:
        """Whether the output is a crop of the resized image, and not all of it."""
        # () equals no shape: a transform without this option places images in the output by a crop
        return getattr(self, "resize", ()) != self.shape

    @property
    def resizes(self) -> bool:
        """Whether images are resized: not with resize=None, if the transform has this option."""
        return getattr(self, "resize", ()) is not None

    @property
    def shares_resize(self) -> bool:
        """Whether all views of an image are crops of one resized image."""
        return False

    @property
    def shape(self) -> Pair:
        """Height and width of the images, in pixels."""
        return shape_of(self.size)

    @property
    def largest_shape(self) -> Pair:
        """Height and width in the epoch with the most pixels."""
        return max(map(shape_of, self.every_size), key=math.prod)

    def check(self, manifest: Manifest) -> None:
        """Raises a ConfigError if it cannot be carried out on all of these images.

        It is called when a loader is built.
        """
        if manifest.has_wide:
            self._refuse_bytes()
        targets = [name for name in MOVED_TARGETS if manifest.has_target(name)]
        if self.has_steps_before and targets:
            raise OptionError(
                type(self),
                f"before moves the pixels of an image, but not its {targets[0]}, which this "
                "manifest has; leave before empty, or leave them out",
            )

    def _refuse_bytes(self) -> None:
        """Refuses what is defined for images of 8 bits only, since some have 16 bits a channel."""
        views, why = views_of(self), "and the manifest has images of 16 bits a channel"
        without = "or read the images without bits=16"
        if self.dtype == "uint8":
            raise OptionError(type(self), f"dtype is uint8, {why}; set dtype to fp32, {without}")
        policies: list[Any] = [each for view in views for each in view.augmenter.operations]
        names = [policy.name for policy in policies if policy.slots]
        functions = [each for view in views for each in view.augmenter.functions]
        names += [each.title for each in functions if each.where == "uint8"]
        named = [f"augment: {name}" for name in names]
        named += [f"before: {each.title}" for view in views for each in view.functions_before]
        if named:
            raise OptionError(
                type(self), f"{named[0]} changes images of 8 bits, {why}; leave it out, {without}"
            )

    @property
    def has_steps_before(self) -> bool:
        """Whether a view of it has steps on the whole image, before its region is cut out."""
        return any(getattr(view, "before", []) for view in views_of(self))

    @property
    def functions_before(self) -> list[Augment]:
        """The functions of the user's among the steps on the whole image."""
        return [step for step in getattr(self, "before", []) if isinstance(step, Augment)]

    def draw_interpolations(self, draws: Draws) -> NDArray[np.int8] | None:
        """(N,) the place in `INTERPOLATIONS` of each image's; None: all have `interpolation`."""
        if self.interpolation != RANDOM:
            return None
        return (draws.uniform(INTERPOLATION_DRAW)[0] >= 0.5).astype(np.int8)

    def draw_before(self, source: NDArray[np.int64], draws: Draws) -> tuple[DrawnStep, ...]:
        """The steps on whole images whose heights and widths are `source`, (N, 2)."""
        return draw_steps(getattr(self, "before", []), source, draws)

    @property
    def augmenter(self) -> Augmenter:
        """Further operations on the pixels."""
        return Augmenter(getattr(self, "augment", []))

    def without_augmentation(self) -> Self:
        """The same up to `augment`: uint8 images that are cropped, resized and flipped, and that
        `augment` and the normalization still have to change.
        """
        return replace(self, dtype="uint8")

    @property
    def groups(self) -> tuple[tuple["Transform", ...], ...]:
        """The views that are made of each image; those of one name and shape are a group.

        For most transforms the only view is the transform itself.
        """
        return ((self,),)

    @property
    def view_names(self) -> tuple[str, ...]:
        """The name of each group in `Batch.views`; empty if there is one view only."""
        return ()

    def place_in_batch(self, geometry: Geometry) -> tuple[Geometry, Pair]:
        """The geometry of these images in one batch, and the batch's height and width.

        The part of it that an image does not cover is black.
        """
        return geometry, self.shape

    def size_at(self, epoch: int) -> Any:
        """The size of the images in one epoch, as in `size`."""
        sizes = getattr(self, "sizes", {})  # of the transforms that have this option
        since = max((size for size in sizes if size <= epoch), default=None)
        return self.size if since is None else sizes[since]

    def at(self, epoch: int) -> Self:
        """The transform of one epoch."""
        size = self.size_at(epoch)
        return self if size == self.size else replace(self, size=size)

    @property
    def every_size(self) -> set[Any]:
        """The sizes of all epochs, as in `size`."""
        return {self.size_at(epoch) for epoch in (0, *getattr(self, "sizes", {}))}

    @abstractmethod
    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        """The geometry of images whose heights and widths are `source`, (N, 2), as the steps of
        `draw_before` leave them.
        """

    def geometry_around(
        self, source: NDArray[np.int64], objects: Objects, draws: Draws
    ) -> Geometry:
        """As `geometry`, for images with these objects, whose boxes are in pixels of `source`."""
        return self.geometry(source, draws)


_BLOCK = 2**20  # images


def describe_small(
    transform: Transform,
    manifest: Manifest,
    needed: Any,
    resized: Callable[[NDArray[np.int64]], NDArray[np.int64]],
) -> str:
    """How many images are smaller than a crop, and which is the first; "" if none is.

    Args:
        needed: height and width that the crop needs.
        resized: gives (N, 2) heights and widths before the crop, for those of images.
    """
    first, count = 0, 0
    # in blocks: the sizes of all would take 16 bytes an image
    for start in range(0, len(manifest), _BLOCK):
        ids = np.arange(start, min(start + _BLOCK, len(manifest)))
        sizes = resized(manifest.take_sizes(ids, upright=transform.exif == "apply"))
        small = ids[(sizes < needed).any(axis=1)]
        first, count = first if count or not len(small) else int(small[0]), count + len(small)

    if not count:
        return ""
    height, width = needed
    return (
        f"{count:,} of {len(manifest):,} images are smaller than the crop, which needs a height of "
        f"{height} and a width of {width} pixels; the first is {manifest.name(first)}"
    )


def views_of(transform: Transform) -> list[Transform]:
    """All views of its groups, in one list."""
    return [view for group in transform.groups for view in group]


@dataclass(kw_only=True, slots=True)
class RandomTransform(Transform):
    """A random crop, random flips, then the policies of `augment`; the base of the training
    transforms.

    Attributes:
        interpolation: as of all transforms; or "random", which draws bilinear or bicubic for each
            image, as timm does.
        before: steps on the whole image in the order in which they are applied, before the crop,
            such as {"name": "RandomRotation", "degrees": 30}, or Augment(function);
            dali_pipes/plan/steps/ has them all.
        flip, vertical_flip: the probabilities of a left-right and of a top-bottom flip.
        augment: policies in the order in which they are applied, such as "TrivialAugmentWide" or
            {"name": "RandomErasing", "p": 0.25}; dali_pipes/plan/steps/ has them all.
        sizes: progressive resizing: maps an epoch to the size from then on, such as {0: 128, 10:
            192}; `size` before the first of these epochs.
    """

    interpolation: str = option("bilinear", check_choice, (*INTERPOLATIONS, RANDOM))
    before: list[Any] = option(list, check_steps)
    flip: float = option(0.5, check_number, 0, 1)
    vertical_flip: float = option(0.0, check_number, 0, 1)
    augment: list[Any] = option(list, check_policies)
    sizes: dict[int, Any] = option(dict, _check_sizes)

    def __post_init__(self) -> None:
        Transform.__post_init__(self)
        if self.channels == 1:
            self._refuse_colors()

        if self.augmenter.fills and self.dtype == "uint8":
            raise OptionError(
                type(self),
                "dtype is uint8, and TimmRandomErasing fills normalized images; set dtype to fp32",
            )

        narrowest = min(min(shape_of(size)) for size in self.every_size)
        # the blur reflects the image at its edges, which takes fewer pixels than the image has
        for slot in self.augmenter.slots:
            if slot.kernel_size // 2 >= narrowest:
                raise OptionError(
                    type(self),
                    f"augment: GaussianBlur: a kernel of {slot.kernel_size} pixels is too large "
                    f"for images of {narrowest}; kernel_size can be {2 * narrowest - 1} at most",
                )

        normalized = [each for each in self.augmenter.functions if each.where == "normalized"]
        if normalized and self.dtype == "uint8":
            raise OptionError(
                type(self),
                f"augment: {normalized[0].title} takes normalized images, and dtype=uint8 "
                "normalizes none; give it where='uint8', or take another dtype",
            )

    def _refuse_colors(self) -> None:
        """Refuses what asks for colors of an image of one channel.

        The policies that draw from a table of operations stay as they are: their saturation leaves
        such an image as it is, as torchvision's does.
        """
        policies: list[Any] = self.augmenter.operations
        for policy in policies:
            if policy.colors:
                raise OptionError(
                    type(self),
                    f"augment: {policy.colors} changes nothing in images of one channel; leave it "
                    "out, or set channels=3",
                )

        steps = [step for step in self.before if not isinstance(step, Augment)]
        fills = [(f"before: {step.name}", fill_of(step)) for step in steps]
        for policy in policies:
            fills += [(f"augment: {policy.name}", slot.fill) for slot in policy.slots if slot.fill]
        for name, fill in fills:
            if len(set(fill)) > 1:
                raise OptionError(
                    type(self),
                    f"{name} has fill={list(fill)}, a color, and channels is 1; set three equal "
                    "numbers, which are a gray",
                )

    @property
    def flips_or_augments(self) -> bool:
        """Whether any image may be flipped or augmented."""
        return bool(self.flip or self.vertical_flip or self.augment)

    def without_augmentation(self) -> Self:
        return replace(self, dtype="uint8", augment=[])

    def flips(self, numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(2, N) which images are flipped left to right and top to bottom.

        `numbers` are (2, N) random numbers in [0, 1).
        """
        return numbers < np.array([[self.flip], [self.vertical_flip]])


log = logging.getLogger(__name__)

_SHOWN = 5  # names


def check_flips(manifest: Manifest, transform: Transform) -> None:
    """Warns if a transform flips images but their keypoints do not change places.

    Raises:
        ConfigError: by their names they should change places.
    """
    view, keypoints = views_of(transform)[0], manifest.facts.keypoints
    flips = getattr(view, "flip", 0) or getattr(view, "vertical_flip", 0)
    if not flips or keypoints is None or manifest.facts.names_flip_pairs:
        return

    names = keypoints.unpaired_names or keypoints.names
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    advice = "name the pairs with flip_pairs ([]: there are none), or set the transform's flip to 0"
    # names such as "left_eye" prove that a flip is wrong; other names only suggest it
    if keypoints.unpaired_names and not keypoints.has_pairs:
        raise ConfigError(
            f"{manifest.root}: the transform flips images, and of the keypoints {shown} "
            "none becomes another one, so left ones "
            f"would be trained as right ones; {advice}"
        )
    if keypoints.unpaired_names or not keypoints.has_pairs:
        log.warning(
            "%s: the transform flips images, and the keypoints %s keep their names; %s",
            manifest.root,
            shown,
            advice,
        )
