"""Little programs that run truly and lazily: `check_same`."""

import io
from contextlib import contextmanager

import numpy as np
import torch
from lazy_programs import seed_globals
from PIL import Image

from dali_pipes.adapters.lazy.arrays import is_lazy
from dali_pipes.adapters.lazy.patching import patched
from dali_pipes.adapters.lazy.state import PROCESS, waiting
from dali_pipes.adapters.lazy.tensors import lazy_of

HEIGHT, WIDTH = 6, 8


def encoded(seed, height=HEIGHT, width=WIDTH):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


FILES = [encoded(seed) for seed in range(4)]


def picture(at=0, mode="RGB"):
    return Image.open(io.BytesIO(FILES[at])).convert(mode)


@contextmanager
def lazily():
    """In it pictures wait, and libraries know of it."""
    PROCESS.seen.clear()
    PROCESS.failed = None
    with patched(), waiting(True):
        yield
    assert PROCESS.failed is None


def seeded(program, *arguments):
    """What it makes from equal random states."""
    seed_globals(0)
    return program(*arguments)


def lazy_or_none(value):
    """What is known of a tensor or an array that waits, or did so."""
    return lazy_of(value) if isinstance(value, torch.Tensor) else value if is_lazy(value) else None


def waits(value):
    lazy = lazy_or_none(value)
    return lazy is not None and lazy.waits


def true_of(value):
    lazy = lazy_or_none(value)
    return value if lazy is None else lazy.true()


def layout(value):
    """Shape, dtype and strides, where these mean something."""
    value = value.stand_in if is_lazy(value) else value
    if isinstance(value, torch.Tensor):
        steps, about = value.stride(), (type(value), value.storage_offset(), value.requires_grad)
    else:
        steps, about = value.strides, value.flags.writeable
    strides = [step for step, size in zip(steps, value.shape, strict=True) if size > 1]
    return tuple(value.shape), value.dtype, strides, about


def shared(values):
    """Which of these have memory in common."""
    if all(isinstance(each, torch.Tensor) for each in values):
        memory = [each.untyped_storage().data_ptr() for each in values]
        return [[one == other for other in memory] for one in memory]
    arrays = [np.asarray(each) for each in values]
    return [[np.shares_memory(one, other) for other in arrays] for one in arrays]


def check_same(program, *, is_noted=None):
    """Runs a program, which returns arrays and tensors, truly and lazily.

    Args:
        is_noted: whether all of the results wait, and nothing was made; None: as they will.
    """
    expected = program()
    with lazily():
        found = program()
        if is_noted is not None:
            assert [waits(each) for each in found] == [is_noted] * len(found), PROCESS.seen
            assert bool(PROCESS.seen) is not is_noted
        announced = [layout(each) for each in found]
        assert announced == [layout(each) for each in expected]
        made = [true_of(each) for each in found]
        assert [layout(each) for each in made] == announced
        for one, other in zip(made, expected, strict=True):
            same = one.equal(other) if torch.is_tensor(one) else np.array_equal(one, other)
            assert same
        assert shared(made) == shared(expected)
