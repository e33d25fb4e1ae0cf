"""The options of a loader that finds the fastest way while it trains."""

from dataclasses import dataclass, replace
from typing import Any, Self

from dali_pipes.backends.config import MAX_COUNT, Concurrency, LoaderConfig
from dali_pipes.checks import check_int
from dali_pipes.errors import ConfigError
from dali_pipes.options import option
from dali_pipes.system.cpus import available_cpus


def _refuse_exact(option: str, value: Any) -> None:
    # 1 is taken as True; any other kind is refused with those of other options
    if value is True or (isinstance(value, int) and value == 1):
        raise ConfigError(
            f"{option} cannot be had with a loader that may change its backend: pixels of backends "
            "differ in their last bits; name one, such as DaliConfig(exact=True)"
        )


@dataclass(kw_only=True, slots=True)
class AutoConfig(LoaderConfig):
    """Any of the other loaders: a likely one at first, and then the one with which training is
    fastest (docs/loaders.md). Samples and their order are the same with each, and pixels within the
    bounds of docs/pixels.md.

    Attributes:
        num_threads: CPU cores that each may use; None: all that this process may use.
        fixed: keeps the likely one.
        exact: cannot be had, since backends differ in the last bits of pixels.
    """

    name = "auto"
    backend = "dali_pipes.backends.auto.backend:AutoBackend"

    num_threads: int | None = option(None, check_int, 1, MAX_COUNT)
    fixed: bool = False
    exact: bool = option(False, _refuse_exact)

    def on_cores(self, cores: int | None = None) -> Self:
        return replace(self, num_threads=self.num_threads or cores or available_cpus())

    @property
    def concurrency(self) -> Concurrency:
        return Concurrency(self.num_threads or 1, 1, 2 * (self.num_threads or 1))
