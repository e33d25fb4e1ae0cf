"""Requests to object stores by fsspec, with patience for networks.

A request that fails is sent again after a pause (`request`). The pause grows and has a random part,
so that many ranks do not come back at once. Each request has a deadline, since an answer of one
byte a second never reaches the time-outs of the libraries below. faults.py says which errors are
final.
"""

import errno
import logging
import random
import time
from typing import Any

from dali_pipes.data.shards import traffic
from dali_pipes.data.shards.addresses import encode_url
from dali_pipes.data.shards.faults import Fault, judge, shorten
from dali_pipes.errors import ConfigError

# each pause is about twice as long as the one before; 42 s in all
_ATTEMPTS, _FIRST_PAUSE_S, _MAX_PAUSE_S = 10, 0.2, 10.0
# for each request while none succeeds, so that a store that is away is reported within minutes
_ATTEMPTS_WHILE_FAILING = 2
# if the store has never answered, and its login or network may be wrong, or nothing was sent to it
_ATTEMPTS_UNANSWERED = 4
_QUIET_ATTEMPTS = 3  # of a request, before a warning says what it waits for
_DEADLINE_S, _SLOWEST = 30.0, 100_000  # of a request: seconds, plus one for so many bytes
# those that fsspec's own error does not name as pip does
_PACKAGES = {"s3": "'dali_pipes[s3]'", "s3a": "'dali_pipes[s3]'", "hf": "huggingface_hub"}
_SETTINGS = "docs/object-stores.md has the settings of stores"
log = logging.getLogger(__name__)
# stores in which a request failed in all attempts, and none has succeeded since
_failing_stores: set[str] = set()
# The file systems, kept alive so that a forked process does not end those of its parent: fsspec
# would close their connections there and take them out of the parent's epoll, and the parent would
# wait for their answers until the deadline.
_file_systems: dict[int, Any] = {}
_answering_stores: set[str] = set()  # stores that have answered a request


class RefusedError(OSError):
    """The store does not do it, or does not let this user do it."""


def request(url: str, method: str, size: int = 0, *args: Any, **options: Any) -> Any:
    """Sends a request to the object store, and sends it again if it fails; returns the answer.

    Args:
        method: a method of fsspec's file systems.
        size: how many bytes are asked for or sent, if that is known.

    Raises:
        FileNotFoundError: there is no such object.
        RefusedError: the store refuses it.
        OSError: it failed in all attempts.
    """
    failed, store = 0, "/".join(url.split("/")[:3])
    while True:
        try:
            answer = _send(url, method, _DEADLINE_S + size / _SLOWEST, args, options)
            # a longer answer is the whole object, from a server that sends no parts
            if (
                size
                and method == "cat_file"
                and len(answer) != size
                and len(answer) < options["end"]
            ):
                raise OSError(f"{len(answer):,} bytes came instead of {size:,}")
            _failing_stores.discard(store)
            _answering_stores.add(store)
            return answer
        except ConfigError:
            raise
        except Exception as error:  # a broken connection looks different with each store
            failed += 1
            fault, why = judge(error, store in _answering_stores), shorten(error)
            if fault is Fault.MISSING:
                # that there is no such object is an answer too
                _answering_stores.add(store)
                raise FileNotFoundError(errno.ENOENT, "no such object", url) from None
            if fault is Fault.REFUSED:
                raise RefusedError(f"refused ({why}); {_SETTINGS}") from None

            attempts = _ATTEMPTS
            if fault is Fault.UNANSWERED:
                attempts = min(attempts, _ATTEMPTS_UNANSWERED)
            if store in _failing_stores:
                attempts = min(attempts, _ATTEMPTS_WHILE_FAILING)
            if failed >= attempts:
                _failing_stores.add(store)
                advice = f"; {_SETTINGS}" if fault is Fault.UNANSWERED else ""
                raise OSError(f"cannot be fetched ({failed} times: {why}){advice}") from None

            soon = fault is Fault.UNANSWERED or failed >= _QUIET_ATTEMPTS
            log.log(
                logging.WARNING if soon else logging.INFO,
                "%s: attempt %d of %d failed (%s); trying again",
                *(url, failed, attempts, why),
            )
            traffic.add(retries=1)
            time.sleep(
                min(_FIRST_PAUSE_S * 2 ** (failed - 1), _MAX_PAUSE_S) * random.uniform(0.5, 1.5)
            )


def request_once(url: str, method: str) -> Any:
    """Sends a request without a second attempt; whatever error there is, is raised."""
    return _send(url, method, _DEADLINE_S, (), {})


def _send(
    url: str, method: str, deadline_s: float, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """Sends one request and returns the answer.

    Raises:
        TimeoutError: after the deadline, if the file system can be interrupted.
        ConfigError: a package is missing.
    """
    files, path = _connect(url)
    import fsspec
    from fsspec.asyn import AsyncFileSystem, sync

    try:
        if not isinstance(files, AsyncFileSystem):
            return getattr(files, method)(path, *args, **options)
        return sync(
            files.loop, getattr(files, f"_{method}"), path, *args, timeout=deadline_s, **options
        )
    except ImportError as error:  # some libraries import their parts when they are first needed
        raise ConfigError(f"{url}: {shorten(error)}; install it") from None
    except fsspec.exceptions.FSTimeoutError:
        raise TimeoutError(f"no whole answer within {deadline_s:.0f} s") from None


def _connect(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it.

    Raises:
        ConfigError: there is none, or its package is missing.
    """
    scheme = url.split("://")[0]
    # a manifest may have it in its rows, and fsspec's `reference` carries out templates of a file
    if "::" in url:
        raise ConfigError(f"{url}: several URLs in one are not read")
    try:
        import fsspec

        files, path = _file_system(fsspec, scheme, encode_url(url))
    except ImportError as error:
        install = _PACKAGES.get(scheme, "the package that it asks for")
        raise ConfigError(
            f"{url} needs fsspec with its package for {scheme}:// ({error}); pip install {install}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{url}: {shorten(error)}") from None

    _file_systems[id(files)] = files
    return files, path


def _file_system(fsspec: Any, scheme: str, url: str) -> tuple[Any, str]:
    """The file system of this process, and the path in it.

    That of S3 sends a request once, since `request` counts the attempts.
    """
    # use_listings_cache: a listing that fsspec keeps would lack what is uploaded later
    if scheme not in ("s3", "s3a"):
        return fsspec.core.url_to_fs(url, use_listings_cache=False)
    configured = fsspec.config.conf
    users = (configured.get("s3", {}) | configured.get("s3a", {})).get("config_kwargs", {})
    # the user's own settings go before ours
    once = {"retries": {"total_max_attempts": 1}} | users
    files, path = fsspec.core.url_to_fs(url, use_listings_cache=False, config_kwargs=once)
    # s3fs sends requests again too, besides botocore
    files.retries = 1
    return files, path


def is_found_by_folder(url: str) -> bool:
    """Whether fsspec's own `find` lists the store folder by folder.

    It then silently leaves out a folder that it cannot list, so `_walk` is used instead.
    """
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

    kind = type(_connect(url)[0])
    return (
        kind.find is AbstractFileSystem.find
        or getattr(kind, "_find", None) is AsyncFileSystem._find
    )
