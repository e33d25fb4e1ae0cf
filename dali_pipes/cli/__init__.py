"""The command line: configurations composed by Hydra, help, and mistakes reported in one line."""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Ends the program in one line if a package that it needs is missing or broken, or at
    Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    except ImportError as error:
        sys.exit(
            f"error: the package cannot be imported ({error}); bash scripts/setup.sh installs "
            "what it needs"
        )


def main() -> None:
    """dali-pipes JOB [OPTION=VALUE …]"""
    start(None)


def start(job: str | None) -> None:
    """Runs a job with the words of the command line, of which the first names it if `job` is None.

    `| head` closes the pipe when it has seen enough; then the program ends like others, with
    SIGPIPE's status and no message.
    """
    with importing():
        from dali_pipes.cli import jobs
    try:
        if job:
            jobs.start(job)
        else:
            jobs.main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # of stdout on a full disk; jobs explain those of their files
        from dali_pipes.cli.hydra import explain_file_error, stop

        stop(explain_file_error(error))
