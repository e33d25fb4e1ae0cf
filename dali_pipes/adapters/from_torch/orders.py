"""Samplers and batch samplers of the user's own whose order is decided by the epoch alone:
`read_program_order`.

A copy of the sampler is run twice for each of two epochs. If the order is the same both times, it
becomes a sampling of the plan (`ProgramOrder`), which runs the copy once for each epoch.
"""

import hashlib
import inspect
import random
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, field
from itertools import chain
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, Sampler

from dali_pipes.adapters.from_torch.recording.kept import Kept
from dali_pipes.adapters.from_torch.recording.random_states import (
    random_states,
    seed_all,
    states_kept,
)
from dali_pipes.adapters.from_torch.recording.reach import reach
from dali_pipes.adapters.transforms.reading import (
    NotConvertibleError,
    place_of,
    refuse_unless,
)
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.plan.order import Order
from dali_pipes.plan.sampling import Sampling

_TRIED = (0, 1, 0, 1)  # epochs
_KEPT = 3  # epochs whose orders are kept
_BATCH = (list, tuple, np.ndarray)
# methods that do not change the order of an epoch, though they take an argument
_HARMLESS = ("set_epoch", "load_state_dict")
_BY_EPOCH = (
    "let it draw from torch.Generator().manual_seed(self.seed + self.epoch), and give it a "
    "set_epoch(epoch) that sets self.epoch (about 4 lines)"
)


class SamplerRunner:
    """Runs a copy of a sampler for an epoch.

    Args:
        dataset: the data set, with which the copy shares what both hold.

    Attributes:
        name: the sampler, for people.
    """

    def __init__(self, sampler: Any, dataset: Any):
        self.name = _name_of(sampler)
        self._sampler = _copied(sampler, reach([dataset]).objects)
        # a thread makes the order of the next epoch
        self._lock, self._known = Lock(), dict[int, NDArray[np.int64]]()

    def run(self, epoch: int) -> list[Any]:
        """What the sampler yields in an epoch: indices, or lists of indices."""
        # a batch sampler may leave the epoch to the sampler in it
        sampler = self._sampler
        parts = (
            sampler,
            getattr(sampler, "sampler", None),
            getattr(sampler, "batch_sampler", None),
        )
        told = next((each for each in parts if callable(getattr(each, "set_epoch", None))), None)
        if told is not None:
            told.set_epoch(epoch)
        return [list(map(int, each)) if _is_batch(each) else int(each) for each in self._sampler]

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The indices of an epoch, in order."""
        with self._lock:
            if epoch not in self._known:
                if len(self._known) == _KEPT:
                    self._known.pop(next(iter(self._known)))
                self._known[epoch] = np.array(_flattened(self.run(epoch)), np.int64)
            return self._known[epoch]


@dataclass(kw_only=True, slots=True)
class ProgramOrder(Sampling):
    """The order that a sampler of the user's own gives each epoch.

    Attributes:
        runner: runs the sampler.
    """

    runner: Any = field(default=None, metadata={"as_is": True})

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        size = self._size(manifest)

        def at(places: NDArray[np.int64]) -> NDArray[np.int64]:
            epochs, within = np.divmod(places, size)
            ids = np.empty(len(places), np.int64)
            for epoch in np.unique(epochs).tolist():
                order = self.runner.order(epoch)
                if len(order) != size:
                    raise ConfigError(
                        f"{self.runner.name} gives {len(order):,} samples in epoch {epoch}, and "
                        f"gave {size:,} in epoch 0; let it give as many in all epochs"
                    )
                ids[epochs == epoch] = order[within[epochs == epoch]]
            return ids

        return Order(size, at)

    def state(self, manifest: Manifest) -> dict[str, Any]:
        # the sampler itself cannot be compared with that of another process
        digest = hashlib.sha256(self.runner.order(0).tobytes()).hexdigest()[:16]
        return {"kind": "ProgramOrder", "epoch_size": self.epoch_size, "first_epoch": digest}


def read_program_order(
    sampler: Any, count: int, dataset: Any
) -> tuple[ProgramOrder, int | None, str]:
    """Reads a sampler or a batch sampler whose class says nothing about its order.

    Args:
        count: samples of the data set.
        dataset: the data set, which must stay as it is.

    Returns:
        The sampling, the size of its batches (None: it yields single indices), and the order in
        words.

    Raises:
        NotConvertibleError: more than the epoch decides the order, or a plan has no such batches.
    """
    runner = SamplerRunner(sampler, dataset)
    name, method = runner.name, _method_of_its_own(sampler)
    refuse_unless(
        method is None,
        name,
        f"the program may change its order by {method}",
        "keep your DataLoader; or, if the epoch alone decides the order, rename the method to "
        f"_{method}",
    )

    tried = _try_epochs(runner, dataset)
    refuse_unless(
        tried[:2] == tried[2:],
        name,
        "its order is another one each time, so the epoch alone does not decide it",
        _BY_EPOCH,
    )
    ids = _flattened(tried[0])
    refuse_unless(ids, name, "it gives no sample", "make it anew")
    outside = next((each for each in ids + _flattened(tried[1]) if not 0 <= each < count), None)
    refuse_unless(
        outside is None,
        name,
        f"it gives the index {outside}, and there are {count:,} samples",
        "make it of this data set",
    )
    others = len(_flattened(tried[1]))
    refuse_unless(
        len(ids) == others,
        name,
        f"it gives {len(ids):,} samples in one epoch and {others:,} in the next",
        "let it give as many in all epochs",
    )

    size = _batch_size(name, tried) if _is_batch(tried[0][0]) else None
    text = f"as {name} gives it, run for each epoch"
    return ProgramOrder(epoch_size=len(ids), runner=runner), size, text


def _try_epochs(runner: SamplerRunner, dataset: Any) -> list[list[Any]]:
    """What the sampler yields in the epochs of `_TRIED`, with other global random states for each
    of them.
    """
    kept = Kept.of(dataset)
    try:
        tried = _run_epochs(runner)
        # the copy shares the data set, and what is seen of it must hold for all epochs
        changed = next((name for _, name in kept.changed_at()), None)
        refuse_unless(
            changed is None,
            runner.name,
            f"it changes {changed or 'a variable, or what is in a list or an array'}, on which "
            "samples may depend",
            "let it only choose the order, and make a loader for each stage of the training",
        )
        return tried
    finally:
        kept.restore()


def _run_epochs(runner: SamplerRunner) -> list[list[Any]]:
    tried = []
    with states_kept():
        for number, epoch in enumerate(_TRIED):
            seed_all(number)
            before = random_states()
            try:
                tried.append(runner.run(epoch))
            except Exception as error:  # any error of a class that we do not know
                raise NotConvertibleError(
                    runner.name, f"it fails ({type(error).__name__}: {error})", "repair it"
                ) from error
            refuse_unless(
                random_states() == before,
                runner.name,
                "it draws global random numbers, which the epoch does not decide",
                _BY_EPOCH,
            )
    return tried


def _batch_size(name: str, tried: list[list[list[int]]]) -> int:
    """The size of all batches but the last one of an epoch, which may be smaller."""
    sizes = [list(map(len, batches)) for batches in tried]
    size = sizes[0][0]
    refuse_unless(
        all(set(each[:-1]) <= {size} and each[-1] <= size for each in sizes),
        name,
        f"its batches have {min(map(min, sizes))} to {max(map(max, sizes))} samples, and ours "
        "have one size",
        "let all batches but the last one have one size",
    )
    return size


def _is_batch(value: Any) -> bool:
    return isinstance(value, _BATCH) or (isinstance(value, torch.Tensor) and value.ndim > 0)


def _flattened(drawn: list[Any]) -> list[int]:
    return list(chain.from_iterable(drawn)) if drawn and _is_batch(drawn[0]) else drawn


def _name_of(sampler: Any) -> str:
    what = "batch_sampler" if isinstance(sampler, BatchSampler) else "sampler"
    return f"the {what} {place_of(type(sampler), '__iter__')}"


def _method_of_its_own(sampler: Any) -> str | None:
    """A public method that takes arguments."""
    for kind in type(sampler).__mro__:
        if kind.__module__.partition(".")[0] in ("torch", "builtins", "typing", "collections"):
            continue
        for name, value in vars(kind).items():
            if name.startswith("_") or name in _HARMLESS or not inspect.isfunction(value):
                continue
            if len(inspect.signature(value).parameters) > 1:
                return name
    return None


def _copied(sampler: Any, shared: Mapping[int, Any]) -> Any:
    """A copy of a sampler, with copies of the samplers, random numbers and containers in it. It
    shares the data set.

    Args:
        shared: what the data set holds, by its identity, of which nothing is copied.
    """
    fresh = copy(sampler)
    for name, value in list(getattr(fresh, "__dict__", {}).items()):
        if isinstance(value, Sampler):
            setattr(fresh, name, _copied(value, shared))
        elif isinstance(value, torch.Generator):
            setattr(fresh, name, value.clone_state())
        elif isinstance(value, (np.random.Generator, np.random.RandomState, random.Random)):
            setattr(fresh, name, deepcopy(value))
        elif id(value) in shared:
            continue
        elif type(value) in (list, dict, set, np.ndarray):
            setattr(fresh, name, copy(value))
        elif type(value) is torch.Tensor:
            setattr(fresh, name, value.clone())
    return fresh
