"""A hash of numbers that is the same with every version of NumPy."""

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, made odd: the paper's increment


def splitmix64(states: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hashes each number by the output function of Steele, Lea and Flood's generator ("Fast
    splittable pseudorandom number generators", OOPSLA 2014).
    """
    # products of uint64 wrap around, as in the paper
    states = (states ^ (states >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    states = (states ^ (states >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return states ^ (states >> np.uint64(31))
