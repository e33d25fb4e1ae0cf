"""Reads the further images of samples, such as depth maps, and makes what batches have of them."""

from functools import cached_property
from io import BytesIO

import torch

from dali_pipes.backends.common.target_pixels import (
    augment_moved,
    move_target,
    range_problem,
    scale_target,
)
from dali_pipes.data.image_files.stored import open_stored
from dali_pipes.data.image_files.target_images import (
    channel_problem,
    decode_target_image,
    target_image_problem,
)
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Reader
from dali_pipes.data.upright import mask_to_stored
from dali_pipes.errors import OptionError
from dali_pipes.plan.coordinates import turn_mask
from dali_pipes.plan.plan import PlannedBatch, PlannedView
from dali_pipes.plan.transforms import INTERPOLATIONS, TargetImage, Transform, views_of

# what `nearest-exact` of images is with Pillow
_OF_IMAGES = {"nearest-exact": "pillow"}


class TargetImages:
    """Makes the further images of batches, each as the plan moves the pixels of the first view.

    Attributes:
        options: what is made of each, by its name.

    Raises:
        OptionError: the file of the first sample does not have the channels that are asked for.
    """

    def __init__(self, manifest: Manifest, transform: Transform, reader: Reader):
        self._manifest, self._transform, self._reader = manifest, transform, reader
        self.options = {name: transform.target_image(name) for name in manifest.target_images}
        for name, options in self.options.items():
            self._check_first(name, options)

    def _check_first(self, name: str, options: TargetImage) -> None:
        """Refuses options that no file of this kind can have; other faults are bad samples."""
        extent = self._manifest.target_image_extent(name, 0)
        try:
            with open_stored(BytesIO(self._reader.read(extent).data)) as image:
                mode = image.mode
        except Exception:  # a file that cannot be read is named when it is loaded
            return
        if why := channel_problem(mode, options.channels, options.dtype):
            raise OptionError(type(self._transform), f"target_images: {name}: {extent}: {why}")

    @cached_property
    def _view(self) -> Transform:
        return views_of(self._transform)[0]

    def make(self, name: str, planned: PlannedBatch, at: int) -> torch.Tensor:
        """(C, H, W) of the further image of this name of sample `at` of a batch.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is broken, or not what was scanned.
        """
        options, sample_id = self.options[name], int(planned.ids[at])
        extent = self._manifest.target_image_extent(name, sample_id)

        # a file that was replaced since the scan is found by its header, before it is decoded
        encoded, place = (
            BytesIO(self._reader.read(extent).data),
            self._manifest.target_image_place(sample_id),
        )
        kind = options.channels, options.dtype
        if why := target_image_problem(encoded, place, "header", *kind):
            raise ValueError(f"{extent}: {why}")
        values, white = decode_target_image(encoded, options.channels)
        if why := range_problem(values, white, options):
            raise ValueError(f"{extent}: {why}")

        # all that follows moves an image as it is stored
        orientation = int(self._manifest.take_orientations(planned.ids[at : at + 1])[0])
        if self._manifest.masks_upright:
            values = mask_to_stored(values, orientation)
        if self._transform.exif == "apply":
            values = turn_mask(values, orientation)

        view, interpolation = planned.views[0], self._interpolation(options, planned.views[0], at)
        moved = move_target(
            values,
            options,
            interpolation,
            self._view.antialias,
            view.geometry.take(at),
            view.shape,
        )
        image = augment_moved(
            moved, options, interpolation, self._view.augmenter.slots, view.augmentation, at
        )
        return scale_target(image, options, white)

    def _interpolation(self, options: TargetImage, view: PlannedView, at: int) -> str:
        if options.interpolation is not None:
            return options.interpolation
        drawn = view.interpolations
        of_image = self._view.interpolation if drawn is None else INTERPOLATIONS[drawn[at]]
        return _OF_IMAGES.get(of_image, of_image)
