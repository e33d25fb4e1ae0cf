"""What MixUp and CutMix make of random numbers: a share and a box."""

import math


def symmetric_beta(alpha: float, radius: float, angle: float) -> float:
    """A number with distribution Beta(alpha, alpha), made of two numbers uniform in [0, 1). It is
    exact for any alpha, needs no rejection, and is computed in plain floats.

    Bailey's polar method (Mathematics of Computation 62, 1994) gives Student's t with 2 × alpha
    degrees of freedom, which becomes a beta: 1/2 + T / (2 √(2 alpha + T²)), as in Devroye, Random
    variate generation in one line of code (1996).
    """
    cosine, power = math.cos(2 * math.pi * angle), radius ** (1 / alpha)
    outside = (1 - power) * cosine**2
    return 0.5 + math.copysign(0.5 * math.sqrt(outside / (power + outside)), cosine)


def cut_box(share: float, height: int, width: int, x: float, y: float) -> tuple[int, int, int, int]:
    """A box of about 1 - share of the area, cut off at the edges, as in torchvision: left, top,
    right, bottom in pixels, the latter two exclusive.

    x and y are the centre as shares of width and height, uniform in [0, 1).
    """
    half = 0.5 * math.sqrt(1.0 - share)
    column, row, half_width, half_height = (
        int(x * width),
        int(y * height),
        int(half * width),
        int(half * height),
    )
    left, top = max(column - half_width, 0), max(row - half_height, 0)
    return left, top, min(column + half_width, width), min(row + half_height, height)
