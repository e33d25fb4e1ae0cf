"""A list of policies, applied one after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from dali_pipes.errors import ConfigError
from dali_pipes.plan.augment import policies
from dali_pipes.plan.augment.operations import Augmentation
from dali_pipes.plan.augment.policies import DRAWS, Policy, RandomErasing
from dali_pipes.plan.philox import Draws

_FIRST_DRAW = 32  # the draws below, and those from 2**15 on, are geometry.py's


POLICIES: dict[str, type] = {
    each.__name__: each
    for each in (
        policies.TrivialAugmentWide,
        policies.RandAugment,
        policies.AutoAugment,
        policies.ColorJitter,
        policies.RandomGrayscale,
        policies.RandomSolarize,
        policies.GaussianBlur,
        policies.RandomRotation,
        policies.RandomErasing,
    )
}


class Augmenter:
    """A list of policies, ready to draw.

    Args:
        given: names, mappings of a name and options, or policies.

    Raises:
        ConfigError: a name or an option that does not exist, or RandomErasing in another place than the last.
    """

    def __init__(self, given: Sequence[Any]):
        if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
            raise ConfigError(f"transform.augment is {given!r}; it takes a list of policies: [TrivialAugmentWide]")
        self.policies = [_policy(each) for each in given]
        self._drawing = [each for each in self.policies if isinstance(each, Policy)]
        rest = [each for each in self.policies if isinstance(each, RandomErasing)]
        if self.policies != self._drawing + rest[:1]:
            raise ConfigError("transform.augment: RandomErasing works on the normalized image; put it last, and only once")
        self._erasing = rest[0] if rest else None
        self.slots = tuple(slot for each in self._drawing for slot in each.slots)
        self.erases = bool(rest)

    def draw(self, draws: Draws, count: int, shape: tuple[int, int]) -> Augmentation:
        """Draws the operations for `count` images of this height and width."""
        ops, magnitudes = np.zeros((count, 0), np.int8), np.zeros((count, 0), np.float32)
        for place, policy in enumerate(self._drawing):
            more_ops, more_magnitudes = policy.draw(draws, _FIRST_DRAW + place * DRAWS, shape)
            ops, magnitudes = np.hstack([ops, more_ops]), np.hstack([magnitudes, more_magnitudes])
        first = _FIRST_DRAW + len(self._drawing) * DRAWS
        erased = self._erasing.regions(draws, first, shape) if self._erasing else np.zeros((count, 4), np.int64)
        return Augmentation(ops, magnitudes, erased)


def _policy(given: Any) -> Any:
    if isinstance(given, (Policy, RandomErasing)):
        return given
    options = {"name": given} if isinstance(given, str) else dict(given) if isinstance(given, Mapping) else {}
    name = options.get("name")
    if not isinstance(name, str) or name not in POLICIES:
        raise ConfigError(
            f"transform.augment: {given!r} is none of {', '.join(POLICIES)}; options go as {{name: NAME, option: value}}"
        )
    known = [each.name for each in fields(POLICIES[name])]
    if unknown := {str(option) for option in options} - set(known):
        raise ConfigError(f"transform.augment: {name} does not take {', '.join(sorted(unknown))}; it takes {', '.join(known[1:])}")
    return POLICIES[name](**options)
