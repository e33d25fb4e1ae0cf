"""Makes the batches of cases with the dali_pipes of one checkout, as `same_bits.py` asks for them.

Each line of its input is a folder, whose name.txt names a case; what the case gives is then written
into that folder, and a line with the folder's name says so.
"""

import hashlib
import inspect
import itertools
import json
import logging
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from same_bits_cases import Case, list_cases
from same_bits_images import SOURCES
from same_bits_options import Made
from torch.utils.data import DataLoader

import dali_pipes as dp


class LacksName(Exception):
    """This dali_pipes has no such class, or not this option of it."""


def main(checkout: str, images: str) -> None:
    found = Path(dp.__file__).resolve()
    if not found.is_relative_to(Path(checkout).resolve()):
        sys.exit(f"{checkout}: another dali_pipes is imported, {found}")

    # libraries write on the output too
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # each case trains and evaluates on the same images, which is said of each
    logging.getLogger("dali_pipes").setLevel(logging.ERROR)
    cases = list_cases()
    for line in sys.stdin:
        folder = Path(line.strip())
        case = cases[(folder / "name.txt").read_text()]
        (folder / "result.json").write_text(json.dumps(make_case(case, Path(images), folder)))
        print(folder.name, file=answers)


def make_case(case: Case, images: Path, folder: Path) -> dict[str, Any]:
    """Writes each tensor into the folder; returns their descriptions in `tensors`, and in `error`
    what ended the case: its text, and whether it was refused before there was a batch.
    """
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    result: dict[str, Any] = {"tensors": {}, "error": None}
    began = False
    try:
        for name, values in take_batches(case, images):
            began = True
            result["tensors"][name] = write(values, folder / f"{len(result['tensors'])}.npy")
    except Exception as error:
        refused = not began and isinstance(error, (dp.ConfigError, LacksName))
        result["error"] = {"text": f"{type(error).__name__}: {error}", "refused": refused}
    return result


def take_batches(case: Case, images: Path) -> Iterator[tuple[str, Any]]:
    """Yields each tensor of the batches, by a name that says where it is."""
    with build(case, case.config, images) as loader:
        for epoch in range(case.epoch, case.epoch + case.epochs):
            # the loaders of `from_torch` have none
            if case.epoch or case.epochs > 1:
                loader.set_epoch(epoch)
            taken = 1 if case.resume_by else case.batches
            for step, batch in enumerate(itertools.islice(loader, taken)):
                yield from flatten(batch, f"epoch {epoch}, batch {step}, ")
        if hasattr(loader, "bad_samples"):
            bad = sorted(sample for sample, _, _ in loader.bad_samples)
            yield "bad images", np.array(bad, np.int64)
        state = loader.state_dict() if case.resume_by else None

    if case.resume_by:
        with build(case, case.resume_by, images) as loader:
            loader.load_state_dict(state)
            for step, batch in enumerate(itertools.islice(loader, case.batches)):
                yield from flatten(batch, f"resumed, batch {step}, ")


def build(case: Case, config: Made, images: Path) -> Any:
    source, transform = open_source(case.source, images), make(case.transform)
    options = {name: make(value) for name, value in case.options.items()}
    if isinstance(source, DataLoader):
        return dp.from_torch(source, make(config), device="cpu", check=False, **options)

    usual = {"batch_size": 10, "last_batch": "partial", "device": "cpu"}
    return dp.build_loader(source, make(config), transform=transform, **{**usual, **options})


@cache
def open_source(name: str, images: Path) -> Any:
    source = SOURCES[name]
    return source.open(dp, images / source.folder)


def make(value: Any) -> Any:
    """The objects that are written as `Made`."""
    if isinstance(value, Made):
        options = {name: make(option) for name, option in value.options.items()}
        if not hasattr(dp, value.name):
            raise LacksName(f"dali_pipes has no {value.name}")
        kind = getattr(dp, value.name)
        if unknown := options.keys() - inspect.signature(kind).parameters:
            raise LacksName(f"{value.name} has no {', '.join(sorted(unknown))}")
        return kind(**options)
    return [make(each) for each in value] if isinstance(value, list) else value


def flatten(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields the arrays of a batch, of its fields, and of the values in these."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        yield name, value
    elif is_dataclass(value):
        for field in fields(value):
            yield from flatten(getattr(value, field.name), f"{name}{field.name} ")
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from flatten(each, f"{name}{key} ")
    elif isinstance(value, (list, tuple)) and any(map(_has_parts, value)):
        for place, each in enumerate(value):
            yield from flatten(each, f"{name}{place} ")
    else:
        yield name, np.frombuffer(repr(value).encode(), np.uint8)


def _has_parts(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray, dict, list, tuple)) or is_dataclass(value)


def write(values: Any, file: Path) -> dict[str, Any]:
    """Writes an array, and returns what is compared of it."""
    dtype = str(values.dtype)
    strides = values.stride() if isinstance(values, torch.Tensor) else values.strides
    if dtype == "torch.bfloat16":
        # NumPy has none, and float32 has all of its values
        values = values.float()
    values = np.asarray(values)
    np.save(file, values)
    return {
        "dtype": dtype,
        "shape": list(values.shape),
        "strides": list(strides),
        "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
        "file": file.name,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
