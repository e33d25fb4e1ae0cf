"""The images in a TFRecord file of tf.train.Example, found without reading them.

The framing is that of TensorFlow's tsl/lib/io/record_writer.h: length (8 bytes), masked CRC-32C of
the length (4), the record, its CRC (4). The CRC of the length is checked, so that lengths can be
relied on. The CRC of the record is not, since that would mean reading all of it. A record is a
protocol buffer, of which only the fields of the image and the label are parsed.

`list_images` is the entry, and `_fields` the parser of protocol buffers: it yields the places of
fields, not their bytes.
"""

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from dali_pipes.data.omissions import unusable_label, without_label
from dali_pipes.data.reader import ShardMember

# the names in TensorFlow's own scripts and in TensorFlow Datasets
IMAGES = (b"image/encoded", b"image")
LABELS = (b"image/class/label", b"label")
_HEAD, _TAIL = 12, 4  # bytes before and after a record
_LONGEST_KEY = 1024  # bytes; features with longer names are passed over


class Range(NamedTuple):
    """A range of bytes of the file; `end` is not in it."""

    start: int
    end: int


class MalformedError(Exception):
    """A record is not a tf.train.Example."""


def list_images(descriptor: int, total: int, with_labels: bool = True) -> Iterator[ShardMember]:
    """Yields the image of each record of an open file; its name is the record's number.

    Args:
        descriptor: of the file.
        total: size of the file in bytes.
        with_labels: whether a label is read, and needed.
    """
    at, index = 0, 0
    while at < total:
        head = os.pread(descriptor, _HEAD, at)
        # a rest that is shorter than a head has no CRC, and so is damage
        length, crc = struct.unpack("<QI", head) if len(head) == _HEAD else (0, None)
        if crc != _masked_crc(head[:8]):
            what = (
                "is not a TFRecord file"
                if not at
                else f"is damaged (at byte {at:,}); the remaining {total - at:,} bytes are lost"
            )
            yield ShardMember(
                problem="is compressed with gzip; unpack it" if head[:2] == b"\x1f\x8b" else what
            )
            return

        start, end = at + _HEAD, at + _HEAD + length
        if end + _TAIL > total:
            sizes = f"{length:,} bytes, and the file ends after {total - start:,}"
            yield ShardMember(problem=f"is cut off (record {index} has {sizes})")
            return

        yield _read_record(descriptor, b"%d" % index, Range(start, end), with_labels)
        at, index = end + _TAIL, index + 1


def _read_record(descriptor: int, name: bytes, record: Range, with_labels: bool) -> ShardMember:
    whole = ShardMember(name, record.start, record.end - record.start)
    try:
        features = dict(_features(descriptor, record))
        image = next((features[key] for key in IMAGES if key in features), None)
        label = next((features[key] for key in LABELS if key in features), None)
        if image is None:
            return whole._replace(problem=f"no {IMAGES[0].decode()} in this record")

        place = _only(descriptor, image, 1)
        if not isinstance(place, Range):
            return whole._replace(problem="its image is not one string of bytes")
        member = whole._replace(offset=place.start, length=place.end - place.start)

        value = None if label is None else _only(descriptor, label, 3)
        if isinstance(value, Range):  # packed, as proto3 writes numbers
            # a varint has at most ten bytes; an eleventh belongs to a second number
            packed = os.pread(descriptor, min(11, value.end - value.start), value.start)
            first, used = _varint(packed, 0)
            value = first if used == len(packed) else None
    except MalformedError as error:
        return whole._replace(problem=f"not a tf.train.Example ({error})")

    # a value from 2**63 on is a negative number
    if value is None or value >= 2**63:
        if not with_labels:
            return member
        field = LABELS[0].decode()
        return member._replace(
            problem=without_label(f"{field} in this record")
            if label is None
            else unusable_label(f"its {field} is not one class number")
        )
    return member._replace(label=value)


def _features(descriptor: int, record: Range) -> Iterator[tuple[bytes, Range]]:
    """Yields name and tf.train.Feature of an Example.

    They are in the map Example.features.feature. Each of its entries is a message with a key (1)
    and a value (2).
    """
    for features in _inside(descriptor, record, 1):
        for entry in _inside(descriptor, features, 1):
            keys, values = _inside(descriptor, entry, 1), _inside(descriptor, entry, 2)
            if keys and values and keys[0].end - keys[0].start <= _LONGEST_KEY:
                yield os.pread(descriptor, keys[0].end - keys[0].start, keys[0].start), values[0]


def _only(descriptor: int, feature: Range, kind: int) -> Range | int | None:
    """The only value in a feature's list, of bytes (kind 1) or of numbers (kind 3).

    None: the list is empty or has several.
    """
    values = [
        value
        for part in _inside(descriptor, feature, kind)
        for field, value in _fields(descriptor, part)
        if field == 1
    ]
    return values[0] if len(values) == 1 else None


def _inside(descriptor: int, message: Range, field: int) -> list[Range]:
    return [
        value
        for number, value in _fields(descriptor, message)
        if number == field and isinstance(value, Range)
    ]


def _fields(descriptor: int, message: Range) -> Iterator[tuple[int, Range | int]]:
    """Yields the number and the content of each field of a message.

    The content is the value of a varint, and the place of anything else.
    """
    at = message.start
    while at < message.end:
        # a tag and a length have at most ten bytes each
        head = os.pread(descriptor, min(20, message.end - at), at)
        tag, used = _varint(head, 0)

        match tag & 7:  # the wire type: a number, bytes of a stated length, 8 bytes, 4 bytes
            case 0:
                value, used = _varint(head, used)
                yield tag >> 3, value
                at += used
                continue
            case 2:
                length, used = _varint(head, used)
            case 1:
                length = 8
            case 5:
                length = 4
            case other:
                raise MalformedError(f"wire type {other} at byte {at:,}")

        at += used + length
        if at > message.end:
            raise MalformedError(f"a field reaches beyond byte {message.end:,}")
        yield tag >> 3, Range(at - length, at)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Reads a varint (seven bits per byte); returns it and where it ends."""
    value = 0
    for shift, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    raise MalformedError("a number without an end")


def _masked_crc(data: bytes) -> int:
    """CRC-32C (Castagnoli), rotated and shifted by a constant as TensorFlow stores it.

    It is computed bit by bit: only the eight bytes of each record's length go through it.
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
