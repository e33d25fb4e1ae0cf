"""Whether pictures are worth sending to the training process: asked in a worker.

What no backend has a place for would be made in threads of the training process, by the same
functions. Workers make it, as they always did: there may be more of them, and they hold no lock of
one another.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from dali_pipes.adapters.lazy.cells import Cell
from dali_pipes.adapters.lazy.compiler.batches import RowKind, kind_of
from dali_pipes.adapters.lazy.compiler.reading import read, read_front
from dali_pipes.adapters.lazy.recipes import Recipe
from dali_pipes.adapters.lazy.steps.step import NoPlace

_FIRST = 16  # pictures that are read, and of which all kinds are sent
_LEAST_SHARE = 1 / 16  # of what was read, that a kind needs for a backend of its own
_READ_AGAIN = 16  # of so many pictures one is read, if the last one with such notes had a place


class NotePlaces:
    """Which pictures of a worker's have a place."""

    def __init__(self) -> None:
        self._kinds: Counter[RowKind] = Counter()
        self._place_of: dict[tuple[str, ...], bool] = {}
        self._count = self._read = 0

    def has(self, recipe: Recipe) -> bool:
        """Whether a backend makes this picture, or does its first notes."""
        names = tuple([note[0] for note in recipe.notes])
        self._count += 1
        if self._read >= _FIRST and self._count % _READ_AGAIN and self._place_of.get(names):
            return True

        self._read += 1
        found = [self._is_frequent(kind) for kind in _kinds_of(recipe)]
        self._place_of[names] = any(found)
        return any(found)

    def make_rest(self, cells: list[Cell]) -> None:
        """Makes the pictures that have no place, here and now.

        Raises:
            Exception: one of them cannot be made.
        """
        for cell in cells:
            rows = [
                row.make() if isinstance(row, Recipe) and not self.has(row) else row
                for row in cell.rows
            ]
            cell.rows = rows
            if not any(isinstance(row, Recipe) for row in rows):
                cell.make()

    def _is_frequent(self, kind: RowKind) -> bool:
        self._kinds[kind] += 1
        return self._read <= _FIRST or self._kinds[kind] >= self._read * _LEAST_SHARE


def _kinds_of(recipe: Recipe) -> Iterator[RowKind]:
    """The kind of all notes, and that of the first ones, if there are such."""
    row, _, front = read(recipe)
    for each in (row, read_front(recipe, front) if front else None):
        if each is not None:
            with suppress(NoPlace):
                yield kind_of(each)
