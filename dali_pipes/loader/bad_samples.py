"""Finds the files that made a batch fail, and plans what is delivered instead.

Backends cannot tell: DALI's errors name no file, or the wrong one. So after an error the loader
(loader.py) gives the planned batch to `find_bad_samples`, which decodes its files one by one, and
the result to `BadSamples.record`, which raises or remembers it. From then on
`BadSamples.planned_from` yields the plan with good samples in place of the bad ones. Batches keep
their sizes, so all ranks keep in step.
"""

import errno
import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.base import Backend
from dali_pipes.data.limits import PIXEL_LIMIT
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Reader
from dali_pipes.data.scanning.decoders import decode_size
from dali_pipes.data.scanning.headers import ScanOptions, describe_os_error, examine
from dali_pipes.data.scanning.masks import mask_problem
from dali_pipes.errors import BadSampleError
from dali_pipes.plan.plan import Plan, PlannedBatch
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.cpus import available_cpus

_NEIGHBORS = 8  # batches before a batch, and after it, in which good samples are looked for
_CONTROLS = 4  # samples of other batches that are tried; one must succeed to blame a whole batch
_OF_THE_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # errors that are no file's fault


class BadSamples:
    """The samples of a plan that have failed so far, and the plan with others in their place.

    Attributes:
        found: (id, path, reason) of each sample that has failed.
    """

    def __init__(self, plan: Plan, transform: Transform, substitute: bool, max_fraction: float):
        self._plan, self._transform = plan, transform
        self._substitute, self._max_fraction = substitute, max_fraction
        self.found: list[tuple[int, str, str]] = []

    def planned_from(self, epoch: int, step: int) -> Iterator[PlannedBatch]:
        """Yields the planned batches from a step on, as long as the size of the images stays, with
        good samples in place of those that have failed so far.

        Raises:
            BadSampleError: neither the first of these batches nor those around it have a good
                sample.
        """
        bad, size = self._left_out, self._transform.size_at(epoch)
        for ahead, planned in enumerate(self._plan.iter_from(epoch, step, bad)):
            if self._transform.size_at(planned.epoch) != size:
                return
            good = self._without(planned, bad) if len(bad) else planned
            if good is None and ahead:
                # the run is to end at this batch, after those before it are delivered
                return
            yield good or self._refuse(planned)

    def planned_at(self, epoch: int, step: int) -> PlannedBatch:
        """The planned batch of one step, as `planned_from` yields it."""
        bad = self._left_out
        planned = self._plan.batch(epoch, step, bad)
        return self._without(planned, bad) or self._refuse(planned)

    def controls(self, planned: PlannedBatch) -> Iterator[PlannedBatch]:
        """Yields batches of one good sample, from the batches around a batch and not in it."""
        tried: set[int] = set(planned.ids.tolist())
        for other, places in self._neighbors(planned, self._left_out):
            for place in places.tolist():
                if int(other.ids[place]) not in tried:
                    tried.add(int(other.ids[place]))
                    yield other.take(np.array([place]))

    def record(self, planned: PlannedBatch, reasons: dict[int, str]) -> list[tuple[int, str, str]]:
        """Adds the bad samples of a batch to `found`.

        Args:
            reasons: why each sample failed, by its id.

        Returns:
            (id, path, reason) of these samples.

        Raises:
            BadSampleError: bad samples are not to be substituted, or by now there are too many.
        """
        where, manifest = f"epoch {planned.epoch}, step {planned.step}", self._plan.manifest
        failed = [(sample_id, manifest.name(sample_id), why) for sample_id, why in reasons.items()]
        self.found += failed
        named = "\n".join(f"  {path}: {why}" for _, path, why in failed)

        if not self._substitute:
            raise BadSampleError(
                f"{where}: {len(failed)} of {len(planned)} images cannot be loaded:\n{named}\n"
                "Fix or remove them and scan again (verify='full' of Manifest.scan, "
                "from_table, from_coco or from_masks lists all, "
                "also masks), or go on without them with on_bad_sample='substitute'",
                failed,
            )

        # those that the scan found are not in the manifest any more, and count as well
        bad, images = len(self.found) + manifest.bad_images, len(manifest) + manifest.bad_images
        if bad > self._max_fraction * images:
            raise BadSampleError(
                f"{where}: {bad} of {images} images are bad so far, more than "
                "max_bad_fraction allows "
                f"({self._max_fraction * images:g}); the last ones:\n{named}",
                self.found,
            )
        return failed

    def _refuse(self, planned: PlannedBatch) -> NoReturn:
        where = f"epoch {planned.epoch}, step {planned.step}"
        raise BadSampleError(
            (
                f"{where}: all {len(planned)} images of the batch are bad, and those of the "
                "batches around it; scan again"
            ),
            [],
        )

    @property
    def _left_out(self) -> NDArray[np.int64]:
        return np.array([sample_id for sample_id, _, _ in self.found if self._substitute], np.int64)

    def _without(self, planned: PlannedBatch, bad: NDArray[np.int64]) -> PlannedBatch | None:
        """The batch with each bad sample replaced by the next good one in it, cyclically; without
        any, by those of the nearest batch that has some. None if there is no good sample.
        """
        is_bad = np.isin(planned.ids, bad)
        if not is_bad.any():
            return planned

        if is_bad.all():
            # the samples of another batch, repeated to this size, at this batch's place
            for other, places in self._neighbors(planned, bad):
                return replace(
                    other.take(np.resize(places, len(planned))),
                    epoch=planned.epoch,
                    step=planned.step,
                )
            return None

        good = np.flatnonzero(~is_bad)
        places = np.arange(len(planned))
        places[is_bad] = good[np.searchsorted(good, places[is_bad]) % len(good)]
        return planned.take(places)

    def _neighbors(
        self, planned: PlannedBatch, bad: NDArray[np.int64]
    ) -> Iterator[tuple[PlannedBatch, NDArray[np.int64]]]:
        """Yields the batches around a batch in its epoch that have good samples, the following
        batches first, each with the places of these samples.
        """
        steps, at = len(self._plan), planned.step
        for step in (
            *range(at + 1, min(at + 1 + _NEIGHBORS, steps)),
            *range(at - 1, max(-1, at - 1 - _NEIGHBORS), -1),
        ):
            other = self._plan.batch(planned.epoch, step, bad)
            if len(good := np.flatnonzero(~np.isin(other.ids, bad))):
                yield other, good


def find_bad_samples(
    manifest: Manifest,
    planned: PlannedBatch,
    backend: Backend,
    controls: Iterable[PlannedBatch],
    ignore_index: int,
) -> dict[int, str]:
    """Returns the samples of a failed batch that cannot be delivered as they were scanned, each
    with the reason, by id.

    The files are decoded one by one with Pillow; if all succeed, one by one with the backend
    itself. A file is to blame if it fails there twice while another file succeeds: a backend that
    is broken would fail with any file.

    Args:
        controls: batches of one sample of other batches, tried if all samples of this one fail.
        ignore_index: a value in masks that need not be a class.
    """
    # a batch may have a sample more than once
    places = np.unique(planned.ids, return_index=True)[1]
    with ThreadPoolExecutor(available_cpus()) as pool:
        reasons = pool.map(
            lambda sample_id: _problem(manifest, sample_id, ignore_index),
            planned.ids[places].tolist(),
        )
        found = {
            int(planned.ids[place]): reason
            for place, reason in zip(places, reasons, strict=True)
            if reason
        }
    if found:
        return found

    alone = {int(planned.ids[place]): planned.take(np.array([place])) for place in places}
    suspects = [sample_id for sample_id, each in alone.items() if _fails(each, backend)]
    if not suspects:
        return {}

    # if all fail, samples of other batches tell whether the backend is broken
    others = [] if len(suspects) < len(alone) else list(itertools.islice(controls, _CONTROLS))
    others_work = len(suspects) < len(alone) or any(
        _fails(each, backend) is None for each in others
    )
    # with no other file to compare with, the backend's error must name a decoder
    only_file = not others and len({manifest.name(sample_id) for sample_id in alone}) == 1

    # a second time, since a read may have failed for a moment
    again = {sample_id: _fails(alone[sample_id], backend) for sample_id in suspects}
    return {
        sample_id: f"this loader cannot decode it ({' '.join(str(error).split())[:300]})"
        for sample_id, error in again.items()
        if error and (others_work or (only_file and _names_a_decoder(error)))
    }


def _problem(manifest: Manifest, sample_id: int, ignore_index: int) -> str | None:
    try:
        encoded = manifest.read(sample_id)
    except OSError as error:
        return None if error.errno in _OF_THE_PROCESS else describe_os_error(error)

    # only what keeps it from being loaded: whether decoders agree on it was for the scan to judge
    header = examine(
        BytesIO(encoded.data), len(encoded), 0, ScanOptions(max_pixels=PIXEL_LIMIT), judge=False
    )
    if header.problem:
        return header.problem
    ((height, width),) = manifest.take_sizes(np.array([sample_id]))
    # before decoding: a file that was replaced may be larger than any scan allows
    if (header.height, header.width) != (height, width):
        return (
            f"{header.width} × {header.height} pixels, but {width} × {height} when it was scanned"
        )

    try:
        decode_size(encoded.tobytes())
    except MemoryError:
        return None
    except Exception as error:  # whatever the decoder raises, this file is bad
        return f"cannot be decoded ({error})"
    return _mask_problem(manifest, sample_id, ignore_index)


def _mask_problem(manifest: Manifest, sample_id: int, ignore_index: int) -> str | None:
    mask = manifest.mask_extent(sample_id)
    if not mask:
        return None

    try:
        file = BytesIO(Reader(keep=1).read(mask).data)
        if not (why := mask_problem(file, *manifest.mask_size(sample_id), "full")):
            values = manifest.mask_values.decode(file)
            why = manifest.mask_values.problem_of(values, len(manifest.classes), [ignore_index])
    except OSError as error:
        why = None if error.errno in _OF_THE_PROCESS else describe_os_error(error)
    return why and f"its mask {mask}: {why}"


def _fails(single: PlannedBatch, backend: Backend) -> Exception | None:
    """The backend's error with a batch of one sample; None if it succeeds, or if the error says
    nothing about the file.
    """
    try:
        next(backend.stream(iter([single])))
    except (MemoryError, torch.OutOfMemoryError):
        return None
    except Exception as error:  # of any type; the caller asks whether other files cause it too
        return error
    return None


def _names_a_decoder(error: Exception) -> bool:
    return any(word in str(error).lower() for word in ("decod", "peek_image_shape", "truncated"))
