"""What is in an object store: `list_objects`, `find_objects` and `look_up` return a `Listing`,
names with versions.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

from dali_pipes.data.shards.addresses import encode_url, is_web, path_in_store
from dali_pipes.data.shards.store_requests import is_found_by_folder, request
from dali_pipes.data.shards.versions import FileVersion, is_page, version_if_listed, version_of
from dali_pipes.errors import ManifestError

_AT_ONCE = 32  # requests about single objects


class Listing(Mapping[str, FileVersion]):
    """The objects under a URL: a mapping from name to version. Iterating asks the store nothing.

    A listing may lack versions, or give other ones than the store gives of a single object. Then
    each object is asked for by itself, since versions are later compared with those of single
    objects.

    Args:
        url: the place, without a slash at its end.
        infos: what the store says of each object; None: it was not asked.
    """

    def __init__(self, url: str, infos: Mapping[str, dict[str, Any] | None]):
        self._url, self._infos = url, infos
        self._versions: dict[str, FileVersion] = {}

    def __getitem__(self, name: str) -> FileVersion:
        if name not in self._infos:
            raise KeyError(name)
        return self.versions([name])[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def versions(self, names: Iterable[str]) -> dict[str, FileVersion]:
        """The versions of these objects.

        Raises:
            ManifestError: the store does not say how large one is.
        """
        names = list(names)
        missing = [name for name in names if name not in self._versions]
        if missing:
            # the listing is trusted if it says the same of one object as the store does
            first, *others = missing
            self._versions[first] = self._ask(first)
            listed = {name: version_if_listed(self._infos[name]) for name in missing}
            if listed[first] == self._versions[first] and None not in listed.values():
                self._versions |= {name: version for name, version in listed.items() if version}
            else:
                with ThreadPoolExecutor(_AT_ONCE) as pool:
                    self._versions |= zip(others, pool.map(self._ask, others), strict=True)

        return {name: self._versions[name] for name in names}

    def _ask(self, name: str) -> FileVersion:
        try:
            return version_of(f"{self._url}/{name}")
        except OSError as error:
            raise ManifestError(f"{self._url}/{name}: {error.strerror or error}") from None


def list_objects(url: str) -> Listing:
    """Lists the objects directly under `url`.

    Raises:
        ManifestError: there is nothing.
    """
    # a web server without listings answers with nothing, or with an error
    infos = _list(url, "ls")
    if not infos and is_web(url):
        do = (
            "name the shards by a pattern with braces, such as shard-{000000..000063}.tar, or "
            "download them"
        )
        raise ManifestError(f"{url}: its server lists no files there; {do}")

    if infos is None:
        raise ManifestError(
            f"{url}: no such place in the object store; is there such a bucket, and such a "
            "path in it?"
        )

    return Listing(url.rstrip("/"), {_name_of(info): info for info in infos if _is_object(info)})


def find_objects(url: str) -> Listing:
    """Lists all objects below `url`, in folders too; their names are the paths from `url` on."""
    if is_found_by_folder(url):
        return Listing(url.rstrip("/"), dict(_walk(url.rstrip("/"))))

    # fsspec returns full paths, and names are relative to the URL
    base = path_in_store(url).strip("/") + "/"
    infos = (_list(url, "find") or {}).items()
    named = {
        path_in_store(name).lstrip("/").removeprefix(base): info
        for name, info in infos
        if _is_object(info)
    }
    return Listing(url.rstrip("/"), named)


def _walk(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each object below `url` with its path from there.

    Raises:
        ManifestError: a folder cannot be listed.
    """
    folders = [""]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while folders:
            listed = list(pool.map(lambda folder: _list(url + folder, "ls") or [], folders))
            inside = [
                (folder, info)
                for folder, infos in zip(folders, listed, strict=True)
                for info in infos
            ]

            yield from (
                # folders begin with a slash here, and names do not
                (f"{folder}/{_name_of(info)}"[1:], info)
                for folder, info in inside
                if _is_object(info)
            )

            folders = [
                f"{folder}/{_name_of(info)}"
                for folder, info in inside
                if info["type"] == "directory" and not _is_link_up(url + folder, info)
            ]


def _is_link_up(url: str, info: dict[str, Any]) -> bool:
    """Whether an entry is the folder itself or one above it.

    A web server's page of a folder may link to these.
    """
    place, name = (path_in_store(address).strip("/") for address in (encode_url(url), info["name"]))
    return name == place or name.rsplit("/", 1)[-1] in (".", "..")


def _name_of(info: dict[str, Any]) -> str:
    """The last part of an object's path, as a person reads it."""
    name = str(info["name"]).rstrip("/").rsplit("/", 1)[-1]
    plain = unquote(name) if is_web(info["name"]) else name
    # a name with such characters must stay encoded to be one part of a URL
    return name if set(plain) & set("%?#/") else plain


def look_up(folder: str, names: Iterable[str]) -> Listing:
    """Finds which of the names are there, without a listing.

    Raises:
        ManifestError: the store does not say.
    """
    names = list(names)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        there = list(pool.map(lambda name: is_object(f"{folder}/{name}"), names))
    return Listing(
        folder, {name: None for name, is_there in zip(names, there, strict=True) if is_there}
    )


def is_object(url: str) -> bool:
    """Whether there is an object with exactly this name."""
    try:
        info = request(url, "info")
        return _is_object(info) and not is_page(url, info)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ManifestError(f"{url}: {error}") from None


def is_there(url: str) -> bool:
    """Whether there is an object or a folder with exactly this name."""
    return _list(url, "ls") is not None


def _list(url: str, method: str) -> Any:
    try:
        return request(url, method, detail=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ManifestError(f"{url}: cannot be listed ({error})") from None


def _is_object(info: dict[str, Any]) -> bool:
    # a web server's page of a folder has links that sort it, such as ?C=M;O=A
    sorts = is_web(info["name"]) and "?" in info["name"]
    return info["type"] == "file" and not sorts
