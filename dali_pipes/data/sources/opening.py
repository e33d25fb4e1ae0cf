"""Opens any source: finds out what it is, and calls the reader of its kind.

An index of a folder in a store is opened instead of reading the images, if it was written with the
options that are asked for.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.limits import MAX_PIXELS
from dali_pipes.data.objects import NO_TARGETS, Targets
from dali_pipes.data.shards.addresses import is_remote
from dali_pipes.data.sources import saved_manifests
from dali_pipes.data.sources.coco.reader import read_coco
from dali_pipes.data.sources.index import read_index
from dali_pipes.data.sources.kinds import kind_of
from dali_pipes.data.sources.layouts.refusals import local_path, refuse_other_layouts
from dali_pipes.data.sources.names.patterns import is_pattern
from dali_pipes.data.sources.reading import finish, note_reading
from dali_pipes.data.sources.scans import cache_file, read_images
from dali_pipes.data.sources.shards import (
    is_shard,
)
from dali_pipes.data.sources.tables import read_table
from dali_pipes.data.table_options import TableOptions


def open_source(
    source: str | Path,
    *,
    verify: str = "header",
    max_pixels: int = MAX_PIXELS,
    cache_dir: str | Path | None = None,
    unchanged: str = "folder",
    path_column: str = "path",
    label_column: str = "label",
    label_separator: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    task: str | None = None,
    targets: Targets = NO_TARGETS,
    images: str | Path | None = None,
    classes: Sequence[str] | None = None,
    with_labels: bool = True,
    strict: bool = False,
    progress: bool = True,
) -> ImageTable:
    """Opens any source of images.

    That is a folder, a shard or a pattern of shards to scan, a saved manifest, a table of path
    and label, or a JSON file of COCO's form.

    Args:
        verify, max_pixels: as for `scan`; a saved manifest and an index are taken as they are.
        cache_dir: folder for cached scans, one file for each root.
        unchanged: as for `scan`, but one look at each folder is the default.
        path_column, label_column, label_separator, delimiter, encoding, task: as for
            `from_table`; for tables only.
        targets: as for `from_table` and `scan`; a COCO file takes its `bad_objects`,
            `flip_pairs` and `annotated`.
        images: folder of the images that a table or COCO file names; by default the file's.
        classes, with_labels: as for `scan`; a table's class names are numbered as `classes` has
            them.
        strict: an image or an object that is left out is an error, of a saved manifest too.

    Raises:
        ManifestError: as `scan`, `from_table`, `from_coco` or `load`.
        OmissionError: `strict`, and something is left out.
    """
    source, images = local_path(source), local_path(images) if images else None
    if not Path(source).is_dir():  # `read_images` does the same for a folder
        refuse_other_layouts(source)
    table = TableOptions(path_column, label_column, label_separator, delimiter, encoding, task)

    # a folder in a store may have an index of its images
    one_file = is_shard(source) or Path(source).suffix == ".parquet" or is_pattern(source)
    if is_remote(source) and not one_file:
        asked = note_reading(targets, with_labels, table)
        if indexed := read_index(str(source), asked):
            return finish(indexed, classes, strict)

    kind = kind_of(source)
    if kind == "manifest":
        return finish(saved_manifests.load(source), classes, strict)

    checks: dict[str, Any] = {"verify": verify, "max_pixels": max_pixels, "progress": progress}
    if kind == "coco":
        checks |= {
            name: getattr(targets, name) for name in ("bad_objects", "flip_pairs", "annotated")
        }
        return finish(read_coco(source, root=images, **checks), classes, strict)

    checks |= {"classes": classes, "with_labels": with_labels, "targets": targets}
    if kind == "table":
        return read_table(source, root=images, strict=strict, **asdict(table), **checks)

    # `read_images` refuses a cache for targets
    cache = cache_file(cache_dir, source, with_labels) if cache_dir and not targets.named else None
    return read_images(source, cache=cache, unchanged=unchanged, strict=strict, **checks)
