"""Shares of several sources, as `Manifest.mix` says."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ChoiceError, ConfigError
from dali_pipes.plan.order import PERIOD, Groups, Order, Shares
from dali_pipes.plan.sampling.base import Sampling

_PROPORTIONAL = 2**12  # samples in which a proportional mixture has its shares


@dataclass(kw_only=True, slots=True)
class Mixture(Sampling):
    """What `Manifest.mix` says: shares of several sources, each of which has its own epochs."""

    takes_mixtures: ClassVar[bool] = True

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        mixture = manifest.mixture
        if mixture is None:
            raise ChoiceError(Mixture, "is for the images of Manifest.mix, and these are not of it")

        stratified = mixture.mode == "stratified"
        shares = _mixed_shares(manifest, global_batch_size if stratified else _PROPORTIONAL, seed)
        groups = Groups(manifest.columns["source"], seed)

        size = self._size(manifest, global_batch_size if stratified else 1)
        return groups.order(
            size,
            lambda places: groups.locate_turn(*shares.turns(places)),
            apart=int(shares.most.max()),
        )

    def state(self, manifest: Manifest) -> dict[str, Any]:
        state = Sampling.state(self, manifest)
        mixture = manifest.mixture
        return state | ({"mode": mixture.mode, "shares": mixture.shares} if mixture else {})


def _mixed_shares(manifest: Manifest, window: int, seed: int) -> Shares:
    """The shares of a mixture in windows of so many samples."""
    assert manifest.mixture
    names, numbers = list(manifest.mixture.shares), np.array(list(manifest.mixture.shares.values()))

    if missing := sorted(set(range(len(names))) - set(manifest.columns["source"].tolist())):
        raise ConfigError(
            f"the source {names[missing[0]]!r} of the mixture has no image; leave it out"
        )

    # `Shares` rounds to 1 / PERIOD of a sample, so a smaller share may be rounded to nothing
    shares = Shares(numbers, window, seed)
    if not shares.in_period.all():
        name = names[int(shares.in_period.argmin())]
        raise ConfigError(
            f"the share of {name!r} is rounded to nothing: sources have whole numbers of every "
            f"{PERIOD * window:,} samples; give it more, or leave it out"
        )

    return shares
