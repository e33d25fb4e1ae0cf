"""Lists of policies: how users write them, and their draws for each image.

`check_policies` reads the list of the option `augment`, and `Augmenter` draws for all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from dali_pipes.checks import describe_value
from dali_pipes.errors import ConfigError
from dali_pipes.plan.augment.operations import Augmentation
from dali_pipes.plan.augment.policies import POLICIES, Policy, RandomErasing
from dali_pipes.plan.augment.policies.base import DRAWS
from dali_pipes.plan.philox import Draws

_FIRST_DRAW = 32  # geometry.py has the draws below, and those from 2**15 on


class Augmenter:
    """A list of policies, ready to draw.

    Args:
        policies: names, mappings of a name and options, or policies.

    Raises:
        ConfigError: a name or an option does not exist, or RandomErasing is not the last.
    """

    def __init__(self, policies: Sequence[Any]):
        self.policies = check_policies("augment", policies)
        self._op_policies = [policy for policy in self.policies if isinstance(policy, Policy)]
        self._erase_policy = next(
            (policy for policy in self.policies if isinstance(policy, RandomErasing)), None
        )
        self.slots = tuple(slot for policy in self._op_policies for slot in policy.slots)
        self.erases = self._erase_policy is not None

    def draw(self, draws: Draws, count: int, shape: tuple[int, int]) -> Augmentation:
        """Draws the operations for `count` images of this height and width."""
        ops, magnitudes = np.zeros((count, 0), np.int8), np.zeros((count, 0), np.float32)

        # each policy has a range of draws of its own, so one more at the end changes no other
        for place, policy in enumerate(self._op_policies):
            more_ops, more_magnitudes = policy.draw(draws, _FIRST_DRAW + place * DRAWS, shape)
            ops, magnitudes = np.hstack([ops, more_ops]), np.hstack([magnitudes, more_magnitudes])

        first = _FIRST_DRAW + len(self._op_policies) * DRAWS
        erased = (
            self._erase_policy.rectangles(draws, first, shape)
            if self._erase_policy
            else np.zeros((count, 4), np.int64)
        )

        return Augmentation(ops, magnitudes, erased)


def check_policies(option: str, values: Any) -> list[Any]:
    """Returns the policies of a list of names, mappings of a name and options, or policies."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, Sequence):
        raise ConfigError(
            f"{option} is {values!r}; it takes a list of policies: ['TrivialAugmentWide']"
        )
    policies = [_parse_policy(option, value) for value in values]

    # RandomErasing works on the normalized image, after all other operations
    if any(isinstance(policy, RandomErasing) for policy in policies[:-1]):
        raise ConfigError(
            f"{option}: RandomErasing works on the normalized image; put it last, and only once"
        )
    return policies


def _parse_policy(option: str, value: Any) -> Any:
    if isinstance(value, (Policy, RandomErasing)):
        return value

    options = (
        {"name": value}
        if isinstance(value, str)
        else dict(value)
        if isinstance(value, Mapping)
        else {}
    )

    name = options.get("name")
    if not isinstance(name, str) or name not in POLICIES:
        if type(value).__module__.startswith("torchvision."):
            instead = "transform_from_torch(transform) makes a whole transform of torchvision's"
            raise ConfigError(
                f"{option}: {type(value).__name__} is torchvision's; {instead}, or write its name"
            )
        raise ConfigError(
            f"{option}: {describe_value(value)} is none of {', '.join(POLICIES)}; one with options "
            "is a mapping of its name and of them"
        )

    known = [field.name for field in fields(POLICIES[name])]
    if unknown := set(map(str, options)) - set(known):
        raise ConfigError(
            f"{option}: {name} does not take {', '.join(sorted(unknown))}; it takes "
            f"{', '.join(known[1:])}"
        )

    return POLICIES[name](**options)
