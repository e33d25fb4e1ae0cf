"""Makes items and batches as a DataLoader without workers does, and times both parts."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

from torch.utils.data import IterableDataset

# a data set whose items all fail is given up after so many
MAX_FAILED = 10


class ItemMaker:
    """Fetches and collates items as PyTorch's fetchers do."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], auto_collation: bool):
        self._dataset, self._collate, self._auto = dataset, collate, auto_collation
        self._stream: Iterator[Any] | None = (
            iter(dataset) if isinstance(dataset, IterableDataset) else None
        )
        self.items = self.failed = 0
        self.fetch_s = self.collate_s = 0.0
        self.error: Exception | None = None
        self._last: Any = None  # the last index that gave an item

    def take(self, batch: Any) -> bool:
        """Makes one batch. Returns False if an iterable data set has ended."""
        begin = time.perf_counter()
        made = list[Any]()

        # PyTorch's fetcher prefers __getitems__, if a data set has it
        if self._auto and self._stream is None and getattr(self._dataset, "__getitems__", None):
            made = self._try(self._fetch_many, batch) or []
        else:
            # without auto_collation a batch is one index
            for index in batch if self._auto else [batch]:
                try:
                    made.append(self._fetch(index))
                except StopIteration:
                    break
                except Exception as error:
                    self._note(error)
                    if self.failed >= MAX_FAILED:
                        break

        fetched = time.perf_counter()
        self.fetch_s += fetched - begin
        if made:
            self._try(self._collate_items, made if self._auto else made[0])
            self.collate_s += time.perf_counter() - fetched

        self.items += len(made)
        return bool(made) or self._stream is None

    def _try(self, call: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return call(argument)
        except Exception as error:
            self._note(error)
            return None

    def _note(self, error: Exception) -> None:
        self.failed += 1
        self.error = self.error or error

    def _fetch(self, index: Any) -> Any:
        item = next(self._stream) if self._stream is not None else self._dataset[index]
        self._last = index
        return item

    def _fetch_many(self, indices: Sequence[Any]) -> Any:
        items = self._dataset.__getitems__(indices)
        self._last = list(indices)[:1]
        return items

    def count_lines(self, code: CodeType) -> int:
        """Returns how many lines of this code one more item runs; 0 if that cannot be counted."""
        lines = 0

        def count(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal lines
            if frame.f_code is not code:
                return None
            lines += event == "line"
            return count

        if sys.gettrace() is not None:  # a debugger's, which must stay
            return 0

        sys.settrace(lambda frame, event, argument: count if frame.f_code is code else None)
        try:
            many = (
                self._auto and self._stream is None and getattr(self._dataset, "__getitems__", None)
            )
            (self._fetch_many if many else self._fetch)(self._last)
        except (Exception, StopIteration):
            return 0
        finally:
            sys.settrace(None)
        return lines

    def _collate_items(self, made: Any) -> Any:
        return self._collate(made)


# `StackSampler.add` reads a stack up to these: what is below them runs the measurement
ROOTS = {
    ItemMaker._fetch.__code__,
    ItemMaker._fetch_many.__code__,
    ItemMaker._collate_items.__code__,
    ItemMaker.take.__code__,
}
