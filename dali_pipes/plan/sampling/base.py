"""What all samplings have in common, and a sampling by its name."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_choice, check_int
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ChoiceError, ConfigError
from dali_pipes.options import Options, check_options, option
from dali_pipes.plan.order import Order

Int = NDArray[np.int64]
MAX_SAMPLES = 2**48  # of an epoch; places of 64 bits count samples over many epochs
# All samplings by their names. The package fills it when it is imported, which Python does before
# any module in it: so a schedule finds every sampling, though it is one of them.
SAMPLINGS: dict[str, type["Sampling"]] = {}


@dataclass(kw_only=True, slots=True)
class Sampling(Options, ABC):
    """Which samples make an epoch, and in which order; the base of all samplings.

    Attributes:
        epoch_size: samples of one epoch over all ranks; None: as many as there are images. The
            next epoch goes on where this one stopped, so that a shorter epoch leaves nothing out in
            the long run.
    """

    epoch_size: int | None = option(None, check_int, 1, MAX_SAMPLES)

    # whether it can order the images of `Manifest.mix`, whose shares say what is drawn
    takes_mixtures: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_options(self)

    def on_machine(self) -> Self:
        """The same sampling, with what its options leave to the machine filled in."""
        return self

    def explain(self) -> str:
        """What the machine decides of the order, in a few words; "" if it decides nothing."""
        return ""

    @abstractmethod
    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        """The order for these images, this seed and this global batch size.

        Raises:
            ConfigError: these images or batches cannot be sampled in this way.
        """

    def orders(self, manifest: Manifest, seed: int, global_batch_size: int) -> dict[int, Order]:
        """The orders by the epoch from which on each holds."""
        return {0: self.order(manifest, seed, global_batch_size)}

    def state(self, manifest: Manifest) -> dict[str, Any]:
        """What decides the order, for a loader's state."""
        options = {"kind": type(self).__name__} | {
            field.name: getattr(self, field.name) for field in fields(self)
        }
        return {name: value for name, value in options.items() if value is not None}

    def _size(self, manifest: Manifest, whole: int = 1) -> int:
        """Samples of an epoch, rounded down to a multiple of `whole`, and at least `whole`.

        `whole` is the global batch size if all batches must be full.
        """
        return max((self.epoch_size or len(manifest)) // whole, 1) * whole


def parse_sampling(value: Any) -> Sampling:
    """A sampling by its name, by {"name": …} with its options, or as it is.

    Raises:
        ConfigError: there is no such sampling or option.
    """
    if isinstance(value, Sampling):
        return value

    options = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = options.pop("name", None)
    check_choice("sampling", name, tuple(SAMPLINGS))
    try:
        return SAMPLINGS[name](**options)
    except TypeError as error:
        known = ", ".join(field.name for field in fields(SAMPLINGS[name]))
        raise ConfigError(
            # Python's own message begins with the name of the class
            f"sampling {name}: {str(error).split('__init__() ')[-1]}; its options are {known}"
        ) from None


def classes_of(manifest: Manifest, sampling: type[Sampling], by: str = "") -> Int:
    """(n,) class numbers, for this sampling.

    Raises:
        ChoiceError: an image has no class, or several.
    """
    if manifest.task != "classification":
        raise ChoiceError(
            sampling,
            f"{by}needs one class for each image, and the labels are for {manifest.task}",
        )
    return manifest.take_labels(np.arange(len(manifest)))
