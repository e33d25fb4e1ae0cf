"""Which planned batch it is that a library hands back."""

from collections.abc import Iterator

from dali_pipes.plan.plan import PlannedBatch


class InWork:
    """Planned batches on their way through a library that keeps a number with what it makes of
    each.

    The number is the identity of the object, which no other has while it is kept here. So a batch
    gets its own labels whatever was interrupted or left out before, which an order of arrival could
    not promise.
    """

    def __init__(self, planned: Iterator[PlannedBatch]):
        self._planned = planned
        self._by_number: dict[int, PlannedBatch] = {}

    def __iter__(self) -> Iterator[PlannedBatch]:
        """Those to be given to the library; `id()` of each is its number."""
        for each in self._planned:
            self._by_number[id(each)] = each
            yield each

    def take(self, number: int) -> PlannedBatch:
        """The one with this number, which leaves."""
        return self._by_number.pop(number)

    def take_first(self) -> PlannedBatch:
        """The one that was given first, of a library that delivers in order and has no place for a
        number.
        """
        return self._by_number.pop(next(iter(self._by_number)))
