"""Several views of an image: those of a training, or the ten crops of an evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_choice, check_int
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError, Mention, OptionError
from dali_pipes.options import option
from dali_pipes.plan.draws import Draws
from dali_pipes.plan.geometry import Geometry, Pair, crop_geometry, resize_sizes
from dali_pipes.plan.steps.functions import Augment
from dali_pipes.plan.steps.lists import Augmenter
from dali_pipes.plan.transforms.base import Transform, check_resize, describe_small
from dali_pipes.plan.transforms.classification import TrainTransform

# the options that a view has for itself; all others are those of the whole transform
VIEW_OPTIONS = (
    "size",
    "interpolation",
    "scale",
    "ratio",
    "flip",
    "vertical_flip",
    "augment",
    "before",
)


def _check_views(option: str, value: Any) -> dict[str, list[dict[str, Any]]]:
    """The options of each view by its name."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = _group_by_name(value)
    if not isinstance(value, Mapping) or not value:
        example = [{"name": "global", "count": 2, "size": 224}]
        raise OptionError(
            ViewsTransform,
            f"{option} names no view; it takes names and options: ",
            Mention(ViewsTransform, option, example),
        )
    return {str(name): _parse_view_options(str(name), options) for name, options in value.items()}


@dataclass(kw_only=True, slots=True)
class ViewsTransform(TrainTransform):
    """Several views of each image, each a `TrainTransform` with random numbers of its own; the
    image is decoded once for all.

    The other options are those of every view that does not set its own.

    Attributes:
        views: maps each name to the options of its views and to their number, such as {"global":
            {"count": 2, "size": 224}, "local": {"count": 8, "size": 96}}; or to a list of options,
            one for each view, if they differ. In YAML and on the command line it is a list,
            [{name: global, count: 2, size: 224}, {name: local, count: 8, size: 96}], since Hydra
            merges mappings and replaces lists.
    """

    views: Any = option(list, _check_views)

    def __post_init__(self) -> None:
        if self.sizes:
            raise OptionError(
                type(self),
                "sizes changes the size of the images, and views have sizes of their own; set "
                "those",
            )

        TrainTransform.__post_init__(self)

        self._keep_functions()

        # one name is one tensor (N, V, 3, H, W), so its views have one shape
        for name, group in zip(self.views, self.groups, strict=True):
            if len({view.shape for view in group}) > 1:
                sizes = ", ".join(str(view.size) for view in group)
                raise OptionError(
                    type(self),
                    f"views: {name} has views of {sizes} pixels; give those of each size a name "
                    "of their own",
                )

    def _keep_functions(self) -> None:
        """Replaces functions that are written as mappings by their `Augment`.

        `groups` makes its views anew each time, and what `Augment.draws_from_globals` says must
        stay.
        """
        for listed, group in zip(self.views.values(), self.groups, strict=True):
            for options, view in zip(listed, group, strict=True):
                for name in ("augment", "before"):
                    if name in options:
                        options[name] = [
                            step if isinstance(step, Augment) else written
                            for written, step in zip(
                                options[name], getattr(view, name), strict=True
                            )
                        ]

    @property
    def view_names(self) -> tuple[str, ...]:
        return tuple(self.views)

    @property
    def groups(self) -> tuple[tuple[Transform, ...], ...]:
        # without `views`: each view is a TrainTransform, whose own options replace the shared ones
        shared = {
            declared.name: getattr(self, declared.name) for declared in fields(TrainTransform)
        }
        return tuple(
            tuple(TrainTransform(**shared | options) for options in listed)
            for listed in self.views.values()
        )

    @property
    def shape(self) -> Pair:
        """Height and width of the first view."""
        return self.groups[0][0].shape

    @property
    def augmenter(self) -> Augmenter:
        """The augmenter of the first view."""
        return self.groups[0][0].augmenter

    def without_augmentation(self) -> Self:
        views = {
            name: [options | {"augment": []} for options in listed]
            for name, listed in self.views.items()
        }
        return replace(self, dtype="uint8", augment=[], views=views)

    @property
    def every_size(self) -> set[Any]:
        return {self.groups[0][0].size}


def _group_by_name(views: Sequence[Any]) -> dict[str, list[dict[str, Any]]]:
    """The options of each name, from a list of options with names.

    Options with the same name follow one another.
    """
    by_name: dict[str, list[dict[str, Any]]] = {}
    for view in views:
        if not isinstance(view, Mapping) or "name" not in view:
            example = [{"name": "global", "count": 2, "size": 224}]
            raise OptionError(
                ViewsTransform,
                f"views: {view!r} has no name; it takes views such as ",
                Mention(ViewsTransform, "views", example),
            )

        options = {str(name): value for name, value in view.items() if name != "name"}
        by_name.setdefault(str(view["name"]), []).extend(
            _parse_view_options(str(view["name"]), options)
        )

    return by_name


def _parse_view_options(name: str, value: Any) -> list[dict[str, Any]]:
    """The options of each view of one name."""
    if isinstance(value, Mapping):
        options = dict(value)
        count = options.pop("count", 1)
        value = [options] * check_int(f"views: count of {name}", count, 1, 2**15)

    listed = isinstance(value, Sequence) and not isinstance(value, str)
    if not listed or not value or not all(isinstance(options, Mapping) for options in value):
        takes = "options such as count and size, or a list of them"
        raise ConfigError(f"views: {name} is {value!r}; it takes {takes}")
    if unknown := {str(option) for options in value for option in options} - set(VIEW_OPTIONS):
        takes = f"{', '.join(VIEW_OPTIONS)}; the rest stands beside views"
        raise ConfigError(f"views: {name} has {', '.join(sorted(unknown))}; a view takes {takes}")

    return [dict(options) for options in value]


CORNERS = ("top_left", "top_right", "bottom_left", "bottom_right", "center")  # torchvision's order


@dataclass(kw_only=True, slots=True)
class CornerCrop(Transform):
    """One of the crops that TenCropTransform makes.

    Attributes:
        resize: as there.
        corner: one of `CORNERS`.
        flip, vertical_flip: whether the image is mirrored before it is cropped.
    """

    resize: Any = option(256, check_resize)
    corner: str = option("center", check_choice, CORNERS)
    flip: bool = False
    vertical_flip: bool = False

    training: ClassVar[bool] = False

    @property
    def shares_resize(self) -> bool:
        # as stored, only the crop itself is decoded
        return self.resize is not None

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        room = resize_sizes(source, self.resize) - self.shape
        at_end = np.array([self.corner.startswith("bottom"), self.corner.endswith("right")])
        crop = room * at_end if self.corner != "center" else np.rint(room / 2).astype(np.int64)

        # what is cropped of a mirrored image is as far from the other side
        mirrored = np.array([self.vertical_flip, self.flip])
        crop = np.where(mirrored, room - crop, crop)
        flips = np.tile(mirrored[::-1, None], len(source))
        return crop_geometry(source, self.resize, crop, self.shape, flips)


@dataclass(kw_only=True, slots=True)
class TenCropTransform(Transform):
    """torchvision's Resize(resize) and TenCrop(size, vertical_flip), or FiveCrop(size).

    `batch.views["crops"]` has the crops in torchvision's order, (N, 10, 3, height, width): top
    left, top right, bottom left, bottom right, center, then those of the mirrored image.

    Attributes:
        resize: length of the shorter side before the crops, or (height, width), in pixels; None: as
            stored.
        mirrored: False leaves out the second five, as FiveCrop does.
        vertical_flip: whether top and bottom are swapped for the second five, and not left and
            right.
    """

    resize: Any = option(256, check_resize)
    mirrored: bool = True
    vertical_flip: bool = False

    training: ClassVar[bool] = False

    @property
    def shares_resize(self) -> bool:
        return self.resize is not None

    @property
    def view_names(self) -> tuple[str, ...]:
        return ("crops",)

    @property
    def groups(self) -> tuple[tuple[Transform, ...], ...]:
        # without `mirrored` and `vertical_flip`, which a crop has for itself
        shared: dict[str, Any] = {
            declared.name: getattr(self, declared.name) for declared in fields(Transform)
        }
        shared["resize"] = self.resize
        down = self.vertical_flip
        return (
            tuple(
                CornerCrop(
                    **shared,
                    corner=corner,
                    flip=flipped and not down,
                    vertical_flip=flipped and down,
                )
                for flipped in ((False, True) if self.mirrored else (False,))
                for corner in CORNERS
            ),
        )

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        """That of the first crop."""
        return self.groups[0][0].geometry(source, draws)

    def check(self, manifest: Manifest) -> None:
        """Refuses images that are smaller than a crop: counts them, and names the first."""
        Transform.check(self, manifest)
        resized = partial(resize_sizes, resize=self.resize)
        if small := describe_small(self, manifest, self.shape, resized):
            raise OptionError(
                type(self),
                f"size: {small}. Set resize to the size or more, or leave these images out "
                "(Manifest.filter)",
            )
