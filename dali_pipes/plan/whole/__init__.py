"""Steps on the whole image, before its region is cut out.

The plan draws them: a row of `STEPS` is a step by its name in the option `before` of a transform.
`check_steps` reads that option, and `draw_steps` draws for all of its steps. Every backend that
takes part carries them out with the same function (backends/pixels/whole.py), which does
what torchvision does with a PIL image. An `Augment` is a function of the user's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from dali_pipes.checks import describe_value
from dali_pipes.errors import ConfigError
from dali_pipes.plan.augment.policies import Augment
from dali_pipes.plan.augment.policies.augment import RANGE
from dali_pipes.plan.geometry import BEFORE_DRAW, Int
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.whole.base import DRAWS, DrawnStep, WholeStep
from dali_pipes.plan.whole.steps import (
    WholePad,
    WholeQuarterTurn,
    WholeResize,
    WholeSizedCrop,
    WholeTranspose,
    check_function,
    draw_function,
)
from dali_pipes.plan.whole.warps import WholeAffine, WholeFlip, WholePerspective, WholeRotation

# A row is a step by torchvision's or albumentations' name of it, with the options that the name
# itself sets.
STEPS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "RandomRotation": (WholeRotation, {}),
    "RandomAffine": (WholeAffine, {}),
    "RandomPerspective": (WholePerspective, {}),
    "Resize": (WholeResize, {}),
    "Pad": (WholePad, {"interpolation": "nearest"}),
    "RandomHorizontalFlip": (WholeFlip, {"vertical": False}),
    "RandomVerticalFlip": (WholeFlip, {"vertical": True}),
    "RandomRotate90": (WholeQuarterTurn, {"interpolation": "nearest"}),
    "Transpose": (WholeTranspose, {"interpolation": "nearest"}),
    "RandomSizedCrop": (WholeSizedCrop, {"interpolation": "nearest"}),
    "Augment": (Augment, {}),
}
WholeSteps = Sequence[WholeStep | Augment]
_WITH_OPTIONS = "one with options is a mapping of its name and of them"
_MOST_SIZES = 64  # that images may have by random steps
_MOST = (2**15 - BEFORE_DRAW) // DRAWS  # geometry.py has the draws from 2**15 on


def check_steps(option: str, values: Any) -> list[WholeStep | Augment]:
    """Returns the steps of a list of names, mappings of a name and options, or steps."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, Sequence):
        raise ConfigError(
            f"{option} is {values!r}; it takes a list of steps: [{{'name': 'RandomRotation', "
            "'degrees': 30}]"
        )
    if len(values) > _MOST:
        raise ConfigError(f"{option} has {len(values)} steps; it can have {_MOST} at most")

    steps = [_parse_step(option, value) for value in values]
    if sum(map(_ranges_of, steps)) > _MOST:
        raise ConfigError(
            f"{option} has {len(steps)} steps; it can have {_MOST} at most, and a function counts "
            "as two"
        )
    return steps


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
        first, sizes = first + _ranges_of(step) * DRAWS, drawn[-1].size
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
    """How many ranges of `DRAWS` draw numbers a step has; a function may need more than one."""
    return -(-RANGE // DRAWS) if isinstance(step, Augment) else 1


def _parse_step(option: str, value: Any) -> WholeStep | Augment:
    step = value if isinstance(value, (WholeStep, Augment)) else _make_step(option, value)
    if isinstance(step, Augment):
        check_function(option, step)
    return step


def _make_step(option: str, value: Any) -> Any:
    """The step of a name, or of a mapping of its name and options."""
    options = {"name": value} if isinstance(value, str) else value
    name = options.get("name") if isinstance(options, Mapping) else None
    if not isinstance(name, str) or name not in STEPS:
        a_function = callable(value) and not isinstance(value, type)
        instead = "put a function into Augment(…)" if a_function else _WITH_OPTIONS
        raise ConfigError(
            f"{option}: {describe_value(value)} is none of {', '.join(STEPS)}; {instead}"
        )

    kind, own = STEPS[name]
    known = [field.name for field in fields(kind) if field.init and field.name not in own]
    if unknown := set(map(str, options)) - set(known):
        raise ConfigError(
            f"{option}: {name} does not take {', '.join(sorted(unknown))}; it takes "
            f"{', '.join(each for each in known if each != 'name')}"
        )
    if kind is Augment and "function" not in options:
        raise ConfigError(
            f"{option}: Augment has no function; write one as 'package.module:function'"
        )
    return kind(**own, **options)
