"""Arrays that wait: whatever is done to them gives what it gives with true ones, bit for bit, with
the same strides, and memory is shared where it was.
"""

import pickle
import random
import warnings

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
import torchvision.transforms.v2.functional as F2
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from programs.twice import check_same, layout, lazily, picture, true_of, waits
from torch.utils.data import default_collate

from dali_pipes.adapters.lazy.found import WaitingParts
from dali_pipes.adapters.lazy.state import PROCESS, sending


def array(at=0, mode="RGB"):
    return np.array(picture(at, mode))


# Chains of functions


SOURCES = [
    lambda at: np.array(picture(at)),
    lambda at: np.asarray(picture(at)),
    lambda at: np.array(picture(at, "L")),
    lambda at: np.asarray(picture(at), dtype=np.float32) / 255,
    lambda at: np.asarray(picture(at, "L"), np.int64),
]


def _index(x, draw):
    parts = []
    for size in x.shape:
        first = draw.randrange(size)
        one = draw.choice(
            [slice(None), slice(first, None), slice(None, None, -1), slice(None, None, 2)]
        )
        parts.append(one if draw.random() < 0.8 or x.ndim < 3 else first)
    if draw.random() < 0.3:
        parts[draw.randrange(len(parts)) :] = [...]
    elif draw.random() < 0.3 and x.ndim < 5:
        parts.insert(draw.randrange(len(parts) + 1), None)
    return x[tuple(parts)]


def _arithmetic(x, draw):
    function = draw.choice([np.add, np.subtract, np.multiply, np.divide, np.greater, np.equal])
    numbers = [2, 0.5, 255.0, np.float32(3), np.array([1.5]), np.int64(2)]
    if x.shape[-1] == 3:
        numbers += [np.array([1.0, 2.0, 3.0]), [0.5, 0.25, 0.125], np.float32([1, 2, 3])]
    number = draw.choice(numbers)
    return function(number, x) if draw.random() < 0.3 else function(x, number)


def _change(x, draw):
    number = draw.choice([2, 0.5, np.float32(4), 1])
    how = draw.randrange(4)
    if how == 0:
        x += number
    elif how == 1:
        x -= number
    elif how == 2:
        x *= number
    else:
        x /= number
    return x


def _set(x, draw):
    at = tuple(slice(draw.randrange(size), None) for size in x.shape[: draw.randrange(1, x.ndim)])
    x[at] = draw.choice([0, 7, 1.5])
    return x


def _transpose(x, draw):
    return x.transpose(draw.sample(range(x.ndim), x.ndim))


def _stack(x, draw):
    other = x + x.dtype.type(1)
    return np.stack([x, other] if draw.random() < 0.7 else [x, x], draw.randrange(x.ndim + 1))


def _concatenate(x, draw):
    return np.concatenate([x, x] if draw.random() < 0.5 else [x, x.copy()], draw.randrange(x.ndim))


FUNCTIONS = [
    *(_index, _arithmetic, _change, _set, _transpose, _concatenate),
    lambda x, draw: _stack(x, draw) if x.ndim < 5 else x,
    lambda x, draw: np.moveaxis(x, draw.randrange(x.ndim), draw.randrange(x.ndim)),
    lambda x, draw: np.rollaxis(x, draw.randrange(x.ndim), draw.randrange(x.ndim + 1)),
    lambda x, draw: np.swapaxes(x, draw.randrange(x.ndim), -draw.randrange(x.ndim)),
    lambda x, draw: np.squeeze(x, draw.choice([None, 0])),
    lambda x, draw: np.atleast_3d(x) if draw.random() < 0.7 else np.atleast_3d(x, x)[1],
    lambda x, draw: x + len(np.shape(x)) + np.ndim(x) + np.size(x, draw.choice([None, 0])),
    lambda x, draw: x + draw.choice([np.zeros_like, np.ones_like])(x[..., 0])[..., None],
    lambda x, draw: np.full_like(x, 3, dtype=np.float32),
    lambda x, draw: x.T,
    lambda x, draw: np.flip(x, axis=draw.randrange(x.ndim)),
    lambda x, draw: np.fliplr(x),
    lambda x, draw: np.rot90(x, k=draw.randrange(4)),
    lambda x, draw: np.expand_dims(x, axis=draw.randrange(x.ndim + 1)) if x.ndim < 5 else x,
    lambda x, draw: x.copy(),
    lambda x, draw: np.copy(x),
    lambda x, draw: x.astype(
        draw.choice([np.float32, np.float64, np.uint8, np.int64, "f4", float])
    ),
    lambda x, draw: x.astype(x.dtype, copy=False),
    lambda x, draw: np.ascontiguousarray(x),
    lambda x, draw: np.asarray(x, np.float32),
    lambda x, draw: np.array([x, x + 1]) if x.ndim < 5 else x,
    lambda x, draw: np.clip(x, 1, 9),
    lambda x, draw: torch.from_numpy(x),
    lambda x, draw: torch.as_tensor(x),
    lambda x, draw: torch.as_tensor(x, dtype=torch.int64),
    lambda x, draw: torch.tensor(x, dtype=torch.float32),
]


@pytest.mark.filterwarnings(
    "ignore:.*not writable", "ignore:.*non-writable", "ignore:divide by zero"
)
@given(
    st.integers(0, len(SOURCES) - 1),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, len(FUNCTIONS) - 1), st.integers(0, 99)),
        max_size=6,
    ),
)
def test_a_chain_of_functions_gives_the_same_lazily_and_truly(source, steps):
    def program():
        made = [SOURCES[source](0), SOURCES[source](1)]
        for at, number, seed in steps:
            value = made[at % len(made)]
            if isinstance(value, torch.Tensor):
                continue
            try:
                found = FUNCTIONS[number](value, random.Random(seed))
            except (RuntimeError, IndexError, ValueError, TypeError) as error:
                if PROCESS.failed is not None:
                    raise
                made.append(np.zeros((1, len(type(error).__name__))))
                continue
            if not any(found is each for each in made) and len(getattr(found, "shape", ())) > 1:
                made.append(found)
        return made

    check_same(program)


# What is noted


def in_place():
    a = array().astype(np.float32)
    b = a[2:, ::-1]
    a /= 255
    b -= [0.1, 0.2, 0.3]
    a *= np.float32(2)
    return a, b


def of_the_same_form():
    a = array()
    zeros, sevens = np.zeros_like(a[..., 0]), np.full_like(a, 7, dtype=float)
    return (a * (sevens.sum() + zeros.sum() + np.empty_like(a).size),)


def set_parts():
    a = array()
    b = a[1:].transpose(2, 0, 1)
    a[1:3, 2:4] = 0
    a[..., 0] = 7
    b[2, :2] = 9
    return a, b


NOTED = {
    "tensors": lambda: (
        torch.from_numpy(array().transpose(2, 0, 1)),
        torch.as_tensor(array()),
        torch.as_tensor(array(mode="L"), dtype=torch.int64),
        torch.tensor(array(), dtype=torch.float32),
    ),
    "floats": lambda: (np.asarray(picture(), dtype=np.float32) / 255, array() / 255.0, 1 - array()),
    "normalized": lambda: ((array() / 255 - np.array([0.1, 0.2, 0.3])) / [0.5, 0.25, 0.125],),
    "gray": lambda: (
        array(mode="L")[None],
        np.expand_dims(array(mode="L"), 2),
        np.stack([array(mode="L")] * 3, -1),
    ),
    "stacks": lambda: (
        np.stack([array(0), array(1)]),
        np.stack([array(0), array(1)], axis=1)[::-1],
        np.concatenate([array(0)[None], array(1)[None], array(2)[None]])[::2],
        np.array([array(0), array(1), np.zeros((6, 8, 3), np.uint8)]).transpose(3, 0, 1, 2),
        torch.from_numpy(np.stack([array(0), array(1)])).permute(3, 0, 1, 2).float().div(255),
    ),
    "a picture of a stack": lambda: (np.stack([array(0), array(1)])[1, 2:, ::-1],),
    "turned": lambda: (
        np.rollaxis(array(), 2),
        array().swapaxes(0, 2),
        np.squeeze(array()),
        array() * np.size(array()),
    ),
    "to tensors": lambda: (F.to_tensor(array()), F2.to_image(array())),
    "in place": in_place,
    "parts are set": set_parts,
    "of the same form": of_the_same_form,
    "batches": lambda: (default_collate([array(0), array(1)]),),
    "pictures": lambda: (F.pil_to_tensor(Image.fromarray(array()).resize((4, 4))),),
}


@pytest.mark.parametrize("name", NOTED)
def test_it_is_noted(name):
    check_same(lambda: list(NOTED[name]()), is_noted=True)


def test_what_returns_the_array_itself_does_so():
    with lazily():
        a = array()
        assert np.ascontiguousarray(a) is a and np.asarray(a) is a
        assert a.astype(np.uint8, copy=False) is a and np.add(a, 1, out=a) is a
        b = a[1:]
        assert b.base is a and b[1:].base is a and a.base is None
        b += 1
        assert waits(a) and a.copy() is not a
        a.sum()
        assert np.ascontiguousarray(a) is a


# What is not


READS = {
    "mean": lambda a: a.mean(),
    "iteration": lambda a: [row.sum() for row in a],
    "comparison": lambda a: (a == a).all(),
    "mask": lambda a: a[a > 99],
    "fancy index": lambda a: a[[0, 2], [1, 1]],
    "clip": lambda a: np.clip(a, 3, 99),
    "out": lambda a: np.add(a, 1, out=np.empty((6, 8, 3), np.uint8)),
    "reduce": lambda a: np.add.reduce(a, axis=0, dtype=int),
    "pickle": lambda a: pickle.loads(pickle.dumps(a)),
    "in": lambda a: 300 in a,
    "random": lambda a: np.random.default_rng(0).permutation(a),
}


@pytest.mark.parametrize("name", READS)
def test_who_reads_gets_values(name):
    expected = READS[name](array())
    with lazily():
        found = READS[name](array())
        made = [true_of(each) for each in found] if isinstance(found, list) else true_of(found)
    assert type(made) is type(expected)
    np.testing.assert_array_equal(made, expected)


ERRORS = {
    "whole numbers in place": lambda: array().__itruediv__(255),
    "read only": lambda: np.asarray(picture()).__setitem__(0, 1),
    "shapes": lambda: array() + np.zeros(2),
    "index": lambda: array()[9],
    "negative strides": lambda: torch.from_numpy(array()[:, ::-1]),
    "a number that is too large": lambda: array() + 300,
    "a number that is too small": lambda: array().__isub__(-1),
    "a part that is set to too much": lambda: array().__setitem__(0, 300),
    "a part that is set to others": lambda: array().__setitem__(0, [1, 2]),
}


@pytest.mark.parametrize("name", ERRORS)
def test_mistakes_raise_where_they_are_made(name):
    with pytest.raises(Exception) as expected:
        ERRORS[name]()
    with lazily(), pytest.raises(expected.type):
        ERRORS[name]()


@pytest.mark.parametrize("number", [0, np.float32(0), 1e30, np.array([1.0, 0, 2])])
def test_numpy_warns_where_it_did(number):
    """So what may overflow, or divides by zero, is computed at once."""

    def heard():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            a = array().astype(np.float32)
            made = [a / number, a * number * number]
            return [str(each.message) for each in caught], made

    expected, _ = heard()
    with lazily():
        found, made = heard()
        [true_of(each) for each in made]
    assert found == expected


def test_arguments_are_kept_as_they_were():
    def program():
        mean, at = np.array([0.5, 0.25, 0.125]), [slice(1, 4)]
        a = array() - mean
        b = array()[tuple(at)]
        c = array()
        c[0] = mean
        mean[:] = 0
        return a, b, c

    check_same(lambda: list(program()), is_noted=True)


def test_whoever_pickles_gets_pixels_but_for_who_sends():
    with lazily():
        a = array().transpose(2, 0, 1)
        assert b"dali_pipes" not in pickle.dumps(a)
        with sending():
            data = pickle.dumps([array()[:, ::-1], np.asarray(picture(1)), np.stack([array()] * 2)])
        assert len(data) < 3000
        sent = pickle.loads(data)
        assert all(map(waits, sent))
        made = WaitingParts(sent).true()
    expected = [array()[:, ::-1], np.asarray(picture(1)), np.stack([array()] * 2)]
    assert [layout(each) for each in made] == [layout(each) for each in expected]
    assert all(np.array_equal(one, other) for one, other in zip(made, expected, strict=True))
