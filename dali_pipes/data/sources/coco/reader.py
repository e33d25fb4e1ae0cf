"""`read_coco`: the images of a JSON file of COCO's form, `Manifest.from_coco`.
https://cocodataset.org/#format-data

    file.json ─▶ annotations.py: entries with ids ─▶ headers of the images ─▶ sizes compared
                                                                                  │
    rows of a manifest ◀─ check_objects ◀─ annotations.py: annotations as objects ┘

By default a bad annotation is listed and does not cost its image; a bad area, outline or keypoint
does not cost its object.
"""

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from dali_pipes.checks import check_choice, check_path
from dali_pipes.data.composed import composed
from dali_pipes.data.doubts import doubt
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_files.headers import Header, ScanOptions
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.labels.reader import distinct_labels, no_labels
from dali_pipes.data.limits import MAX_PIXELS
from dali_pipes.data.objects import (
    ANNOTATED,
    BAD_OBJECTS,
    BOX_LABELS,
    TARGET,
    TURNED,
    Keypoints,
    Targets,
    check_flip_pairs,
)
from dali_pipes.data.omissions import Omission
from dali_pipes.data.own_columns import COLUMN, IMAGE_ID
from dali_pipes.data.sets.joining import concat
from dali_pipes.data.sources.coco.annotations import (
    LARGEST_INT,
    CocoContent,
    Entry,
    build_objects,
    doubt_outlines,
    read_content,
    to_number,
    to_numbers,
)
from dali_pipes.data.sources.reading import finish
from dali_pipes.data.sources.rows.files import (
    MISSING_FILE_PROBLEMS,
    file_rows,
    read_named,
    unused_rows,
)
from dali_pipes.data.sources.rows.objects import check_objects, refuse_without_objects
from dali_pipes.data.turns import turn_size
from dali_pipes.errors import ConfigError, ManifestError

_TRIED = 100  # absolute names, of which the first files may be missing
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/")


def read_coco(
    annotations: str | Path | Sequence[str | Path],
    *,
    root: str | Path | None = None,
    bad_objects: str = "drop",
    flip_pairs: Sequence[Sequence[str]] | None = None,
    annotated: str | None = None,
    strict: bool = False,
    verify: str = "header",
    max_pixels: int = MAX_PIXELS,
    workers: int | None = None,
    progress: bool = True,
    bits: int = 8,
) -> ImageTable:
    """Reads the headers of the images in a JSON file of COCO's form, or in several.

    That is detection, keypoints, segmentation or captions.

    The categories, in the order of their ids, are the classes; `category_ids` has these ids,
    and the column `image_id`, which batches have too, has those of the images. Results in
    COCO's form need both (docs/objects.md). The first caption of an image is its text.

    Args:
        annotations: the file; or a list of files, whose images come one after the other and whose
            categories are joined by their names. Where their image ids repeat, those of the later
            files are moved up, which is said.
        root: folder of the images; by default the file's.
        bad_objects: what becomes of an object that makes no sense, such as one with an empty
            box: "drop" leaves it out and lists it in `dropped`; "problem" leaves out its image.
            If only its outline makes no sense, "drop" keeps the object with its box.
        annotated: whether boxes, keypoints and outlines are in pixels of the images as
            "stored", or of the "upright" pictures, as their EXIF tags turn them and most
            programs show them; None: as stored, with a warning of images that are turned,
            unless their sizes in the file show that they are stored ones.
        flip_pairs: names of keypoints that become one another on a flip, such as [["eye_a",
            "eye_b"]]; []: none do; None: those that differ by the words "left" and "right", or
            "l" and "r".
        strict, verify, max_pixels, bits: as for `scan`.

    Raises:
        ManifestError: no such file, or one that is not of this form (docs/objects.md); or it
            has objects, and none can be used.
    """
    check_choice("bad_objects", bad_objects, BAD_OBJECTS)
    check_choice("annotated", annotated, ANNOTATED)
    if isinstance(annotations, (list, tuple)):
        if not annotations:
            raise ConfigError("from_coco is given an empty list; name one file at least")
        read = partial(
            read_coco,
            root=root,
            bad_objects=bad_objects,
            flip_pairs=flip_pairs,
            annotated=annotated,
            verify=verify,
            max_pixels=max_pixels,
            workers=workers,
            progress=progress,
            bits=bits,
        )
        return finish(concat(list(map(read, annotations)), apart=False), None, strict)
    pairs = None if flip_pairs is None else check_flip_pairs("flip_pairs", flip_pairs)
    targets = Targets(bad_objects=bad_objects, flip_pairs=pairs, annotated=annotated)
    check = ScanOptions(verify, max_pixels, workers, progress, targets, bits=bits)

    file = Path(os.path.abspath(check_path("annotations", annotations)))
    folder = Path(os.path.abspath(root or file.parent))
    classes, table, keypoints, category_ids, doubts = scan_coco(file, folder, check)

    facts = ManifestFacts(
        keypoints=keypoints,
        names_flip_pairs=pairs is not None,
        boxes_upright=annotated == "upright",
        category_ids=category_ids,
        omissions=doubts,
    )
    images = ImageTable.from_table(folder, classes, table, facts)
    return finish(images, None, strict)


def scan_coco(
    file: Path, root: Path, check: ScanOptions
) -> tuple[list[str], pa.Table, Keypoints | None, list[Any], list[Omission]]:
    """Returns class names, rows, the keypoints (None: there are none), the id of each category, and
    doubts.

    Raises ManifestError if the file is not of COCO's form, if none of its images is below `root`,
    or if it has objects and none of them can be used.
    """
    read = read_content(file)
    names, doubts = _place_names(file, root, [image["file_name"] for image in read.images])
    if read.named_by_url:
        what = "images without a file_name, which is taken from the end of their coco_url"
        doubts.append(doubt(what, read.named_by_url, len(read.named_by_url), "note"))
    # files that are not there are problems of single images, unless none is there
    paths, headers = read_named(root, names, check)
    if all(header.problem in MISSING_FILE_PROBLEMS for header in headers):
        none = (
            f"none of its {len(paths):,} images is in {root}, the first is "
            f"{read.images[0]['file_name']!r:.80}"
        )
        raise ManifestError(f"{file}: {none}; give the folder that they are in as root")

    upright = check.targets.annotated == "upright"
    # boxes that were drawn in an image of another size are at other places in this one
    headers = [
        _check_size(file, image, header, upright)
        for image, header in zip(read.images, headers, strict=True)
    ]

    targets: dict[str, pa.Array] = {}
    keypoints = None
    labels = no_labels(len(paths))
    if read.detects:
        keypoints = _keypoints(read, check.targets.flip_pairs)
        # as they are before bad objects become problems of their images
        usable = headers
        # nothing shows whether these were annotated as stored or upright
        if check.targets.annotated is None and (turned := _list_turned(read, headers)):
            doubts.append(doubt(TURNED, turned, len(turned)))
        doubts += doubt_outlines(read)
        headers, targets = check_objects(
            build_objects(read, headers, keypoints, upright),
            headers,
            "xywh",
            check.targets.bad_objects,
        )

        # the label of an image: the classes that occur in it
        counts = targets[BOX_LABELS].value_lengths().to_numpy()
        labels = distinct_labels(
            counts, targets[BOX_LABELS].flatten().to_numpy(), len(read.categories)
        )

        # Such a file would train on images without objects.
        if (
            not counts.any()
            and not any(read.captions)
            and any(not header.problem for header in usable)
        ):
            refuse_without_objects(file, _list_faults(read, headers, targets))
    elif read.strays and not any(read.captions):
        refuse_without_objects(file, read.strays)

    # the first caption of each image; batches have one text for each
    if any(read.captions):
        targets[TARGET + "text"] = pa.array(
            [captions[0] if captions else "" for captions in read.captions], pa.large_string()
        )
    targets[COLUMN + IMAGE_ID] = _image_ids(read)

    # annotations without an image get rows that only state their problem, so that they are counted
    table = file_rows(paths, labels, headers, targets)
    ids = [category["id"] for category in read.categories]
    strays = [(os.fsencode(os.path.relpath(file, root)), why) for why in read.strays]
    return (
        [composed(category["name"]) for category in read.categories],
        pa.concat_tables([table, unused_rows(table, strays)]),
        keypoints,
        ids,
        doubts,
    )


def _place_names(file: Path, root: Path, names: list[str]) -> tuple[list[bytes], list[Omission]]:
    """Returns the names of files relative to the root, and a note if their beginning was left out.

    Absolute names are of this machine or of another one: of the latter so many leading folders are
    left out that the first of them is below the root.

    Raises ManifestError if an absolute name is not below it.
    """
    slashed = [name.strip().replace("\\", "/") for name in names]
    absolute = [name for name in slashed if _ABSOLUTE.match(name)]
    if not absolute:
        return [os.fsencode(name) for name in names], []

    start = next(filter(None, (_find_start(root, name) for name in absolute[:_TRIED])), None)
    if start is None and not any(name.startswith("/") for name in absolute):
        return [os.fsencode(name) for name in names], []  # of Windows, and none is there
    outside = [name for name in absolute if start is None or not name.startswith(start)]
    if outside:
        number = slashed.index(outside[0])
        raise ManifestError(
            f"{file}: images[{number}] has the file_name {names[number]!r:.80}, outside the folder "
            "of the images; give a root that holds all of them, and names relative to the folder"
        )
    assert start
    relative = [os.fsencode(name.removeprefix(start)) for name in slashed]
    if Path(start) in (root, root.resolve()):
        return relative, []
    what = f"file names begin with {start}, which is left out, since they are below {root}"
    return relative, [doubt(what, absolute, len(absolute), "note")]


def _find_start(root: Path, name: str) -> str | None:
    """The leading folders of an absolute name without which it is a file below the root."""
    parts = name.split("/")
    cuts = range(1, len(parts))
    cut = next((cut for cut in cuts if root.joinpath(*parts[cut:]).is_file()), None)
    return None if cut is None else "/".join(parts[:cut]) + "/"


def _image_ids(read: CocoContent) -> pa.Array:
    """Returns the ids of the images: int64 if all are numbers and stay distinct, else text."""
    numbers = [to_number(image["id"]) for image in read.images]
    # the text 1e999 is infinite, which int() refuses
    if all(
        number is not None and abs(number) < LARGEST_INT and number == int(number)
        for number in numbers
    ):
        whole = [int(number or 0) for number in numbers]
        if len(set(whole)) == len(whole):  # "1" and "01" are two images
            return pa.array(whole, pa.int64())

    return pa.array(
        # JSON's escapes may give half a character, which Arrow cannot hold
        [str(image["id"]).encode(errors="replace").decode() for image in read.images],
        pa.large_string(),
    )


def _list_faults(
    read: CocoContent, headers: list[Header], targets: dict[str, pa.Array]
) -> list[str]:
    """Returns what is wrong with the annotations, for a file of which none is left."""
    lines = targets[TARGET + "dropped"].to_pylist()
    lost: list[str] = []

    for image, annotations, header, text in zip(
        read.images, read.objects, headers, lines, strict=True
    ):
        here = (
            text.splitlines()
            if not header.problem
            else [f"{image['file_name']!r:.80}: {header.problem}"] * len(annotations)
        )
        lost += here
    return lost + read.strays


def _check_size(file: Path, image: Entry, header: Header, upright: bool) -> Header:
    stated, size = (
        [to_numbers(image.get(name)) for name in ("height", "width")],
        (header.height, header.width),
    )

    # Boxes of an upright picture need the sizes of the upright picture.
    turned = turn_size(*size, header.orientation)
    size, other = (turned, size) if upright else (size, turned)
    said = tuple(
        side if in_file is None else in_file for in_file, side in zip(stated, size, strict=True)
    )
    if header.problem or said == size:
        return header

    sizes = (
        f"{file.name} has it as {said[1]!r:.20} × {said[0]!r:.20} pixels, and the file has "
        f"{size[1]} × {size[0]}"
    )

    # The sizes are those of the other orientation: most likely only `annotated` is wrong.
    if said == other:
        how, other_way = ("as stored", "stored") if upright else ("upright", "upright")
        why = (
            f"{sizes}: it was annotated {how}, and its EXIF tag turns it; set "
            f"annotated='{other_way}'"
        )
        return header._replace(problem=why)
    return header._replace(
        problem=f"{sizes}, so its boxes are of another image; correct one of them"
    )


def _list_turned(read: CocoContent, headers: list[Header]) -> list[str]:
    """Returns the names of images with objects whose EXIF tag turns them, unless their size in the
    file shows that they were annotated as stored.
    """
    names = []
    for image, annotations, header in zip(read.images, read.objects, headers, strict=True):
        if header.orientation != 1 and annotations and not header.problem:
            sized = image.get("height") is not None and image.get("width") is not None
            if not sized or turn_size(header.height, header.width, header.orientation) == (
                header.height,
                header.width,
            ):
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
            f"{read.name}: the keypoints of its categories are not lists of names; correct them"
        )

    # A manifest has one list of keypoints for all objects.
    if any(names != name_lists[0] for names in name_lists):
        raise ManifestError(
            f"{read.name}: its categories have different keypoints; write a file for each of them"
        )

    return Keypoints.from_names(list(name_lists[0]), flip_pairs) if name_lists else None
