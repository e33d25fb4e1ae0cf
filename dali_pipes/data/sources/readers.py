"""Reads the images of a source into an `ImageTable`: one function for each kind of source.

Each reads the headers of the images (image_files/), and checks targets and masks (targets.py).
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_files.headers import ScanOptions
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.mask_values import check_mask_values
from dali_pipes.data.shards.remote import absolute
from dali_pipes.data.sources import scans
from dali_pipes.data.sources.coco import scan_coco
from dali_pipes.data.sources.index import note_reading
from dali_pipes.data.sources.masks import scan_pairs
from dali_pipes.data.sources.tables import scan_table
from dali_pipes.data.sources.targets import add_mask_values, add_targets, warn_of_turned_images
from dali_pipes.data.table_options import TableOptions
from dali_pipes.errors import ConfigError


def read_images(
    root: str | Path, check: ScanOptions, cache: Path | None, unchanged: str
) -> ImageTable:
    """Reads folders of images, or shards: `Manifest.scan`."""
    if cache and check.targets.named:
        raise ConfigError(
            "a scan for targets is not cached; leave out cache, and save the manifest"
        )

    images = scans.scan(root, check, cache, unchanged)
    # for an index: opening it compares these with what is asked for
    reading = note_reading(check.targets, check.with_labels)
    return add_targets(images.with_facts(reading=reading), root, check)


def read_table(
    file: str | Path, root: str | Path | None, options: TableOptions, check: ScanOptions
) -> ImageTable:
    """Reads the images that a table lists or holds: `Manifest.from_table`."""
    folder = Path(os.path.abspath(root or Path(file).parent))
    place, classes, table = scan_table(absolute(file), folder, options, check)
    images = ImageTable.from_table(
        place, classes, table, ManifestFacts(keypoints=check.targets.keypoints_named)
    )

    images = images.with_facts(
        omissions=scans.count_beside_parquet(absolute(file), images),
        reading=note_reading(check.targets, check.with_labels, options),
    )
    return add_targets(images, file, check)


def read_coco(annotations: str | Path, root: str | Path | None, check: ScanOptions) -> ImageTable:
    """Reads the images of a JSON file of COCO's form: `Manifest.from_coco`."""
    file = Path(os.path.abspath(annotations))
    folder = Path(os.path.abspath(root or file.parent))
    classes, table, keypoints, category_ids = scan_coco(file, folder, check)

    facts = ManifestFacts(
        keypoints=keypoints,
        names_flip_pairs=check.targets.flip_pairs is not None,
        boxes_upright=check.targets.annotated == "upright",
        category_ids=category_ids,
    )
    return ImageTable.from_table(folder, classes, table, facts)


def read_masks(
    images: Path,
    masks: Path,
    classes: Sequence[str],
    missing: str,
    mask_values: Mapping[int, int] | None,
    check: ScanOptions,
) -> ImageTable:
    """Reads the images in one folder and their masks in another one: `Manifest.from_masks`."""
    root, table, omissions = scan_pairs(images, masks, missing, check)
    pairs = ImageTable.from_table(root, list(classes), table, ManifestFacts(omissions=omissions))

    replacements = check_mask_values("mask_values", mask_values)
    pairs = add_mask_values(pairs, masks, replacements, classes, check.verify)
    pairs = pairs.with_facts(masks_upright=check.targets.annotated == "upright")
    warn_of_turned_images(pairs, root, check.targets.annotated)
    return pairs
