"""Five or ten crops of each image, over which an evaluation takes the mean."""

from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_choice, check_if_given, check_pixels
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import OptionError
from dali_pipes.options import option
from dali_pipes.plan.geometry import Geometry, crop_geometry, resize_sizes
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.transforms.base import Transform, find_small

CORNERS = ("top_left", "top_right", "bottom_left", "bottom_right", "center")  # torchvision's order


@dataclass(kw_only=True, slots=True)
class CornerCrop(Transform):
    """One of the crops that TenCropTransform makes.

    Attributes:
        resize: as there.
        corner: one of `CORNERS`.
        flip, vertical_flip: whether the image is mirrored before it is cropped.
    """

    resize: Any = option(256, check_if_given, check_pixels, 1, "(height, width)")
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

    resize: Any = option(256, check_if_given, check_pixels, 1, "(height, width)")
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
        count, first = find_small(self, manifest, self.shape, resized)
        if count:
            height, width = self.shape
            raise OptionError(
                type(self),
                f"size: {count:,} of {len(manifest):,} images are smaller than a crop of "
                f"{height} × {width} pixels; the first is {manifest.name(first)}. Set "
                "resize to the size or more, or leave these images out (Manifest.filter)",
            )
