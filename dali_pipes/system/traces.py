"""Names what a loader does in the traces of Nsight Systems (NVTX) and of torch.profiler.

Users open a `trace()` block; inside it, loaders name their parts with `span(NAME)`.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

SPANS = ("plan", "read", "decode", "finish", "transfer", "targets", "mixing", "wait")
PREFIX = "dali_pipes: "
_VARIABLE = "DALI_PIPES_TRACE"  # tells spawned workers; forked ones inherit `_is_on` as well
_is_on = os.environ.get(_VARIABLE) == "1"


@contextmanager
def trace() -> Iterator[None]:
    """Makes a `with` block in which loaders name what they do: plan, read, decode, finish,
    transfer, targets, mixing, wait.

    The names are ranges of `torch.profiler.record_function` and, if there is a GPU, NVTX ranges,
    which Nsight Systems shows. Build the loader inside the block, so that its workers name their
    parts too. docs/diagnose.md shows both.
    """
    global _is_on
    before, variable = _is_on, os.environ.get(_VARIABLE)
    try:
        _is_on, os.environ[_VARIABLE] = True, "1"
        yield
    finally:
        _is_on = before
        if variable is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = variable


def span(name: str) -> AbstractContextManager[Any]:
    """Makes a `with` block that is a range named `name`, one of `SPANS`; outside of `trace()` it
    does nothing.
    """
    return _Span(name) if _is_on else _NOTHING


class _Nothing(AbstractContextManager[None]):
    def __exit__(self, *error: object) -> None:
        pass


class _Span(AbstractContextManager[None]):
    def __init__(self, name: str):
        import torch  # here, since a scan reads files too and needs no PyTorch

        self._name = f"{PREFIX}{name}"
        self._record = torch.profiler.record_function(self._name)
        self._nvtx: Any = torch.cuda.nvtx if torch.cuda.is_available() else None

    def __enter__(self) -> None:
        if self._nvtx:
            self._nvtx.range_push(self._name)
        self._record.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        # in reverse order, since the ranges are nested
        self._record.__exit__(*error)
        if self._nvtx:
            self._nvtx.range_pop()


_NOTHING = _Nothing()
