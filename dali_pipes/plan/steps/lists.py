"""Lists of steps: how users write them, and their draws for each image.

`STEPS` has the steps on the whole image, of the option `before`: `check_steps` reads it, and
`draw_steps` draws for it. `POLICIES` has those on the finished image, of the option `augment`:
`check_policies` reads it, and `Augmenter` draws for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import describe_value
from dali_pipes.errors import ConfigError
from dali_pipes.plan.draws import (
    AUGMENT_DRAW,
    BEFORE_DRAW,
    BOXES_DRAW,
    FUNCTION_DRAW,
    STEP_DRAWS,
    Draws,
)
from dali_pipes.plan.geometry import Int
from dali_pipes.plan.steps.functions import RANGE, Augment
from dali_pipes.plan.steps.operations import Augmentation
from dali_pipes.plan.steps.policies import (
    AutoAugment,
    ColorJitter,
    GaussianBlur,
    Policy,
    RandAugment,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomRotation,
    RandomSolarize,
    TimmRandomErasing,
    TrivialAugmentWide,
)
from dali_pipes.plan.steps.timm import TimmRandAugment
from dali_pipes.plan.steps.warps import WholeAffine, WholeFlip, WholePerspective, WholeRotation
from dali_pipes.plan.steps.whole import (
    DrawnStep,
    WholePad,
    WholeQuarterTurn,
    WholeResize,
    WholeSizedCrop,
    WholeStep,
    WholeTranspose,
    check_function,
    draw_function,
)

# A row is a step by its name in `before`, which is torchvision's or albumentations'.
STEPS: dict[str, type[Any]] = {
    "RandomRotation": WholeRotation,
    "RandomAffine": WholeAffine,
    "RandomPerspective": WholePerspective,
    "Resize": WholeResize,
    "Pad": WholePad,
    "RandomHorizontalFlip": WholeFlip,
    "RandomVerticalFlip": WholeFlip,
    "RandomRotate90": WholeQuarterTurn,
    "Transpose": WholeTranspose,
    "RandomSizedCrop": WholeSizedCrop,
    "Augment": Augment,
}
# A row is a policy by its name in `augment`.
POLICIES: dict[str, type[Any]] = {
    "TrivialAugmentWide": TrivialAugmentWide,
    "RandAugment": RandAugment,
    "AutoAugment": AutoAugment,
    "ColorJitter": ColorJitter,
    "RandomGrayscale": RandomGrayscale,
    "RandomSolarize": RandomSolarize,
    "RandomPosterize": RandomPosterize,
    "RandomInvert": RandomInvert,
    "RandomAutocontrast": RandomAutocontrast,
    "RandomEqualize": RandomEqualize,
    "RandomAdjustSharpness": RandomAdjustSharpness,
    "GaussianBlur": GaussianBlur,
    "RandomRotation": RandomRotation,
    "Augment": Augment,
    "TimmRandAugment": TimmRandAugment,
    "RandomErasing": RandomErasing,
    "TimmRandomErasing": TimmRandomErasing,
}
WholeSteps = Sequence[WholeStep | Augment]
_MOST_SIZES = 64  # that images may have by random steps
_MOST = (BOXES_DRAW - BEFORE_DRAW) // STEP_DRAWS


def check_steps(option: str, values: Any) -> list[WholeStep | Augment]:
    """Returns the steps of a list of names, mappings of a name and options, or steps."""
    example = "steps: [{'name': 'RandomRotation', 'degrees': 30}]"
    steps = _read_list(option, values, STEPS, (WholeStep, Augment), example)
    for step in steps:
        if isinstance(step, Augment):
            check_function(option, step)

    if sum(map(_ranges_of, steps)) > _MOST:
        raise ConfigError(
            f"{option} has {len(steps)} steps; it can have {_MOST} at most, and a function counts "
            "as two"
        )
    return steps


def check_policies(option: str, values: Any) -> list[Any]:
    """Returns the policies of a list of names, mappings of a name and options, or policies."""
    kinds = (Policy, Augment, RandomErasing)
    policies = _read_list(option, values, POLICIES, kinds, "policies: ['TrivialAugmentWide']")

    # RandomErasing works on the normalized image, after all other operations
    if any(isinstance(policy, RandomErasing) for policy in policies[:-1]):
        raise ConfigError(
            f"{option}: RandomErasing works on the normalized image; put it last, and only once"
        )
    # DALI's graph makes all other operations before a function can run
    for before, policy in pairwise(policies):
        if _turn_of(before) > _turn_of(policy):
            raise ConfigError(
                f"{option}: {policy.name} stands after the function {before.title}; write the "
                "policies that are no Augment first, then Augment(…), then Augment(…, "
                "where='normalized')"
            )

    return policies


def _turn_of(policy: Any) -> int:
    """When it is carried out: operations first, then functions of the user's, then erasing."""
    if isinstance(policy, Augment):
        return 1 if policy.where == "uint8" else 2
    return 3 if isinstance(policy, RandomErasing) else 0


def _read_list(
    option: str, values: Any, rows: Mapping[str, type[Any]], kinds: tuple[type, ...], example: str
) -> list[Any]:
    """The steps of a list of names, of mappings of a name and options, or of `kinds`."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, Sequence):
        raise ConfigError(f"{option} is {values!r}; it takes a list of {example}")
    return [each if isinstance(each, kinds) else _make_step(option, each, rows) for each in values]


def _make_step(option: str, value: Any, rows: Mapping[str, type[Any]]) -> Any:
    """The step of a name, or of a mapping of its name and options."""
    options = {"name": value} if isinstance(value, str) else value
    name = options.get("name") if isinstance(options, Mapping) else None
    if not isinstance(name, str) or name not in rows:
        raise ConfigError(f"{option}: {_explain_unknown(value, rows)}")

    known = [field.name for field in fields(rows[name]) if field.init and field.name != "name"]
    if unknown := set(map(str, options)) - {"name", *known}:
        raise ConfigError(
            f"{option}: {name} does not take {', '.join(sorted(unknown))}; it takes "
            f"{', '.join(known)}"
        )
    if rows[name] is Augment and "function" not in options:
        raise ConfigError(
            f"{option}: Augment has no function; write one as 'package.module:function'"
        )
    return rows[name](**options)


def _explain_unknown(value: Any, rows: Mapping[str, type[Any]]) -> str:
    if type(value).__module__.startswith("torchvision."):
        return (
            f"{type(value).__name__} is torchvision's; transform_from_torch(transform) makes a "
            "whole transform of torchvision's, or write its name; or put it into Augment(…)"
        )
    if callable(value) and not isinstance(value, type):
        return f"{describe_value(value)} is a function; put it into Augment(…)"
    return (
        f"{describe_value(value)} is none of {', '.join(rows)}; one with options "
        "is a mapping of its name and of them"
    )


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
        ops, magnitudes = [np.zeros((count, 0), np.int8)], [np.zeros((count, 0), np.float32)]

        # each policy has a range of draws of its own, so one more at the end changes no other
        for place, policy in enumerate(self.operations):
            drawn = policy.draw(draws, AUGMENT_DRAW + place * STEP_DRAWS, shape)
            ops.append(drawn[0])
            magnitudes.append(drawn[1])

        first = AUGMENT_DRAW + len(self.operations) * STEP_DRAWS
        erased = (
            self._erase_policy.rectangles(draws, first, shape)
            if self._erase_policy
            else np.zeros((count, 4), np.int64)
        )

        numbers, moves = self._draw_for_functions(draws, count, shape)
        return Augmentation(np.hstack(ops), np.hstack(magnitudes), erased, numbers, moves)

    def _draw_for_functions(
        self, draws: Draws, count: int, shape: tuple[int, int]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`Augmentation.numbers` and `Augmentation.moves`."""
        numbers, moves = [np.zeros((count, 0))], [np.zeros((count, 0, 2, 3))]
        for place, policy in enumerate(self.functions):
            numbers.append(policy.draw(draws, FUNCTION_DRAW + place * RANGE))
            if policy.geometry is not None:
                moves.append(policy.matrices(numbers[-1], shape)[:, None])
        return np.hstack(numbers), np.hstack(moves)


def draw_steps(steps: WholeSteps, sizes: Int, draws: Draws) -> tuple[DrawnStep, ...]:
    """Draws these steps for images of `sizes`, (N, 2) heights and widths."""
    drawn: list[DrawnStep] = []
    # each step has a range of draws of its own, so one more at the end changes no other
    first = BEFORE_DRAW
    for step in steps:
        drawn.append(
            draw_function(step, draws, first, sizes)
            if isinstance(step, Augment)
            else step.draw(draws, first, sizes)
        )
        first, sizes = first + _ranges_of(step) * STEP_DRAWS, drawn[-1].size
    return tuple(drawn)


def smallest_sizes(steps: WholeSteps, sizes: Int) -> Int:
    """(N, 2) heights and widths than which the steps make none smaller of images of `sizes`."""
    # all sizes that images may have so far, as long as these are few
    possible, is_exact = [sizes], True
    for step in steps:
        if not isinstance(step, WholeStep):
            continue
        if isinstance(step, (WholeQuarterTurn, WholeTranspose)):
            possible += [each[:, ::-1] for each in possible]
        elif is_exact and step.has_one_size:
            made = [step.smallest(each) for each in possible]
            possible = made if step.p == 1 else possible + made
        else:
            least = np.minimum.reduce(possible)
            possible, is_exact = [step.least(least)], False
        if len(possible) > _MOST_SIZES:
            possible, is_exact = [np.minimum.reduce(possible)], False
    return np.minimum.reduce(possible)


def _ranges_of(step: WholeStep | Augment) -> int:
    """How many ranges of `STEP_DRAWS` draws a step has; a function may need more than one."""
    return -(-RANGE // STEP_DRAWS) if isinstance(step, Augment) else 1
