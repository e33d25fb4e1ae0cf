"""Whether pictures are worth sending to the training process: asked in a worker.

What no backend has a place for would be made in threads of the training process, by the same
functions. Workers make it, as they always did: there may be more of them, and they hold no lock of
one another.
"""

from collections import Counter

from dali_pipes.adapters.lazy.cells import Cell
from dali_pipes.adapters.lazy.compiler.batches import RowKind, kind_of
from dali_pipes.adapters.lazy.compiler.reading import read
from dali_pipes.adapters.lazy.recipes import Recipe
from dali_pipes.adapters.lazy.state import PROCESS, eager
from dali_pipes.adapters.lazy.steps.step import NoPlace

_FIRST = 16  # pictures that are read, and of which all kinds are sent
_LEAST_SHARE = 1 / 16  # of what was read, that a kind needs for a backend of its own
# of a batch, or else all of it is made: what comes in two parts is copied once more
_LEAST_SENT = 3 / 4
# pictures of a worker, those at which the program looks among them; how many must be sent
_ENOUGH, _LEAST_WORTH = 64, 1 / 4
_MOST_KINDS = 200
_READ_AGAIN = 16  # of so many pictures one is read, if the last one with such notes had a place


class NotePlaces:
    """Which pictures of a worker's have a place.

    Args:
        on_gpu: whether backends work on one.

    Attributes:
        left: how many have none, by reason.
    """

    def __init__(self, on_gpu: bool = False):
        self.left: Counter[str] = Counter()
        self._on_gpu = on_gpu
        self._kinds: Counter[RowKind] = Counter()
        self._has: dict[tuple[str, ...], bool] = {}
        self._count = self._read = self._asked = self._sent = 0

    def make_rest(self, cells: list[Cell], looks: int = 0) -> None:
        """Makes the pictures that have no place, here and now; but not those that cannot be made,
        of which the training process will know what to do.

        Args:
            looks: how many pictures the program has made meanwhile, as it looked at them.
        """
        before = PROCESS.failed
        self._asked += looks
        for cell in cells:
            rows = [row for row in cell.rows if isinstance(row, Recipe)]
            sent = {id(row) for row in rows if self.has(row)}
            if len(sent) < _LEAST_SENT * len(rows):
                sent.clear()
            self._asked, self._sent = self._asked + len(rows), self._sent + len(sent)
            try:
                with eager():
                    cell.rows = [
                        row.make() if isinstance(row, Recipe) and id(row) not in sent else row
                        for row in cell.rows
                    ]
                    if not sent:
                        cell.make()
            except Exception:
                PROCESS.failed = before

    @property
    def are_too_few(self) -> bool:
        """Whether most are made in the worker, so that waiting takes more time than it saves."""
        return self._asked >= _ENOUGH and self._sent < _LEAST_WORTH * self._asked

    def has(self, recipe: Recipe) -> bool:
        """Whether a backend makes this picture."""
        names = tuple([note[0] for note in recipe.notes])
        self._count += 1
        if self._read >= _FIRST and self._count % _READ_AGAIN and self._has.get(names):
            return True

        self._read += 1
        try:
            self._find(recipe)
            self._has[names] = True
        except NoPlace as why:
            self._has[names] = False
            self.left[str(why)] += 1
        return self._has[names]

    def _find(self, recipe: Recipe) -> None:
        """
        Raises:
            NoPlace: no backend makes it.
        """
        row = read(recipe)
        kind = kind_of(row)
        if row.steps and recipe.source.opener == "cv2" and not self._on_gpu:
            # albumentations' Transpose after a crop and resize: 1.4 times the CPU time
            raise NoPlace("OpenCV changes a whole image in less time than a backend does")
        self._kinds[kind] += 1
        if len(self._kinds) > _MOST_KINDS:  # such as where each picture has a number of its own
            self._kinds = Counter(dict(self._kinds.most_common(_MOST_KINDS // 2)))
        if self._read > _FIRST and self._kinds[kind] < self._read * _LEAST_SHARE:
            raise NoPlace("too few pictures are like it")
