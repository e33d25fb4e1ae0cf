"""A data set of Hugging Face's `datasets` that is open in this program: `Manifest.from_hf`.

Nothing is copied and nothing is written: an image is the part of the mapped Arrow file that holds
it (data/shards/parquet.py), or the file that its row names. `read_dataset` makes the images of a
manifest; `_list_images` says where each image is, and `_read_image` reads its header.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.arrow_types import is_text
from dali_pipes.data.features import class_names, find_image_column, refuse_mode
from dali_pipes.data.image_files.headers import (
    Header,
    ScanOptions,
    describe_os_error,
    examine,
    read_header,
)
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.range_file import open_part
from dali_pipes.data.reader import Extent, OpenFile
from dali_pipes.data.shards.addresses import is_remote
from dali_pipes.data.shards.parquet import Mappings, NotMappedError
from dali_pipes.data.sources.hugging_face import place_columns, read_with_images
from dali_pipes.data.sources.options import SourceOptions
from dali_pipes.data.sources.rows.files import map_items
from dali_pipes.data.sources.rows.table_rows import FoundImages, SourceTable
from dali_pipes.data.sources.table_columns import refuse_missing
from dali_pipes.errors import ConfigError, ManifestError

_NAME = "the data set"  # of errors


def read_dataset(source: Any, options: SourceOptions) -> ImageTable:
    """Reads the headers of the images of a `Dataset` of Hugging Face's `datasets`.

    An image is read out of the Arrow file that the data set has mapped, or is the file that its row
    names; nothing is copied or written. Samples are the rows in their order, after `select`,
    `filter`, `shuffle`, `train_test_split` and the like. A format or a transform of the data set
    changes nothing.

    Further columns of numbers, text and lists of numbers are kept: docs/targets.md. A field of a
    column of objects is "objects.bbox" in `targets`: docs/objects.md.

    Args:
        source: the data set; of a DatasetDict, one of its splits.

    Raises:
        ConfigError: it is no such data set.
        ManifestError: it has no such column, its images are in memory or elsewhere, or no row has
            an image or a label.
        OmissionError: `strict`, and something is left out.
    """
    _refuse_others(source)
    options.refuse_untaken(_NAME, "dataset")
    table, features = source.data.table, source.features.to_dict()
    image = options.path_column or _find_images(table.schema, features)
    refuse_missing(_NAME, table.column_names, {image: "image"})
    refuse_mode(_NAME, image, features)

    # the rows in the order of `select` and the like; None: all of them
    selected = getattr(source, "_indices", None)
    rows = None if selected is None else selected.column(0).to_numpy().astype(np.int64)
    others = table.drop_columns([image]).replace_schema_metadata()
    others = others if rows is None else others.take(pa.array(rows))

    return read_with_images(
        SourceTable(
            _NAME, others, class_names(features), turned_by_source=True, label_option="label"
        ),
        replace(options, path_column=image),
        partial(_read_images, image, table[image], rows, options),
    )


def _refuse_others(dataset: Any) -> None:
    kind = type(dataset)
    package = kind.__module__.partition(".")[0]
    if package == "datasets" and isinstance(dataset, dict):
        splits = ", ".join(map(str, dataset))
        raise ConfigError(
            f"from_hf is given a {kind.__name__} of {splits}; give one of them, such as "
            f"from_hf(dataset[{next(iter(dataset), 'train')!r}])"
        )
    if package == "datasets" and not hasattr(dataset, "data"):
        raise ConfigError(
            f"from_hf is given a {kind.__name__}, whose rows come one after the other; load it "
            "with streaming=False, or read its Parquet files: Manifest.open('hf://…/*.parquet')"
        )
    if package != "datasets" or not isinstance(getattr(dataset.data, "table", None), pa.Table):
        raise ConfigError(
            f"from_hf is given a {kind.__name__}; it takes a Dataset of Hugging Face's datasets"
        )


def _find_images(schema: pa.Schema, features: Mapping[str, Any]) -> str:
    if name := find_image_column(_NAME, schema, features, or_bytes=False):
        return name
    raise ManifestError(
        f"{_NAME}: has no column with an image in each row among {', '.join(schema.names)}; name "
        "the column of their paths or bytes, from_hf(…, image='…'), or cast it: "
        "dataset.cast_column('…', datasets.Image()); of lists of images make a row of each"
    )


def _read_images(
    name: str, column: pa.ChunkedArray, rows: NDArray[np.int64] | None, check: ScanOptions
) -> FoundImages:
    """Finds the images below the folder that holds all files."""
    images = _list_images(name, column, rows)
    _refuse_elsewhere(name, images)
    read = partial(_read_image, check)
    headers = list(map_items(read, images, len(images), "reading images", check, False))

    files = sorted({each.file for each in images if each.file})
    root = os.path.commonpath([Path(file).parent for file in files])
    paths = {file: os.fsencode(os.path.relpath(file, root)) for file in files} | {"": b"no image"}
    named = [paths[each.file] for each in images]
    return FoundImages(Path(root), named, headers, place_columns(images))


def _list_images(name: str, column: pa.ChunkedArray, rows: Any) -> list[Extent]:
    """Where the image of each row is; its file is "" if the row has none.

    Args:
        rows: the numbers of the rows, in their order; None: all.

    Raises:
        ManifestError: the column is none of images, or images are in memory only.
    """
    mappings, images = Mappings(), list[Extent]()
    for chunk in column.chunks:
        encoded, paths = _parts(name, chunk)
        try:
            places = mappings.find(encoded)
        except NotMappedError as error:
            raise ManifestError(
                f"{_NAME}: the images of the column {name} cannot be read from a file: {error}; "
                "write the data set and open it again: dataset.save_to_disk(FOLDER), "
                "datasets.load_from_disk(FOLDER)"
            ) from None

        # an empty chunk has no file
        stat = os.stat(places.file) if places.file else None
        stamp = (stat.st_size, stat.st_mtime_ns) if stat else (0, 0)
        # a row has the bytes, or else a path; a path beside bytes is a name
        has_bytes = encoded.is_valid().to_pylist()
        for is_inside, path, offset, length in zip(
            has_bytes,
            paths.to_pylist(),
            places.offsets.tolist(),
            places.lengths.tolist(),
            strict=True,
        ):
            if is_inside:
                member = path or f"row {len(images)}"
                images.append(Extent(places.file, member, offset, length, stamp))
            else:
                is_local = path and not is_remote(path)
                images.append(Extent(os.path.abspath(path) if is_local else path or ""))
    return images if rows is None else [images[row] for row in rows.tolist()]


def _parts(name: str, chunk: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The bytes and the paths of a chunk of a column; null where there are none."""
    kind = chunk.type
    if pa.types.is_struct(kind):
        fields = {field.name: pc.struct_field(chunk, field.name) for field in kind}
        encoded, paths = fields.get("bytes"), fields.get("path")
        if encoded is not None or paths is not None:
            return (
                pa.nulls(len(chunk), pa.binary()) if encoded is None else encoded,
                pa.nulls(len(chunk), pa.string()) if paths is None else paths,
            )
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return chunk, pa.nulls(len(chunk), pa.string())
    if is_text(kind):
        return pa.nulls(len(chunk), pa.binary()), chunk

    raise ManifestError(
        f"{_NAME}: the column {name} is of type {kind}; images are structs of bytes and path, "
        "bytes, or text, the paths"
    )


def _refuse_elsewhere(name: str, images: list[Extent]) -> None:
    """Refuses images that are not on this machine."""
    far = [each.file for each in images if is_remote(each.file)]
    if far:
        raise ManifestError(
            f"{_NAME}: {len(far):,} of {len(images):,} images of the column {name} are not on this "
            f"machine, the first is {far[0]}; read its Parquet files (Manifest.open), or store "
            "them here"
        )
    if not any(each.file for each in images):
        raise ManifestError(f"{_NAME}: no row has an image in the column {name}; name another one")


def _read_image(check: ScanOptions, image: Extent) -> Header:
    """The header of the image of a row. A bad image, or a changed file, raises nothing."""
    if not image.file:
        return Header(0, 0, problem="no image in this row; give it one, or remove the row")
    if not image.member:
        return read_header(image.file, check)

    length, mtime_ns = image.length, image.stamp[1]
    try:
        file = OpenFile(image.file, image.stamp)
        part = open_part(file.number, image.offset, length)
        return examine(part, length, mtime_ns, check)
    except OSError as error:
        return Header(length, mtime_ns, problem=describe_os_error(error))
