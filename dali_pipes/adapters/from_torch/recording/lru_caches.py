"""Keeps pictures that are made up out of every `lru_cache` of the user's program."""

import functools
import gc
from typing import Any

from dali_pipes.adapters.from_torch.recording.objects import is_installed


def find_caches() -> list[Any]:
    """All functions with an `lru_cache` outside of libraries."""
    # only the garbage collector has a list of them, since it has all objects
    kind = functools._lru_cache_wrapper
    return [
        each
        for each in gc.get_objects()
        if type(each) is kind and not is_installed(str(getattr(each, "__module__", "") or ""))
    ]


def used(caches: list[Any]) -> dict[int, tuple[int, int]]:
    """How often each cache was asked: hits and misses."""
    return {id(each): (each.cache_info().hits, each.cache_info().misses) for each in caches}


def forget(caches: list[Any], before: dict[int, tuple[int, int]]) -> bool:
    """Empties the caches that were asked since `before`; returns whether there are any."""
    asked = [each for each in caches if used([each])[id(each)] != before.get(id(each))]
    for each in asked:
        each.cache_clear()
        before[id(each)] = (0, 0)
    return bool(asked)
