"""Batches from works whose pictures are made: compared, collated, and on their device."""

import itertools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.data._utils.pin_memory import pin_memory

from dali_pipes.adapters.lazy.compiler.batches import RowKind
from dali_pipes.adapters.lazy.compiler.executor import Executor, LazyWork
from dali_pipes.adapters.lazy.compiler.lines import BackendLine, Item, LinePart
from dali_pipes.adapters.lazy.compiler.row import Row
from dali_pipes.adapters.lazy.explain import Account
from dali_pipes.adapters.lazy.file_errors import file_of
from dali_pipes.adapters.lazy.found import WaitingParts, moved
from dali_pipes.adapters.lazy.parcels import Parcel, Told
from dali_pipes.adapters.lazy.program import LazyProgram
from dali_pipes.adapters.lazy.random_numbers import own_numbers, read_states, restore
from dali_pipes.adapters.lazy.state import eager

_COMPARED, _MOST_COMPARED = 8, 64  # pictures of each kind; and what may be done to them
# How far a backend may be from the program's own pixels, on average and in steps of 1/255: the
# bounds of docs/pixels.md, with room for small pictures and for thresholds that a step passes. A
# crop that is off by a pixel, or a resize without antialiasing, differs by more.
_MOST, _MOST_OF_OPERATIONS, _ON_A_GPU = 0.75, 3.0, 2.0


class BatchFinisher:
    """
    Args:
        device: where all tensors of a batch arrive; None: where the program puts them.
        check: whether the first pictures that a backend makes are compared with the program's.
        pins: whether tensors are pinned for copies to a GPU.
    """

    def __init__(
        self,
        program: LazyProgram,
        executor: Executor,
        account: Account,
        device: torch.device | None,
        check: bool,
        pins: bool,
    ):
        self._program, self._executor, self._account = program, executor, account
        self._device = device or torch.device("cpu")
        self._moves = self._device.type != "cpu"
        self._pins = pins and not self._moves and torch.cuda.is_available()
        self._check = check
        self._is_good = WeakKeyDictionary[BackendLine, bool]()
        # what is done to pictures of a line, whose backend may be another one than before
        self._compared = WeakKeyDictionary[BackendLine, set[Any]]()
        self._collates_on_cpu = not self._moves

    def finish(self, work: LazyWork) -> Any:
        """The batch that the program would have made."""
        parcel, found = work.parcel
        self._account.add(parcel.told)
        self._account.waited += found.waited
        self._account.kept += found.sources
        try:
            if error := parcel.error or work.error:
                raise error
            self._compare(work)
            with eager():
                for cell in found.cells:  # what no executor has made
                    cell.make()
                batch = found.true()
        except Exception as error:
            batch, is_collated = self._ask_again(parcel, error)
        else:
            is_collated = parcel.is_collated

        if not is_collated:
            batch = self._collate(parcel, batch)
        if self._moves:
            batch = moved(batch, self._device)
        return pin_memory(batch) if self._pins else batch  # type: ignore[no-untyped-call]

    # once more

    def _ask_again(self, parcel: Parcel, error: Exception) -> tuple[Any, bool]:
        """A batch of which a picture could not be made, and whether it is collated."""
        program = self._program
        if parcel.ask is None:
            return self._true_samples(parcel, error), False
        try:
            batch = program.make_again(parcel.ask, parcel.before)
        except Exception as again:
            raise again from (None if type(again) is type(error) else error)
        finally:
            self._take_told()
        program.give_up("a batch", error)
        self._take_told()
        return batch, True

    def _take_told(self) -> None:
        told, self._program.told = self._program.told, Told()
        self._account.add(told)

    def _true_samples(self, parcel: Parcel, error: Exception) -> list[Any]:
        """Those of a stream, which cannot be asked once more: another one takes the place of what
        cannot be made.
        """
        if parcel.is_collated or not self._program.substitutes:
            error.add_note(
                f"file {file_of(error) or 'unknown'}; a sample of a stream cannot be asked for "
                "once more; with on_bad_sample='substitute' another one takes its place"
            )
            raise error
        samples, told = list[Any](), Told()
        for sample in parcel.batch:
            try:
                with eager():
                    samples.append(WaitingParts(sample).true())
            except Exception as bad:
                told.bad.append((None, file_of(bad), f"{type(bad).__name__}: {bad}"))
        if not samples:
            raise error
        self._account.add(told)
        others = itertools.islice(itertools.cycle(samples), len(told.bad))
        return [*samples, *map(deepcopy, others)]

    # collating

    def _collate(self, parcel: Parcel, samples: Any) -> Any:
        """What the program's collate function makes of finished samples, with the random numbers
        that it would have had in its worker.
        """
        has_own_numbers = parcel.key is not None or parcel.before_collate is not None
        with own_numbers(has_own_numbers), eager():
            if parcel.key is not None:
                self._program.begin().seed(*parcel.key)
            elif parcel.before_collate is not None:
                restore(parcel.before_collate)
            if self._collates_on_cpu:
                return self._program.collate_fn(moved(samples, torch.device("cpu")))

            before = read_states()
            try:
                with draws_on_cpu():
                    return self._program.collate_fn(moved(samples, self._device))
            except Exception as error:
                restore(before)
                batch = self._program.collate_fn(moved(samples, torch.device("cpu")))
                self._collates_on_cpu = True
                self._account.say(
                    f"collate_fn does not run on {self._device} ({type(error).__name__}: {error}), "
                    "so it runs on the CPU"
                )
                return batch

    # comparing

    def _compare(self, work: LazyWork) -> None:
        """Compares the first pictures of each kind that a backend makes, and the first with each
        operation and step, with those that are made as noted. If they differ, all of this kind are
        made as noted from then on.
        """
        for part in work.parts:
            places = self._places_to_compare(part) if self._check else []
            if places and self._is_good.get(part.line, True):
                self._is_good[part.line] = self._is_equal(part, places)
                if not self._is_good[part.line]:
                    self._executor.refuse(
                        part.line, "its pixels were too far from the program's own"
                    )
            if not self._is_good.get(part.line, True):
                for item in part.items:
                    item.cell.rows[item.place] = item.recipe
                    vars(item.cell).pop("made", None)

    def _places_to_compare(self, part: LinePart) -> list[int]:
        known = self._compared.setdefault(part.line, set())
        places = [] if known else list(range(min(_COMPARED, len(part.rows))))
        for at, row in enumerate(part.rows):
            news = _what_is_done(row) - known
            if news and len(known) < _MOST_COMPARED:
                known |= news
                places += [at] * (at not in places)
        return places

    def _is_equal(self, part: LinePart, places: list[int]) -> bool:
        kind = part.line.kind
        assert part.images is not None
        pairs = [(part.images[at].cpu(), part.items[at], part.rows[at]) for at in places]
        apart = [_apart(image, item, kind) for image, item, _ in pairs]
        self._account.compared += len(pairs)
        factor = 1.0 if part.images.device.type == "cpu" else _ON_A_GPU
        for found, (_, item, row) in zip(apart, pairs, strict=True):
            most = _MOST_OF_OPERATIONS if row.operations or row.steps else _MOST
            if found > most * factor:
                steps = ", ".join(name for name, _, _ in item.recipe.notes)
                self._account.say(
                    f"pixels of a backend are {found:.3g} of 255 away from the program's own, on "
                    f"average, after {steps or 'decoding'}; such pictures are made as noted"
                )
                return False
        return True


def _what_is_done(row: Row) -> set[Any]:
    """By what pictures of one kind differ: their operations and their steps, with the options that
    are no numbers.
    """
    operations = {(each.op, id(each.slot), each.table is None) for each in row.operations}
    return {"resized", *operations, *(each.key for each in row.steps)}


def _apart(made: Any, item: Item, kind: RowKind) -> float:
    """How far a picture is from the one that is made as noted, on average, in steps of 1/255."""
    one, other = (np.asarray(each, np.float32) for each in (made, item.recipe.make()))
    if one.shape != other.shape:
        return 255.0
    scale = 255.0 if kind.scale is None else float(np.mean(np.abs(kind.scale)))
    return float(np.abs(one - other).mean()) * 255 / scale


def draws_on_cpu() -> AbstractContextManager[Any]:
    """In it random numbers for a GPU are drawn on the CPU."""
    return _DrawsOnCpu()


class _DrawsOnCpu(TorchDispatchMode):
    """In it random numbers for a GPU are drawn on the CPU, where the program would have drawn them,
    and copied.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **options)
        here = [each for each in (*args, options.get("device")) if _is_on_gpu(each)]
        if not here:
            return func(*args, **options)

        device = here[0].device if isinstance(here[0], torch.Tensor) else torch.device(here[0])
        if "device" in options:
            options["device"] = torch.device("cpu")
        options.pop("pin_memory", None)
        cpu_args, cpu_options = tree_map(_to_cpu, (args, options))
        made = func(*cpu_args, **cpu_options)
        if func._schema.is_mutable:  # it fills a tensor
            return args[0].copy_(made)
        return tree_map(lambda each: each.to(device) if _is_tensor(each) else each, made)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_on_gpu(value: Any) -> bool:
    if isinstance(value, (str, torch.device)):
        return torch.device(value).type != "cpu"
    return _is_tensor(value) and value.device.type != "cpu"


def _to_cpu(value: Any) -> Any:
    return value.cpu() if _is_tensor(value) else value
