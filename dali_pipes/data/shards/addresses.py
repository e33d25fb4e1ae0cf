"""Addresses of images: paths of this machine, and URLs of object stores and web servers."""

import os
from pathlib import Path
from urllib.parse import quote

_SAFE = "/:?&=+,;@!$'()*~[]%"  # what stays in a web address; % begins what is encoded already


def is_remote(source: str | os.PathLike[str]) -> bool:
    """Whether a source is a URL."""
    return "://" in os.fspath(source)


def absolute(root: str | os.PathLike[str]) -> Path | str:
    """The absolute path of a folder, or the URL as it is."""
    return str(root) if is_remote(root) else Path(os.path.abspath(root))


def is_web(url: str | os.PathLike[str]) -> bool:
    """Whether a URL's store is a web server.

    A web server may have no listing, and may answer with a page for what is not there.
    """
    return os.fspath(url).startswith(("http://", "https://"))


def encode_url(url: str) -> str:
    return quote(url, safe=_SAFE) if is_web(url) else url


def path_in_store(url: str) -> str:
    return url.rpartition("://")[2]
