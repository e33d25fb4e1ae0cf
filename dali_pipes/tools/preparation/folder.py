"""Writes images to a folder of JPEGs with a subfolder for each class, in the same order."""

import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import PreparationError
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.progress import track
from dali_pipes.system.workers import in_order
from dali_pipes.tools.preparation.encode import Encoding, encode_sample
from dali_pipes.tools.preparation.names import class_folders, output_names
from dali_pipes.tools.preparation.outcome import Outcome
from dali_pipes.tools.preparation.part import Part
from dali_pipes.tools.preparation.record import Record


class _Written(NamedTuple):
    """size: bytes after, 0 if it was left out; why: only then."""

    size: int
    same_pixels: bool = False
    kept: bool = False
    why: str = ""


def to_folder(record: Record, split: str, source: Manifest, encoding: Encoding, part: Part | None) -> tuple[Outcome, list[int]]:
    """Writes all images of the source below `record.out`/`split`; files that are there already are kept.

    Args:
        part: None: all of it.

    Returns:
        The outcome, and the source's id of each image that was written.

    Raises:
        ConfigError: folders cannot keep the source's order.
    """
    out, names = record.out / split, output_names(source)
    for folder in {*class_folders(source.classes), *map(os.path.dirname, names)}:
        (out / folder).mkdir(parents=True, exist_ok=True)
    outcome, ids = Outcome(left_out=list(source.problems)), list[int]()
    asked = part.of(range(len(source))) if part else range(len(source))
    done = in_order(partial(_write, record, out, source, names, encoding), asked, available_cpus(), chunk=8)
    for sample_id, written in zip(asked, track(done, f"preparing {split}", len(asked)), strict=True):
        if written.why:
            outcome.left_out.append((os.path.relpath(source.name(sample_id), source.root), written.why))
            continue
        ids.append(sample_id)
        outcome.images += 1
        outcome.same_pixels += written.same_pixels
        outcome.kept += written.kept
        outcome.bytes_after += written.size
    outcome.bytes_before = int(source.bytes_each[ids].sum())
    return outcome, ids


def check_order(written: Manifest, source: Manifest, ids: list[int]) -> None:
    """Checks that a scan of the written images numbers them in the same order.

    Raises:
        PreparationError: there are other files among them.
    """
    names = output_names(source)
    found = [os.path.relpath(written.path(sample_id), written.root) for sample_id in range(len(written))]
    for name, expected in zip([*found, ""], [*(names[sample_id] for sample_id in ids), ""], strict=False):
        if name != expected:
            stray = name or expected
            raise PreparationError(f"{os.path.join(written.root, stray)} was not written by this run; remove it and start again")
    if len(found) != len(ids) or list(written.labels) != list(source.labels[ids]) or written.problems:
        raise PreparationError(f"{written.root} holds images that this run did not write; choose another folder")


def _write(record: Record, out: Path, source: Manifest, names: list[str], encoding: Encoding, sample_id: int) -> _Written:
    file = out / names[sample_id]
    size = file.stat().st_size if file.exists() else 0
    if size:
        return _Written(size, kept=True)
    encoded = encode_sample(source, encoding, sample_id)
    if isinstance(encoded, str):
        return _Written(0, why=encoded)
    record.write(file, encoded.content)
    return _Written(len(encoded.content), same_pixels=encoded.same_pixels)
