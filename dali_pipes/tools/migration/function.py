"""explain(): what of a DataLoader can be carried over, from within a notebook or a program."""

from pathlib import Path
from typing import Any

from rich.console import Console
from torch.utils.data import DataLoader

from dali_pipes.adapters.from_torch.converted_loader import ConvertedLoader
from dali_pipes.errors import ConfigError
from dali_pipes.loader.loader import Loader
from dali_pipes.options import check_arguments
from dali_pipes.tools.migration.report import convert


@check_arguments()
def explain(loader: Any, *, cache_dir: str | Path | None = None) -> None:
    """Prints what carries out each step of a DataLoader if `from_torch` converts it, or why it
    cannot.

    The DataLoader and all random states stay as they are; nothing is converted.

    Args:
        loader: a DataLoader, or timm's PrefetchLoader around one; or one of our loaders, which then
            explains itself.
        cache_dir: as for `from_torch`.

    Raises:
        ConfigError: it is no loader.
    """
    if isinstance(loader, (Loader, ConvertedLoader)):
        print(loader.explain())
        return

    if not isinstance(getattr(loader, "loader", loader), DataLoader):
        raise ConfigError(
            f"{type(loader).__name__} is not a torch DataLoader: explain(loader) takes the loader "
            "that your training loop iterates"
        )
    report, _ = convert(loader, cache_dir)
    report.print(Console(), "")
    if not report.refusal:
        print("dali_pipes.from_torch(loader) converts it.")
