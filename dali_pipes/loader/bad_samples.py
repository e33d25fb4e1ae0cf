"""The samples that have failed, and what is delivered instead.

After an error the loader (loader.py) calls `BadSamples.handle_failure`. It finds the files that are
to blame (bad_files.py), and raises or remembers them. From then on `BadSamples.planned_from` yields
the plan with good samples in place of the bad ones. Batches keep their sizes, so all ranks keep in
step.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from dali_pipes.backends.backend import Backend
from dali_pipes.data.reader import PAUSE_S
from dali_pipes.data.shards import traffic
from dali_pipes.errors import BadSampleError
from dali_pipes.loader.bad_files import find_bad_samples
from dali_pipes.plan.plan import Plan, PlannedBatch
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.open_files import name_limit

log = logging.getLogger(__name__)

_NEIGHBORS = 8  # batches before a batch, and after it, in which good samples are looked for


class BadSamples:
    """The samples of a plan that have failed so far, and the plan with others in their place.

    Attributes:
        failures: (id, path, reason) of each sample that has failed.
    """

    def __init__(self, plan: Plan, transform: Transform, substitute: bool, max_fraction: float):
        self._plan, self._transform = plan, transform
        self._substitute, self._max_fraction = substitute, max_fraction
        self.failures: list[tuple[int, str, str]] = []
        self._tried_again = (-1, -1)  # epoch and step of the batch that was made a second time

    def planned_from(self, epoch: int, step: int) -> Iterator[PlannedBatch]:
        """Yields the planned batches from a step on, as long as the size of the images stays, with
        good samples in place of those that have failed so far.

        Raises:
            BadSampleError: neither the first of these batches nor those around it have a good
                sample.
        """
        bad, size = self._excluded_ids, self._transform.size_at(epoch)
        for ahead, planned in enumerate(self._plan.iter_from(epoch, step, bad)):
            if self._transform.size_at(planned.epoch) != size:
                return
            good = self._substitute_bad(planned, bad) if len(bad) else planned
            if good is None and ahead:
                # the run is to end at this batch, after those before it are delivered
                return
            yield good or self._refuse(planned)

    def planned_at(self, epoch: int, step: int) -> PlannedBatch:
        """The planned batch of one step, as `planned_from` yields it."""
        bad = self._excluded_ids
        planned = self._plan.batch(epoch, step, bad)
        return self._substitute_bad(planned, bad) or self._refuse(planned)

    def handle_failure(self, error: Exception, epoch: int, step: int, backend: Backend) -> None:
        """Finds and records the bad samples of a batch that has failed, so that the batch can be
        made with others in their place. If none is bad, the batch is to be made once more.

        Raises:
            BadSampleError: as `record` raises it.
            Exception: `error` itself, if none is bad and the batch has failed a second time, or if
                no file is to blame.
        """
        if limit := name_limit(error):
            error.add_note(f"epoch {epoch}, step {step}: the batch failed; {limit}")
            raise error
        planned = self.planned_at(epoch, step)
        manifest = self._plan.manifest
        reasons = find_bad_samples(
            manifest, planned, backend, self.controls(planned), self._transform
        )

        if reasons:
            try:
                failed = self.record(planned, reasons)
            except BadSampleError as named:
                raise named from error
            for _, path, why in failed:
                log.warning("%s: %s", path, why)
            return

        where = f"epoch {epoch}, step {step}"
        # a file server may have been away for a moment
        if self._tried_again != (epoch, step):
            self._tried_again = epoch, step
            log.warning(
                ("%s: the batch failed (%s), and its files can be read now; trying it once more"),
                where,
                _one_line(error),
            )
            traffic.add(retries=1)
            time.sleep(PAUSE_S)
            return

        names = {manifest.name(sample_id) for sample_id in planned.ids.tolist()}
        what = f", and none of its {len(names)} files is to blame"
        if len(names) == 1:
            what = (
                f"; Pillow can decode its only file, {names.pop()}, so either the loader "
                "cannot, or something else is wrong"
            )
        error.add_note(f"{where}: the batch failed{what}")
        raise error

    def controls(self, planned: PlannedBatch) -> Iterator[PlannedBatch]:
        """Yields batches of one good sample, from the batches around a batch and not in it."""
        tried: set[int] = set(planned.ids.tolist())
        for other, places in self._neighbors(planned, self._excluded_ids):
            for place in places.tolist():
                if int(other.ids[place]) not in tried:
                    tried.add(int(other.ids[place]))
                    yield other.take(np.array([place]))

    def record(self, planned: PlannedBatch, reasons: dict[int, str]) -> list[tuple[int, str, str]]:
        """Adds the bad samples of a batch to `failures`.

        Args:
            reasons: why each sample failed, by its id.

        Returns:
            (id, path, reason) of these samples.

        Raises:
            BadSampleError: bad samples are not to be substituted, or by now there are too many.
        """
        manifest, where = self._plan.manifest, f"epoch {planned.epoch}, step {planned.step}"
        failed = [(sample_id, manifest.name(sample_id), why) for sample_id, why in reasons.items()]
        # before anything is raised, so that `Loader.bad_samples` lists them in any case
        self.failures += failed
        named = "\n".join(f"  {path}: {why}" for _, path, why in failed)

        if not self._substitute:
            raise BadSampleError(
                f"{where}: {len(failed)} of {len(planned)} images cannot be loaded:\n{named}\n"
                "Fix or remove them and scan again (verify='full' of Manifest.scan, from_table, "
                "from_coco or from_masks lists all, also masks), or go on without them with "
                "on_bad_sample='substitute'",
                failed,
            )

        # those that the scan found are not in the manifest any more, and count as well
        bad, images = len(self.failures) + manifest.bad_images, len(manifest) + manifest.bad_images
        if bad > self._max_fraction * images:
            raise BadSampleError(
                f"{where}: {bad} of {images} images are bad so far, more than max_bad_fraction "
                f"allows ({self._max_fraction * images:g}); the last ones:\n{named}",
                self.failures,
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
    def _excluded_ids(self) -> NDArray[np.int64]:
        return np.array(
            [sample_id for sample_id, _, _ in self.failures if self._substitute], np.int64
        )

    def _substitute_bad(self, planned: PlannedBatch, bad: NDArray[np.int64]) -> PlannedBatch | None:
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


def _one_line(error: Exception) -> str:
    """An error in one line: what its notes say of the files, or else its own text."""
    text = "; ".join(getattr(error, "__notes__", [])) or f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:200]
