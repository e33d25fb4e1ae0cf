"""Which file made a batch fail. Backends do not know: DALI's errors name no file, or the wrong one."""

from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np

from dali_pipes.backends.base import Backend
from dali_pipes.data.limits import MOST_PIXELS
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Reader
from dali_pipes.data.scanning.decoders import pillow
from dali_pipes.data.scanning.headers import ScanOptions, examine, os_problem
from dali_pipes.data.scanning.masks import mask_problem
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.system.cpus import available_cpus


def find_bad_samples(manifest: Manifest, rows: PlannedBatch, backend: Backend, ignore_index: int) -> dict[int, str]:
    """The reason for each sample of a failed batch that cannot be delivered as it was scanned.

    The files are decoded one by one with Pillow; if all succeed, one by one with the backend itself. If all fail there, the files
    are not the cause.

    Args:
        ignore_index: the value of a mask that need not be a class.
    """
    places = np.unique(rows.ids, return_index=True)[1]
    with ThreadPoolExecutor(available_cpus()) as pool:
        reasons = pool.map(lambda sample_id: _problem(manifest, sample_id, ignore_index), rows.ids[places].tolist())
        found = {int(rows.ids[place]): reason for place, reason in zip(places, reasons, strict=True) if reason}
    if found:
        return found
    found = {int(rows.ids[place]): why for place in places if (why := _fails_alone(rows.take(np.array([place])), backend))}
    return found if len(found) < len(places) else {}


def _problem(manifest: Manifest, sample_id: int, ignore_index: int) -> str | None:
    try:
        encoded = manifest.read(sample_id)
    except OSError as error:
        return os_problem(error)
    header = examine(BytesIO(encoded.data), len(encoded), 0, ScanOptions(max_pixels=MOST_PIXELS), judge=False)
    if header.problem:
        return header.problem
    ((height, width),) = manifest.take_sizes(np.array([sample_id]))
    if (header.height, header.width) != (height, width):  # before it is decoded: it may be larger than any scan allows
        return f"{header.width} × {header.height} pixels, but {width} × {height} when it was scanned"
    try:
        pillow(encoded.tobytes())
    except Exception as error:  # any error of the decoder means that this file is bad
        return f"cannot be decoded ({error})"
    if mask := manifest.mask_extent(sample_id):
        try:
            file = BytesIO(Reader(keep=1).read(mask).data)
            if not (why := mask_problem(file, *manifest.mask_size(sample_id), "full")):
                values = manifest.mask_values.decode(file)
                why = manifest.mask_values.strange(values, len(manifest.classes), [ignore_index])
        except OSError as error:
            why = os_problem(error)
        return why and f"its mask {mask}: {why}"
    return None


def _fails_alone(row: PlannedBatch, backend: Backend) -> str | None:
    try:
        next(backend.stream(iter([row])))
    except Exception as error:  # any error of the backend means that this file is bad
        return f"this loader cannot decode it ({' '.join(str(error).split())[:300]})"
    return None
