"""Chooses the sampling of a loader, by `sampling=`, `shuffle=` or its transform."""

from typing import Any

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ChoiceError, ConfigError
from dali_pipes.plan.sampling.base import Sampling, parse_sampling
from dali_pipes.plan.sampling.samplings import Mixture, Sequential, Uniform


def choose_sampling(
    value: Any, shuffle: bool | None, manifest: Manifest, training: bool
) -> Sampling:
    """The sampling of a loader.

    It is what `sampling=` says, or else what `shuffle` or the kind of transform implies.

    Args:
        value: of `sampling=`.

    Raises:
        ConfigError: `value` contradicts `shuffle`, or does not fit a mixture.
    """
    implied = (
        Sequential()
        if not (training if shuffle is None else shuffle)
        else Mixture()
        if manifest.mixture
        else Uniform()
    )
    if value is None:
        return implied

    sampling = parse_sampling(value)
    if shuffle is not None and type(sampling) is not type(implied):
        raise ConfigError(
            f"shuffle={shuffle} and the sampling {type(sampling).__name__} are both given and say "
            "different things"
        )

    if manifest.mixture and not sampling.takes_mixtures:
        raise ChoiceError(
            type(sampling),
            "does not fit images of Manifest.mix, whose shares say what is drawn; join them with "
            "Manifest.concat instead, or leave sampling out",
        )

    return sampling
