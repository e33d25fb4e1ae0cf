"""Masks, images that give the class of each pixel of another image: finding the mask of each image
of a folder (`scan_pairs`), and checking their headers (`check_mask_files`, `mask_problem`).
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from stat import S_ISREG as is_regular
from typing import Any, BinaryIO

import pyarrow as pa
from PIL import UnidentifiedImageError

from dali_pipes.data.image_files.headers import (
    IMAGE_EXTENSIONS,
    NOT_REGULAR,
    Header,
    ScanOptions,
    describe_os_error,
)
from dali_pipes.data.image_files.stored import open_any
from dali_pipes.data.labels import no_labels
from dali_pipes.data.objects import MASK, TYPES
from dali_pipes.data.omissions import Omission, count_by_kind
from dali_pipes.data.sources.names.classes import LOOPS
from dali_pipes.data.sources.names.housekeeping import is_housekeeping
from dali_pipes.data.sources.names.listing import HOUSEKEEPING_FOLDERS, list_entries, sort_names
from dali_pipes.data.sources.names.splits import split_of
from dali_pipes.data.sources.rows.files import file_rows, map_items, read_headers, unused_rows
from dali_pipes.data.upright import upright_size
from dali_pipes.errors import ManifestError

# names in Cityscapes; of the suffixes of masks the first one counts that any mask has
_IMAGE_SUFFIX = b"_leftImg8bit"
_MASK_SUFFIXES = (b"_gtFine_labelIds", b"_gtCoarse_labelIds", b"_gtFine_labelTrainIds")
# Pillow's names of pixels in a PNG that it reads as they are; it stretches gray of 2 and 4 bits
_EXACT = {"1", "L", "P", "P;1", "P;2", "P;4", "I;16B"}


def scan_pairs(
    images: Path, masks: Path, missing: str, check: ScanOptions
) -> tuple[Path, pa.Table, list[Omission]]:
    """Returns the folder that holds both, a row for each image, and what is left out.

    Raises ManifestError if no image has a mask of its name, or if the images are of several splits.

    `missing`: "problem" lists an image without a mask, and a mask without an image, as a problem;
    else they are left out.
    """
    if images == masks:
        raise ManifestError(f"{images}: images and masks need folders of their own")

    listed_masks, omissions = _list_images(masks, apart=images)
    listed_images, others = _list_images(images, apart=masks)
    _refuse_splits(images, masks)

    # An image and its mask have the same path below their folders, without the extension.
    masks_by_stem = _group_by_stem(_take_one_suffix(listed_masks))
    images_by_stem = _group_by_stem(
        [(path, stem.removesuffix(_IMAGE_SUFFIX)) for path, stem in listed_images]
    )
    if not images_by_stem.keys() & masks_by_stem.keys():
        image, mask = (
            os.fsdecode(next(iter(by_stem), b"nothing"))
            for by_stem in (images_by_stem, masks_by_stem)
        )
        raise ManifestError(
            f"{images}: no image has a mask of its name in {masks} ({image}, {mask})"
        )

    root = Path(os.path.commonpath([images, masks]))
    images_at, masks_at = (os.fsencode(os.path.relpath(folder, root)) for folder in (images, masks))
    stems = [stem for stem in images_by_stem if missing == "problem" or stem in masks_by_stem]
    image_paths = [
        os.path.normpath(os.path.join(images_at, images_by_stem[stem][0])) for stem in stems
    ]
    mask_paths = [
        os.path.normpath(os.path.join(masks_at, masks_by_stem[stem][0]))
        if stem in masks_by_stem
        else b""
        for stem in stems
    ]

    files = ((path, None) for path in image_paths)
    headers = list(read_headers(root, files, len(image_paths), check))
    headers = check_mask_files(root, mask_paths, headers, check)
    columns = {MASK: pa.array(mask_paths, TYPES["mask"])}
    table = file_rows(image_paths, no_labels(len(image_paths)), headers, columns)

    # If several images have one name, only the first is used; the others are problems.
    problems = [
        (os.path.normpath(os.path.join(images_at, path)), "another image has its name and its mask")
        for stem in stems
        for path in images_by_stem[stem][1:]
    ]

    alone = [
        os.path.join(masks_at, paths[0])
        for stem, paths in masks_by_stem.items()
        if stem not in images_by_stem
    ]
    if missing == "problem":
        problems += [(path, "a mask without an image of its name") for path in alone]
    else:
        without = [paths[0] for stem, paths in images_by_stem.items() if stem not in masks_by_stem]
        omissions += count_by_kind(("images without a mask", os.fsdecode(path)) for path in without)
        omissions += count_by_kind(
            (("masks without an image", os.fsdecode(path)) for path in alone), "file"
        )

    return root, pa.concat_tables([table, unused_rows(table, problems)]), [*omissions, *others]


def _refuse_splits(images: Path, masks: Path) -> None:
    """Raises ManifestError if the images are of several splits."""
    folders = [
        name
        for name, is_folder in list_entries(images)
        if is_folder and images / name != masks and not is_housekeeping(name)
    ]

    splits = {name: split for name in folders if (split := split_of(name))}
    if len(set(splits.values())) > 1 and len(splits) == len(folders):
        first = next((name for name, split in splits.items() if split == "train"), folders[0])
        raise ManifestError(
            f"{images}: holds {' and '.join(splits)}, and splits are not read as one; name "
            "one of them and its masks: "
            f"{images / first} and {masks / first}"
        )


def check_mask_files(
    root: Path, masks: Sequence[bytes], headers: list[Header], check: ScanOptions
) -> list[Header]:
    """Returns the headers, with what is wrong with a mask as the problem of its image.

    `masks` are paths relative to the root; b"": the mask is missing.
    """
    sized_masks = [
        (mask, *mask_size(header, check))
        for mask, header in zip(masks, headers, strict=True)
        if not header.problem
    ]

    problems = map_items(
        partial(_find_problem, os.fsencode(root), check.verify),
        sized_masks,
        len(sized_masks),
        "reading masks",
        check,
        many=False,
    )

    return [
        header if header.problem else header._replace(problem=next(problems)) for header in headers
    ]


def mask_size(header: Header, check: ScanOptions) -> tuple[int, int]:
    """Returns height and width that the mask of an image must have."""
    turned = header.orientation if check.targets.annotated == "upright" else 1
    height, width = upright_size(header.height, header.width, turned)
    return height, width


def _find_problem(root: bytes, verify: str, mask: tuple[bytes, int, int]) -> str | None:
    path, height, width = mask
    if not path:
        return "no mask of its name"

    # a problem is text of a table, which must be UTF-8
    name = path.decode(errors="backslashreplace")
    try:
        if not is_regular(os.stat(os.path.join(root, path)).st_mode):
            return f"its mask {name}: {NOT_REGULAR}"
        with open(os.path.join(root, path), "rb") as file:
            why = mask_problem(file, height, width, verify)
    except OSError as error:
        why = describe_os_error(error)
    return why and f"its mask {name}: {why}"


def mask_problem(file: BinaryIO, height: int, width: int, verify: str) -> str | None:
    """Returns what is wrong with the mask of an image of this size; None: nothing."""
    try:
        image: Any = open_any(file)
        if image.format != "PNG":
            return f"{image.format} format; save it as PNG, which keeps its values"

        if image.size != (width, height):
            turned = (
                "; set annotated='upright' if it shows the image as its EXIF tag turns it, or"
                if image.size == (height, width)
                else ";"
            )
            return (
                f"{image.width} × {image.height}, and the image is {width} × {height}{turned} "
                "make them equal"
            )

        kind = image.tile[0][3]  # Pillow's raw mode: how the pixels are packed in the file
        if kind not in _EXACT:
            return (
                f"its pixels are {kind}; save it as a PNG of gray with 8 or 16 bits, or with a "
                "palette"
            )

        if verify == "full":
            image.load()
    except UnidentifiedImageError:  # its text has an address in memory
        return "not an image, or broken"
    except Exception as error:  # Pillow's plugins raise almost anything on broken files
        return f"broken ({type(error).__name__}: {error})"
    return None


def _list_images(folder: Path, apart: Path) -> tuple[list[tuple[bytes, bytes]], list[Omission]]:
    """Returns path and path without extension of each image below a folder, and what is left out
    there.

    `apart` is not looked into: a folder of masks may be in that of the images.
    """
    files, omissions = _list_below(os.fspath(folder), os.fspath(apart))
    images, others = sort_names(files)
    if not images:
        raise ManifestError(
            f"{folder}: no such folder, or no image in it ({', '.join(IMAGE_EXTENSIONS)})"
        )
    paths = map(os.fsencode, images)
    return [(path, path.rpartition(b".")[0]) for path in paths], [*others, *omissions]


def _list_below(base: str, apart: str) -> tuple[list[str], list[Omission]]:
    """Returns the files below a folder, by their paths relative to it, sorted, and the folders
    that are left out: housekeeping, and links to a folder that contains them.
    """
    files: list[str] = []
    aside: list[str] = []
    loops: list[str] = []
    if not Path(base).is_dir():
        return files, []

    # device and inode of all folders above each folder that is not listed yet
    above: dict[str, frozenset[tuple[int, int]]] = {base: frozenset()}

    for where, folders, names in os.walk(base, onerror=_refuse_unreadable, followlinks=True):
        inside = "" if where == base else os.path.relpath(where, base)
        stat, containing = os.stat(where), above.pop(where)
        identity = stat.st_dev, stat.st_ino
        if identity in containing:
            loops.append(inside)
            folders.clear()
            continue

        # os.walk goes on with the folders that are left in its list
        inner = [name for name in folders if os.path.join(where, name) != apart]
        folders[:] = [name for name in inner if not is_housekeeping(name)]
        above |= {os.path.join(where, name): containing | {identity} for name in folders}
        files += [os.path.join(inside, name) for name in names]
        aside += [os.path.join(inside, name, "") for name in inner if is_housekeeping(name)]

    omissions = count_by_kind((LOOPS, path) for path in sorted(loops))
    omissions += count_by_kind(((HOUSEKEEPING_FOLDERS, path) for path in sorted(aside)), "file")
    return sorted(files), omissions


def _refuse_unreadable(error: OSError) -> None:
    raise ManifestError(
        f"{error.filename}: {describe_os_error(error)}; make it readable, or move it away"
    ) from None


def _take_one_suffix(masks: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Returns the masks with the first suffix that any of them has, without the suffix; all masks
    if none has one.
    """
    for suffix in _MASK_SUFFIXES:
        if with_suffix := [
            (path, stem.removesuffix(suffix)) for path, stem in masks if stem.endswith(suffix)
        ]:
            return with_suffix
    return masks


def _group_by_stem(paths: list[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    """Returns the paths by name, sorted; of several with the same name .png comes before .jpg."""
    by_stem: dict[bytes, list[bytes]] = {}
    for path, stem in sorted(paths, reverse=True):
        by_stem.setdefault(stem, []).append(path)
    return dict(sorted(by_stem.items(), key=lambda pair: os.fsdecode(pair[0])))
