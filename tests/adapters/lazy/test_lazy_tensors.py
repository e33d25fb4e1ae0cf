"""Tensors that wait: whatever is done to them gives what it gives with true ones, bit for bit, with
the same strides, and memory is shared where it was.
"""

import copy
import io
import pickle
import random
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2

from dali_pipes.adapters.lazy.patching import patched
from dali_pipes.adapters.lazy.state import PROCESS, sending, waiting
from dali_pipes.adapters.lazy.tensors import lazy_of

HEIGHT, WIDTH = 6, 8


def _encoded(seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


FILES = [_encoded(seed) for seed in range(4)]


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


def waits(value):
    lazy = lazy_of(value)
    return lazy is not None and lazy.waits


def layout(tensor):
    """Shape, dtype and strides, where these mean something."""
    strides = [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    return type(tensor), tuple(tensor.shape), tensor.dtype, strides, tensor.requires_grad


def shared(tensors):
    """Which of these have memory in common."""
    memory = [each.untyped_storage().data_ptr() for each in tensors]
    return [[one == other for other in memory] for one in memory]


def check_same(program, *, is_noted=None):
    """Runs a program, which returns tensors, truly and lazily.

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
        true = [lazy_of(each).true() if lazy_of(each) else each for each in found]
        assert [layout(each) for each in true] == announced
        for one, other in zip(true, expected, strict=True):
            assert one.equal(other)
        assert shared(true) == shared(expected)


# Chains of operators


SOURCES = [
    lambda at: F.to_tensor(picture(at)),
    lambda at: F.pil_to_tensor(picture(at)),
    lambda at: F.to_tensor(picture(at, "L")),
    lambda at: torch.from_numpy(np.array(picture(at))),
    lambda at: torch.from_numpy(np.array(picture(at, "L"))),
]


def _permute(x, draw):
    return x.permute(draw.sample(range(x.ndim), x.ndim))


def _slice(x, draw):
    dim = draw.randrange(x.ndim)
    first = draw.randrange(x.shape[dim])
    return x[(slice(None),) * dim + (slice(first, None, draw.choice([1, 1, 2])),)]


def _arithmetic(x, draw):
    how = draw.choice(["add", "sub", "mul", "div", "rsub"])
    number = draw.choice([2, 0.5, 255, 1.5, torch.tensor(3.0), torch.tensor([2.0])])
    return torch.rsub(x, 2) if how == "rsub" else getattr(x, how)(number)


def _by_channel(x, draw):
    sizes = [1] * x.ndim
    dim = draw.randrange(x.ndim)
    sizes[dim] = x.shape[dim]
    if x.shape[dim] > 16:
        return x
    return (x - torch.arange(1.0, x.shape[dim] + 1).reshape(sizes)) / 3


def _change(x, draw):
    if 0 in x.stride() or not x.is_floating_point():
        return x
    how = draw.choice(["add_", "sub_", "mul_", "div_"])
    return getattr(x, how)(draw.choice([2, 0.5, torch.tensor(4.0)]))


def _set(x, draw):
    if 0 in x.stride():
        return x
    at = tuple(slice(draw.randrange(size), None) for size in x.shape[: draw.randrange(1, x.ndim)])
    x[at] = draw.choice([0, 7, torch.tensor(1, dtype=x.dtype)])
    return x


def _cast(x, draw):
    return x.to(draw.choice([torch.float32, torch.float64, torch.uint8, torch.int64, torch.half]))


def _contiguous(x, draw):
    if x.ndim == 4 and draw.random() < 0.5:
        return x.contiguous(memory_format=torch.channels_last)
    return x.contiguous()


def _reshape(x, draw):
    shape = list(x.shape)
    if x.ndim > 3:
        return x.flatten(0, 1)
    return x.reshape([1, *shape]) if draw.random() < 0.5 else x.reshape(shape[0], -1)


def _unsqueeze(x, draw):
    return x.unsqueeze(draw.randrange(x.ndim + 1)) if x.ndim < 5 else x


def _stack(x, draw):
    return torch.stack([x, x.clone(), x], draw.randrange(x.ndim + 1)) if x.ndim < 5 else x


def _cat(x, draw):
    return torch.cat([x, x + 1] if draw.random() < 0.5 else [x, x], draw.randrange(x.ndim))


def _split(x, draw):
    return draw.choice(x.split(draw.randrange(1, 4), draw.randrange(x.ndim)))


def _flip(x, draw):
    return x.flip(draw.sample(range(x.ndim), draw.randrange(1, x.ndim)))


def _expand(x, draw):
    return x.expand(3, *x.shape[1:]) if x.shape[0] == 1 else x


def _turn(x, draw):
    return torch.rot90(x, draw.randrange(4), draw.sample(range(x.ndim), 2))


def _choose(x, draw):
    return x[[draw.randrange(x.shape[0]) for _ in range(3)]]


OPERATORS = [
    *(_permute, _slice, _arithmetic, _by_channel, _change, _set, _cast, _contiguous, _reshape),
    *(_unsqueeze, _stack, _cat, _split, _flip, _expand, _turn, _choose),
    lambda x, draw: x.transpose(0, -1),
    lambda x, draw: x.movedim(0, -1),
    lambda x, draw: x.squeeze(),
    lambda x, draw: x.squeeze(0),
    lambda x, draw: x.detach(),
    lambda x, draw: x.clone(),
    lambda x, draw: x.chunk(2, -1)[-1],
    lambda x, draw: x.narrow(1, 0, 1),
    lambda x, draw: x[0] if x.ndim > 2 else x,
    lambda x, draw: x.unbind(draw.randrange(x.ndim))[-1] if x.ndim > 2 else x,
    lambda x, draw: x.float(),
    lambda x, draw: x > 1,
    lambda x, draw: x.clamp(0, 1),
    lambda x, draw: -x if x.dtype != torch.bool else x,
    lambda x, draw: x.repeat(3, *(1,) * (x.ndim - 1)),
    lambda x, draw: x.zero_() if 0 not in x.stride() else x,
]


@given(
    st.integers(0, len(SOURCES) - 1),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, len(OPERATORS) - 1), st.integers(0, 99)),
        max_size=6,
    ),
)
def test_a_chain_of_operators_gives_the_same_lazily_and_truly(source, steps):
    def program():
        made = [SOURCES[source](0), SOURCES[source](1)]
        for at, number, seed in steps:
            try:
                found = OPERATORS[number](made[at % len(made)], random.Random(seed))
            except (RuntimeError, IndexError, ValueError) as error:
                if PROCESS.failed is not None:
                    raise
                made.append(torch.tensor(len(type(error).__name__)))
                continue
            if not any(found is each for each in made) and found.ndim > 1 and found.numel():
                made.append(found)
        return [each for each in made if each.ndim]

    check_same(program)
