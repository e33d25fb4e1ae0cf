"""Tensors that wait: whatever is done to them gives what it gives with true ones, bit for bit, with
the same strides, and memory is shared where it was.
"""

import io
import pickle
import random

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from programs.twice import FILES, check_same, lazily, picture, shared, waits
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from torchvision.transforms import v2

from dali_pipes.adapters.lazy.found import WaitingParts
from dali_pipes.adapters.lazy.patching import patch_for_good, patched
from dali_pipes.adapters.lazy.state import PROCESS, eager, sending, waiting
from dali_pipes.adapters.lazy.steps.step import STEPS
from dali_pipes.adapters.lazy.tensors import lazy_of


def floats(at=0, mode="RGB"):
    return F.to_tensor(picture(at, mode))


def whole(at=0, mode="RGB"):
    return F.pil_to_tensor(picture(at, mode))


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


OPERATORS = [
    *(_permute, _slice, _arithmetic, _by_channel, _change, _set, _cast, _contiguous, _reshape),
    *(_unsqueeze, _stack, _cat, _split, _flip),
    lambda x, draw: x.transpose(0, -1),
    lambda x, draw: x.squeeze(),
    lambda x, draw: x.detach(),
    lambda x, draw: x.clone(),
    lambda x, draw: x.chunk(2, -1)[-1],
    lambda x, draw: x[0] if x.ndim > 2 else x,
    lambda x, draw: x.unbind(draw.randrange(x.ndim))[-1] if x.ndim > 2 else x,
    lambda x, draw: x > 1,
    lambda x, draw: x.clamp(0, 1),
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


# What is noted

MEAN = torch.tensor([0.1, 0.2, 0.3])[:, None, None]


def clip():
    return torch.stack([floats(0), floats(1)], 1)


def in_place():
    x = whole().float().div_(255)
    y = x.permute(1, 2, 0)
    x.sub_(MEAN).mul_(2)
    y.add_(0.5)
    return x, y


def set_parts():
    x, noise = floats(), torch.rand(3, 2, 2, generator=torch.Generator().manual_seed(0))
    y = x[:, 1:]
    x[:, 1:3, 2:4] = 0
    x[:, :2, :2] = noise
    noise.zero_()
    y[0] = 7
    x[..., ::2] *= 3
    return x, y


def masks():
    mask = Image.open(io.BytesIO(FILES[0])).convert("L").resize((4, 4), Image.NEAREST)
    mask = mask.crop((0, 0, 3, 3))
    whole = F.pil_to_tensor(mask)
    return (
        torch.as_tensor(np.array(mask), dtype=torch.int64),
        whole.squeeze(0).long(),
        whole[0].float(),
        torch.stack([whole, whole])[:, 0],
    )


NOTED = {
    "clip": lambda: (clip(), clip().permute(1, 0, 2, 3), clip()[:, 0], clip()[:, :1]),
    "batch of clips": lambda: (torch.stack([clip(), clip()]).contiguous(),),
    "batch": lambda: (torch.stack([whole(0), whole(1)]).float().div(255).sub(MEAN),),
    "channels last": lambda: (
        torch.stack([floats(), floats()]).contiguous(memory_format=torch.channels_last),
        torch.stack([whole(), whole()]).to(torch.half, memory_format=torch.contiguous_format),
    ),
    "with true ones": lambda: (torch.stack([floats(), torch.zeros(3, 6, 8), floats(1)]),),
    "parts": lambda: (*whole().chunk(2, -1), *whole().split([2, 4], 1), whole().narrow(1, 2, 3)),
    "mean and std": lambda: ((floats() - MEAN) / MEAN, (whole() / 255 - 0.5) / 0.25, 1 - floats()),
    "casts": lambda: (whole().float(), whole().half(), floats().to(torch.uint8), whole().long()),
    "gray": lambda: (
        floats(mode="L").expand(3, -1, -1),
        floats(mode="L").repeat(3, 1, 1),
        torch.cat([floats(mode="L")] * 3)[:, 1:],
    ),
    "in place": in_place,
    "parts are set": set_parts,
    "masks": masks,
    "classes": lambda: (
        tv_tensors.Image(picture()),
        tv_tensors.Image(picture()) + 1,
        tv_tensors.Image(picture()).clone(),
        tv_tensors.Mask(picture(mode="L")).float(),
        tv_tensors.wrap(floats(), like=tv_tensors.Mask(picture(mode="L"))),
        floats().as_subclass(tv_tensors.Video),
    ),
    "a mask beside a picture": lambda: v2.Compose(
        [v2.Resize((4, 4)), v2.CenterCrop(3), v2.RandomHorizontalFlip(1.0), v2.ToImage()]
    )(picture(), tv_tensors.Mask(picture(1, "L")))[1:],
}


@pytest.mark.parametrize("name", NOTED)
def test_it_is_noted(name):
    check_same(lambda: list(NOTED[name]()), is_noted=True)


def test_what_returns_the_tensor_itself_does_so():
    with lazily():
        x = floats()
        assert x.contiguous() is x and x.float() is x and x.to("cpu") is x and x.pin_memory() is x
        assert x.mul_(2) is x and x.clone() is not x and x.requires_grad_() is x
        assert torch.add(x.detach(), 1, out=(out := floats(1))) is out


# What is not


READS = {
    "numpy": lambda x: x.numpy(),
    "array": np.array,
    "asarray": np.asarray,
    "tolist": lambda x: np.array(x.tolist(), np.float32),
    "item": lambda x: x.sum().item(),
    "iteration": lambda x: [row.sum().item() for channel in x for row in channel],
    "data_ptr": lambda x: x.data_ptr() == x.detach().data_ptr() != 0,
    "dlpack": lambda x: np.from_dlpack(x),
    "print": str,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)).numpy(),
    "interpolate": lambda x: torch.nn.functional.interpolate(x[None], (2, 2)).numpy(),
    "gradient": lambda x: torch.autograd.grad((x.requires_grad_() * 2).sum(), x)[0].numpy(),
    "index of a mask": lambda x: x[x > 0.5].numpy(),
}


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # PyTorch's
@pytest.mark.parametrize("name", READS)
def test_who_reads_gets_values(name):
    true = READS[name](floats())
    with lazily():
        found = READS[name](floats())
    assert type(found) is type(true)
    np.testing.assert_array_equal(found, true)


ERRORS = {
    "whole numbers in place": lambda: whole().div_(255),
    "shapes": lambda: floats() + torch.zeros(2),
    "a view": lambda: floats().permute(1, 2, 0).view(-1),
    "an index": lambda: floats()[5],
    "a dimension": lambda: floats().transpose(0, 7),
    "a stack": lambda: torch.stack([floats(), floats()[:, 1:]]),
    "parts": lambda: floats().split([1, 1]),
    "a number that is too large": lambda: whole().__setitem__(0, 300),
}


@pytest.mark.parametrize("name", ERRORS)
def test_mistakes_raise_where_they_are_made(name):
    with pytest.raises((RuntimeError, IndexError)) as expected:
        ERRORS[name]()
    with lazily(), pytest.raises(expected.type):
        ERRORS[name]()


def test_another_shape_in_place_is_an_error_that_the_net_catches():
    with lazily(), pytest.raises(NotImplementedError):
        floats().unsqueeze_(0)


def test_nothing_is_noted_where_nothing_waits():
    with lazily():
        x = floats()
        with eager():
            assert not waits(x * 2) and not waits(floats())
        with torch.autocast("cpu"):
            assert not waits(floats())


def test_what_is_announced_is_held_to(monkeypatch):
    monkeypatch.setitem(vars(STEPS["torch.flip"]), "make", lambda x, dims: x[:1])
    with patched(), waiting(True), pytest.raises(RuntimeError, match="was announced"):
        floats().flip(1).numpy()
    assert PROCESS.failed is not None
    PROCESS.failed = None


def test_arguments_are_kept_as_they_were():
    def program():
        mean = torch.tensor([0.5, 0.25, 0.125])[:, None, None]
        x = floats() - mean
        mean.zero_()
        return [x]

    check_same(program, is_noted=True)


def test_a_tensor_gets_the_memory_of_another_one():
    def program():
        x, y = floats(0), floats(1)
        y.data = x
        y[0] = 3
        return [x, y]

    check_same(program)


# Copies and pickles


def test_whoever_pickles_gets_pixels_but_for_who_sends():
    with lazily():
        x, image = floats(), tv_tensors.Image(picture())
        assert b"dali_pipes" not in pickle.dumps([x, image])
        with sending():
            data = pickle.dumps([floats(), tv_tensors.Image(picture()), floats().requires_grad_()])
        assert len(data) < 3000
        sent = pickle.loads(data)
        assert all(map(waits, sent)) and type(sent[1]) is tv_tensors.Image
        true = WaitingParts(sent).true()
    assert true[0].equal(floats()) and true[1].equal(whole()) and true[2].requires_grad


def test_what_is_sent_together_shares_memory_as_before():
    def program():
        x = torch.stack([floats(0), floats(1), torch.ones(3, 6, 8)])
        a = np.array(picture(2))
        return [x, x[1:, :, 2:], floats(3)[:, 1:], torch.from_numpy(a), torch.from_numpy(a)[1:]]

    expected = program()
    with lazily():
        with sending():
            sent = pickle.loads(pickle.dumps(program()))
        found = WaitingParts(sent)
        # a part that is sent alone is a picture of its own
        assert sorted(len(cell.rows) for cell in found.cells) == [1, 1, 3]
        assert any(cell.form.shape == (3, 5, 8) for cell in found.cells)
        true = found.true()
    assert shared(true) == shared(expected)
    assert all(one.equal(other) for one, other in zip(true, expected, strict=True))


class _Items:
    def __len__(self):
        return 4

    def __getitem__(self, at):
        return whole(at).permute(2, 0, 1), {"mask": whole(at, "L")[0].long()}


def _start(worker):
    PROCESS.waits = True
    patch_for_good()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_worker_stacks_into_contiguous_memory(workers):
    """And others as PyTorch does, which may put the channels last."""
    expected = list(DataLoader(_Items(), 2, num_workers=workers))
    with waiting(True), patched():
        options = {"worker_init_fn": _start} if workers else {}
        found = list(DataLoader(_Items(), 2, num_workers=workers, **options))
    for (one, more), (other, others) in zip(found, expected, strict=True):
        assert one.stride() == other.stride()
        assert more["mask"].stride() == others["mask"].stride()
        true = lazy_of(one).true() if lazy_of(one) else one
        assert true.equal(other)


@pytest.mark.parametrize(
    "view", [torch.detach, lambda x: x.view_as(x), lambda x: x[:], torch.clone]
)
def test_a_view_of_all_is_an_object_of_its_own(view):
    with lazily():
        x = whole()
        made = WaitingParts((x, view(x), x)).true()
    x, y, same = made
    assert x is same and y is not x and torch.equal(x, y)
    assert shared([x, y])[0][1] == (view is not torch.clone)
    y.resize_(0)  # of the view alone
    assert x.numel()
