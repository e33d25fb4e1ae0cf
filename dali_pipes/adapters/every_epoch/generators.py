"""The random generators that a data set has made itself, such as `np.random.default_rng()`: they
are found, and seeded before each item.
"""

import random
from typing import Any

import numpy as np
import torch

from dali_pipes.adapters.from_torch.recording.kept import Kept, find_generators
from dali_pipes.adapters.from_torch.recording.objects import is_a

_STRIDE = 0x9E3779B97F4A7C15  # any large odd number: each generator gets a seed of its own


def find_own_generators(dataset: Any, steps: list[Any]) -> list[Any]:
    """Generators from which the code of a data set may draw.

    Args:
        steps: the transforms, whose own generators are of no use: nothing draws from them.
    """
    shared = {id(random._inst), id(np.random.mtrand._rand), id(torch.default_generator)}
    shared |= {id(each) for step in steps for each in find_generators(step)}
    # those of the program's modules and classes, too
    held = {id(each): each for each in Kept.of(dataset).generators}
    held |= {id(each): each for each in find_generators(dataset)}
    return [each for each in held.values() if id(each) not in shared]


def seed_own(generators: list[Any], seed: int) -> None:
    """Seeds generators by one number of 64 bits, each in another way."""
    for place, each in enumerate(generators, 1):
        own = (seed + place * _STRIDE) % 2**64
        if is_a(each, np.random.Generator):
            each.bit_generator.state = type(each.bit_generator)(own).state
        elif is_a(each, np.random.RandomState):
            each.seed(own % 2**32)
        elif is_a(each, torch.Generator):
            # PyTorch takes signed numbers of 64 bits
            each.manual_seed(own >> 1)
        else:
            each.seed(own)
