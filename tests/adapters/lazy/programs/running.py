"""How a program runs, as ever or with lazy pictures, from equal random states and in a process of
its own; and what its batches are.
"""

import collections
import hashlib
import io
import multiprocessing
import random
import re
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import torch

from dali_pipes.adapters.lazy.convert import from_torch
from dali_pipes.adapters.lazy.loader import LazyLoader

SECONDS = 100  # for one run
LEAST = 8  # pixels of a side: smaller tensors are values
SCALARS = (int, float, complex, str, bytes, bool, type(None), np.generic)
CLOSED = (type, types.FunctionType, types.ModuleType, torch.dtype, torch.device)

Print = tuple[Any, ...]


@dataclass
class Run:
    """What came out of a program.

    Attributes:
        batches: prints of each batch.
        error: class of the error that ended it.
        warnings: what it said in the training process.
        waited: how many pictures waited for their batch.
        tensors: of each batch, by their places, if they were asked for.
    """

    batches: list[list[Print]] = field(default_factory=list)
    error: str = ""
    warnings: list[str] = field(default_factory=list)
    waited: int = 0
    trace: str = ""
    tensors: list[dict[str, np.ndarray]] = field(default_factory=list)


# What is in a batch


def print_all(value: Any) -> list[Print]:
    """Place, class, type and a digest of all that is in a batch.

    What stands in it twice, or shares its memory, is told from what is equal by chance.
    """
    return list(_prints(value, "", {}, []))


def _prints(value: Any, path: str, known: dict[Any, str], kept: list[Any]) -> Iterator[Print]:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, (*SCALARS, *CLOSED)):
        plain = isinstance(value, (*SCALARS, torch.dtype, torch.device))
        yield path, kind, repr(value) if plain else value.__name__, None
        return
    if id(value) in known:
        yield path, kind, f"is {known[id(value)]}", None
        return
    known[id(value)] = path
    kept.append(value)  # its id is nobody else's

    if isinstance(value, PIL.Image.Image):
        palette = bytes(value.palette.palette).hex() if value.palette else ""
        said = value.mode, value.size, value.format, sorted(map(str, value.info)), palette
        yield path, kind, said, _digest(value.tobytes())
    elif isinstance(value, torch.Tensor):
        yield from _tensor_prints(value, path, kind, known, kept)
    elif isinstance(value, np.ndarray):
        yield from _array_prints(value, path, kind, known, kept)
    elif isinstance(value, io.BytesIO):
        yield path, kind, value.tell(), _digest(value.getvalue())
    else:
        for name, part in _parts(value):
            if name is None:
                yield path, kind, part, None
            else:
                yield from _prints(part, f"{path}{name}", known, kept)


def _tensor_prints(value: torch.Tensor, path: str, kind: str, *known: Any) -> Iterator[Print]:
    plain = value.detach().as_subclass(torch.Tensor)
    grad = value.requires_grad, value.is_leaf, type(value.grad_fn).__name__
    said = str(value.dtype), tuple(value.shape), grad, str(value.layout)
    if value.is_nested or value.layout != torch.strided:
        parts = value.unbind() if value.is_nested else [value.to_dense()]
        yield path, kind, said, None
        for at, part in enumerate(parts):
            yield from _prints(part, f"{path}[{at}]", *known)
        return

    memory = known[0].setdefault(("memory", plain.untyped_storage().data_ptr()), path)
    numbers = plain.contiguous().reshape(-1).view(torch.uint8) if plain.numel() else plain
    shares = memory if plain.numel() else ""
    strides = [step for step, side in zip(plain.stride(), plain.shape, strict=True) if side > 1]
    yield path, kind, (*said, strides, shares), _digest(numbers.numpy().tobytes())


def _array_prints(value: np.ndarray, path: str, kind: str, *known: Any) -> Iterator[Print]:
    said = str(value.dtype), value.shape, value.flags.writeable
    if value.dtype == object:
        yield path, kind, said, None
        for at, part in enumerate(value.reshape(-1).tolist()):
            yield from _prints(part, f"{path}[{at}]", *known)
        return
    yield path, kind, said, _digest(np.asarray(value).tobytes())
    if isinstance(value, np.ma.MaskedArray):
        yield f"{path}.mask", kind, value.mask.shape, _digest(value.mask.tobytes())


def _parts(value: Any) -> Iterator[tuple[str | None, Any]]:
    """A summary, under None, and what is in the value, by name."""
    if isinstance(value, Mapping):
        yield None, [str(key) for key in value]
        for number, (key, part) in enumerate(value.items()):
            yield f"[{key!r}]" if isinstance(key, SCALARS) else f".values()[{number}]", part
            if not isinstance(key, SCALARS):
                yield f".keys()[{number}]", key
    elif isinstance(value, (list, tuple, collections.deque, types.GeneratorType, map, filter, zip)):
        items = list(value)
        yield None, len(items)
        for at, part in enumerate(items):
            yield f"[{at}]", part
    elif isinstance(value, (set, frozenset)):
        yield None, len(value)
        for at, part in enumerate(sorted(value, key=lambda each: repr(each.sum()))):
            yield f".pop({at})", part
    else:
        yield None, "object"
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        names = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        names |= getattr(value, "__dict__", {})
        for name, part in names.items():
            yield f".{name}", part


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def tensors_of(batch: Any) -> dict[str, np.ndarray]:
    """All tensors, arrays and pictures of a batch, by their places."""
    return dict(_tensors(batch, ""))


def _tensors(value: Any, path: str) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, torch.Tensor):
        yield path, value.detach().as_subclass(torch.Tensor).clone().numpy()
    elif isinstance(value, (np.ndarray, PIL.Image.Image)):
        yield path, np.array(value)
    elif not isinstance(value, (*SCALARS, *CLOSED)):
        for name, part in _parts(value):
            if name is not None:
                yield from _tensors(part, f"{path}{name}")


def find_difference(old: Run, new: Run) -> str:
    """The first thing in which two runs differ; empty: they do not."""
    if old.error != new.error:
        return f"{new.error or 'no error'} instead of {old.error or 'none'}"
    if len(old.batches) != len(new.batches):
        return f"{len(new.batches)} batches instead of {len(old.batches)}"
    for number, (theirs, ours) in enumerate(zip(old.batches, new.batches, strict=True)):
        for one, other in zip(theirs, ours, strict=False):
            if one[:3] != other[:3]:
                return f"batch {number}: {_short(other)} instead of {_short(one)}"
            if one != other:
                return f"batch {number}: other values in {one[0] or 'it'}, {one[1]} {one[2]}"[:300]
        if len(theirs) != len(ours):
            return f"batch {number}: {len(ours)} things instead of {len(theirs)}"
    return ""


def _short(one: Print) -> str:
    return f"{one[0]} {one[1]} {str(one[2])[:120]}"


def without_pixels(given: Run) -> Run:
    """What must be equal whoever makes the pixels: structures, types, values, random numbers."""
    batches = [[_without_digest(each) for each in batch] for batch in given.batches]
    return Run(batches, given.error)


def _without_digest(each: tuple[Any, ...]) -> tuple[Any, ...]:
    path, kind, said, digest = each
    if isinstance(said, tuple) and len(said) == 6 and _are_pixels(said[1]):  # of a tensor
        return path, kind, said[:4], None
    is_array = isinstance(said, tuple) and len(said) == 3 and isinstance(said[1], tuple)
    return path, kind, said, None if is_array and _are_pixels(said[1]) else digest


def _are_pixels(shape: Any) -> bool:
    return len(shape) >= 2 and sorted(shape)[-2] >= LEAST


def find_distance(old: Run, new: Run) -> tuple[float, float]:
    """How far pixels are apart, in 255ths of their tensor's range: the mean of the worst tensor,
    and the largest difference of all.
    """
    apart = list(_distances(old, new)) or [(0.0, 0.0)]
    return max(mean for mean, _ in apart), max(most for _, most in apart)


def _distances(old: Run, new: Run) -> Iterator[tuple[float, float]]:
    for theirs, ours in zip(old.tensors, new.tensors, strict=True):
        for path, one in theirs.items():
            if not _are_pixels(one.shape) or not one.size:
                continue
            one, other = one.astype(float), ours[path].astype(float)
            extent = 255.0 if theirs[path].dtype == np.uint8 else max(float(np.ptp(one)), 1e-9)
            apart = np.abs(one - other) * (255 / extent)
            yield float(apart.mean()), float(apart.max())


# Running


def seed_all(seed: int = 11) -> None:
    for each in (random.seed, np.random.seed, torch.manual_seed):
        each(seed)


def epochs_of(loader: Any, epochs: int) -> Iterator[Any]:
    """As a training loop asks for batches."""
    for _ in range(epochs):
        yield from loader


def run(
    make: Callable[[], Any],
    wrap: Callable[[Any], Any] = lambda loader: loader,
    loop: Callable[[Any], Iterator[Any]] = iter,
    keeps_tensors: bool = False,
) -> Run:
    """
    Args:
        make: of a DataLoader.
        wrap: what the program does with it before it iterates, such as making it lazy.
        loop: yields batches of the loader.
        keeps_tensors: besides their prints.
    """
    found, kept = Run(), []
    seed_all()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            loader = wrap(make())
            seed_all()
            for batch in loop(loader):
                # a training step draws too
                drawn = random.random(), float(np.random.rand()), float(torch.rand(()))
                found.batches.append([*print_all(batch), ("draws", "", drawn, None)])
                kept.append(batch)
                if keeps_tensors:
                    found.tensors.append(tensors_of(batch))
            # nobody may use the memory of a batch again while the program has it
            for number, batch in enumerate(kept):
                found.batches.append([(f"kept {number}", "", "", None), *print_all(batch)])
            if hasattr(loader, "explain"):
                share = re.search(r"^(\d+)% of (\d+) pictures", str(loader.explain()), re.M)
                found.waited = round(int(share[1]) * int(share[2]) / 100) if share else 0
        except Exception as error:
            found.error, found.trace = type(error).__name__, traceback.format_exc()
    found.warnings = [
        f"{each.category.__name__}: {each.message}"
        for each in heard
        if each.category is not ResourceWarning  # of when a file was closed, which is nobody's
    ]
    return found


def run_apart(*args: Any, **options: Any) -> Run:
    """`run` in a forked process, which libraries may be changed in, and which may crash or hang."""
    answer = in_a_fork(lambda: run(*args, **options))
    return answer if isinstance(answer, Run) else Run(error=answer)


def in_a_fork(function: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """What the function returns, or in words why it did not."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def child() -> None:
        here.close()
        torch.set_num_threads(1)
        try:
            answer = function()
        except BaseException:
            answer = traceback.format_exc()
        there.send(answer)

    process = context.Process(target=child)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the process has threads
        process.start()
    there.close()
    try:
        answer = here.recv() if here.poll(seconds) else f"no end within {seconds} s"
    except EOFError:
        process.join()
        answer = f"the process ended with status {process.exitcode}"
    here.close()
    process.kill()
    process.join()
    return answer


def lazily(loader: Any, config: Any = None, **options: Any) -> Any:
    """The loader with lazy pictures. Without a config they are made by the very functions that were
    noted, so that not a bit differs.
    """
    if isinstance(loader, list):
        return [lazily(each, config, **options) for each in loader]
    if isinstance(loader, torch.utils.data.DataLoader):
        return LazyLoader(loader, config, **options)
    return from_torch(loader, config, device="cpu", **options)


class Comparison(NamedTuple):
    """
    Attributes:
        difference: in words; empty: none.
        mean, most: differences of pixels, in 255ths of a tensor's range: the mean of the worst
            tensor, and the largest of all.
        old, new: the run as ever, and with lazy pictures.
    """

    difference: str
    mean: float
    most: float
    old: Run
    new: Run


def compare(
    make: Callable[[], Any],
    loop: Callable[[Any], Iterator[Any]],
    config: Any = None,
    raises: bool = False,
    **options: Any,
) -> Comparison:
    """The program as ever, and with lazy pictures.

    Args:
        config: of the backend that makes the pictures; None: as noted, and no bit may differ.
        raises: whether the program ends with an error of its own.
        options: of the lazy loader.
    """
    keeps = config is not None
    old = run_apart(make, loop=loop, keeps_tensors=keeps)
    if bool(old.error) != raises:
        raise AssertionError(f"the program itself: {old.error or 'no error'}\n{old.trace}")
    new = run_apart(make, partial(lazily, config=config, **options), loop, keeps)
    if not keeps or new.error != old.error:
        return Comparison(find_difference(old, new), 0.0, 0.0, old, new)
    if difference := find_difference(without_pixels(old), without_pixels(new)):
        return Comparison(difference, 0.0, 0.0, old, new)
    return Comparison("", *find_distance(old, new), old, new)
