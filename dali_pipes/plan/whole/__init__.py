"""Steps on the whole image, before its region is cut out.

The plan draws them: a row of `STEPS` is a step by its name in the option `before` of a transform.
`check_steps` reads that option, and `draw_steps` draws for all of its steps. Every backend that
takes part carries them out with the same function (backends/common/whole_image.py), which does
what torchvision does with a PIL image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from dali_pipes.checks import describe_value
from dali_pipes.errors import ConfigError
from dali_pipes.plan.geometry import BEFORE_DRAW, Int
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.whole.base import DRAWS, DrawnStep, WholeStep
from dali_pipes.plan.whole.resize import WholeResize
from dali_pipes.plan.whole.warps import WholeAffine, WholeFlip, WholePerspective, WholeRotation

# A row is a step by torchvision's name of it, with the options that the name itself sets.
STEPS: dict[str, tuple[type[WholeStep], dict[str, Any]]] = {
    "RandomRotation": (WholeRotation, {}),
    "RandomAffine": (WholeAffine, {}),
    "RandomPerspective": (WholePerspective, {}),
    "Resize": (WholeResize, {}),
    "RandomHorizontalFlip": (WholeFlip, {"vertical": False}),
    "RandomVerticalFlip": (WholeFlip, {"vertical": True}),
}
_MOST = (2**15 - BEFORE_DRAW) // DRAWS  # geometry.py has the draws from 2**15 on


def check_steps(option: str, values: Any) -> list[WholeStep]:
    """Returns the steps of a list of names, mappings of a name and options, or steps."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, Sequence):
        raise ConfigError(
            f"{option} is {values!r}; it takes a list of steps: [{{'name': 'RandomRotation', "
            "'degrees': 30}]"
        )
    if len(values) > _MOST:
        raise ConfigError(f"{option} has {len(values)} steps; it can have {_MOST} at most")
    return [_parse_step(option, value) for value in values]


def draw_steps(steps: Sequence[WholeStep], sizes: Int, draws: Draws) -> tuple[DrawnStep, ...]:
    """Draws these steps for images of `sizes`, (N, 2) heights and widths."""
    drawn: list[DrawnStep] = []
    # each step has a range of draws of its own, so one more at the end changes no other
    for place, step in enumerate(steps):
        drawn.append(step.draw(draws, BEFORE_DRAW + place * DRAWS, sizes))
        sizes = drawn[-1].size
    return tuple(drawn)


def _parse_step(option: str, value: Any) -> WholeStep:
    if isinstance(value, WholeStep):
        return value

    options = {"name": value} if isinstance(value, str) else value
    name = options.get("name") if isinstance(options, Mapping) else None
    if not isinstance(name, str) or name not in STEPS:
        raise ConfigError(
            f"{option}: {describe_value(value)} is none of {', '.join(STEPS)}; one with options "
            "is a mapping of its name and of them"
        )

    kind, own = STEPS[name]
    known = [field.name for field in fields(kind) if field.name not in own]
    if unknown := set(map(str, options)) - set(known):
        raise ConfigError(
            f"{option}: {name} does not take {', '.join(sorted(unknown))}; it takes "
            f"{', '.join(known[1:])}"
        )
    return kind(**own, **options)
