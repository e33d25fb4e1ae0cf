"""What of a DataLoader can be carried over: `explain` prints it in a notebook or a program, and
diagnose of the loader that it examines.
"""

from pathlib import Path
from typing import Any

from rich.console import Console
from torch.utils.data import DataLoader

from dali_pipes.adapters.from_torch.conversion import Conversion
from dali_pipes.adapters.from_torch.converted_loader import ConvertedLoader
from dali_pipes.adapters.transforms.reading import NotConvertibleError
from dali_pipes.errors import ConfigError
from dali_pipes.loader.loader import Loader
from dali_pipes.measure.users_loader import print_steps
from dali_pipes.options import check_arguments
from dali_pipes.system.stdout import say


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
    explain_on(Console(), loader, cache_dir)


def explain_on(console: Console, loader: Any, cache_dir: str | Path | None = None) -> None:
    """Does what `explain` does, on this console."""
    if isinstance(loader, (Loader, ConvertedLoader)):
        say(console, loader.explain())
        return

    if not isinstance(getattr(loader, "loader", loader), DataLoader):
        raise ConfigError(
            f"{type(loader).__name__} is not a torch DataLoader: explain(loader) takes the loader "
            "that your training loop iterates"
        )

    say(console, "", _describe(loader))
    try:
        conversion = Conversion.of(loader, cache_dir)
    except NotConvertibleError as error:
        print_steps(error.steps, console)
        say(console, f"It stays as it is: {error}")
        return
    print_steps(conversion.steps, console)
    say(console, "dali_pipes.from_torch(loader) converts it.")


def _describe(loader: Any) -> str:
    """Returns what a DataLoader is, in words."""
    kind, inner = type(loader).__name__, getattr(loader, "loader", loader)
    if not isinstance(inner, DataLoader):
        return f"a {kind}"
    dataset = inner.dataset
    try:
        count = f"{len(dataset):,} samples"  # type: ignore[arg-type]
    except Exception:  # an IterableDataset has no length, and one of the user's may do anything
        count = "samples"
    batches = f", batches of {inner.batch_size}" if inner.batch_size else ""
    return f"a {kind} of {count} of {type(dataset).__name__}{batches}"
