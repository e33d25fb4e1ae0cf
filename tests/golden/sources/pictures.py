"""Image files that are drawn from a number, and how they get into files of all kinds. Whatever a
source names of them is the same on each machine.
"""

import io
import json
import struct
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from make_shards import add
from PIL import Image

import dali_pipes as dp

Cases = Mapping[str, object]  # by name a function without arguments, which returns a manifest

# Encoders of other versions write files of another length, and some errors name bytes of a shard.
JPEG_BYTES = 4096
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])  # of `datasets`
CRC_TABLE = [0] * 256  # of CRC-32C, as TFRecords have it
for index in range(256):
    value = index
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    CRC_TABLE[index] = value

made: dict[bytes, str] = {}  # the name of each picture by its content


def picture(
    number: int,
    form: str = "JPEG",
    size: tuple[int, int] = (40, 32),
    mode: str = "RGB",
    turned: int = 1,
    **options: object,
) -> bytes:
    """Noise of this width and height; `turned` is its EXIF orientation."""
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8)
    exif = Image.Exif()
    if turned != 1:
        exif[0x0112] = turned

    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, form, exif=exif, **options)
    content = buffer.getvalue()
    if form == "JPEG":
        content = content.ljust(JPEG_BYTES, b"\0")
    made[content] = f"picture {number}"
    return content


def mask(value: int, size: tuple[int, int] = (40, 32), mode: str = "L", form: str = "PNG") -> bytes:
    """A mask of zeros, whose left half has this value."""
    pixels = np.zeros((size[1], size[0]), np.uint16 if mode == "I;16" else np.uint8)
    pixels[:, : size[0] // 2] = value
    image = Image.fromarray(pixels)
    if mode == "P":
        image.putpalette([0, 0, 0, 9, 9, 9, 200, 0, 0])

    buffer = io.BytesIO()
    (image if mode in ("I;16", "P") else image.convert(mode)).save(buffer, form)
    made[buffer.getvalue()] = f"mask {value}"
    return buffer.getvalue()


def put(files: Mapping[str | bytes, bytes | str]) -> None:
    """Writes files by their path; a text is UTF-8."""
    for name, content in files.items():
        file = Path(name.decode(errors="surrogateescape") if isinstance(name, bytes) else name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())


def put_tar(name: str, members: Iterable[tuple[str, bytes | str]], **fields: object) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(name, "w", format=tarfile.PAX_FORMAT) as archive:
        for member, content in members:
            content = content if isinstance(content, bytes) else content.encode()
            add(archive, member, content, **fields)


def put_records(name: str, examples: Iterable[Mapping[str, bytes | int | float]]) -> None:
    """A TFRecord of these `tf.train.Example`s, each given by its features."""
    put({name: b"".join(map(_record, examples))})


def samples(numbers: Iterable[int]) -> list[tuple[str, bytes]]:
    """The members of a tar: pictures and their labels."""
    return [
        member
        for n in numbers
        for member in ((f"{n}.jpg", picture(n, size=(40 + n, 32))), (f"{n}.cls", b"%d" % (n % 3)))
    ]


def put_parquet(
    name: str, images: Any, features: Any = None, groups: int = 2, **columns: Any
) -> None:
    """Parquet as `datasets` writes it.

    Args:
        features: the types of the columns, as `datasets` notes them.
        groups: rows in a row group.
    """
    table = pa.table({"image": images, **columns})
    if features:
        info = {"info": {"features": features}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, name, row_group_size=groups)


def encoded(numbers: Iterable[int]) -> pa.Array:
    return pa.array(
        [{"bytes": picture(n, size=(40 + n, 32)), "path": f"{n}.jpg"} for n in numbers], IMAGE
    )


def opened(source: str, **options: object) -> dp.Manifest:
    return dp.Manifest.open(source, progress=False, **options)


def _record(features: Mapping[str, bytes | int | float]) -> bytes:
    # map<string, Feature> is a list of pairs, fields 1 and 2
    pairs = (_field(1, name.encode()) + _field(2, _feature(x)) for name, x in features.items())
    data = _field(1, b"".join(_field(1, pair) for pair in pairs))
    length = struct.pack("<Q", len(data))
    return length + _crc(length) + data + _crc(data)


def _feature(value: bytes | int | float) -> bytes:
    if isinstance(value, bytes):
        return _field(1, _field(1, value))
    if isinstance(value, float):
        return _field(2, _field(1, struct.pack("<f", value)))
    return _field(3, _field(1, _varint(value % 2**64)))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    some = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(each | 0x80 for each in some[:-1]), some[-1]])


def _crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
