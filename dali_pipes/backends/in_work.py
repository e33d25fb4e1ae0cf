"""Finds the planned batch that belongs to what a library hands back."""

from collections.abc import Iterator

from dali_pipes.plan.plan import PlannedBatch


class InWork:
    """Planned batches on their way through a library, which keeps a number with each.

    The number is the `id()` of the object, which no other object has while it is kept here. So a
    batch gets its own labels whatever was interrupted or left out before; the order of arrival
    could not promise that.
    """

    def __init__(self, planned: Iterator[PlannedBatch]):
        self._planned = planned
        self._by_number: dict[int, PlannedBatch] = {}

    def __iter__(self) -> Iterator[PlannedBatch]:
        """The planned batches for the library; `id()` of each is its number."""
        for batch in self._planned:
            self._by_number[id(batch)] = batch
            yield batch

    def take(self, number: int) -> PlannedBatch:
        """Removes and returns the planned batch with this number."""
        return self._by_number.pop(number)
