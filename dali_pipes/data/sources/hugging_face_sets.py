"""A data set of Hugging Face's `datasets` that is open in this program: `Manifest.from_hf`.

Nothing is copied and nothing is written: an image is the part of the mapped Arrow file that holds
it (data/shards/parquet.py), or the file that its row names. `read_set` makes the images of a
manifest; `_image_rows` says where each image is, and `_read_image` reads its header.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dali_pipes.data.arrow_types import is_text, plain, with_fields
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_files.headers import Header, ScanOptions
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.limits import MAX_PIXELS
from dali_pipes.data.objects import NO_TARGETS, Targets
from dali_pipes.data.reader import Extent
from dali_pipes.data.shards.addresses import is_remote
from dali_pipes.data.shards.parquet import Mappings, NotMappedError, refuse_mode
from dali_pipes.data.sources.extents import place_columns, read_part
from dali_pipes.data.sources.reading import finish, note_reading
from dali_pipes.data.sources.rows.files import map_items
from dali_pipes.data.sources.rows.table_rows import build_rows, check_columns, read_row_labels
from dali_pipes.data.sources.split_column import check_split, choose_rows, make_images
from dali_pipes.data.sources.table_columns import choose_label
from dali_pipes.data.sources.targets import add_targets
from dali_pipes.data.table_options import TableOptions
from dali_pipes.errors import ConfigError, ManifestError

_NAME = "the data set"  # of errors


def read_set(
    dataset: Any,
    *,
    image: str | None = None,
    label: str | None = None,
    label_separator: str | None = None,
    task: str | None = None,
    classes: Sequence[str] | None = None,
    with_labels: bool = True,
    targets: Targets = NO_TARGETS,
    split: str | None = None,
    strict: bool = False,
    verify: str = "header",
    max_pixels: int = MAX_PIXELS,
    workers: int | None = None,
    progress: bool = True,
    bits: int = 8,
) -> ImageTable:
    """Reads the headers of the images of a `Dataset` of Hugging Face's `datasets`.

    An image is read out of the Arrow file that the data set has mapped, or is the file that its row
    names; nothing is copied or written. Samples are the rows in their order, after `select`,
    `filter`, `shuffle`, `train_test_split` and the like. A format or a transform of the data set
    changes nothing.

    Args:
        dataset: the data set; of a DatasetDict, one of its splits.
        image: the column of images; by default the only one of the type Image.
        label: the column of labels; by default `label`, or else the only one of the type
            ClassLabel. The names of a ClassLabel become the class names, and -1 is no label.
        label_separator, task: as of `TableOptions`.
        classes: class names in the order of their numbers, such as those of the training images;
            None: the data set's own.
        with_labels: False: no label is read, and none is needed.
        targets: columns with boxes, keypoints or texts; a field of a column of objects is
            "objects.bbox": docs/objects.md.
        split: as for `from_table`.
        strict, verify, max_pixels, workers, progress, bits: as for `scan`.

    Further columns of numbers, text and lists of numbers are kept: docs/targets.md.

    Raises:
        ConfigError: it is no such data set.
        ManifestError: it has no such column, its images are in memory or elsewhere, or no row has
            an image or a label.
        OmissionError: `strict`, and something is left out.
    """
    _refuse_others(dataset)
    image = _image_column(dataset.features) if image is None else image
    _refuse_missing(dataset, image, "image")
    refuse_mode(_NAME, image, getattr(dataset.features[image], "mode", None))
    check_split("split", split)
    if targets.mask:
        raise ConfigError("from_hf reads no masks; leave out targets.mask")
    if label is None:
        needed = with_labels and not targets.boxes
        label = _label_column(dataset.features) if needed else "label"
    if with_labels and not targets.named:
        _refuse_missing(dataset, label, "label")

    options = TableOptions(image, label, label_separator, task=task)
    check = ScanOptions(verify, max_pixels, workers, progress, targets, with_labels, classes, bits)
    table = dataset.data.table
    # the rows in the order of `select` and the like; None: all of them
    chosen = getattr(dataset, "_indices", None)
    rows = None if chosen is None else chosen.column(0).to_numpy().astype(np.int64)

    # labels before the images, which take longer to read
    others = table.drop_columns([image])
    others = others if rows is None else others.take(pa.array(rows))
    others = with_fields(plain(others.replace_schema_metadata()), targets.named.values())
    check_columns(_NAME, others, options, check)
    used = {label, *targets.named.values()}
    of_columns = {name: _class_names(dataset.features, name) for name in dataset.features}
    chosen = choose_rows(_NAME, others, used, split, classes=of_columns)
    known = _class_names(dataset.features, targets.box_labels or label)
    is_list = _type_of(dataset.features.get(label)) != "ClassLabel"
    labels = read_row_labels(_NAME, others, options, check, bool(known) and is_list)

    images = _image_rows(image, table[image], rows)
    _refuse_elsewhere(image, images)
    headers = list(
        map_items(partial(_read_image, check), images, len(images), "reading images", check, False)
    )

    root, paths = _place(images)
    places = place_columns(images)
    names, made, notes = build_rows(_NAME, others, paths, headers, places, options, labels, targets)
    are_named = bool(names) and len(names) <= len(known)

    facts = ManifestFacts(
        keypoints=targets.keypoints_named,
        omissions=notes,
        turned_by_source=True,
        reading=note_reading(targets, with_labels, options, check.bits),
    )
    result, whole = make_images(root, known if are_named else names, made, facts, chosen)
    result = add_targets(result, _NAME, check)
    return finish(result, classes, strict, are_named, whole)


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


def _class_names(features: Any, name: str) -> list[str]:
    """The names of a ClassLabel, or of lists of them; none for another column.

    Args:
        name: of a column, or of a field of one, such as "objects.category".
    """
    head, _, inner = name.partition(".")
    feature = features.get(name)
    if feature is None:
        feature = _item(features.get(head))
        feature = feature.get(inner) if isinstance(feature, Mapping) else None
    return list(map(str, getattr(_item(feature), "names", None) or ()))


def _item(feature: Any) -> Any:
    """What is in lists, of lists, of a feature."""
    while True:
        # `datasets` before version 4 has lists too
        inner = feature[0] if isinstance(feature, list) and feature else None
        if (inner := getattr(feature, "feature", inner)) is None:
            return feature
        feature = inner


def _image_column(features: Any) -> str:
    """The only column of images.

    Raises:
        ManifestError: there are several, or none.
    """
    names = [name for name, feature in features.items() if _type_of(feature) == "Image"]
    if len(names) == 1:
        return names[0]

    if names:
        raise ManifestError(
            f"{_NAME}: has several columns of images, {', '.join(names)}; name one, "
            f"from_hf(…, image={names[0]!r})"
        )
    _refuse_lists(features)
    raise ManifestError(
        f"{_NAME}: has no column of images among {', '.join(features)}; name the column of "
        "their paths or bytes, from_hf(…, image='…'), or cast it: "
        "dataset.cast_column('…', datasets.Image())"
    )


def _refuse_lists(features: Any, only: str | None = None) -> None:
    for name, feature in features.items():
        inner = getattr(feature, "feature", None)
        # the form of lists in `datasets` before version 4
        if isinstance(feature, list) and feature:
            inner = feature[0]
        if _type_of(inner) == "Image" and only in (None, name):
            raise ManifestError(
                f"{_NAME}: has several images in each row of the column {name}; make a row of each "
                "one (dataset.map with batched=True)"
            )


def _type_of(feature: Any) -> str:
    return str(getattr(feature, "_type", ""))


def _label_column(features: Any) -> str:
    named = [name for name, feature in features.items() if _type_of(feature) == "ClassLabel"]
    return "label" if "label" in features else choose_label(_NAME, named, "label")


def _refuse_missing(dataset: Any, name: str, option: str) -> None:
    if name in dataset.features:
        return
    without = ", or with_labels=False to read none" if option == "label" else ""
    raise ManifestError(
        f"{_NAME}: has no column {name} among {', '.join(dataset.features)}; name another with "
        f"{option}='…'{without}"
    )


def _image_rows(name: str, column: pa.ChunkedArray, rows: Any) -> list[Extent]:
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
    """The header of the image of a row. A bad image raises nothing."""
    if not image.file:
        return Header(0, 0, problem="no image in this row; give it one, or remove the row")
    return read_part(check, image)


def _place(images: list[Extent]) -> tuple[Path, list[bytes]]:
    """The folder that holds all files, and the paths relative to it."""
    files = sorted({each.file for each in images if each.file})
    root = os.path.commonpath([Path(file).parent for file in files])
    names = {file: os.fsencode(os.path.relpath(file, root)) for file in files} | {"": b"no image"}
    return Path(root), [names[each.file] for each in images]
