"""Until dp.from_torch makes lazy loaders: `PlannedLoader(loader, config)`."""

from typing import Any

from dali_pipes.adapters.lazy.loader import LazyLoader


def PlannedLoader(loader: Any, config: Any, seed: int | None = None, check: bool = True) -> Any:
    return LazyLoader(loader, config, seed=seed, check=check)
