"""What a job prints on stderr, and how it ends: mistakes in one line, warnings as plain lines.

`stop` ends the program for any mistake, `stop_once` for one that all ranks of torchrun see.
`explain_file_error` writes what the system says of a file; `explain.py` has Hydra's mistakes.
"""

import errno
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

from dali_pipes.cli.spelling import spell_mentions

# of a disk, a quota, or a limit on the size of files
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def stop(message: str, status: int = 2) -> NoReturn:
    """Prints the mistake in one line, and ends the program."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(status)


def stop_once(message: str, status: int = 2) -> NoReturn:
    """Ends the program for a mistake that all ranks of torchrun see.

    Only the first rank of each machine reports it.
    """
    if not is_first_rank():
        sys.exit(status)
    stop(message, status)


def is_first_rank() -> bool:
    """Returns whether this is the first process that torchrun started here, or the only one."""
    return not int(os.environ.get("LOCAL_RANK", 0))


def explain_file_error(error: OSError, out: str | None = None) -> str:
    """Returns in one line what the system says of a file.

    Args:
        out: where the job writes, for an error that names no file: when a disk becomes full, the
            write fails, not the opening.

    Raises:
        OSError: the error itself, if it is about neither a file nor a full disk.
    """
    if error.filename is not None:
        return _explain_path(error, Path(os.fsdecode(error.filename)).absolute())

    # PyArrow's errors have the number in their text only
    number = next(
        (code for code in _FULL if error.errno == code or os.strerror(code) in str(error)), None
    )
    if number is None:
        raise error

    elsewhere = f"write elsewhere than {Path(out).absolute()}" if out else "write elsewhere"
    reason = os.strerror(number).lower()
    return f"a file could not be written: {reason}; free some, or {elsewhere}"


def _explain_path(error: OSError, path: Path) -> str:
    if isinstance(error, FileExistsError | NotADirectoryError):
        # the system names the path that was asked for, and the file in the way may be any part of
        # it
        above = (path, *path.parents)
        in_the_way = next(
            (folder for folder in above if folder.exists() and not folder.is_dir()), None
        )

        if in_the_way:
            return (
                f"{path}: {in_the_way} is a file, and a folder is needed there; name another place"
            )
    return f"{path}: {(error.strerror or str(error)).lower()}"


def print_warnings_on_stderr() -> None:
    """Prints the package's warnings as plain lines on stderr, and moves what others log there too,
    so that a job's JSON is alone on stdout.
    """
    root, name = logging.getLogger(), "dali_pipes"
    # a sweep runs its jobs in one process
    if any(handler.name == name for handler in root.handlers):
        return

    # conf/job.yaml leaves out Hydra's console handler, and a user's file may bring it back; the
    # package's own records go to the handler below
    for handler in root.handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.addFilter(lambda record: not record.name.startswith(name))
            handler.setStream(sys.stderr)

    own = logging.StreamHandler(sys.stderr)
    own.name = name
    own.setLevel(logging.WARNING)
    own.addFilter(logging.Filter(name))
    own.addFilter(spell_mentions)
    root.addHandler(own)
