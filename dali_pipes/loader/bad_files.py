"""Finds the files that made a batch fail.

Backends cannot tell: DALI's errors name no file, or the wrong one. So `find_bad_samples` decodes
the files of the batch one by one with Pillow, and then, if need be, parts of the batch with the
backend.
"""

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.backend import Backend
from dali_pipes.data.image_files.decoders import decode_size
from dali_pipes.data.image_files.headers import (
    PIXEL_LIMIT,
    ScanOptions,
    describe_os_error,
    examine,
)
from dali_pipes.data.image_files.wide import wide_refusal
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import PROCESS_ERRNOS, Reader
from dali_pipes.loader.targets import read_mask
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.cpus import available_cpus

_CONTROLS = 4  # samples of other batches that are tried; one must succeed to blame a whole batch


def find_bad_samples(
    manifest: Manifest,
    planned: PlannedBatch,
    backend: Backend,
    controls: Iterable[PlannedBatch],
    transform: Transform,
) -> dict[int, str]:
    """Returns the samples of a failed batch that cannot be delivered as they were scanned, each
    with the reason, by id.

    The files are decoded one by one with Pillow. If all succeed, the backend itself decodes halves
    of what fails, until single files are left. Each try starts a stream, which on a GPU is a
    pipeline; one bad file among 256 takes up to 18. A file is to blame if it fails there twice
    while another file succeeds: a backend that is broken would fail with any file.

    Args:
        controls: batches of one sample of other batches, tried if all samples of this one fail.
        transform: says which value in masks need not be a class.
    """
    # a batch may have a sample more than once
    places = np.unique(planned.ids, return_index=True)[1]
    with ThreadPoolExecutor(available_cpus()) as pool:
        reasons = pool.map(
            lambda sample_id: _problem(manifest, sample_id, transform),
            planned.ids[places].tolist(),
        )
        reasons_by_id = {
            int(planned.ids[place]): reason
            for place, reason in zip(places, reasons, strict=True)
            if reason
        }
    if reasons_by_id:
        return reasons_by_id

    suspects = [planned.take(np.array([place])) for place in _failing(planned, places, backend)]
    if not suspects:
        return {}

    # if all fail, samples of other batches tell whether the backend is broken
    all_fail = len(suspects) == len(places)
    others = list(itertools.islice(controls, _CONTROLS)) if all_fail else []
    others_work = not all_fail or any(_error_of(other, backend) is None for other in others)
    # with no other file to compare with, the backend's error must name a decoder
    names = set(map(manifest.name, planned.ids[places].tolist()))
    only_file = not others and len(names) == 1
    if not others_work and not only_file:
        return {}

    # a second time, since a read may have failed for a moment
    again = {int(suspect.ids[0]): _error_of(suspect, backend) for suspect in suspects}
    return {
        sample_id: f"this loader cannot decode it ({' '.join(str(error).split())[:300]})"
        for sample_id, error in again.items()
        if error and (others_work or _names_a_decoder(error))
    }


def _failing(planned: PlannedBatch, places: NDArray[np.intp], backend: Backend) -> Iterator[int]:
    """The places whose samples the backend cannot decode alone, among those of a part that it
    cannot decode together.
    """
    if len(places) == 1:
        if _error_of(planned.take(places), backend):
            yield int(places[0])
        return

    first, second = np.array_split(places, 2)
    first_fails = _error_of(planned.take(first), backend)
    if first_fails:
        yield from _failing(planned, first, backend)
    # where the first half succeeds it is the second that fails
    if not first_fails or _error_of(planned.take(second), backend):
        yield from _failing(planned, second, backend)


def _problem(manifest: Manifest, sample_id: int, transform: Transform) -> str | None:
    try:
        encoded = manifest.read(sample_id)
    except OSError as error:
        return None if error.errno in PROCESS_ERRNOS else describe_os_error(error)

    # only what keeps it from being loaded: whether decoders agree on it was for the scan to judge
    wide = bool(manifest.take_wide(np.array([sample_id]))[0])
    check = ScanOptions(max_pixels=PIXEL_LIMIT, bits=16 if wide else 8)
    header = examine(BytesIO(encoded.data), len(encoded), 0, check, judge=False)
    if header.problem:
        return header.problem
    ((height, width),) = manifest.take_sizes(np.array([sample_id]))
    # before decoding: a file that was replaced may be larger than any scan allows
    if (header.height, header.width) != (height, width):
        return (
            f"{header.width} × {header.height} pixels, but {width} × {height} when it was scanned"
        )

    if wide and (why := wide_refusal(BytesIO(encoded.data), height, width)):
        return why
    try:
        decode_size(encoded.tobytes())
    # like `PROCESS_ERRNOS`, no file's fault
    except MemoryError:
        return None
    except Exception as error:  # whatever the decoder raises, this file is bad
        return f"cannot be decoded ({error})"
    return _target_problem(manifest, sample_id, transform.ignore_index)


def _target_problem(manifest: Manifest, sample_id: int, ignore_index: int) -> str | None:
    """What is wrong with the files of a sample's targets."""
    try:
        read_mask(manifest, sample_id, Reader(keep=1), ignore_index)
    except ValueError as error:
        return f"its mask {error}"
    except OSError as error:
        if error.errno not in PROCESS_ERRNOS:
            return f"its mask {manifest.mask_extent(sample_id)}: {describe_os_error(error)}"
    return None


def _error_of(part: PlannedBatch, backend: Backend) -> Exception | None:
    """The backend's error with these samples; None if it succeeds, or if there is too little memory
    for a single one, which says nothing about the file.
    """
    try:
        next(backend.stream(iter([part])))
    except Exception as error:  # of any type; the caller asks whether other files cause it too
        is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
        return None if is_memory and len(part) == 1 else error
    return None


def _names_a_decoder(error: Exception) -> bool:
    return any(word in str(error).lower() for word in ("decod", "peek_image_shape", "truncated"))
