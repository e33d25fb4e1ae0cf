"""A PyTorch DataLoader of the user's own, as an arm: as it is, or as `from_torch` makes it."""

import contextlib
from dataclasses import dataclass, replace
from typing import Any, Self

from torch.utils.data import DataLoader

from dali_pipes.backends.config import MAX_COUNT, Concurrency, LoaderConfig
from dali_pipes.checks import check_int
from dali_pipes.errors import ConfigError
from dali_pipes.options import option
from dali_pipes.system.functions import import_function


@dataclass(kw_only=True, slots=True)
class DataLoaderConfig(LoaderConfig):
    """A PyTorch DataLoader of your own, outside the plan: for comparisons.

    Attributes:
        function: module:function, which takes no arguments and returns it; also a module in the
            working directory.
        num_workers: those it has.
        made_by: the options of the loader that makes its pixels, as `from_torch` is given them;
            None: the DataLoader makes them itself.
    """

    name = "dataloader"
    backend = "dali_pipes.measure.arms.users_loader:UsersLoader"

    function: str = ""
    num_workers: int = option(0, check_int, 0, MAX_COUNT)
    made_by: Any = None

    @property
    def concurrency(self) -> Concurrency:
        return Concurrency(max(1, self.num_workers), max(1, self.num_workers), 2 * self.num_workers)

    # what makes the pixels decides this

    @property
    def needs_gpu(self) -> bool:
        return self.made_by is not None and self.made_by.needs_gpu

    @property
    def decodes_on(self) -> str:
        return "cpu" if self.made_by is None else self.made_by.decodes_on

    @property
    def fancy_upsampling(self) -> bool:
        return self.made_by is None or self.made_by.fancy_upsampling

    def on_packages(self) -> Self:
        return self if self.made_by is None else replace(self, made_by=self.made_by.on_packages())


def describe_dataloader(function: str) -> dict[str, Any]:
    """What is known of the DataLoader that a function makes: images, batch_size, num_workers.

    Raises:
        ConfigError: there is no such function, or it makes something else.
    """
    made = import_function(function)()
    # timm's PrefetchLoader wraps the DataLoader
    loader = getattr(made, "loader", made)
    if not isinstance(loader, DataLoader):
        raise ConfigError(f"{function} returns a {type(made).__name__}, and no DataLoader")
    images = 0
    with contextlib.suppress(TypeError):  # an IterableDataset may have no length
        images = len(loader.dataset)  # type: ignore[arg-type]
    return {
        "function": function,
        "images": images,
        "batch_size": loader.batch_size or getattr(loader.batch_sampler, "batch_size", 1),
        "num_workers": loader.num_workers,
    }
