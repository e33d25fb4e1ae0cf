"""Lists of policies: how users write them, and their draws for each image.

`check_policies` reads the list of the option `augment`, and `Augmenter` draws for all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import describe_value
from dali_pipes.errors import ConfigError
from dali_pipes.plan.augment.operations import Augmentation
from dali_pipes.plan.augment.policies import (
    POLICIES,
    Augment,
    Policy,
    RandomErasing,
    TimmRandomErasing,
)
from dali_pipes.plan.augment.policies.augment import RANGE
from dali_pipes.plan.augment.policies.base import DRAWS
from dali_pipes.plan.philox import Draws

# geometry.py has the draws below, and those from 2**14 on
_FIRST_DRAW = 32
_FIRST_OF_FUNCTIONS = 2**13


class Augmenter:
    """A list of policies, ready to draw.

    Args:
        policies: names, mappings of a name and options, or policies.

    Raises:
        ConfigError: a name or an option does not exist, or the order cannot be carried out.
    """

    def __init__(self, policies: Sequence[Any]):
        self.policies = check_policies("augment", policies)
        self.operations = [policy for policy in self.policies if isinstance(policy, Policy)]
        self._erase_policy = next(
            (policy for policy in self.policies if isinstance(policy, RandomErasing)), None
        )
        self.slots = tuple(slot for policy in self.operations for slot in policy.slots)
        self.functions = [policy for policy in self.policies if isinstance(policy, Augment)]
        self.erases = self._erase_policy is not None
        # whether rectangles may become anything but zeros
        self.fills = isinstance(self._erase_policy, TimmRandomErasing)

    def draw(self, draws: Draws, count: int, shape: tuple[int, int]) -> Augmentation:
        """Draws the operations for `count` images of this height and width."""
        ops, magnitudes = np.zeros((count, 0), np.int8), np.zeros((count, 0), np.float32)

        # each policy has a range of draws of its own, so one more at the end changes no other
        for place, policy in enumerate(self.operations):
            more_ops, more_magnitudes = policy.draw(draws, _FIRST_DRAW + place * DRAWS, shape)
            ops, magnitudes = np.hstack([ops, more_ops]), np.hstack([magnitudes, more_magnitudes])

        first = _FIRST_DRAW + len(self.operations) * DRAWS
        erased = (
            self._erase_policy.rectangles(draws, first, shape)
            if self._erase_policy
            else np.zeros((count, 4), np.int64)
        )

        numbers, moves = self._draw_for_functions(draws, count, shape)
        return Augmentation(ops, magnitudes, erased, numbers, moves)

    def _draw_for_functions(
        self, draws: Draws, count: int, shape: tuple[int, int]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`Augmentation.numbers` and `Augmentation.moves`."""
        numbers, moves = [np.zeros((count, 0))], [np.zeros((count, 0, 2, 3))]
        for place, policy in enumerate(self.functions):
            numbers.append(policy.draw(draws, _FIRST_OF_FUNCTIONS + place * RANGE))
            if policy.geometry is not None:
                moves.append(policy.matrices(numbers[-1], shape)[:, None])
        return np.hstack(numbers), np.hstack(moves)


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
    # DALI's graph makes all other operations before a function can run
    for before, policy in pairwise(policies):
        if _step_of(before) > _step_of(policy):
            raise ConfigError(
                f"{option}: {policy.name} stands after the function {before.title}; write the "
                "policies that are no Augment first, then Augment(…), then Augment(…, "
                "where='normalized')"
            )

    return policies


def _step_of(policy: Any) -> int:
    """When it is carried out: operations first, then functions of the user's, then erasing."""
    if isinstance(policy, Augment):
        return 1 if policy.where == "uint8" else 2
    return 3 if isinstance(policy, RandomErasing) else 0


def _parse_policy(option: str, value: Any) -> Any:
    if isinstance(value, (Policy, Augment, RandomErasing)):
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
        raise ConfigError(f"{option}: {_explain_unknown(value)}")

    known = [field.name for field in fields(POLICIES[name]) if field.init and field.name != "name"]
    if unknown := set(map(str, options)) - {"name", *known}:
        raise ConfigError(
            f"{option}: {name} does not take {', '.join(sorted(unknown))}; it takes "
            f"{', '.join(known)}"
        )
    if name == "Augment" and "function" not in options:
        raise ConfigError(
            f"{option}: Augment has no function; write one as 'package.module:function'"
        )

    return POLICIES[name](**options)


def _explain_unknown(value: Any) -> str:
    if type(value).__module__.startswith("torchvision."):
        return (
            f"{type(value).__name__} is torchvision's; transform_from_torch(transform) makes a "
            "whole transform of torchvision's, or write its name; or put it into Augment(…)"
        )
    if callable(value) and not isinstance(value, type):
        return f"{describe_value(value)} is a function; put it into Augment(…)"
    return (
        f"{describe_value(value)} is none of {', '.join(POLICIES)}; one with options "
        "is a mapping of its name and of them"
    )
