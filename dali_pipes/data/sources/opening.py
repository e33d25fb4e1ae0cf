"""Opens any source: `open_source` asks the readers of the table `READERS` in turn.

A reader takes a `Request` and returns its images, or None if the source is not of its kind.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
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
from dali_pipes.data.sources.layouts import local_path, refuse_other_layouts
from dali_pipes.data.sources.names import is_pattern
from dali_pipes.data.sources.reading import finish, note_reading
from dali_pipes.data.sources.scans import cache_file, read_images
from dali_pipes.data.sources.shards import is_shard
from dali_pipes.data.sources.tables import read_table
from dali_pipes.data.sources.taken import list_given, list_untaken, refuse_untaken
from dali_pipes.data.table_options import TableOptions


@dataclass(frozen=True)
class Request:
    """What `open_source` is asked for; its arguments say what the fields mean."""

    source: str | Path
    table: TableOptions
    targets: Targets
    images: str | Path | None
    classes: Sequence[str] | None
    with_labels: bool
    split: str | None
    cache_dir: str | Path | None
    unchanged: str
    strict: bool
    verify: str
    max_pixels: int
    progress: bool
    bits: int

    @cached_property
    def kind(self) -> str:
        """The kind of the source, as kinds.py says it; it is looked at once for all readers."""
        return kind_of(self.source)

    @property
    def checks(self) -> dict[str, Any]:
        """How headers are read, as arguments of a reader."""
        return {
            "verify": self.verify,
            "max_pixels": self.max_pixels,
            "progress": self.progress,
            "bits": self.bits,
        }

    @property
    def labelling(self) -> dict[str, Any]:
        """What is read besides the images, as arguments of a reader."""
        return {
            "classes": self.classes,
            "with_labels": self.with_labels,
            "targets": self.targets,
        }


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
    split: str | None = None,
    strict: bool = False,
    progress: bool = True,
    bits: int = 8,
) -> ImageTable:
    """Opens any source of images.

    That is a folder, a shard or a pattern of shards to scan, a saved manifest, a table of path
    and label, or a JSON file of COCO's form.

    Args:
        verify, max_pixels, bits: as for `scan`; a saved manifest and an index are taken as they
            are, though not an index without images of 16 bits if they are asked for.
        cache_dir: folder for cached scans, one file for each root.
        unchanged: as for `scan`, but one look at each folder is the default.
        path_column, label_column, label_separator, delimiter, encoding, task: as for
            `from_table`; for tables only.
        targets: as for `from_table` and `scan`; a COCO file takes its `bad_objects`,
            `flip_pairs` and `annotated`.
        images: folder of the images that a table or COCO file names; by default the file's.
        split: as for `from_table`; for tables only.
        classes, with_labels: as for `scan`; a table's class names are numbered as `classes` has
            them.
        strict: an image or an object that is left out is an error, of a saved manifest too.

    Raises:
        ConfigError: an option would change nothing, since sources of this kind do not take it.
        ManifestError: as `scan`, `from_table`, `from_coco` or `load`.
        OmissionError: `strict`, and something is left out.
    """
    request = Request(
        source=local_path(source),
        table=TableOptions(path_column, label_column, label_separator, delimiter, encoding, task),
        targets=targets,
        images=local_path(images) if images else None,
        classes=classes,
        with_labels=with_labels,
        split=split,
        cache_dir=cache_dir,
        unchanged=unchanged,
        strict=strict,
        verify=verify,
        max_pixels=max_pixels,
        progress=progress,
        bits=bits,
    )

    for read in READERS:
        if (opened := read(request)) is not None:
            return opened
    return _read_images(request)


def _refuse_other_layouts(request: Request) -> None:
    """Refuses a file that another program has made."""
    # `read_images` does the same for a folder
    if not Path(request.source).is_dir():
        refuse_other_layouts(request.source)


def _read_index(request: Request) -> ImageTable | None:
    """The index of a folder in a store, if it was written with the options that are asked for."""
    source = request.source
    one_file = is_shard(source) or Path(source).suffix == ".parquet" or is_pattern(source)
    if not is_remote(source) or one_file:
        return None
    asked = note_reading(request.targets, request.with_labels, request.table, request.bits)
    indexed = read_index(str(source), asked)
    return finish(indexed, request.classes, request.strict) if indexed else None


def _refuse_untaken(request: Request) -> None:
    if request.kind == "table":
        return  # `read_table` does the same
    given = list_given(
        request.table,
        request.targets,
        images=request.images,
        classes=request.classes,
        split=request.split,
    )
    refuse_untaken(list_untaken(request.source, given, request.kind))


def _read_manifest(request: Request) -> ImageTable | None:
    if request.kind != "manifest":
        return None
    return finish(saved_manifests.load(request.source), request.classes, request.strict)


def _read_coco(request: Request) -> ImageTable | None:
    if request.kind != "coco":
        return None
    names = ("bad_objects", "flip_pairs", "annotated")
    objects = {name: getattr(request.targets, name) for name in names}
    images = read_coco(request.source, root=request.images, **request.checks, **objects)
    return finish(images, request.classes, request.strict)


def _read_table(request: Request) -> ImageTable | None:
    if request.kind != "table":
        return None
    options = asdict(request.table) | request.checks | request.labelling
    options |= {"split": request.split, "strict": request.strict}
    return read_table(request.source, root=request.images, **options)


def _read_images(request: Request) -> ImageTable:
    """The images of a folder, of a shard or of a pattern of shards."""
    # `read_images` refuses a cache for targets
    folder = None if request.targets.named else request.cache_dir
    cache = cache_file(folder, request.source, request.with_labels) if folder else None
    return read_images(
        request.source,
        cache=cache,
        unchanged=request.unchanged,
        strict=request.strict,
        **request.checks,
        **request.labelling,
    )


# A row is a kind of source. What none of them takes is a folder or shards to scan. The index comes
# before the kinds: finding the kind lists a folder in a store, which an index saves.
READERS: tuple[Callable[[Request], ImageTable | None], ...] = (
    _refuse_other_layouts,
    _read_index,
    _refuse_untaken,
    _read_manifest,
    _read_coco,
    _read_table,
)
