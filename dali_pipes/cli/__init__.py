"""The command line: configurations composed by Hydra, help, and mistakes reported in one line."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Ends the program in one line if a package that it needs is missing or broken, or at Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    except ImportError as error:
        sys.exit(f"error: the package cannot be imported ({error}); bash scripts/setup.sh installs what it needs")


def main() -> None:
    """dali-pipes JOB [OPTION=VALUE …]"""
    with importing():
        from dali_pipes.cli.jobs import main
    main()


def start(job: str) -> None:
    """Runs a job with the words of the command line."""
    with importing():
        from dali_pipes.cli.jobs import start
    start(job)
