"""Protects Python's own random numbers, which belong to the program: a library that draws from them
changes what the program draws next.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def keep_python_random() -> Iterator[None]:
    """Makes a block after which Python's `random` goes on as if nothing had been drawn in it."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)
