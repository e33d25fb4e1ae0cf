"""Opens any source: `open_source` finds out of which kind it is, and calls the reader of that kind
from the table `READERS`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.shards.addresses import is_remote
from dali_pipes.data.sources.coco.reader import read_coco
from dali_pipes.data.sources.index import read_index
from dali_pipes.data.sources.kinds import kind_of
from dali_pipes.data.sources.layouts import local_path, refuse_other_layouts
from dali_pipes.data.sources.masks import read_masks
from dali_pipes.data.sources.names import is_pattern
from dali_pipes.data.sources.options import SourceOptions
from dali_pipes.data.sources.reading import finish, note_reading
from dali_pipes.data.sources.scans import read_images
from dali_pipes.data.sources.shards import is_shard
from dali_pipes.data.sources.tables import read_table
from dali_pipes.data.table import saved
from dali_pipes.errors import ConfigError


def open_source(source: str | Path, options: SourceOptions) -> ImageTable:
    """Opens any source of images.

    Args:
        source: a folder, a shard or a pattern of shards to scan, a saved manifest, a table of path
            and label, a JSON file of COCO's form, or with `masks` a folder of images.

    Raises:
        ConfigError: an option would change nothing, since sources of this kind do not take it.
        ManifestError: as `scan`, `from_table`, `from_coco` or `load`.
        OmissionError: `strict`, and something is left out.
    """
    source = local_path(source)
    if options.masks:
        if not Path(source).is_dir():
            what = f"masks is for a folder of images, and {source} is none"
            raise ConfigError(f"{what}; leave out masks")
        return READERS["masks"](source, options)
    # the reader of a folder does the same
    if not Path(source).is_dir():
        refuse_other_layouts(source)
    # before the kind, for which a folder in a store is listed: that is what an index saves
    if (indexed := _read_index(source, options)) is not None:
        return indexed
    return READERS[kind_of(source)](source, options)


def _read_index(source: str | Path, options: SourceOptions) -> ImageTable | None:
    """The index of a folder in a store, if it was written with the options that are asked for."""
    one_file = is_shard(source) or Path(source).suffix == ".parquet" or is_pattern(source)
    if not is_remote(source) or one_file:
        return None
    indexed = read_index(str(source), note_reading(options))
    return finish(indexed, options) if indexed else None


def _read_manifest(source: str | Path, options: SourceOptions) -> ImageTable:
    options.refuse_untaken(source, "manifest")
    return finish(saved.load(source), options)


# by the kinds of `options.KINDS`
READERS: dict[str, Callable[[Any, SourceOptions], ImageTable]] = {
    "manifest": _read_manifest,
    "coco": read_coco,
    "csv": read_table,
    "parquet": read_table,
    "images": read_images,
    "masks": read_masks,
}
