"""What a command says if the package cannot be imported."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Ends the program in one line at Ctrl-C, or if a package it needs is missing or broken."""
    try:
        yield
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)  # 128 + SIGINT
    except ImportError as error:
        sys.exit(
            f"error: the package cannot be imported ({error}); bash scripts/setup.sh installs "
            "what it needs"
        )
