"""A folder of images and one of their masks: `Manifest.from_masks`.

A mask gives the class of each pixel of an image. `read_masks` makes the images of a manifest;
`scan_pairs` lists both folders, finds the mask of each image by its name, and reads the headers.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from dali_pipes.checks import check_choice, check_names
from dali_pipes.data.composed import composed
from dali_pipes.data.config import MISSING
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_files.headers import (
    IMAGE_EXTENSIONS,
    ScanOptions,
)
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.labels.classes import no_labels
from dali_pipes.data.limits import MAX_PIXELS
from dali_pipes.data.mask_values import check_mask_values
from dali_pipes.data.objects import MASK, TYPES, Targets
from dali_pipes.data.omissions import Omission, count_by_kind
from dali_pipes.data.sources.layouts import local_path
from dali_pipes.data.sources.names import (
    HOUSEKEEPING_FOLDERS,
    LOOPS,
    is_housekeeping,
    list_entries,
    sort_names,
    split_of,
)
from dali_pipes.data.sources.reading import finish
from dali_pipes.data.sources.rows.files import (
    check_mask_files,
    file_rows,
    read_headers,
    unused_rows,
)
from dali_pipes.data.sources.targets import add_mask_values, doubt_turned_images
from dali_pipes.data.sources.tree import walk
from dali_pipes.data.upright import ANNOTATED
from dali_pipes.errors import ManifestError

# Names in Cityscapes. The suffix of masks that counts is the first one here that any mask has.
_IMAGE_SUFFIX = b"_leftImg8bit"
_MASK_SUFFIXES = (b"_gtFine_labelIds", b"_gtCoarse_labelIds", b"_gtFine_labelTrainIds")


def read_masks(
    images: str | Path,
    masks: str | Path,
    *,
    classes: Sequence[str] = (),
    missing: str = "problem",
    mask_values: Mapping[int, int] | None = None,
    annotated: str | None = None,
    strict: bool = False,
    verify: str = "header",
    max_pixels: int = MAX_PIXELS,
    workers: int | None = None,
    progress: bool = True,
    bits: int = 8,
) -> ImageTable:
    """Reads the headers of the images in one folder, and of their masks in another one.

    docs/objects.md describes the folders.

    An image's mask has the same path in its own folder, apart from the extension and from
    Cityscapes' suffixes.

    Args:
        classes: names of the masks' values from 0. A value that is none of them, and not 255,
            is a problem of its image: with verify="full" all masks are checked, otherwise 32
            of them, and the others as they are loaded.
        mask_values: what values are replaced by, such as {255: 1} for masks of 0 and 255; a
            value that is replaced by itself, or by one that is no class, is ignored.
        annotated: whether masks are those of the images as "stored", or of the "upright"
            pictures that programs show; None: as stored, with a warning of images that are
            turned.
        missing: what becomes of an image without a mask, and of a mask without an image:
            "problem" lists it; "skip" passes it over.
        strict, verify, max_pixels, bits: as for `scan`.

    Raises:
        ManifestError: a folder without images, no image has a mask, or the masks have other
            values than classes.
    """
    check_choice("missing", missing, MISSING)
    check_choice("annotated", annotated, ANNOTATED)
    image_folder, mask_folder = (
        Path(os.path.abspath(local_path(folder))) for folder in (images, masks)
    )
    check = ScanOptions(
        verify, max_pixels, workers, progress, Targets(annotated=annotated), bits=bits
    )
    root, table, omissions = scan_pairs(image_folder, mask_folder, missing, check)
    names = check_names("classes", classes)
    pairs = ImageTable.from_table(root, names, table, ManifestFacts(omissions=omissions))

    replacements = check_mask_values("mask_values", mask_values)
    pairs = add_mask_values(pairs, mask_folder, replacements, names, verify)
    pairs = pairs.with_facts(masks_upright=annotated == "upright")
    pairs = doubt_turned_images(pairs, annotated)

    return finish(pairs, None, strict, are_named=bool(names))


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

    # paths of both are relative to one root, since a manifest has one
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

    # If several images have one name, only the first is used; the others are problems. So are
    # further masks of one image, since it is not known which of them is meant.
    problems = [
        (os.path.normpath(os.path.join(folder, path)), why)
        for folder, by_stem, why in (
            (images_at, images_by_stem, "another image has its name and its mask"),
            (masks_at, masks_by_stem, "another mask has its name and its image"),
        )
        for stem in stems
        for path in by_stem.get(stem, ())[1:]
    ]

    # masks are usually made for all images, so one without an image shows a misspelt name
    alone = [
        os.path.join(masks_at, path)
        for stem, paths in masks_by_stem.items()
        for path in paths
        if stem not in images_by_stem
    ]
    if missing == "problem":
        problems += [(path, "a mask without an image of its name") for path in alone]
    else:
        without = [
            path
            for stem, paths in images_by_stem.items()
            for path in paths
            if stem not in masks_by_stem
        ]
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


def _list_images(folder: Path, apart: Path) -> tuple[list[tuple[bytes, bytes]], list[Omission]]:
    """Returns path and path without extension of each image below a folder, and what is left out
    there.

    `apart` is not looked into: a folder of masks may be in that of the images.
    """
    files, omissions = _list_below(folder, apart)
    images, others = sort_names(files)
    if not images:
        raise ManifestError(
            f"{folder}: no such folder, or no image in it ({', '.join(IMAGE_EXTENSIONS)})"
        )
    paths = map(os.fsencode, images)
    return [(path, _stem(path)) for path in paths], [*others, *omissions]


def _stem(path: bytes) -> bytes:
    """The path without its extension; accents of images and masks may be written in two ways."""
    return os.fsencode(composed(os.fsdecode(path.rpartition(b".")[0])))


def _list_below(base: Path, apart: Path) -> tuple[list[str], list[Omission]]:
    """Returns the files below a folder, by their paths relative to it, sorted, and the folders
    that are left out: housekeeping, and links to a folder that contains them.
    """
    files: list[str] = []
    aside: list[str] = []
    loops: list[str] = []
    for listed in walk(base) if base.is_dir() else ():
        listed.folders = [name for name in listed.folders if base / listed.join(name) != apart]
        files += listed.paths
        aside += [f"{listed.join(name)}/" for name in listed.housekeeping]
        loops += [listed.path] if listed.is_loop else []

    omissions = count_by_kind((LOOPS, path) for path in sorted(loops))
    omissions += count_by_kind(((HOUSEKEEPING_FOLDERS, path) for path in sorted(aside)), "file")
    return sorted(files), omissions


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
    """Returns the paths by name, sorted. Where several have one name, .png comes before .jpg."""
    by_stem: dict[bytes, list[bytes]] = {}
    for path, stem in sorted(paths, reverse=True):
        by_stem.setdefault(stem, []).append(path)
    return dict(sorted(by_stem.items(), key=lambda pair: os.fsdecode(pair[0])))
