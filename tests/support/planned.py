"""Manifests of files that do not exist: a plan never looks at them."""

import numpy as np
import pyarrow as pa

from dali_pipes import Manifest
from dali_pipes.data.table.schema import SCHEMA, replace_column

KB = 1000


def labelled(classes) -> Manifest:
    """One image for each class number."""
    count, labels = len(classes), np.asarray(classes)
    number = np.arange(count)
    columns = {
        "path": [f"{each}.jpg".encode() for each in number],
        "label": labels,
        "bytes": [1] * count,
        "mtime_ns": [0] * count,
        "height": 300 + number % 7,
        "width": [400] * count,
        "orientation": [1] * count,
        "format": ["JPEG"] * count,
        "decoded": [False] * count,
        "problem": [None] * count,
        "jpeg": ["4:2:0"] * count,
        "content": [b""] * count,
        "member": [b""] * count,
        "offset": [0] * count,
        "file_bytes": [0] * count,
    }
    return Manifest.from_rows(
        "/nowhere",
        [str(each) for each in range(labels.max() + 1)],
        pa.table(columns, schema=SCHEMA),
    )


def sharded(lengths, classes=None, files=None):
    """Shards of so many images, of a kB each."""
    numbers = np.repeat(np.arange(len(lengths)), lengths) if files is None else np.asarray(files)
    table = labelled(numbers if classes is None else classes).table
    columns = {
        "path": pa.array([f"{each:06d}.tar".encode() for each in numbers], pa.large_binary()),
        "member": pa.array(
            [f"{each}.jpg".encode() for each in range(len(numbers))], pa.large_binary()
        ),
        "file_bytes": pa.array(np.bincount(numbers)[numbers] * KB),
    }
    for name, values in columns.items():
        table = replace_column(table, name, values)
    return Manifest.from_rows(
        "/nowhere", [str(each) for each in range(int(max(table["label"].to_pylist())) + 1)], table
    )
