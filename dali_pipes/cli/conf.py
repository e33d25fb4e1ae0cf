"""Where configurations lie, and what is kept beside them: in a checkout, in an installed package, in a folder of the user's own."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dali_pipes.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]


def checkout() -> Path | None:
    """The checkout that the package is imported from; None: it is installed."""
    root = PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "conf").is_dir() else None


def conf_folder() -> Path:
    """Our configurations: those of the checkout, or those that the wheel brings."""
    return (checkout() or PACKAGE) / "conf"


def users_folder(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The user's own configurations, `--conf DIR` or else conf/ in the working directory, and the words without `--conf DIR`.

    Raises:
        ConfigError: there is no such folder.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--conf", type=Path)
    try:
        given, others = parser.parse_known_args(words)
    except argparse.ArgumentError:
        raise ConfigError("--conf needs a folder: --conf DIR") from None
    if given.conf and not given.conf.is_dir():
        raise ConfigError(f"--conf {given.conf}: no such folder")
    folder = (given.conf or Path("conf")).absolute()
    own = folder.is_dir() and folder.resolve() != conf_folder()
    return folder if own else None, others


def tuned_loaders(users: Path | None) -> Path:
    """Where `tune` writes loader=tuned_HOST and the next job finds it."""
    return (users or _home() / "conf") / "loader"


def demo_images() -> Path:
    return _home() / "data/demo"


def _home() -> Path:
    return checkout() or Path.cwd()
