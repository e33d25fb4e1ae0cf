"""Makes the pictures of batches, a few batches ahead: `Executor(config, device, batch_size)`.

    works ──▶ rows of each kind ──▶ a line: a backend, and the planned batches in it ─┐
                  └ what the plan has no place for ──▶ made as noted, in threads ─────┴──▶ cells

A file that a backend cannot decode ends its stream. Then the pictures of that batch are made as
noted. That finds the file, and raises what the program's own decoder raises; the line gets a new
backend, and goes on with the next batch.
"""

import itertools
import logging
import traceback
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data._utils import signal_handling

from dali_pipes.adapters.lazy.cells import Cell
from dali_pipes.adapters.lazy.compiler.batches import RowKind, as_noted, kind_of
from dali_pipes.adapters.lazy.compiler.lines import (
    MOST_FAILURES,
    BackendLine,
    Item,
    LinePart,
    Lines,
    Pairs,
)
from dali_pipes.adapters.lazy.compiler.places import NotePlaces
from dali_pipes.adapters.lazy.compiler.reading import read
from dali_pipes.adapters.lazy.compiler.row import Row
from dali_pipes.adapters.lazy.recipes import STORES_RGB, Recipe, Source
from dali_pipes.adapters.lazy.steps.step import NoPlace
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.pixels.pool import _one_core_each
from dali_pipes.backends.registry import load_backend
from dali_pipes.errors import ConfigError
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.gpu_memory import release_unused_of_dali
from dali_pipes.system.modes import in_own_modes

log = logging.getLogger(__name__)

_MOST_THREADS = 16
_MOST_KEPT_AWAY = 4096  # sources
_LATER = object()  # what a thread returns of a picture that it must not make


@dataclass(eq=False)
class LazyWork:
    """A batch whose pictures wait.

    Attributes:
        cells: what is to be made.
        parcel: whatever else belongs to the batch.
        error: why that failed, when it comes back; None: the cells are filled.
        parts: what backends make.
        items: what is made as noted.
    """

    cells: list[Cell]
    parcel: Any = None
    error: Exception | None = None
    parts: list[LinePart] = field(default_factory=list, repr=False)
    items: list[Item] = field(default_factory=list, repr=False)


class Executor:
    """Fills the cells of works.

    Args:
        config: the options of the backend; None: everything is made as noted.
        device: where tensors arrive. Arrays stay on the CPU.
        batch_size: pictures of a usual batch.
        ahead: how many works may be read before they are needed.

    Attributes:
        count: how many pictures backends made.
        left: how many they did not make, by reason.
        unusable: why the present backend cannot be had; "": it can, as far as is known.
    """

    def __init__(
        self,
        config: LoaderConfig | None,
        device: torch.device,
        batch_size: int,
        ahead: int = 8,
    ):
        self.device, self.ahead, self.count = device, ahead, 0
        self.left: Counter[str] = Counter()
        self._lines: Lines | None = None
        self._earlier: list[Lines] = []  # that make what was sent to them
        self._ended: list[str] = []  # what those said that have made it
        self._batch_size, self._may_fail = batch_size, False
        self.unusable = ""
        if config is not None:
            self.use(config)
        self._pool: ThreadPoolExecutor | None = None
        self._kept_away: set[Source] = set()  # what a backend could not decode
        self._suspects: list[Item] = []  # one of these a backend could not decode
        self._works: Iterator[LazyWork] = iter(())
        self._reading: deque[LazyWork] = deque()  # in order; the first one is needed now
        self._error: Exception | None = None
        self._number = 0

    def use(self, config: LoaderConfig, may_fail: bool = False) -> None:
        """Has this backend make what is read from now on.

        Args:
            may_fail: pictures are made as noted if it cannot be had, and `unusable` says why;
                otherwise that raises an error.

        Raises:
            ConfigError: a package that it needs is missing.
        """
        load_backend(config)
        self.release()
        self._may_fail, self.unusable = may_fail, ""
        self._lines = Lines(config.on_cores(), self.device, self._batch_size, self._read)

    def release(self) -> None:
        """Ends the backend, when it has made what was sent to it."""
        if self._lines:
            self._earlier.append(self._lines)
            self._lines = None

    def run(self, works: Iterator[LazyWork]) -> Iterator[LazyWork]:
        """The works in order, each with its cells filled, or with an error.

        What `works` itself raises is raised after all works that came before.
        """
        self._works, self._error = works, None
        try:
            while self._reading or self._read():
                work = self._reading[0]
                self._complete(work)
                self._reading.popleft()
                self._end_earlier()
                yield work
            if self._error:
                raise self._error
        finally:
            self._abandon()

    def places(self) -> NotePlaces | None:
        """For a worker: what backends have a place for; None: there is none."""
        return NotePlaces(self.device.type == "cuda") if self._lines else None

    def refuse(self, line: BackendLine, why: str) -> None:
        """Has all pictures of a line's kind made as noted from the next work on."""
        for lines in self._all_lines:
            if line in lines:
                lines.refuse(line.kind, why)

    def describe(self) -> list[str]:
        """A text for each backend, with what it made."""
        return [*self._ended, *[text for lines in self._all_lines for text in lines.describe()]]

    def close(self) -> None:
        """Ends all backends and threads; harmless when called twice."""
        self._abandon()
        for lines in self._all_lines:
            lines.close()
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
        self._pool = None

    def _abandon(self) -> None:
        """Forgets what nobody waits for any more."""
        for work in self._reading:
            for item in work.items:
                item.future.cancel()
        self._reading.clear()
        for lines in self._all_lines:
            lines.forget()
        self._end_earlier()

    @property
    def _all_lines(self) -> list[Lines]:
        return [*self._earlier, *([self._lines] if self._lines else ())]

    def _end_earlier(self) -> None:
        """Ends the backends of earlier lines that have made all that was sent to them."""
        for lines in [each for each in self._earlier if not each.unmade]:
            self._earlier.remove(lines)
            self._ended += lines.describe()
            lines.close()
            release_unused_of_dali()

    # reading

    def _read(self) -> bool:
        """Reads and plans one work more; False: there is none, or enough are read."""
        if self._error or len(self._reading) > self.ahead:
            return False
        if self._reading and self._reading[-1].error is not None:
            # it is told first: a DataLoader that has lost a worker takes long each time it is asked
            return False
        try:
            work = next(self._works, None)
        except Exception as error:
            # works before it come first; and a backend that asks has nothing to do with it
            self._error = error
            return False
        if work is None:
            return False
        self._number += 1
        try:
            self._plan(work)
        except OSError as error:
            work.error = error
        except Exception as error:
            self._error = error
            return False
        self._reading.append(work)
        return True

    def _plan(self, work: LazyWork) -> None:
        """Gives each picture to a line, or has it made as noted.

        Raises:
            OSError: a file has changed, or is gone.
        """
        items = [
            Item(cell, place, recipe)
            for cell in work.cells
            for place, recipe in enumerate(cell.rows)
            if isinstance(recipe, Recipe)
        ]
        for item in items:
            item.recipe.source.check()

        groups: dict[RowKind, Pairs] = {}
        for item in items:
            try:
                row = self._read_row(item.recipe)
                groups.setdefault(kind_of(row), []).append((item, row))
            except NoPlace as why:
                self._make_as_noted(work, item, str(why))
        for kind, pairs in groups.items():
            self._send(work, kind, pairs)

    def _read_row(self, recipe: Recipe) -> Row:
        """
        Raises:
            NoPlace: no backend makes it.
        """
        if self._lines is None:
            raise NoPlace("there is no backend")
        # without any, nothing is compared: of a source in memory that takes a while
        if self._kept_away and recipe.source in self._kept_away:
            raise NoPlace("a backend could not decode it")
        if recipe.source.coding == STORES_RGB and self._decodes_on_gpu:
            raise NoPlace("nvJPEG takes its red, green and blue for other colors")
        return read(recipe)

    @property
    def _decodes_on_gpu(self) -> bool:
        on_gpu = self._lines is not None and self._lines.config.decodes_on == "gpu"
        return on_gpu and self.device.type == "cuda"

    def _send(self, work: LazyWork, kind: RowKind, pairs: Pairs) -> None:
        """Sends pictures to the line of their kind, or has them made as noted."""
        assert self._lines
        try:
            line = self._lines.find(kind, [row for _, row in pairs])
            fitting = [pair for pair in pairs if line.room.has(pair[1])]
            why = "they have other operations than the first ones"
            work.parts += line.send(fitting)
            self.count += len(fitting)
        except NoPlace as error:
            fitting, why = [], str(error)
        except ConfigError as error:
            if not self._may_fail:
                raise
            fitting, why = [], str(error)
            self._lines.refuse(kind, why)
            self.unusable = why
        if len(fitting) < len(pairs):
            sent = {id(item) for item, _ in fitting}
            for item, _ in pairs:
                if id(item) not in sent:
                    self._make_as_noted(work, item, why)

    # making

    def _complete(self, work: LazyWork) -> None:
        """Fills the cells of a work, or says why that fails."""
        for part in list(work.parts):
            self._wait_for(part)
        # meanwhile threads and backends get more to do
        while not all(item.future.done() for item in work.items) and self._read():
            pass
        if self._suspects:
            self._keep_away(self._suspects)
            self._suspects = []
        if work.error is None:
            try:
                _fill(work, self.device)
            except Exception as error:
                work.error = error

    def _wait_for(self, part: LinePart) -> None:
        """Returns when it is made; or else its pictures are made as noted."""
        if part not in self._reading[0].parts:
            return  # it was left with one before it
        try:
            part.line.wait_for(part)
            return
        except (ConfigError, MemoryError, torch.OutOfMemoryError) as error:
            if not self._may_fail:
                raise
            if self._lines and part.line in self._lines:
                self.unusable = f"{type(error).__name__}: {error}"
            part.line.failures = MOST_FAILURES  # it is not begun once more
            self._leave(part, error)
        except Exception as error:
            if _is_of_a_signal(error):
                raise
            self._leave(part, error)

    def _leave(self, part: LinePart, error: Exception) -> None:
        """Has the pictures of a part made as noted, whose backend has failed."""
        lines = next(each for each in self._all_lines if part.line in each)
        log.warning(
            "%s on %s: %d pictures are made as noted, by the program's own libraries: %s",
            type(lines.config).__name__,
            self.device,
            len(part.items),
            _reason_of(error),
        )
        left = lines.recover(part)
        for work in self._reading:
            for each in [each for each in work.parts if each in left]:
                work.parts.remove(each)
                self.count -= len(each.items)
                for item in each.items:
                    self._make_as_noted(work, item, "a backend failed")
        self._suspects += part.items

    def _keep_away(self, suspects: list[Item]) -> None:
        """Keeps what a backend could not decode away from it: what cannot be made as noted either,
        or all suspects.
        """
        bad = [item for item in suspects if item.future.exception()]
        if len(self._kept_away) < _MOST_KEPT_AWAY:
            self._kept_away.update(item.recipe.source for item in bad or suspects)

    def _make_as_noted(self, work: LazyWork, item: Item, why: str) -> None:
        """Has it made in a thread."""
        if self._pool is None:
            count = min(available_cpus(), _MOST_THREADS)
            self._pool = ThreadPoolExecutor(count, "lazy_pictures")
            _one_core_each(self._pool, count)
        self.left[why] += 1
        work.items.append(item)
        item.future = self._pool.submit(_make, item.recipe)


def _reason_of(error: Exception) -> str:
    """The line of an error that says most: DALI ends one by saying what cannot be used any more."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith("Current pipeline")]
    return f"{type(error).__name__}: {said[-1] if said else ''}"


def _is_of_a_signal(error: Exception) -> bool:
    """Whether PyTorch's handler of SIGCHLD raised it, which tells that a worker of any DataLoader
    is lost, wherever this thread is by then: that is no failure of a backend.
    """
    chain: BaseException | None = error
    while chain is not None:
        for frame, _ in traceback.walk_tb(chain.__traceback__):
            if frame.f_code.co_filename == signal_handling.__file__:
                return True
        chain = chain.__cause__ or chain.__context__
    return False


def _make(recipe: Recipe) -> Any:
    # PyTorch's default dtype belongs to the process: to change it here would change it there
    return recipe.make() if torch.get_default_dtype() == torch.float32 else _LATER


@in_own_modes
def _fill(work: LazyWork, device: torch.device) -> None:
    """Puts what was made into the cells.

    Raises:
        Exception: a picture cannot be made, or its file has changed meanwhile.
    """
    for item in work.items:
        made = item.future.result()
        item.keep(item.recipe.make() if made is _LATER else made, device)
    for part in work.parts:
        assert part.images is not None
        images = as_noted(part.images, part.line.kind)
        first = 0
        for _, group in itertools.groupby(part.items, lambda item: id(item.cell)):
            items = list(group)
            own, first = images[first : first + len(items)], first + len(items)
            cell = items[0].cell
            if len(items) == len(cell.rows):
                cell.fill(cell.join(own))
                continue
            for item, image in zip(items, own, strict=True):
                item.keep(image, device)

    for item in itertools.chain(work.items, *[part.items for part in work.parts]):
        item.recipe.source.check()
    for cell in work.cells:
        cell.make()
