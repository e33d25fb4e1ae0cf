"""index.arrow beside images in an object store: their manifest, so that opening them reads this object and no image."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dali_pipes.data.scanning.shards import is_shard
from dali_pipes.data.shards.copies import cache_folder, copy_of
from dali_pipes.data.shards.parquet import is_group
from dali_pipes.data.shards.remote import download, is_remote, list_objects, version_of, write_object
from dali_pipes.errors import ManifestError
from dali_pipes.system.files import replacing

FILE = "index.arrow"
Manifest = Any  # the class in manifest.py, which uses this module


def read_index(kind: type[Manifest], url: str) -> Manifest | None:
    """The manifest out of a folder's index; None: it has none.

    Of an index that was written before the shards were uploaded the shards' sizes are compared now. One that was written in the
    store holds their ETags, which are compared when a shard is fetched.

    Raises:
        ManifestError: it is damaged, or of other shards, or the object store cannot be reached.
    """
    place = f"{url.rstrip('/')}/{FILE}"
    try:
        file = _copy(place)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ManifestError(f"{place}: {error}") from None
    try:
        made = kind.load(file)
        made.verify()
    except ManifestError as error:
        file.unlink()
        raise ManifestError(f"{place}: damaged ({error}); write it again: Manifest.scan({url!r}).save_index()") from None
    before = made.root
    made = made.moved_to(url.rstrip("/"))
    if is_remote(before) or not made.shards.bytes.any():
        return made
    listed = list_objects(url)
    if added := [name for name in listed if is_shard(name) and name not in made.shards.names]:
        raise ManifestError(f"{place}: {added[0]} is not in the index; write it again: Manifest.scan({url!r}).save_index()")
    for name, size in zip(made.shards.names, made.shards.bytes.tolist(), strict=True):
        there = listed.get(name, (0, 0))[0]
        if there != size:
            is_other = f"has {there:,} bytes" if name in listed else "is not there"
            raise ManifestError(
                f"{place}: {name} has {size:,} bytes in the index, and {is_other}; upload it, or write the index again"
            )
    return made.with_versions(listed)


def _copy(place: str) -> Path:
    """Beside the shards' copies, but never removed: it is mapped."""
    version = version_of(place)
    file = cache_folder() / "indexes" / f"{copy_of(place, version).name}.arrow"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as aside, aside.open("wb") as out:
            download(place, version, out.write)
    return file


def write_index(manifest: Manifest) -> str:
    """Beside the images; returns its path or URL.

    Raises:
        ManifestError: it cannot be written there.
    """
    place = f"{manifest.root}/{FILE}"
    if not is_remote(place):
        if any(map(is_group, manifest.shards.files)):
            raise ManifestError(f"{place}: an index of Parquet files is written where they lie: Manifest.open(URL).save_index()")
        made = manifest if manifest.whole_files else manifest.with_versions(dict.fromkeys(manifest.shards.names, (0, 0)))
        made.moved_to(".").save(place)  # it is to be uploaded: neither times nor folders are those of this machine
        return place
    with TemporaryDirectory() as folder:
        file = Path(folder, FILE)
        manifest.save(file)
        try:
            write_object(place, file.read_bytes())
        except OSError as error:
            raise ManifestError(f"{place}: {error}; it needs the permission to write there") from None
    return place
