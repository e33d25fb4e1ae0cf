"""Writes images to shards: tars in the WebDataset format.

A sample is several files that follow each other, named by its id with nine digits:

    000000123.jpg         the image; the extension is that of its format
    000000123.cls         the class number as text
    000000123.txt         its text, if the source has texts
    000000123.json        its columns, if the source has columns
    000000123.mask.png    its mask, if the source has masks

classes.json beside the shards is the list of class names. In WebDataset
(https://github.com/webdataset/webdataset) a sample is the files whose names agree up to the first
dot. The tars are USTAR, without times and owners, so that the same images give the same bytes.

Which images a shard holds follows from their sizes in the source alone (`_plan_shards`), so any
process on any machine can write any shard (`write_shard`).
"""

import io
import json
import os
import socket
import tarfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dali_pipes.data.manifest import Manifest
from dali_pipes.data.sources.shards import CLASSES_FILE
from dali_pipes.errors import PreparationError
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.progress import track
from dali_pipes.system.workers import map_in_order
from dali_pipes.tools.preparation.beside import MASK, Beside, kept_beside
from dali_pipes.tools.preparation.config import Part
from dali_pipes.tools.preparation.encode import EncodedImage, Encoding, encode_sample, relative_name
from dali_pipes.tools.preparation.record import Outcome, Record


class Shard(NamedTuple):
    """A shard to be written.

    Attributes:
        first, end: the ids of its samples; `end` is not among them.
        aside: the path where it is written until it is complete.
    """

    file: Path
    first: int
    end: int
    aside: Path


class WrittenShard(NamedTuple):
    """A written shard.

    Attributes:
        ids: the ids of the samples that are in it.
        same_pixels: how many of them were not encoded.
    """

    ids: list[int]
    same_pixels: int


WriteAll = Callable[[Manifest, Encoding | None, list[Shard], str], Iterator[WrittenShard]]


def to_shards(
    record: Record,
    split: str,
    source: Manifest,
    encoding: Encoding | None,
    limit: int,
    write_all: WriteAll,
    part: Part,
) -> tuple[Outcome, list[int]]:
    """Writes all images of the source into shards in `record.out`/`split`; keeps existing shards.

    Args:
        encoding: None: the bytes go in unchanged, after a check that they can be decoded.
        limit: the maximum size of a shard in bytes, if the bytes go in unchanged.
        write_all: writes shards and yields what was written, in order: `write_here`, or
            `on_ray.write_all`.

    Returns:
        the outcome, and the source's id of each image that was written.

    Raises:
        PreparationError: the folder holds files that no earlier run wrote; or parts are to be
            merged, and shards are missing.
    """
    folder = record.out / split
    folder.mkdir(exist_ok=True)
    record.write(folder / CLASSES_FILE, json.dumps(source.classes).encode())

    shards = _plan_shards(record, folder, source, limit)
    if strays := sorted({*folder.glob("*.tar")} - {shard.file for shard in shards}):
        raise PreparationError(f"{strays[0]} was not written by this run; choose another folder")

    mine = part.of(shards)
    kept = {shard: _read_shard(shard) for shard in mine if shard.file.exists()}
    missing = [shard for shard in mine if shard not in kept]

    if part.merges and missing:
        raise PreparationError(
            f"{len(missing)} of {len(shards)} shards are missing, such as "
            f"{missing[0].file}; run their parts again"
        )

    made = dict(zip(missing, write_all(source, encoding, missing, f"packing {split}"), strict=True))
    ids = [sample_id for shard in mine for sample_id in (kept | made)[shard].ids]

    left_out = list(source.problems)
    for sample_id in sorted(
        {sample_id for shard in mine for sample_id in range(shard.first, shard.end)} - {*ids}
    ):
        # decoded again for the reason; an earlier run may have left it out
        reason = encode_sample(source, encoding, sample_id)
        why = reason if isinstance(reason, str) else "could not be decoded by an earlier run"
        left_out.append((relative_name(source, sample_id), why))

    same_pixels, from_earlier = (
        sum(shard.same_pixels for shard in made.values()),
        sum(len(shard.ids) for shard in kept.values()),
    )
    before, after = (
        int(source.bytes_each[ids].sum()),
        sum(shard.file.stat().st_size for shard in mine),
    )

    return Outcome(len(ids), same_pixels, from_earlier, before, after, left_out), ids


def _plan_shards(record: Record, folder: Path, source: Manifest, limit: int) -> list[Shard]:
    """Plans the shards: each gets as many samples as fit by their sizes in the source.

    A tar is made of blocks of 512 bytes: each file has one for its header, and as many as its
    content fills.
    """
    # the image's header and content, and two blocks for its label
    blocks = 1 + -(-source.bytes_each // tarfile.BLOCKSIZE) + 2
    if kept_beside(source):
        beside = [
            sum(1 + -(-size // tarfile.BLOCKSIZE) for size in some)
            for some in Beside(source).sizes()
        ]
        blocks = blocks + np.array(beside, np.int64)

    ends, starts = blocks.cumsum(), [0]
    # a tar ends with zeros up to a whole record of 20 blocks
    room = (limit - tarfile.RECORDSIZE) // tarfile.BLOCKSIZE

    while starts[-1] < len(source):
        before = int(ends[starts[-1] - 1]) if starts[-1] else 0
        # at least one image, even if it alone is larger than a shard may be
        starts.append(max(int(np.searchsorted(ends, before + room, side="right")), starts[-1] + 1))

    names = [f"shard-{number:06d}.tar" for number in range(len(starts) - 1)]
    return [
        Shard(folder / name, *ids, record.scratch / name)
        for name, ids in zip(names, pairwise(starts), strict=True)
    ]


def write_shard(
    source: Manifest,
    encoding: Encoding | None,
    shard: Shard,
    images: Iterable[EncodedImage | str] | None = None,
) -> WrittenShard:
    """Writes one shard, whole or not at all.

    Args:
        images: the encoded images of the shard's samples, and perhaps of later ones, which are not
            taken; a text stands for an image that is left out. None: they are encoded here.
    """
    if images is None:
        images = (
            encode_sample(source, encoding, sample_id)
            for sample_id in range(shard.first, shard.end)
        )

    beside = Beside(source)
    # named by machine and process, since Ray runs the task of a lost machine again elsewhere
    aside, ids, same = (
        shard.aside.with_suffix(f".{socket.gethostname()}-{os.getpid()}"),
        list[int](),
        0,
    )

    try:
        with tarfile.open(aside, "w", format=tarfile.USTAR_FORMAT) as tar:
            for sample_id, image in enumerate(islice(images, shard.end - shard.first), shard.first):
                if isinstance(image, EncodedImage):
                    _add(tar, f"{sample_id:09d}.{image.extension}", image.content)
                    _add(tar, f"{sample_id:09d}.cls", str(int(source.labels[sample_id])).encode())
                    more = beside.members(sample_id) | (
                        {MASK: image.mask} if image.mask is not None else {}
                    )
                    for extension, content in more.items():
                        _add(tar, f"{sample_id:09d}.{extension}", content)
                    ids.append(sample_id)
                    same += image.same_pixels
        aside.replace(shard.file)
    except OSError as error:
        # with the name of the shard, since the temporary one tells the user nothing
        raise OSError(error.errno, error.strerror, str(shard.file)) from None

    return WrittenShard(ids, same)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    # without time and owner, by TarInfo's defaults
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def write_here(
    source: Manifest, encoding: Encoding | None, shards: list[Shard], what: str
) -> Iterator[WrittenShard]:
    """Encodes images in several processes of this machine, and writes the shards in this one."""
    ids = [sample_id for shard in shards for sample_id in range(shard.first, shard.end)]

    images = track(
        map_in_order(partial(encode_sample, source, encoding), ids, available_cpus(), chunk=8),
        what,
        len(ids),
    )

    # one after the other, since each shard takes its images from the same iterator
    return (write_shard(source, encoding, shard, images) for shard in shards)


def _read_shard(shard: Shard) -> WrittenShard:
    """Reads which samples are in a shard of an earlier run.

    Raises:
        PreparationError: it cannot be read, or holds samples of another shard.
    """
    try:
        with tarfile.open(shard.file, "r:") as tar:
            # the label of a sample comes after its image
            ids = [int(name.split(".")[0]) for name in tar.getnames() if name.endswith(".cls")]
    except (tarfile.TarError, ValueError) as error:
        raise PreparationError(
            f"{shard.file} was not written by an earlier run ({error}); remove it"
        ) from None

    if ids != sorted(set(ids)) or not {*ids} <= {*range(shard.first, shard.end)}:
        raise PreparationError(
            f"{shard.file} was not written by an earlier run: it holds other samples; choose "
            "another folder"
        )

    return WrittenShard(ids, 0)
