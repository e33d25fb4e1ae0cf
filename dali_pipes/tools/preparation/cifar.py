"""Converts the binary versions of CIFAR-10 and CIFAR-100 to a folder of PNGs.

`check_archive`, `read_archive` and `write_pngs` are called in this order. The archive is untrusted:
its hash is checked, its files are read by name into memory, and nothing is extracted. The Python
version is refused, since its pickles can run any code.

https://www.cs.toronto.edu/~kriz/cifar.html defines the format: records of one label byte
(CIFAR-100: a coarse and a fine one), then 32 × 32 red values, as many green and as many blue ones.
"""

import hashlib
import io
import tarfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.errors import PreparationError
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.progress import track
from dali_pipes.system.workers import map_in_order
from dali_pipes.tools.preparation.folder import class_folders
from dali_pipes.tools.preparation.record import Record

_MARGIN = 2**20  # bytes, for the other files in an archive
_BROKEN = (tarfile.TarError, EOFError, zlib.error, OSError)  # raised by damaged archives
_PIXELS = 3 * 32 * 32
_NAMES_BYTES = 64 * 1024  # at most, of the file of class names


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of an archive.

    Attributes:
        sha256: the hash of the official archive.
        folder: the folder of all its files.
        names: the file of the class names, one per line.
        files: the files of each split.
        records: maximum number of records in a file.
        label_bytes: how many bytes of each record are labels; the last one is used.
    """

    sha256: str
    folder: str
    names: str
    files: dict[str, list[str]]
    records: int
    label_bytes: int


# the hashes are those of github.com/tensorflow/datasets: cifar10.txt and cifar100.txt in
# tensorflow_datasets/url_checksums
LAYOUTS = {
    "cifar10": Layout(
        sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        folder="cifar-10-batches-bin",
        names="batches.meta.txt",
        files={
            "train": [f"data_batch_{number}.bin" for number in range(1, 6)],
            "val": ["test_batch.bin"],
        },
        records=10_000,
        label_bytes=1,
    ),
    "cifar100": Layout(
        sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        folder="cifar-100-binary",
        names="fine_label_names.txt",
        files={"train": ["train.bin"], "val": ["test.bin"]},
        records=50_000,
        label_bytes=2,
    ),
}


class Split(NamedTuple):
    """The images of one split. labels: (N,) uint8; pixels: (N, 32, 32, 3) uint8."""

    labels: NDArray[np.uint8]
    pixels: NDArray[np.uint8]


def check_archive(archive: Path, source: str, expected: str | None) -> str:
    """Checks an archive's SHA-256 against the expected or the official one, and returns it.

    Raises:
        PreparationError: they differ, or there is no such file.
    """
    if not archive.is_file():
        raise PreparationError(f"{archive}: no such file; give the archive as it was downloaded")

    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()

    wanted = (expected or LAYOUTS[source].sha256).lower()
    if digest == wanted:
        return digest

    name = LAYOUTS[source].folder.removesuffix("-batches-bin").removesuffix("-binary")
    # the Python version is a common mistake, so its error says which file is needed
    first = ""
    with suppress(*_BROKEN), tarfile.open(archive, "r|gz") as tar:
        # an empty archive has no next file
        first = getattr(tar.next(), "name", "")

    if "-batches-py" in first or "-python" in first:
        raise PreparationError(
            f"{archive} is the Python version, made of pickles, which can run any code "
            "when they are read; "
            f"give the binary version, {name}-binary.tar.gz"
        )

    whose = "that was asked for" if expected else f"of the official {name}-binary.tar.gz"
    raise PreparationError(
        f"{archive}: its SHA-256 is {digest}, and not {wanted}, the one {whose}; download it again"
    )


def read_archive(archive: Path, source: str) -> tuple[list[str], dict[str, Split]]:
    """Reads the names of the classes, and the images of "train" and "val".

    Raises:
        PreparationError: a file is missing, or does not have the format.
    """
    layout = LAYOUTS[source]
    record = layout.label_bytes + _PIXELS
    largest = {
        f"{layout.folder}/{file}": layout.records * record
        for files in layout.files.values()
        for file in files
    }

    members = _read_members(archive, largest | {f"{layout.folder}/{layout.names}": _NAMES_BYTES})
    classes = members[f"{layout.folder}/{layout.names}"].decode("ascii", "replace").split()

    splits = {}
    for split, files in layout.files.items():
        contents = [members[f"{layout.folder}/{file}"] for file in files]
        for file, content in zip(files, contents, strict=True):
            if not content or len(content) % record:
                raise PreparationError(
                    f"{archive}: {file} has {len(content):,} bytes, and records of {record:,} "
                    "do not fill that"
                )

        records = np.frombuffer(b"".join(contents), np.uint8).reshape(-1, record)
        planes = records[:, layout.label_bytes :].reshape(-1, 3, 32, 32)
        # CIFAR-100's fine label comes after the coarse one
        images = splits[split] = Split(
            records[:, layout.label_bytes - 1], planes.transpose(0, 2, 3, 1)
        )

        if images.labels.max() >= len(classes):
            raise PreparationError(
                f"{archive}: {split} has label {images.labels.max()}, and there are "
                f"{len(classes)} classes"
            )

    return classes, splits


def _read_members(archive: Path, largest: Mapping[str, int]) -> dict[str, bytes]:
    """Reads the regular files with these names.

    Links, folders and other names are skipped; of two files with the same name the first counts.

    Args:
        largest: the maximum size in bytes of each file, by name.
    """
    contents: dict[str, bytes] = {}
    passed = 0
    try:
        # a stream, so that a gzip bomb is noticed before all of it is unpacked
        with tarfile.open(archive, "r|gz") as tar:
            for member in track(tar, "reading the archive", len(largest) + 3):
                # of every file, since a stream skips a file by unpacking it
                passed += member.size
                if passed > 2 * sum(largest.values()) + _MARGIN:
                    raise PreparationError(
                        f"{archive} holds far more than it should; download it again"
                    )

                if not member.isreg() or member.name not in largest or member.name in contents:
                    continue
                if member.size > largest[member.name]:
                    raise PreparationError(
                        f"{archive}: {member.name} has {member.size:,} bytes, more than it can have"
                    )

                file = tar.extractfile(member)
                contents[member.name] = file.read() if file else b""
    except _BROKEN as error:
        raise PreparationError(
            f"{archive} is damaged or cut short ({error}); download it again"
        ) from None

    if missing := [name for name in largest if name not in contents]:
        raise PreparationError(
            f"{archive} holds no {missing[0]}; give the binary version as it was downloaded"
        )
    return contents


def write_pngs(record: Record, split: str, classes: list[str], images: Split) -> tuple[int, int]:
    """Writes CLASS/NUMBER.png; the number is the image's index in the archive.

    Existing files are kept.

    Returns:
        how many images there are, and how many of them were kept.
    """
    folders = [record.out / split / name for name in class_folders(classes)]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)

    count = len(images.labels)
    written = map_in_order(
        partial(_write, record, folders, images), range(count), available_cpus(), chunk=256
    )
    return count, sum(track(written, f"writing {split}", count))


def _write(record: Record, folders: list[Path], images: Split, number: int) -> bool:
    """Writes one image; returns whether it existed already."""
    file = folders[images.labels[number]] / f"{number:05d}.png"
    if file.exists() and file.stat().st_size:
        return True

    buffer = io.BytesIO()
    Image.fromarray(images.pixels[number]).save(buffer, "PNG")
    record.write(file, buffer.getvalue())
    return False
