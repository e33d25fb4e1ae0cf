"""`BadItems`: the pictures of items that have failed, by their file and not by their item.

An item may have other pictures in each epoch, so its id says nothing. A bad picture is known by its
key; whichever item has it is replaced as a whole, where the items are run (run.py).
"""

from collections.abc import Iterator
from typing import ClassVar, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from dali_pipes.adapters.items.encoded import Encoded
from dali_pipes.adapters.items.run import BadPicture
from dali_pipes.backends.backend import Backend
from dali_pipes.data.loose_images import LooseImages
from dali_pipes.errors import BadSampleError
from dali_pipes.loader.bad_files import find_bad_samples
from dali_pipes.loader.bad_samples import BadSamples, log
from dali_pipes.plan.plan import PlannedBatch


class PictureError(Exception):
    """The pictures of a batch of items could not be made; its cause is the backend's error.

    Attributes:
        pictures: the planned batch that failed.
        ids: the ids of the items.
        part: the number of the backend that made it.
    """

    def __init__(self, pictures: PlannedBatch, ids: NDArray[np.int64], part: int):
        super().__init__(f"epoch {pictures.epoch}, step {pictures.step}: pictures of items")
        self.pictures, self.ids, self.part = pictures, ids, part


class _HasParts(Protocol):
    def backend_of(self, part: int) -> Backend: ...


class BadItems(BadSamples):
    """
    Attributes:
        keys: of the bad pictures that are known.
    """

    _remedy: ClassVar[str] = "Fix or remove them"
    _unit: ClassVar[str] = "items"
    keys: frozenset[str] = frozenset()

    @property
    def substitutes(self) -> bool:
        return self._substitute

    @property
    def _excluded_ids(self) -> NDArray[np.int64]:
        # the items themselves are run in any case, and then replaced
        return np.zeros(0, np.int64)

    def handle_failure(self, error: Exception, epoch: int, step: int, backend: Backend) -> None:
        """Finds and records the bad pictures of a batch that has failed, as the base class does.

        An error of the items themselves is no picture's fault, and is raised.
        """
        if not isinstance(error, PictureError):
            raise error
        cause, planned = cast(Exception, error.__cause__), error.pictures
        images = cast(LooseImages, planned.images)

        # no controls: those of other batches would have to be run first
        part = cast(_HasParts, backend).backend_of(error.part)
        reasons = find_bad_samples(images, planned, part, iter(()), self._transform)
        if not reasons:
            names = {images.name(number) for number in planned.ids.tolist()}
            return self._try_again(cause, epoch, step, names)

        bad = [
            BadPicture(
                int(error.ids[number % len(error.ids)]),
                Encoded(images.encoded[number] or images.name(number)).key,
                images.name(number),
                why,
            )
            for number, why in reasons.items()
        ]
        try:
            self.note(bad, epoch, step, len(planned))
        except BadSampleError as named:
            raise named from cause
        return None

    def note(self, bad: list[BadPicture], epoch: int, step: int, count: int) -> None:
        """Records bad pictures of a batch of `count`; `failures` lists each once.

        Raises:
            BadSampleError: they are not to be replaced, or by now there are too many.
        """
        # what is not replaced is an error each time, also in the next epoch of the same loader
        new = list(_different(bad, self.keys if self._substitute else frozenset()))
        if not new:
            return
        again = {each.name for each in new if each.key in self.keys}
        self.failures = [each for each in self.failures if each[1] not in again]
        self.keys |= {each.key for each in new}
        failed = [(each.item, each.name, each.reason) for each in new]
        self._add(failed, f"epoch {epoch}, step {step}", count)
        for _, name, why in failed:
            log.warning("%s: %s", name, why)


def _different(bad: list[BadPicture], known: frozenset[str]) -> Iterator[BadPicture]:
    seen = set(known)
    for each in bad:
        if each.key not in seen:
            seen.add(each.key)
            yield each
