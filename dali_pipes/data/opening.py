"""What `Manifest.scan` and `Manifest.open` do: find the kind of a source, and reuse what is known
of it.

- `scan` reads the images of folders or shards, and reuses an earlier scan of them from a file in a
  local cache (`cache_file`).
- `kind_of` says what a source is, and so which function of `Manifest` opens it.
- `read_index` and `write_index` handle index.arrow: the manifest of the images in an object store,
  beside them, so that opening these images reads this one object and no image.
"""

import hashlib
import json
import logging
import os
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.compute as pc

from dali_pipes.data.objects import NO_TARGETS, Targets
from dali_pipes.data.omissions import Omission, count_by_kind
from dali_pipes.data.scanning.class_folders import scan_folder
from dali_pipes.data.scanning.class_objects import scan_objects
from dali_pipes.data.scanning.earlier import EarlierScan, FolderRecords, Journal
from dali_pipes.data.scanning.headers import ScanOptions, describe_os_error
from dali_pipes.data.scanning.housekeeping import is_housekeeping
from dali_pipes.data.scanning.layouts import local_path, refuse_other_layouts
from dali_pipes.data.scanning.names import list_entries, sort_names
from dali_pipes.data.scanning.patterns import is_pattern, pattern_of_files
from dali_pipes.data.scanning.shards import (
    CLASSES_FILE,
    MISSING_SHARDS,
    is_shard,
    list_all_shards,
    list_missing_shards,
    list_shards,
    scan_shards,
)
from dali_pipes.data.scanning.splits import refuse_mixed_files
from dali_pipes.data.scanning.tables import all_embedded_files, embedded_files
from dali_pipes.data.shards.copies import cache_folder, copy_of
from dali_pipes.data.shards.parquet import group_of, is_group
from dali_pipes.data.shards.remote import (
    NoPermissionError,
    absolute,
    download,
    is_remote,
    is_web,
    list_objects,
    version_of,
    write_object,
)
from dali_pipes.data.table import saved
from dali_pipes.data.table.schema import RULES
from dali_pipes.data.table_options import TableOptions
from dali_pipes.errors import ManifestError, check_choice
from dali_pipes.system.files import written

INDEX = "index.arrow"
READ_AS = "read_as"  # where a manifest keeps the options that its rows depend on
_AGAIN = (
    "Manifest.scan('{0}').save_index() (images in Parquet files: "
    "Manifest.from_table('{0}').save_index())"
)
Manifest = Any  # the class in manifest.py, which imports this module

log = logging.getLogger(__name__)


def scan(
    kind: type[Manifest], root: str | Path, check: ScanOptions, cache: Path | None, unchanged: str
) -> Manifest:
    """Scans folders or shards into a new manifest and saves it in the cache.

    Returns the cached manifest if nothing has changed.

    Raises:
        ManifestError: as `Manifest.scan`; or a folder may not be read.
    """
    try:
        return _scan(kind, root, check, cache, unchanged)
    except PermissionError as error:
        place = os.fsdecode(error.filename or os.fspath(root))
        raise ManifestError(
            f"{place}: {describe_os_error(error)}; make it readable, or move it away"
        ) from None


def _scan(
    kind: type[Manifest], root: str | Path, check: ScanOptions, cache: Path | None, unchanged: str
) -> Manifest:
    check_choice("unchanged", unchanged, ("file", "folder"))

    # refuse what is no source of this kind, before images are read
    root = local_path(root)
    entries = list_entries(Path(root)) if not is_remote(root) and Path(root).is_dir() else []
    refuse_other_layouts(root, check.with_labels, entries)
    if is_pattern(root) and _kind_of_pattern(root) == "table":
        raise ManifestError(
            f"{root}: images in Parquet files are opened with Manifest.open or Manifest.from_table"
        )

    # targets are read from shards, without a cache
    folder, shards = list_shards(absolute(root))
    if check.targets.named:
        if not shards:
            why = (
                "targets are read from shards and tables; of images in folders use from_coco "
                "or from_masks"
            )
            raise ManifestError(f"{folder}: {why}")
        classes, table = scan_shards(folder, shards, check)
        beside = _name_beside(absolute(root), folder, shards)
        return kind(
            folder, classes, table, keypoints=check.targets.keypoints_named, omissions=beside
        )

    folders: FolderRecords = {}
    omissions: list[Omission] = []
    with Journal(cache) as journal:
        known = _remembered(kind, cache, check.with_labels) if cache else None
        # a scan of another root does not count, even if the same files are there
        same = known = known if known and known.root == folder else None

        if shards:
            classes, table = scan_shards(folder, shards, check, same.table if same else None)
            omissions = _name_beside(absolute(root), folder, shards)
        elif isinstance(folder, str):
            classes, table, omissions = scan_objects(folder, check)
        else:
            trust = same is not None and unchanged == "folder"
            samples, of_before, names = (
                (known.samples, known.folders, known.classes) if known else (None, {}, [])
            )
            earlier = EarlierScan(samples, of_before, names, journal, trust)
            classes, table, folders = scan_folder(folder, entries, check, earlier)

        # no folder was touched since the earlier scan
        if table is None:
            return same
        made = kind(folder, classes, table, folders, omissions=omissions)
        return same if same and _are_equal(made, same) else _cached(made, cache)


def _are_equal(made: Manifest, same: Manifest) -> bool:
    known = (same.classes, same.folders, same.omissions)
    return (made.classes, made.folders, made.omissions) == known and made.table.equals(same.table)


def _name_beside(
    source: Path | str, folder: Path | str, shards: Collection[bytes]
) -> list[Omission]:
    """Counts files beside the shards of a folder, and shards that its numbering lacks.

    Other files are not listed for one shard or for a pattern.
    """
    missing = count_by_kind(
        (MISSING_SHARDS, name) for name in list_missing_shards(map(os.fsdecode, shards))
    )
    if str(source).rstrip("/") != str(folder):
        return missing if is_pattern(source) else []

    if isinstance(folder, str):
        there = list(list_objects(folder))
    else:
        there = [entry.name for entry in os.scandir(folder) if not entry.is_dir()]

    named = {os.fsdecode(name) for name in shards} | {INDEX, CLASSES_FILE}
    images, omissions = sort_names(sorted(name for name in there if name not in named))
    return (
        missing + omissions + count_by_kind(("images beside the shards", name) for name in images)
    )


def name_beside_parquet(source: Path | str, manifest: Manifest) -> list[Omission]:
    """Does the same for the Parquet files that hold a manifest's images.

    Returns nothing for a table of paths.
    """
    paths = manifest.table["path"]
    if not len(paths) or not is_group(os.fsdecode(paths[0].as_py())):
        return []

    names = {os.fsencode(group_of(os.fsdecode(path))[0]) for path in pc.unique(paths).to_pylist()}
    return _name_beside(source, manifest.root, names)


def _remembered(kind: type[Manifest], cache: Path, with_labels: bool) -> Manifest | None:
    """Loads an earlier scan from the cache.

    Returns None if the cache is missing, or is from another version or for another purpose; it is
    then replaced.
    """
    try:
        saved.refuse_other_file(cache)
    except PermissionError:
        return None  # `_cached` warns that it cannot be written
    try:
        known = kind.load(cache)
        known.samples  # noqa: B018  reading the table checks all of it
    except ManifestError:
        return None
    return known if known.rules == RULES and (known.task != "multilabel") == with_labels else None


def _cached(manifest: Manifest, cache: Path | None) -> Manifest:
    """Saves a manifest in the cache.

    Returns it mapped from its file, if that is an Arrow file; a cache that cannot be written is
    warned of.
    """
    if not cache:
        return manifest

    try:
        manifest.save(cache)
        return type(manifest).load(cache) if cache.suffix == saved.MAPPED else manifest
    except OSError as error:
        log.warning(
            "the scan cannot be cached in %s (%s); continuing without a cache",
            cache,
            error.strerror,
        )
        return manifest


def kind_of(source: str | Path) -> str:
    """Says what a source is: "manifest", "table", "coco" or "images".

    That is a saved manifest, a table of paths or of images, a JSON file of COCO's form, or images
    in folders or shards.
    """
    file = Path(source)
    if is_pattern(source):
        return _kind_of_pattern(source)

    if is_remote(source):
        return (
            "table"
            if file.suffix == ".parquet" or (not is_shard(file) and embedded_files(str(source)))
            else "images"
        )

    if file.suffix == ".json":
        return "coco"

    if (file.suffix == saved.MAPPED and not file.is_dir()) or (
        file.suffix == ".parquet" and saved.is_manifest(file)
    ):
        return "manifest"
    if (
        (file.is_dir() and embedded_files(file))
        or (file.is_file() and not is_shard(file))
        or file.suffix in (saved.MAPPED, ".parquet", ".csv", ".tsv")
    ):
        return "table"
    return "images"


def _kind_of_pattern(source: str | Path) -> str:
    shards, tables = list_all_shards(absolute(source))[1], all_embedded_files(absolute(source))
    if shards and tables:
        both = f"{os.fsdecode(next(iter(shards)))} and {Path(tables[0]).name}"
        raise ManifestError(
            f"{source}: matches shards of two kinds, such as {both}; match one kind"
        )

    if not shards and not tables:
        kinds = "NAME.tar, NAME.tfrecord, or NAME.parquet with images in it"
        raise ManifestError(
            f"{source}: matches files, but none is a shard ({kinds}); give a folder or a table "
            "without a pattern"
        )

    return "table" if tables else "images"


def cache_file(folder: str | Path, root: str | Path, with_labels: bool = True) -> Path | None:
    """The file for the cached scan of a root; None if the cache cannot be used.

    A damaged file there is removed.
    """
    # scans with and without labels have different rows
    purpose = b"" if with_labels else b"\0without labels"
    key = hashlib.sha256(os.fsencode(absolute(root)) + purpose).hexdigest()[:16]
    file = Path(folder, f"{Path(root).name[:60] or 'root'}-{key}{saved.MAPPED}")

    try:
        if file.exists() and not saved.is_manifest(file):
            log.warning("%s is damaged; the images are scanned again", file)
            file.unlink()
    except OSError as error:  # such as the home of another user, in a container
        log.warning(
            "the cache %s cannot be used (%s); continuing without a cache",
            folder,
            describe_os_error(error),
        )
        return None
    return file


def note_reading(
    targets: Targets, with_labels: bool, table: TableOptions | None = None
) -> dict[str, Any]:
    """The options that a manifest's rows depend on and that are not the defaults.

    They are in JSON's types.
    """
    noted: dict[str, Any] = {} if with_labels else {"with_labels": False}
    for name, given, default in (
        ("targets", targets, NO_TARGETS),
        ("table", table or TableOptions(), TableOptions()),
    ):
        usual = asdict(default)
        if changed := {
            each: value for each, value in asdict(given).items() if value != usual[each]
        }:
            noted[name] = changed

    if not targets.named:
        noted.pop("targets", None)

    # through JSON, since an index gives them back so: lists, and text for keys
    return dict(json.loads(json.dumps(noted)))


def _is_as_asked(indexed: Manifest, asked: dict[str, Any]) -> bool:
    """Whether an index was read with the options that are asked for.

    An index is taken as it is where nothing is asked.
    """
    has = indexed._known.get(READ_AS) or {}
    if (
        "with_labels" in asked
        and "with_labels" not in has
        and any(why.startswith("no label") for _, why in indexed.problems)
    ):
        return False  # images without labels are asked for, and the index leaves them out

    return all(asked[name] == has.get(name) for name in ("targets", "table") if name in asked)


def read_index(kind: type[Manifest], url: str, asked: dict[str, Any]) -> Manifest | None:
    """Reads the manifest out of a folder's index.

    Returns None if there is no index, or one that was read with other options than are asked for.

    If the index was written before the shards were uploaded, it has only their sizes, which are
    compared now. If it was written in the store, it has their ETags, which are compared when a
    shard is fetched.

    Raises:
        ManifestError: the index is damaged, or is not of the files that are there.
    """
    place = f"{url.rstrip('/')}/{INDEX}"
    try:
        made = _load_index(kind, place)
    except FileNotFoundError:
        return None
    except OSError as error:
        if is_web(url) and isinstance(error, NoPermissionError):
            return None  # many web servers answer so for what is not there
        raise ManifestError(f"{place}: {error}") from None
    except ManifestError as error:
        raise ManifestError(
            f"{place}: damaged ({error}); write it again: {_AGAIN.format(url)}"
        ) from None

    if not _is_as_asked(made, asked):
        few = ", ".join(f"{name}={value}" for name, value in asked.items())
        do = "write it again with these options to open it as fast"
        log.warning(
            "%s was not written with %s, so the images are read instead of it; %s", place, few, do
        )
        return None

    if not made.whole_files:
        refuse_mixed_files(
            url,
            url.rstrip("/"),
            (group_of(name)[0] if is_group(name) else name for name in made.shards.names),
        )

    before = made.root
    made = made.moved_to(url.rstrip("/"))
    # an index from the store has ETags, and one of whole files has no sizes to compare
    if is_remote(before) or not made.shards.bytes.any():
        return made

    listing = list_objects(url)
    listed = listing.versions(name for name in made.shards.names if name in listing)
    unknown = [
        name for name in listing if name not in made.shards.names and not is_housekeeping(name)
    ]
    if added := list(filter(is_shard, unknown)):
        raise ManifestError(
            f"{place}: {added[0]} is not in the index; write it again: {_AGAIN.format(url)}"
        )

    for name, size in zip(made.shards.names, made.shards.bytes.tolist(), strict=True):
        there = listed.get(name, (0, 0))[0]
        if there != size:
            is_other = f"has {there:,} bytes" if name in listed else "is not there"
            sizes = f"{name} has {size:,} bytes in the index, and {is_other}"
            raise ManifestError(f"{place}: {sizes}; upload it, or write the index again")

    return made.with_versions(listed)


def _load_index(kind: type[Manifest], place: str) -> Manifest:
    """Loads an index from its copy in the cache, which is mapped.

    The copy is fetched if it is missing or damaged. It is not removed to make room, as copies of
    shards are.

    Raises:
        FileNotFoundError: there is no index.
        OSError: it cannot be fetched.
        ManifestError: what the store has is damaged.
    """
    version = version_of(place)
    file = cache_folder() / "indexes" / f"{copy_of(place, version).name}.arrow"
    was_there = file.exists() and file.stat().st_size == version[0]
    if not was_there:
        with written(file) as out:
            download(place, version, out.write)

    try:
        made = kind.load(file)
        made.verify()
        return made
    except ManifestError:
        file.unlink(missing_ok=True)
        if not was_there:
            raise

    log.warning("%s: its copy in the cache was damaged, and is fetched again", place)
    return _load_index(kind, place)


def write_index(manifest: Manifest) -> str:
    """Writes the index beside the images; returns its path or URL.

    Raises:
        ManifestError: it would hold no image, would lack files of the folder, or cannot be written
            there.
    """
    place = f"{manifest.root}/{INDEX}"
    if not len(manifest):
        why = f", such as {': '.join(manifest.problems[0])}" if manifest.problems else ""
        do = (
            "name what is read of an image besides its label (targets, --target), or read them "
            "without labels"
        )
        raise ManifestError(
            f"{place}: would hold no image ({len(manifest.problems):,} cannot be used{why}); {do}"
        )

    _check_complete(manifest)

    if not is_remote(place):
        if any(map(is_group, manifest.shards.files)):
            raise ManifestError(
                f"{place}: an index of Parquet files is written where they lie: "
                "Manifest.open(URL).save_index()"
            )

        made = (
            manifest
            if manifest.whole_files
            else manifest.with_versions(dict.fromkeys(manifest.shards.names, (0, 0)))
        )
        # it is uploaded with the shards, where times and folders of this machine mean nothing
        made.moved_to(".").save(place)
        return place

    with TemporaryDirectory() as folder:
        file = Path(folder, INDEX)
        manifest.save(file)
        try:
            write_object(place, file.read_bytes())
        except OSError as error:
            raise ManifestError(
                f"{place}: {error}; it needs the permission to write there"
            ) from None

    return place


def refuse_partial_index(source: str | Path) -> None:
    """Raises ManifestError if the index of this pattern would leave out files of the folder.

    It is called before any image is read.

    Raises:
        ManifestError: there are such files.
    """
    if pattern := pattern_of_files(source):
        kinds = list_all_shards(absolute(source))[1], all_embedded_files(absolute(source))
        _check_named(
            {Path(os.fsdecode(file)).name for files in kinds for file in files}, pattern.folder
        )


def _check_complete(manifest: Manifest) -> None:
    """Raises ManifestError if shards or Parquet files lie beside those of the manifest.

    Who reads the index would miss them.
    """
    if manifest.whole_files:
        return
    paths = map(os.fsdecode, pc.unique(manifest.table["path"]).to_pylist())
    _check_named({group_of(path)[0] if is_group(path) else path for path in paths}, manifest.root)


def _check_named(named: set[str], folder: str | Path) -> None:
    shards = map(os.fsdecode, list_all_shards(absolute(folder))[1])
    there = {Path(file).name for file in [*shards, *all_embedded_files(absolute(folder))]}

    if missing := sorted(there - named):
        few = (
            f"{len(missing):,} of the {len(there):,} files there are not in this manifest, "
            f"such as {missing[0]}"
        )
        why = "and an index is of all files of its folder, so who reads it would miss them"
        do = (
            "if all are one data set, index the folder; otherwise save this manifest "
            "(Manifest.save) and open that file"
        )
        raise ManifestError(f"{folder}/{INDEX}: {few}, {why}; {do}")
