"""Writes images to a folder of JPEGs with a subfolder for each class, in the source's order.

`to_folder` writes; `check_order` checks afterwards that a scan gives the images the same order, so
that ids and labels stay the same. A source whose order class folders cannot keep is refused.
"""

import itertools
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError, PreparationError
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.progress import track
from dali_pipes.system.workers import map_in_order
from dali_pipes.tools.preparation.config import Part
from dali_pipes.tools.preparation.encode import Encoding, encode_sample, relative_name
from dali_pipes.tools.preparation.record import Outcome, Record

MAX_NAME_BYTES = 255  # maximum bytes of a name on nearly all file systems
_JPEG = (".jpg", ".jpeg")


def class_folders(classes: Sequence[str]) -> list[str]:
    """Returns a folder name for each class; the names sort as the classes do.

    If all names are numbers, they get leading zeros for that. Raises as `to_folder`.
    """
    numbers = all(name.isascii() and name.isdecimal() for name in classes)
    folders = [name.zfill(max(map(len, classes))) for name in classes] if numbers else list(classes)

    for name in folders:
        if (
            name in ("", ".", "..")
            or "/" in name
            or "\0" in name
            or len(os.fsencode(name)) > MAX_NAME_BYTES
        ):
            raise ConfigError(
                f"class {name!r} cannot be the name of a folder; to=shards keeps any class"
            )

    if any(one >= other for one, other in itertools.pairwise(folders)):
        raise ConfigError(
            "the classes are not in sorted order, and folders would renumber them; to=shards "
            "keeps their order"
        )

    return folders


def output_names(manifest: Manifest) -> list[str]:
    """Returns the path of each sample below the output's root, by id; each ends in .jpg or .jpeg.

    An image keeps its folder and name, with .jpg added if it has another extension. In a folder
    where that would change the order or make two names the same or too long, the images are
    numbered. Raises as `to_folder`.
    """
    folders = class_folders(manifest.classes)
    labels = manifest.labels.tolist()
    if any(one > other for one, other in itertools.pairwise(labels)):
        raise ConfigError(
            f"{manifest.root}: the images are not sorted by class, and folders would "
            "renumber them; to=shards keeps their order"
        )

    paths = [os.fsdecode(path) for path in manifest.samples["path"].to_pylist()]
    # images in folders of their classes keep their names; others, such as a table's, get numbers
    if _is_class_tree(paths, [folders[label] for label in labels]):
        grouped = itertools.groupby(map(os.path.split, paths), key=lambda parts: parts[0])
        return [
            os.path.join(folder, name)
            for folder, files in grouped
            for name in _rename([file for _, file in files])
        ]

    by_class = itertools.groupby(labels)
    return [
        os.path.join(folders[label], name)
        for label, same in by_class
        for name in _numbers(len(list(same)))
    ]


def _is_class_tree(paths: list[str], folders: list[str]) -> bool:
    """Whether each image is in the folder of its class, in the order of an ImageFolder."""
    parts = [path.split("/") for path in paths]
    inside = all(
        part[0] == folder and len(part) > 1 and not {"", ".", ".."} & {*part}
        for part, folder in zip(parts, folders, strict=True)
    )

    by_class = list(zip(folders, map(os.path.split, paths), strict=True))
    return inside and all(one < other for one, other in itertools.pairwise(by_class))


def _rename(names: list[str]) -> list[str]:
    new = [name if name.lower().endswith(_JPEG) else f"{name}.jpg" for name in names]
    sorted_alike = all(one < other for one, other in itertools.pairwise(new))

    return (
        new
        if sorted_alike and all(len(os.fsencode(name)) <= MAX_NAME_BYTES for name in new)
        else _numbers(len(names))
    )


def _numbers(count: int) -> list[str]:
    return [f"{number:08d}.jpg" for number in range(count)]


class _WrittenImage(NamedTuple):
    """The outcome of one image.

    Attributes:
        size: the bytes of the written file; 0: the image was left out.
        same_pixels: whether it was not encoded again.
        kept: whether an earlier run wrote it.
        why: the reason why it was left out.
    """

    size: int
    same_pixels: bool = False
    kept: bool = False
    why: str = ""


def to_folder(
    record: Record, split: str, source: Manifest, encoding: Encoding, part: Part
) -> tuple[Outcome, list[int]]:
    """Writes all images of the source below `record.out`/`split`; keeps existing files.

    Returns:
        the outcome, and the source's id of each image that was written.

    Raises:
        ConfigError: a class cannot be the name of a folder, or folders cannot keep the source's
            order.
        PreparationError: this run merges parts, and an image is missing.
    """
    out, names = record.out / split, output_names(source)
    # a class without images keeps its folder, so that the labels of the others stay
    for folder in {*class_folders(source.classes), *map(os.path.dirname, names)}:
        (out / folder).mkdir(parents=True, exist_ok=True)

    asked = part.of(range(len(source)))
    done = map_in_order(
        partial(_write, record, out, source, names, encoding, part.merges),
        asked,
        available_cpus(),
        chunk=8,
    )

    outcome, ids = Outcome(left_out=list(source.problems)), list[int]()
    for sample_id, written in zip(
        asked, track(done, f"preparing {split}", len(asked)), strict=True
    ):
        if written.why:
            outcome.left_out.append((relative_name(source, sample_id), written.why))
            continue

        ids.append(sample_id)
        outcome.same_pixels += written.same_pixels
        outcome.kept += written.kept
        outcome.bytes_after += written.size

    outcome.images, outcome.bytes_before = len(ids), int(source.bytes_each[ids].sum())
    return outcome, ids


def check_order(written: Manifest, source: Manifest, ids: list[int]) -> None:
    """Checks that a scan of the written images numbers them in the same order.

    Raises:
        PreparationError: the folder also holds files that this run did not write.
    """
    names = output_names(source)
    places = [
        os.path.relpath(written.path(sample_id), written.root) for sample_id in range(len(written))
    ]

    # the empty name behind the shorter list meets a name of the longer one, which is then reported
    for name, expected in zip(
        [*places, ""], [*(names[sample_id] for sample_id in ids), ""], strict=False
    ):
        if name != expected:
            stray = name or expected
            raise PreparationError(
                f"{os.path.join(written.root, stray)} was not written by this run; remove it "
                "and start again"
            )

    if (
        len(places) != len(ids)
        or list(written.labels) != list(source.labels[ids])
        or written.problems
    ):
        raise PreparationError(
            f"{written.root} holds images that this run did not write; choose another folder"
        )


def _write(
    record: Record,
    out: Path,
    source: Manifest,
    names: list[str],
    encoding: Encoding,
    must_exist: bool,
    sample_id: int,
) -> _WrittenImage:
    file = out / names[sample_id]
    size = file.stat().st_size if file.exists() else 0
    # a file is renamed into its place when it is complete
    if size:
        return _WrittenImage(size, kept=True)

    encoded = encode_sample(source, encoding, sample_id)
    if isinstance(encoded, str):
        return _WrittenImage(0, why=encoded)

    # an image that cannot be used has no file, and was left out above: this one is missing
    if must_exist:
        raise PreparationError(
            f"images are missing, such as {file}; run their parts again, and then part=merge"
        )

    record.write(file, encoded.content)
    return _WrittenImage(len(encoded.content), same_pixels=encoded.same_pixels)
