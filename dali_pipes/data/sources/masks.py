"""A folder of images and one of their masks: `Manifest.from_masks`.

A mask gives the class of each pixel of an image. `read_masks` makes the images of a manifest;
`_read_pairs` lists both folders, finds the mask of each image by its name, and reads the headers.
"""

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from dali_pipes.data.composed import composed
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_files.headers import IMAGE_EXTENSIONS
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.labels.reader import no_labels
from dali_pipes.data.objects import MASK, TYPES
from dali_pipes.data.omissions import Omission, count_by_kind
from dali_pipes.data.sources.layouts import local_path
from dali_pipes.data.sources.names import (
    HOUSEKEEPING_FOLDERS,
    LOOPS,
    is_housekeeping,
    list_entries,
    select_images,
    split_of,
)
from dali_pipes.data.sources.options import SourceOptions
from dali_pipes.data.sources.reading import finish
from dali_pipes.data.sources.rows.files import (
    check_mask_files,
    file_rows,
    read_headers,
    unused_rows,
)
from dali_pipes.data.sources.targets import add_targets
from dali_pipes.data.sources.tree import walk
from dali_pipes.errors import ManifestError

# Names in Cityscapes. The suffix of masks that counts is the first one here that any mask has.
_IMAGE_SUFFIX = b"_leftImg8bit"
_MASK_SUFFIXES = (b"_gtFine_labelIds", b"_gtCoarse_labelIds", b"_gtFine_labelTrainIds")
_FILES = "files"

# the path of an image or a mask below its folder without the extension, and its path in the root
Named = tuple[bytes, bytes]
PathsOf = dict[bytes, list[bytes]]


def read_masks(source: str | Path, options: SourceOptions) -> ImageTable:
    """Reads the headers of the images in one folder, and of their masks in another one.

    docs/objects.md describes the folders. A value of a mask that is no class, and not 255, is a
    problem of its image: with verify="full" all masks are checked, otherwise 32 of them, and the
    others as they are loaded.

    An image's mask has the same path in its own folder, apart from the extension and from
    Cityscapes' suffixes.

    Args:
        source: the folder of the images; `options.masks` is that of the masks.

    Raises:
        ManifestError: a folder without images, no image has a mask, or the masks have other
            values than classes.
    """
    options.refuse_untaken(source, "masks")
    options = replace(options, targets=replace(options.targets, mask="mask"))
    image_folder, mask_folder = (
        Path(os.path.abspath(local_path(each))) for each in (source, options.masks or "")
    )
    root, table, omissions = _read_pairs(image_folder, mask_folder, options)

    names = list(options.classes or ())
    pairs = ImageTable.from_rows(root, names, table, ManifestFacts(omissions=omissions))
    pairs = add_targets(pairs, mask_folder, options)
    # the values have these numbers already
    return finish(pairs, replace(options, classes=None), are_named=bool(names))


def _read_pairs(
    images: Path, masks: Path, options: SourceOptions
) -> tuple[Path, pa.Table, list[Omission]]:
    """Returns the folder that holds both, a row for each image, and what is left out."""
    if images == masks:
        raise ManifestError(f"{images}: images and masks need folders of their own")

    # paths of both are relative to one root, since a manifest has one
    root = Path(os.path.commonpath([images, masks]))
    listed_masks, beside_masks = _list_images(masks, root, apart=images)
    listed_images, beside_images = _list_images(images, root, apart=masks)
    _refuse_splits(images, masks)

    # an image and its mask have the same path below their folders, without the extension
    masks_of = _group_by_stem(_take_one_suffix(listed_masks))
    images_of = _group_by_stem(
        [(stem.removesuffix(_IMAGE_SUFFIX), path) for stem, path in listed_images]
    )
    if not images_of.keys() & masks_of.keys():
        image, mask = (
            os.fsdecode(next(iter(paths_of), b"nothing")) for paths_of in (images_of, masks_of)
        )
        raise ManifestError(
            f"{images}: no image has a mask of its name in {masks} ({image}, {mask})"
        )

    stems = [stem for stem in images_of if options.missing == "problem" or stem in masks_of]
    image_paths = [images_of[stem][0] for stem in stems]
    mask_paths = [masks_of[stem][0] if stem in masks_of else b"" for stem in stems]
    files = ((path, None) for path in image_paths)
    headers = list(read_headers(root, files, len(image_paths), options))
    headers = check_mask_files(root, mask_paths, headers, options)
    columns = {MASK: pa.array(mask_paths, TYPES["mask"])}
    table = file_rows(image_paths, no_labels(len(image_paths)), headers, columns)

    # If several images have one name, only the first is used; the others are problems. So are
    # further masks of one image, since it is not known which of them is meant.
    problems = [
        (path, f"another {what} has its name and its {other}")
        for paths_of, what, other in ((images_of, "image", "mask"), (masks_of, "mask", "image"))
        for stem in stems
        for path in paths_of.get(stem, ())[1:]
    ]

    # masks are usually made for all images, so one without an image shows a misspelt name
    omissions = beside_masks + beside_images
    unused_masks = _list_alone(masks_of, images_of)
    if options.missing == "problem":
        problems += [(path, "a mask without an image of its name") for path in unused_masks]
    else:
        for kind, paths, unit in (
            ("images without a mask", _list_alone(images_of, masks_of), "image"),
            ("masks without an image", unused_masks, "file"),
        ):
            omissions += count_by_kind(((kind, os.fsdecode(path)) for path in paths), unit)
    return root, pa.concat_tables([table, unused_rows(table, problems)]), omissions


def _list_alone(paths_of: PathsOf, others: PathsOf) -> list[bytes]:
    """The paths of the names that others do not have."""
    return [path for stem, paths in paths_of.items() if stem not in others for path in paths]


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


def _list_images(folder: Path, root: Path, apart: Path) -> tuple[list[Named], list[Omission]]:
    """Returns the images below a folder, and what is left out there.

    Args:
        root: the folder that paths are relative to.
        apart: a folder that is not looked into: that of the masks may be in that of the images.
    """
    files, omissions = _list_below(folder, apart)
    images, others = select_images(files)
    if not images:
        raise ManifestError(
            f"{folder}: no such folder, or no image in it ({', '.join(IMAGE_EXTENSIONS)})"
        )

    at = os.path.relpath(folder, root)
    named = [(_stem(path), os.fsencode(os.path.normpath(f"{at}/{path}"))) for path in images]
    return named, [*others, *omissions]


def _stem(path: str) -> bytes:
    """The path without its extension; accents of images and masks may be written in two ways."""
    return os.fsencode(composed(path.rpartition(".")[0]))


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


def _take_one_suffix(masks: list[Named]) -> list[Named]:
    """Returns the masks with the first suffix that any of them has, without the suffix; all masks
    if none has one.
    """
    for suffix in _MASK_SUFFIXES:
        if with_suffix := [
            (stem.removesuffix(suffix), path) for stem, path in masks if stem.endswith(suffix)
        ]:
            return with_suffix
    return masks


def _group_by_stem(named: list[Named]) -> PathsOf:
    """Returns the paths by name, sorted. Where several have one name, .png comes before .jpg."""
    paths_of: PathsOf = {}
    for stem, path in sorted(named, key=lambda each: each[1], reverse=True):
        paths_of.setdefault(stem, []).append(path)
    return dict(sorted(paths_of.items(), key=lambda pair: os.fsdecode(pair[0])))
