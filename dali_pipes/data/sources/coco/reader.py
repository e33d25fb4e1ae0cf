"""`read_coco`: the images of a JSON file of COCO's form, `Manifest.from_coco`.
https://cocodataset.org/#format-data

    file.json ─▶ annotations.py: entries with ids ─▶ headers of the images ─▶ sizes compared
                                                                                  │
    rows of a manifest ◀─ check_objects ◀─ annotations.py: annotations as objects ┘

By default a bad annotation is listed and does not cost its image.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dali_pipes.checks import check_path
from dali_pipes.data.composed import composed
from dali_pipes.data.doubts import doubt
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_files.headers import Header
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.labels.reader import distinct_labels, no_labels
from dali_pipes.data.objects import (
    BOX_LABELS,
    TARGET,
    TURNED,
    Keypoints,
)
from dali_pipes.data.omissions import count_by_kind
from dali_pipes.data.own_columns import COLUMN, IMAGE_ID
from dali_pipes.data.sets.joining import concat
from dali_pipes.data.sources.coco.annotations import (
    CocoContent,
    Entry,
    build_objects,
    read_content,
)
from dali_pipes.data.sources.layouts import local_path
from dali_pipes.data.sources.options import SourceOptions
from dali_pipes.data.sources.reading import finish
from dali_pipes.data.sources.rows.files import (
    MISSING_FILE_PROBLEMS,
    file_rows,
    read_named,
)
from dali_pipes.data.sources.rows.objects import check_objects, refuse_without_objects
from dali_pipes.data.turns import turn_size
from dali_pipes.errors import ConfigError, ManifestError

_TRIED = 100  # absolute names, of which the first files may be missing
_LARGEST_INT = 2**63  # smaller numbers fit into int64
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/")


def read_coco(source: str | Path | Sequence[str | Path], options: SourceOptions) -> ImageTable:
    """Reads the headers of the images in a JSON file of COCO's form, or in several.

    That is detection, keypoints, segmentation or captions.

    The categories, in the order of their ids, are the classes; `category_ids` has these ids,
    and the column `image_id`, which batches have too, has those of the images. Results in
    COCO's form need both (docs/objects.md). The first caption of an image is its text.

    Args:
        source: the file; or a list of files, whose images come one after the other and whose
            categories are joined by their names. Where their image ids repeat, those of the later
            files are moved up, which is said.

    Raises:
        ManifestError: no such file, or one that is not of this form (docs/objects.md); or it
            has objects, and none can be used.
    """
    options.refuse_untaken(source, "coco")
    options = replace(options, targets=replace(options.targets, box_format="xywh"))
    if not isinstance(source, (list, tuple)):
        return finish(_read_file(source, options), options)
    if not source:
        raise ConfigError("from_coco is given an empty list; name one file at least")

    # one file need not have all classes, and what is left out of all is refused once
    of_each = replace(options, classes=None, strict=False)
    sets = [finish(_read_file(file, of_each), of_each) for file in source]
    return finish(concat(sets, apart=False), options)


def _read_file(source: Any, options: SourceOptions) -> ImageTable:
    file = Path(os.path.abspath(local_path(check_path("source", source))))
    root = Path(os.path.abspath(local_path(options.images or file.parent)))
    read, targets = read_content(file), options.targets
    names = _place_names(read, root)

    # files that are not there are problems of single images, unless none is there
    paths, headers = read_named(root, names, options)
    if all(header.problem in MISSING_FILE_PROBLEMS for header in headers):
        none = (
            f"none of its {len(paths):,} images is in {root}, the first is "
            f"{read.images[0]['file_name']!r:.80}"
        )
        raise ManifestError(f"{file}: {none}; give the folder that they are in as root")

    upright = targets.annotated == "upright"
    # boxes that were drawn in an image of another size are at other places in this one
    headers = [
        _check_size(file, image, header, upright)
        for image, header in zip(read.images, headers, strict=True)
    ]

    columns: dict[str, pa.Array] = {}
    labels, keypoints = no_labels(len(paths)), None
    if read.detects:
        keypoints = _keypoints(read, targets.flip_pairs)
        # nothing shows whether these were annotated as stored or upright
        if targets.annotated is None and (turned := _list_turned(read, headers)):
            read.doubts.append(doubt(TURNED, turned, len(turned)))
        # as they are before bad objects become problems of their images
        any_usable = any(not header.problem for header in headers)
        objects = build_objects(read, headers, keypoints, upright)
        headers, columns = check_objects(objects, headers, targets, keypoints)

        # the label of an image: the classes that occur in it
        counts = columns[BOX_LABELS].value_lengths().to_numpy()
        numbers = columns[BOX_LABELS].flatten().to_numpy()
        labels = distinct_labels(counts, numbers, len(read.categories))
        # Such a file would train on images without objects.
        if any_usable and not len(numbers) and not any(read.captions):
            refuse_without_objects(file, _list_faults(read, headers, columns))
    elif read.strays and not any(read.captions):
        refuse_without_objects(file, _list_strays(read))

    # the first caption of each image; batches have one text for each
    if any(read.captions):
        columns[TARGET + "text"] = pa.array(
            [captions[0] if captions else "" for captions in read.captions], pa.large_string()
        )
    columns[COLUMN + IMAGE_ID] = _image_ids(read)

    rows = file_rows(paths, labels, headers, columns)
    facts = ManifestFacts(
        keypoints=keypoints,
        names_flip_pairs=targets.flip_pairs is not None,
        boxes_upright=upright,
        category_ids=[category["id"] for category in read.categories],
        omissions=read.doubts
        + count_by_kind(((kind, f"{file.name}: {name}") for kind, name in read.strays), "object"),
    )
    classes = [composed(category["name"]) for category in read.categories]
    return ImageTable.from_rows(root, classes, rows, facts)


def _place_names(read: CocoContent, root: Path) -> list[bytes]:
    """Returns the names of files relative to the root; a note says what was left out of them.

    Absolute names are of this machine or of another one: of the latter so many leading folders are
    left out that the first of them is below the root.

    Raises ManifestError if an absolute name is not below it.
    """
    names = [image["file_name"] for image in read.images]
    slashed = [name.strip().replace("\\", "/") for name in names]
    absolute = [name for name in slashed if _ABSOLUTE.match(name)]
    start = next(filter(None, (_find_start(root, name) for name in absolute[:_TRIED])), None)
    # those of Windows may be relative ones, of files that are not there
    if start is None and not any(name.startswith("/") for name in absolute):
        return [os.fsencode(name) for name in names]

    for number, name in enumerate(slashed):
        if _ABSOLUTE.match(name) and not (start and name.startswith(start)):
            raise ManifestError(
                f"{read.file}: images[{number}] has the file_name {names[number]!r:.80}, outside "
                "the folder of the images; give a root that holds all of them, and names relative "
                "to the folder"
            )
    assert start
    if Path(start) not in (root, root.resolve()):
        what = f"file names begin with {start}, which is left out, since they are below {root}"
        read.doubts.append(doubt(what, absolute, len(absolute), "note"))
    return [os.fsencode(name.removeprefix(start)) for name in slashed]


def _find_start(root: Path, name: str) -> str | None:
    """The leading folders of an absolute name without which it is a file below the root."""
    parts = name.split("/")
    cuts = range(1, len(parts))
    cut = next((cut for cut in cuts if root.joinpath(*parts[cut:]).is_file()), None)
    return None if cut is None else "/".join(parts[:cut]) + "/"


def _image_ids(read: CocoContent) -> pa.Array:
    """Returns the ids of the images: int64 if all are numbers, else text."""
    ids = [image["id"] for image in read.images]
    if all(type(each) is not str and abs(each) < _LARGEST_INT for each in ids):
        return pa.array(list(map(int, ids)), pa.int64())
    # JSON's escapes may give half a character, which Arrow cannot hold
    return pa.array(
        [str(each).encode(errors="replace").decode() for each in ids], pa.large_string()
    )


def _list_faults(
    read: CocoContent, headers: list[Header], columns: dict[str, pa.Array]
) -> list[str]:
    """Returns what is wrong with the annotations, for a file of which none is left."""
    faults: list[str] = []
    for image, annotations, header, text in zip(
        read.images,
        read.objects,
        headers,
        columns[TARGET + "dropped"].to_pylist(),
        strict=True,
    ):
        of_image = f"{image['file_name']!r:.80}: {header.problem}"
        faults += [of_image] * len(annotations) if header.problem else text.splitlines()
    return faults + _list_strays(read)


def _list_strays(read: CocoContent) -> list[str]:
    return [f"{kind} ({name}); correct it or remove it" for kind, name in read.strays]


def _check_size(file: Path, image: Entry, header: Header, upright: bool) -> Header:
    """Returns the header, with a problem if the size in the file is that of another image."""
    # boxes of an upright picture need its size
    stored = header.height, header.width
    turned = turn_size(*stored, header.orientation)
    size, other = (turned, stored) if upright else (stored, turned)
    given = [image.get(name) for name in ("height", "width")]
    height, width = (
        side if in_file is None else in_file for in_file, side in zip(given, size, strict=True)
    )
    if header.problem or (height, width) == size:
        return header

    if not all(isinstance(side, int | float) for side in (height, width)):
        return header._replace(
            problem=f"its width and height are no numbers (in {file.name} {width!r:.20} × "
            f"{height!r:.20}); write them as numbers, or leave them out"
        )
    sizes = f"in {file.name} {width!r:.20} × {height!r:.20} pixels, and the file has "
    sizes += f"{size[1]} × {size[0]}"
    # most likely only `annotated` is wrong
    if (height, width) == other:
        how, instead = ("as stored", "stored") if upright else ("upright", "upright")
        return header._replace(
            problem=f"its EXIF tag turns it, and by its stated size it was annotated {how} "
            f"({sizes}); set annotated='{instead}'"
        )
    return header._replace(
        problem=f"by its stated size its boxes are of another image ({sizes}); correct one of them"
    )


def _list_turned(read: CocoContent, headers: list[Header]) -> list[str]:
    """Returns the names of images with objects whose EXIF tag turns them, unless their size in the
    file shows that they were annotated as stored.
    """
    names = []
    for image, annotations, header in zip(read.images, read.objects, headers, strict=True):
        size = header.height, header.width
        is_sized = None not in (image.get("height"), image.get("width"))
        shows = is_sized and turn_size(*size, header.orientation) != size
        if header.orientation != 1 and annotations and not header.problem and not shows:
            names.append(image["file_name"])
    return names


def _keypoints(read: CocoContent, flip_pairs: list[list[str]] | None) -> Keypoints | None:
    name_lists = [
        category["keypoints"] for category in read.categories if category.get("keypoints")
    ]
    if not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in name_lists
    ):
        raise ManifestError(
            f"{read.file}: the keypoints of its categories are not lists of names; correct them"
        )

    # A manifest has one list of keypoints for all objects.
    if any(names != name_lists[0] for names in name_lists):
        raise ManifestError(
            f"{read.file}: its categories have different keypoints; write a file for each of them"
        )

    return Keypoints.from_names(list(name_lists[0]), flip_pairs) if name_lists else None
