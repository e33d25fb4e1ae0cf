"""Makes the labels and targets of batches: boxes, masks, keypoints, texts and columns.

They are looked up by the ids of the batch, and moved as the plan moves the pixels of the first
view. `TargetReader.start` starts with a planned batch, in threads, when the backend takes it from
the plan; `join` adds the result to the images when the backend has made them.
"""

import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dali_pipes.backends.backend import Decoded
from dali_pipes.backends.pixels.warps import augment_mask
from dali_pipes.backends.transfer import copy_to
from dali_pipes.data.image_files.masks import mask_problem
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.objects import Objects
from dali_pipes.data.outlines import rasterize
from dali_pipes.data.reader import Reader
from dali_pipes.data.turns import reverse, turn_array, turn_matrices
from dali_pipes.errors import ConfigError
from dali_pipes.loader.batch import Batch, Ragged
from dali_pipes.plan.coordinates import mask_indices, move_objects, to_stored
from dali_pipes.plan.plan import Plan, PlannedBatch
from dali_pipes.plan.transforms import Transform, views_of
from dali_pipes.system.cpus import available_cpus

Values = NDArray[Any]


@dataclass(frozen=True, slots=True)
class PendingTargets:
    """The targets of a planned batch, which threads may still be making."""

    planned: PlannedBatch
    objects: Objects | None  # those that are left after the crop; None: this manifest has none
    masks: list[Future[Values]]  # (H, W) for each image
    outlines: list[Future[Values]]  # (M, H, W) bool for each image, the masks of its objects

    @property
    def _made_in_threads(self) -> list[Future[Any]]:
        return [*self.masks, *self.outlines]

    def wait(self) -> None:
        """Waits for all masks; raises an OSError or a ValueError if one cannot be read."""
        for made in self._made_in_threads:
            made.result()

    def cancel(self) -> None:
        for made in self._made_in_threads:
            made.cancel()


class TargetReader:
    """Makes the targets of batches. As soon as a batch is planned, threads read, decode, crop,
    resize and flip its masks.
    """

    def __init__(self, plan: Plan, transform: Transform):
        self._plan, self._manifest, self._transform = plan, plan.manifest, transform
        self._has_masks, self._has_outlines = map(self._manifest.has_target, ("mask", "outlines"))
        self._reader = Reader()
        self._threads = (
            ThreadPoolExecutor(available_cpus(), "masks")
            if self._has_masks or self._has_outlines
            else None
        )

        if both := ", ".join(sorted({*self._manifest.numeric_columns} & self._names)):
            root = self._manifest.root
            raise ConfigError(
                f"{root}: the table has columns of its own named {both}, as targets of a batch "
                "are; rename them"
            )

    @property
    def _names(self) -> set[str]:
        """The names of the targets that batches have."""
        has = self._manifest.has_target
        of_objects = {"boxes", "box_labels", "to_image", "image_sizes"}
        of_objects |= {name for name in ("areas", "crowd", "keypoints") if has(name)}
        named = {"masks": self._has_outlines, "mask": self._has_masks, "text": has("text")}
        return (of_objects if has("boxes") else set()) | {
            name for name, there in named.items() if there
        }

    def start(self, planned: PlannedBatch) -> PendingTargets:
        objects, kept = self._objects(planned)

        masks, outlines = [], []
        if self._threads and self._has_masks:
            masks = [
                self._threads.submit(self._make_mask, planned, at) for at in range(len(planned))
            ]
        if self._threads and self._has_outlines:
            outlines = [
                self._threads.submit(self._make_object_masks, planned, at, kept_objects)
                for at, kept_objects in enumerate(kept)
            ]
        return PendingTargets(planned, objects, masks, outlines)

    def _objects(self, planned: PlannedBatch) -> tuple[Objects | None, list[NDArray[np.bool_]]]:
        """The objects that are left in the first view, and for each image which of its objects
        these are.
        """
        if (objects := self._plan.objects(planned.ids)) is None:
            return None, []

        view, transform = planned.views[0], views_of(self._transform)[0]
        options = (
            self._manifest.facts.keypoints,
            transform.min_box_size,
            transform.crops_around_boxes,
        )
        moved, kept = move_objects(objects, view.geometry, view.augmentation, view.shape, *options)
        return moved, np.split(kept, objects.counts.cumsum()[:-1])

    def _to_image(self, planned: PlannedBatch) -> Values:
        """(N, 2, 3) matrices that take x and y in the output to x and y in the annotated
        pictures.
        """
        view, turns = planned.views[0], self._transform.exif == "apply"
        orientations = (
            self._manifest.take_orientations(planned.ids)
            if turns
            else np.ones(len(planned), np.int8)
        )
        stored = to_stored(view.geometry, view.augmentation, view.shape, orientations)
        if not self._manifest.facts.boxes_upright:
            return stored

        # the annotated pictures are upright: from the stored image on, turn by EXIF
        turn = turn_matrices(
            self._manifest.take_orientations(planned.ids),
            self._manifest.take_sizes(planned.ids, upright=True),
        )
        stored = turn[:, :2, :2] @ stored
        stored[:, :, 2] += turn[:, :2, 2]
        return stored

    def _orientation(self, planned: PlannedBatch, at: int) -> int:
        return int(self._manifest.take_orientations(planned.ids[at : at + 1])[0])

    def _make_mask(self, planned: PlannedBatch, at: int) -> Values:
        ignore_index = self._transform.ignore_index
        values = read_mask(self._manifest, int(planned.ids[at]), self._reader, ignore_index)
        if values is None:
            return np.full(planned.shape, ignore_index, np.int32)

        # all that follows moves a mask of the stored image
        if self._manifest.facts.masks_upright:
            values = turn_array(values, reverse(self._orientation(planned, at)))
        return self._move_mask(values, planned, at, ignore_index)

    def _make_object_masks(self, planned: PlannedBatch, at: int, kept: NDArray[np.bool_]) -> Values:
        outlines = json.loads(
            self._manifest.take_texts("outlines", planned.ids[at : at + 1])[0] or "[]"
        )
        left = [outline for outline, is_left in zip(outlines, kept, strict=True) if is_left]
        ((height, width),) = self._manifest.take_sizes(planned.ids[at : at + 1]).tolist()
        # as numbers: `_move_mask` compares `outside` with the largest one that the dtype holds
        masks = [
            self._move_mask(rasterize(outline, height, width).view(np.uint8), planned, at, 0)
            for outline in left
        ]
        return np.stack(masks).astype(bool) if masks else np.zeros((0, *planned.shape), bool)

    def _move_mask(self, mask: Values, planned: PlannedBatch, at: int, outside: int) -> Values:
        """Crops, resizes, flips and augments a mask of the stored image as the first view is;
        `outside` fills what is not in the image.
        """
        view = planned.views[0]
        if self._transform.exif == "apply":
            mask = turn_array(mask, self._orientation(planned, at))

        if outside > np.iinfo(mask.dtype).max:
            mask = mask.astype(np.int32)  # such as an ignore_index that is no uint8
        # resized to the nearest value, in one step with crop and flips
        kind = self._transform.mask_interpolation
        lines, columns = mask_indices(view.geometry.take(at), view.shape, kind)
        made = mask[lines[:, None], columns]
        made[lines < 0], made[:, columns < 0] = outside, outside

        drawn = view.augmentation
        if not drawn.ops[at].any() and not drawn.moves[at].size:
            return made
        return augment_mask(
            torch.from_numpy(made),
            views_of(self._transform)[0].augmenter.slots,
            drawn.ops[at],
            drawn.magnitudes[at],
            drawn.moves[at],
            outside,
        ).numpy()

    def join(self, decoded: Decoded, pending: PendingTargets) -> Batch:
        """Adds labels and targets to decoded images, all on the images' device. Lists of class
        numbers become multi-hot.
        """
        manifest, device = self._manifest, decoded.images.device
        ids = pending.planned.ids
        labels = _to_device(manifest.take_labels(ids), device)
        if manifest.task == "multilabel":
            labels = multi_hot(labels, len(manifest.classes))

        targets: dict[str, Any] = {
            name: _to_device(values, device) for name, values in manifest.take_columns(ids).items()
        } | self._targets(pending, device)
        if manifest.has_target("text"):
            targets["text"] = manifest.take_texts("text", ids)

        # in a group, all images of its first view come first, then those of the second
        groups = (
            images.view(-1, len(ids), *images.shape[1:]).transpose(0, 1)
            for images in decoded.groups
        )
        names = self._transform.view_names
        views = dict(zip(names, groups, strict=True)) if names else {}

        return Batch(
            decoded.images,
            labels,
            _to_device(ids, device),
            targets,
            views,
        )

    def _targets(self, pending: PendingTargets, device: torch.device) -> dict[str, Any]:
        targets: dict[str, Any] = {}
        if (objects := pending.objects) is not None:
            lengths = objects.counts.tolist()

            # one row for each object: a tensor of all images, with the number of each image's
            named: dict[str, Values | None] = {
                "boxes": objects.boxes,
                "box_labels": objects.labels,
                "areas": objects.areas,
            }
            named |= {"crowd": objects.crowd, "keypoints": objects.keypoints}
            if pending.outlines:
                named |= {
                    "masks": np.concatenate([outline.result() for outline in pending.outlines])
                }
            targets |= {
                name: Ragged(_to_device(values, device), lengths)
                for name, values in named.items()
                if values is not None
            }

            # what takes boxes back to the annotated pictures, and their sizes: boxes.py
            targets["to_image"] = _to_device(self._to_image(pending.planned), device)
            sizes = self._manifest.take_sizes(
                pending.planned.ids, upright=self._manifest.facts.boxes_upright
            )
            targets["image_sizes"] = _to_device(sizes, device)

        if pending.masks:
            targets["mask"] = _to_device(
                np.stack([mask.result() for mask in pending.masks]), device
            ).long()
        # the part of each padded image that is not padding
        if self._transform.pads_batches:
            targets["sizes"] = _to_device(pending.planned.geometry.resize, device)
        return targets

    def close(self) -> None:
        """Ends the threads, after the masks that they are making."""
        if self._threads:
            self._threads.shutdown(cancel_futures=True)
        self._reader.close()


def read_mask(
    manifest: Manifest, sample_id: int, reader: Reader, ignore_index: int
) -> Values | None:
    """(H, W) uint8 or int32 of the mask of a sample, as it is stored; None: it has none.

    Args:
        ignore_index: a value that need not be a class.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is broken, of another size than its image, or has values of no class.
    """
    if (file := manifest.mask_extent(sample_id)) is None:
        return None

    # a file that was replaced since the scan is found by its header, before it is decoded
    encoded = BytesIO(reader.read(file).data)
    if why := mask_problem(encoded, *manifest.mask_size(sample_id), "header"):
        raise ValueError(f"{file}: {why}")
    try:
        values = manifest.facts.mask_values.decode(encoded)
    except Exception as error:  # Pillow's plugins raise almost anything on broken files
        raise ValueError(f"{file}: broken ({type(error).__name__}: {error})") from None
    if why := manifest.facts.mask_values.problem_of(values, len(manifest.classes), [ignore_index]):
        raise ValueError(f"{file}: {why}")
    return values


def _to_device(values: Values, device: torch.device) -> Tensor:
    return copy_to(device, torch.from_numpy(np.ascontiguousarray(values)))


def multi_hot(numbers: Tensor, num_classes: int) -> Tensor:
    """Turns (N, L) int64 class numbers, filled up with -1, into (N, num_classes) float32 with 1 for
    the classes of each row.
    """
    # -1 goes to one more column, which is left out of the result
    ones = torch.zeros(len(numbers), num_classes + 1, dtype=torch.float32, device=numbers.device)
    ones.scatter_(1, numbers.where(numbers >= 0, num_classes), 1.0)
    return ones[:, :num_classes].contiguous()
