"""A function of the user's on the whole image: an `Augment` in `before`."""

import numpy as np

from dali_pipes.errors import ConfigError
from dali_pipes.plan.augment.policies import Augment
from dali_pipes.plan.geometry import Int
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.whole.base import DrawnStep


def check_function(option: str, function: Augment) -> None:
    """Refuses an `Augment` that is for finished images."""
    wrong = {
        "where='normalized'": function.where == "normalized",
        "per='batch'": function.per == "batch",
        "geometry": function.geometry is not None,
    }
    for text, is_set in wrong.items():
        if is_set:
            raise ConfigError(
                f"{option}: {function.title} is an Augment with {text}; a whole image is a single "
                "one of bytes, without boxes and masks, so leave that out, or put it into augment"
            )


def draw_function(function: Augment, draws: Draws, first: int, source: Int) -> DrawnStep:
    """Draws its numbers for images of `source`, (N, 2), by the draws from `first` on."""
    always = np.ones(len(source), bool)
    return DrawnStep("function", "", source, source, always, function.draw(draws, first))
