"""Is what a program makes with pictures that wait what it would have made without? A forked copy of the process makes it, and says.

What this module does not know of a program is mostly there from its first sample on: a test such as `type(x) is np.ndarray`, or an
`except` that swallows an error which the program alone would not have had. The copy changes nothing in the process itself.
"""

import dataclasses
import hashlib
import os
import pickle
import random
import select
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import PIL.Image
import torch

from dali_pipes.adapters.lazy.state import eager

SECONDS = 60  # for a copy of the process


def prints(value: Any, path: str = "") -> Iterator[tuple[Any, ...]]:
    """Place, class, type and a digest of all that is in a sample or batch."""
    kind = type(value).__name__
    if isinstance(value, PIL.Image.Image):
        yield path, kind, (value.mode, value.size, value.format), _digest(value.tobytes())
    elif isinstance(value, torch.Tensor):
        plain = value.detach().as_subclass(torch.Tensor)
        numbers = (
            plain.contiguous().view(torch.uint8) if plain.ndim and plain.numel() else plain.clone()
        )
        yield (
            path,
            kind,
            (str(value.dtype), tuple(value.shape), value.requires_grad),
            _digest(numbers.numpy().tobytes()),
        )
    elif isinstance(value, np.ndarray):
        yield (
            path,
            kind,
            (str(value.dtype), value.shape),
            _digest(value.tobytes() if value.dtype != object else repr(value).encode()),
        )
    elif isinstance(value, Mapping):
        yield path, kind, tuple(map(str, value)), None
        for key in value:
            yield from prints(value[key], f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        yield path, kind, len(value), None
        for at, each in enumerate(value):
            yield from prints(each, f"{path}[{at}]")
    elif dataclasses.is_dataclass(value):
        yield from prints(vars(value), f"{path}.")
    else:
        plain = isinstance(value, (int, float, complex, str, bytes, bool, type(None), np.generic))
        yield path, kind, repr(value) if plain else None, None


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class Copy:
    """A copy of this process, which makes something without waiting."""

    def __init__(self, make: Callable[[], Any]):
        self._pipe, out = os.pipe()
        state = random.getstate()
        self._process = os.fork()
        if self._process:
            os.close(out)
            return
        try:
            random.setstate(state)  # which a fork draws anew
            with eager(), os.fdopen(out, "wb") as file:
                try:
                    found = list(prints(make()))
                except Exception as error:
                    found = type(error).__name__
                pickle.dump(found, file)
        finally:
            os._exit(0)

    def difference(self, value: Any) -> str | None:
        """How what was made here differs, in words; None: it does not."""
        found, expected = list(prints(value)), self._result()
        if not isinstance(expected, list):
            return f"without waiting it is {expected}"
        for one, other in zip(expected, found, strict=False):
            if one != other:
                what = (
                    f"{other[1:3]} instead of {one[1:3]}"
                    if one[:3] != other[:3]
                    else "of other pixels"
                )
                return f"{other[0] or 'it'} is {what}"
        return (
            None
            if len(expected) == len(found)
            else f"it has {len(found)} parts instead of {len(expected)}"
        )

    def _result(self) -> Any:
        parts = []
        while select.select([self._pipe], [], [], SECONDS)[0] and (
            part := os.read(self._pipe, 2**20)
        ):
            parts.append(part)
        self.close()
        return pickle.loads(b"".join(parts)) if parts else "not known"

    def close(self) -> None:
        if self._process:
            os.close(self._pipe)
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            self._process = 0
