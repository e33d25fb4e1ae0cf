"""The limit on open files of a process (`ulimit -n`)."""

import errno
import logging
import os
import resource
from collections.abc import Iterator

log = logging.getLogger(__name__)

_RESERVE = 256  # of libraries, threads and logs
_PLENTY = 65_536
_MESSAGE = os.strerror(errno.EMFILE).lower()


def allow_open_files(need: int) -> bool:
    """Raises the limit, if it may, so that so many more files can be open at a time.

    Returns:
        Whether they can be.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = need + len(os.listdir("/proc/self/fd")) + _RESERVE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return True
    # other loaders of this process will ask too
    allowed = max(wanted, _PLENTY)
    allowed = allowed if hard == resource.RLIM_INFINITY else min(hard, allowed)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        log.info("this process may now have %s files open, %s before", allowed, soft)
    return allowed >= wanted


def name_limit(error: BaseException) -> str:
    """Says that an error comes of the limit, and what to do; "": it does not."""
    if not any(map(_is_of_limit, _chain(error))):
        return ""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"this process may have {soft:,} files open (ulimit -n), and needs more; raise the limit"
        + (f", at most to {hard:,}" if soft < hard != resource.RLIM_INFINITY else "")
        + ", or lower batch_size or the number of workers"
    )


def _is_of_limit(error: BaseException) -> bool:
    number = error.errno if isinstance(error, OSError) else None
    return number in (errno.EMFILE, errno.ENFILE) or _MESSAGE in str(error).lower()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
