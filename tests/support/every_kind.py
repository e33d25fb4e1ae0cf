"""The same images and labels as every kind of source, for tests of what all kinds do alike.

The image of sample n is n + 1 pixels wide.
"""

import io
import json
import struct
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from later import later
from make_shards import add
from PIL import Image

import dali_pipes as dp
from dali_pipes.data.shards.tfrecord import _masked_crc

hf = later("datasets")
Open = Callable[..., dp.Manifest]


def picture(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (number + 1, 4), (number, 0, 0)).save(file, "PNG")
    return file.getvalue()


def write_pictures(folder: Path, count: int) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{number}.png" for number in range(count)]
    for number, name in enumerate(names):
        (folder / name).write_bytes(picture(number))
    return names


def csv(folder: Path, labels: Sequence[Any]) -> Open:
    rows = zip(write_pictures(folder, len(labels)), labels, strict=True)
    (folder / "t.csv").write_text("path,label\n" + "".join(f"{path},{n}\n" for path, n in rows))
    return lambda **options: dp.Manifest.open(folder / "t.csv", progress=False, **options)


def parquet(folder: Path, labels: Sequence[Any]) -> Open:
    paths = write_pictures(folder, len(labels))
    pq.write_table(pa.table({"path": paths, "label": labels}), folder / "t.parquet")
    return lambda **options: dp.Manifest.open(folder / "t.parquet", progress=False, **options)


def embedded(folder: Path, labels: Sequence[Any]) -> Open:
    """Parquet that holds the images."""
    folder.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": picture(n), "path": f"{n}.png"} for n in range(len(labels))]
    pq.write_table(pa.table({"image": images, "label": labels}), folder / "t.parquet")
    return lambda **options: dp.Manifest.open(folder, progress=False, **options)


def tar(folder: Path, labels: Sequence[Any]) -> Open:
    return _tar(folder, labels, ".cls", str)


def tar_of_json(folder: Path, labels: Sequence[Any]) -> Open:
    return _tar(folder, labels, ".json", lambda label: json.dumps({"label": label}))


def _tar(folder: Path, labels: Sequence[Any], extension: str, text: Callable[[Any], str]) -> Open:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "0.tar", "w") as archive:
        for number, label in enumerate(labels):
            add(archive, f"{number}.png", picture(number))
            add(archive, f"{number}{extension}", text(label).encode())
    return lambda **options: dp.Manifest.open(folder, progress=False, **options)


def tfrecord(folder: Path, labels: Sequence[Any]) -> Open:
    folder.mkdir(parents=True, exist_ok=True)
    records = [
        _message(
            1,
            _feature(b"image/encoded", _message(1, _message(1, picture(number))))
            + _feature(b"image/class/label", _message(3, b"\x08" + _varint(label))),
        )
        for number, label in enumerate(labels)
    ]
    with open(folder / "0.tfrecord", "wb") as file:
        for record in records:
            head = struct.pack("<Q", len(record))
            crcs = [struct.pack("<I", _masked_crc(part)) for part in (head, record)]
            file.write(head + crcs[0] + record + crcs[1])
    return lambda **options: dp.Manifest.open(folder, progress=False, **options)


def _feature(name: bytes, value: bytes) -> bytes:
    """An entry of tf.train.Features."""
    return _message(1, _message(1, name) + _message(2, value))


def _message(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    number, digits = number % 2**64, bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def from_hf(folder: Path, labels: Sequence[Any]) -> Open:
    images = [{"bytes": picture(n), "path": f"{n}.png"} for n in range(len(labels))]
    kind = hf.Value("int64") if isinstance(labels[0], int) else hf.Value("string")
    features = hf.Features({"image": hf.Image(), "label": kind})
    hf.Dataset.from_dict({"image": images, "label": list(labels)}, features).save_to_disk(folder)
    dataset = hf.load_from_disk(str(folder))
    return lambda **options: dp.Manifest.from_hf(dataset, progress=False, **options)


# those whose labels may be class numbers
OF_NUMBERS: dict[str, Callable[[Path, Sequence[Any]], Open]] = {
    made.__name__: made for made in (csv, parquet, embedded, tar, tar_of_json, tfrecord, from_hf)
}


def folders(folder: Path, labels: Sequence[Any]) -> Open:
    """A folder for each class; of a class in the order of the images."""
    for number, label in enumerate(labels):
        (folder / "i" / str(label)).mkdir(parents=True, exist_ok=True)
        (folder / "i" / str(label) / f"{number}.png").write_bytes(picture(number))
    return lambda **options: dp.Manifest.open(folder / "i", progress=False, **options)


def saved(folder: Path, labels: Sequence[Any]) -> Open:
    csv(folder, labels)().save(folder / "m.arrow")
    return lambda **options: dp.Manifest.open(folder / "m.arrow", **options)


def coco(folder: Path, labels: Sequence[Any]) -> Open:
    """Each image has an object of its class."""
    names = sorted(set(labels))
    images = [
        {"id": number, "file_name": path, "width": number + 1, "height": 4}
        for number, path in enumerate(write_pictures(folder, len(labels)))
    ]
    objects = [
        {"id": n, "image_id": n, "category_id": names.index(label), "bbox": [0, 0, 1, 2]}
        for n, label in enumerate(labels)
    ]
    categories = [{"id": number, "name": str(name)} for number, name in enumerate(names)]
    content = {"images": images, "annotations": objects, "categories": categories}
    (folder / "c.json").write_text(json.dumps(content))
    return lambda **options: dp.Manifest.open(folder / "c.json", progress=False, **options)


def cached(folder: Path, labels: Sequence[Any]) -> Open:
    """A tar whose scan is in a cache."""
    read = tar(folder / "s", labels)
    read(cache_dir=folder / "cache")
    return lambda **options: read(cache_dir=folder / "cache", **options)


# those that have names for the classes, the numbers as text where there are no others
OF_NAMES = OF_NUMBERS | {made.__name__: made for made in (folders, saved, coco, cached)}
