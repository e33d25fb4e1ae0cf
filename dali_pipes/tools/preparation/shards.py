"""Writes images to shards: tars in the WebDataset format, with a file for the image and one for the label of each sample.

A sample's files are named by its id, nine digits, and follow each other: 000000123.jpg, then 000000123.cls, the class number
as text. The tars are USTAR and hold neither times nor owners, so that the same images give the same bytes. classes.json beside them
is the list of class names. In WebDataset (https://github.com/webdataset/webdataset) a sample is the files whose names agree up to
the first dot.
"""

import io
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dali_pipes.data.manifest import Manifest
from dali_pipes.data.scanning.shards import CLASSES_FILE
from dali_pipes.errors import PreparationError
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.progress import track
from dali_pipes.system.workers import in_order
from dali_pipes.tools.preparation.encode import Encoded, Encoding, encode_sample
from dali_pipes.tools.preparation.outcome import Outcome
from dali_pipes.tools.preparation.record import Record


class ShardWriter:
    """Fills one tar after the other; each gets its name when it is complete.

    Args:
        first: number of the next shard.
        limit: maximum size of a shard in bytes, unless a single sample is larger.
    """

    def __init__(self, record: Record, folder: Path, first: int, limit: int):
        self._record, self._folder, self._number, self._limit = record, folder, first, limit
        self._tar: tarfile.TarFile | None = None
        self._aside = Path()

    @contextmanager
    def _naming_the_shard(self) -> Iterator[None]:
        """Adds the file's name to errors of tarfile."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(shard(self._folder, self._number))) from None

    def add(self, sample_id: int, image: Encoded, label: int) -> None:
        members = [(f"{sample_id:09d}.{image.extension}", image.content), (f"{sample_id:09d}.cls", str(label).encode())]
        size = sum(tarfile.BLOCKSIZE * (1 + -(-len(content) // tarfile.BLOCKSIZE)) for _, content in members)
        if self._tar and self._tar.offset + size + tarfile.RECORDSIZE > self._limit:
            self.close()
        with self._naming_the_shard():
            if self._tar is None:
                self._aside = self._record.aside("shard.tar")
                self._tar = tarfile.open(self._aside, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115  closed in close()
            for name, content in members:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                self._tar.addfile(member, io.BytesIO(content))

    def close(self) -> None:
        """Ends the current shard, if there is one."""
        if self._tar:
            with self._naming_the_shard():
                self._tar.close()
                self._aside.replace(shard(self._folder, self._number))
            self._number, self._tar = self._number + 1, None


def shard(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:06d}.tar"


def to_shards(record: Record, split: str, source: Manifest, encoding: Encoding | None, limit: int) -> Outcome:
    """Writes all images of the source into shards in `record.out`/`split`; existing shards are kept.

    Args:
        encoding: None: the bytes go in unchanged, after a check that they can be decoded.
        limit: maximum size of a shard, in bytes.

    Raises:
        PreparationError: the folder holds files that no earlier run wrote.
    """
    folder = record.out / split
    folder.mkdir(exist_ok=True)
    record.write(folder / CLASSES_FILE, json.dumps(source.classes).encode())
    kept = finished(folder)
    ids = [sample_id for each in kept for sample_id in each]
    start = ids[-1] + 1 if ids else 0
    if ids != sorted(set(ids)) or start > len(source):
        raise PreparationError(f"{folder} holds shards that this run did not write; choose another folder")
    writer = ShardWriter(record, folder, len(kept), limit)
    same = 0
    done = in_order(partial(encode_sample, source, encoding), range(start, len(source)), available_cpus(), chunk=8)
    for sample_id, image in enumerate(track(done, f"packing {split}", len(source) - start), start):
        if isinstance(image, Encoded):
            writer.add(sample_id, image, int(source.labels[sample_id]))
            ids.append(sample_id)
            same += image.same_pixels
    writer.close()
    return _outcome(folder, source, encoding, ids, sum(map(len, kept)), same)


def finished(folder: Path) -> list[list[int]]:
    """The sample ids of each existing shard, in order.

    Raises:
        PreparationError: a shard is missing among them, or cannot be read.
    """
    there = sorted(folder.glob("shard-*.tar"))
    if there != [shard(folder, number) for number in range(len(there))]:
        raise PreparationError(f"{folder}: some shards are missing between others; choose another folder")
    found = []
    for file in there:
        try:
            with tarfile.open(file, "r:") as tar:
                found.append([int(name.split(".")[0]) for name in tar.getnames() if name.endswith(".cls")])
        except (tarfile.TarError, ValueError) as error:
            raise PreparationError(f"{file} was not written by an earlier run ({error}); remove it and those after it") from None
    return found


def _outcome(folder: Path, source: Manifest, encoding: Encoding | None, ids: list[int], kept: int, same: int) -> Outcome:
    left_out = list(source.problems)
    for sample_id in sorted({*range(len(source))} - {*ids}):  # decoded again for the reason; an earlier run may have left them out
        reason, path = encode_sample(source, encoding, sample_id), os.path.relpath(source.name(sample_id), source.root)
        left_out.append((path, reason if isinstance(reason, str) else "could not be decoded by an earlier run"))
    before = source.bytes_each[ids]
    after = sum(file.stat().st_size for file in folder.glob("shard-*.tar"))
    return Outcome(len(ids), same, kept, int(before.sum()), after, left_out)


def read_back(folder: Path, count: int, into: Path) -> list[int]:
    """Writes some images of the shards, spread evenly over all of them, as files into `into`; returns their sample ids."""
    every = [(file, name) for file in sorted(folder.glob("shard-*.tar")) for name in _image_names(file)]
    chosen = [every[at * len(every) // count] for at in range(count)] if count < len(every) else every
    for file in sorted({file for file, _ in chosen}):
        with tarfile.open(file, "r:") as tar:
            for name in [name for each, name in chosen if each == file]:
                member = tar.extractfile(name)
                (into / name).write_bytes(member.read() if member else b"")
    return [int(name.split(".")[0]) for _, name in chosen]


def _image_names(file: Path) -> list[str]:
    with tarfile.open(file, "r:") as tar:
        return [name for name in tar.getnames() if not name.endswith(".cls")]
