"""Rotations, affine and perspective steps and flips of the whole image.

The numbers are computed as torchvision computes them for a PIL image (Pillow's `Image.rotate`,
torchvision's `_get_inverse_affine_matrix` and `_get_perspective_coeffs`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_choice, check_fill, check_number, describe_value, to_python
from dali_pipes.errors import ConfigError
from dali_pipes.options import option
from dali_pipes.plan.draws import Draws
from dali_pipes.plan.geometry import Int
from dali_pipes.plan.steps.operations import FILTERS
from dali_pipes.plan.steps.whole import DrawnStep, Float, WholeStep, fill_of


def _check_numbers(name: str, value: Any, low: float, high: float, *counts: int) -> Any:
    """Returns one of `counts` numbers as a tuple; YAML has only lists."""
    value = to_python(value)
    numbers = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if len(numbers) not in counts:
        raise ConfigError(
            f"{name} is {describe_value(value)}; it takes {' or '.join(map(str, counts))} numbers"
        )
    return tuple(float(check_number(name, each, low, high)) for each in numbers)


def _check_angles(name: str, value: Any, *more: int) -> Any:
    """Returns the smallest and the largest angle; one number stands for both signs of it."""
    angles = _check_numbers(name, value, -3600, 3600, 1, 2, *more)
    angles = (-abs(angles[0]), abs(angles[0])) if len(angles) == 1 else angles
    for low, high in zip(angles[::2], angles[1::2], strict=True):
        if low > high:
            raise ConfigError(f"{name} is {list(angles)}; the smaller angle comes first")
    return angles


@dataclass(kw_only=True, slots=True)
class WholeRotation(WholeStep):
    """torchvision's RandomRotation.

    Attributes:
        degrees: a number d for angles from -d to d, or the smallest and the largest angle,
            counter-clockwise.
        expand: whether the image grows so that all of it is seen.
        center: x and y of the point about which it turns, in pixels from the top left corner; None:
            the middle of the image.
        fill: the color of what comes from outside the image, from 0 to 255: one number, or red,
            green and blue.
    """

    name: str = "RandomRotation"
    degrees: Any = option((-15.0, 15.0), _check_angles)
    expand: bool = False
    center: Any = option(None, _check_numbers, -(2**24), 2**24, 2)
    fill: Any = option((0, 0, 0), check_fill)

    @property
    def has_one_size(self) -> bool:
        return not self.expand

    def smallest(self, source: Int) -> Int:
        # of a turned image no side is shorter than the shorter one
        return np.tile(source.min(axis=1, keepdims=True), 2) if self.expand else source

    def draw(self, draws: Draws, first: int, source: Int) -> DrawnStep:
        happens, angle, *_ = draws.uniform(first)
        low, high = self.degrees
        # as Pillow, which rounds so that a right angle gives whole numbers
        angle = -np.radians(np.mod(low + (high - low) * angle, 360))
        cos, sin = np.cos(angle).round(15), np.sin(angle).round(15)
        x, y = _center(self.center, source)
        right, down = cos * -x + sin * -y + x, -sin * -x + cos * -y + y
        numbers = _affine(cos, sin, right, -sin, cos, down)

        size = source
        if self.expand:
            numbers, size = _expand(numbers, source)
        return _drawn(self, source, happens < self.p, numbers, size)


@dataclass(kw_only=True, slots=True)
class WholeAffine(WholeStep):
    """torchvision's RandomAffine.

    Attributes:
        degrees: as for RandomRotation, clockwise.
        translate: the largest shift along x and y, as a share of width and height.
        scale: the smallest and the largest factor.
        shear: a number s for angles along x from -s to s; the smallest and the largest angle along
            x; or those along x and along y.
        center, fill: as for RandomRotation.
    """

    name: str = "RandomAffine"
    degrees: Any = option((0.0, 0.0), _check_angles)
    translate: Any = option(None, _check_numbers, 0, 1, 2)
    scale: Any = option(None, _check_numbers, 1e-6, 1e6, 2)
    shear: Any = option(None, _check_angles, 4)
    center: Any = option(None, _check_numbers, -(2**24), 2**24, 2)
    fill: Any = option((0, 0, 0), check_fill)

    def draw(self, draws: Draws, first: int, source: Int) -> DrawnStep:
        happens, angle, factor, _ = draws.uniform(first)
        right, down, *shears = draws.uniform(first + 1)

        rotation = np.radians(_between(angle, self.degrees))
        scale = _between(factor, self.scale or (1, 1))
        shear_x, shear_y = (
            np.radians(_between(share, angles))
            for share, angles in zip(shears, self._shears, strict=True)
        )
        most = np.array(self.translate or (0, 0)) * source[:, ::-1]
        # whole pixels
        tx, ty = np.rint((2 * np.stack([right, down]) - 1) * most.T)

        about = _center(self.center, source)
        numbers = _inverse_affine(about, rotation, tx, ty, scale, shear_x, shear_y)
        return _drawn(self, source, happens < self.p, numbers, source)

    @property
    def _shears(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The angles along x, and along y."""
        angles = self.shear or (0.0, 0.0)
        return angles[:2], angles[2:] or (0.0, 0.0)


@dataclass(kw_only=True, slots=True)
class WholePerspective(WholeStep):
    """torchvision's RandomPerspective.

    Attributes:
        distortion_scale: how far corners move at most, as a share of half the width and height.
        fill: as for RandomRotation.
    """

    name: str = "RandomPerspective"
    interpolation: str = option("bilinear", check_choice, FILTERS)
    distortion_scale: float = option(0.5, check_number, 0, 1)
    p: float = option(0.5, check_number, 0, 1)
    fill: Any = option((0, 0, 0), check_fill)

    def draw(self, draws: Draws, first: int, source: Int) -> DrawnStep:
        happens = draws.uniform(first)[0]
        # x and y of four corners, clockwise from the top left one
        shares = draws.uniform([first + 1, first + 2]).transpose(1, 2, 0).reshape(-1, 4, 2)
        far = (source[:, ::-1] - 1)[:, None] * np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
        most = (self.distortion_scale * (source[:, ::-1] // 2)).astype(np.int64)[:, None]
        moved = np.floor(shares * (most + 1)).astype(np.int64)
        # from the left and the top a corner moves to the right and down, else the other way
        corners = np.where(far == 0, moved, far - most + moved)
        return _drawn(self, source, happens < self.p, _perspective(far, corners), source)


@dataclass(kw_only=True, slots=True)
class WholeFlip(WholeStep):
    """torchvision's RandomHorizontalFlip or RandomVerticalFlip, by its name, before other steps."""

    p: float = option(0.5, check_number, 0, 1)

    @property
    def vertical(self) -> bool:
        """Whether top and bottom are swapped, and not left and right."""
        return self.name == "RandomVerticalFlip"

    def draw(self, draws: Draws, first: int, source: Int) -> DrawnStep:
        happens = draws.uniform(first)[0] < self.p
        ones, zeros, (height, width) = np.ones(len(source)), np.zeros(len(source)), source.T
        numbers = (
            _affine(ones, zeros, zeros, zeros, -ones, height)
            if self.vertical
            else _affine(-ones, zeros, width, zeros, ones, zeros)
        )
        return _drawn(self, source, happens, numbers, source)


def _between(share: Float, bounds: tuple[float, float]) -> Float:
    return bounds[0] + (bounds[1] - bounds[0]) * share


def _affine(*columns: Float) -> Float:
    """(N, 8) of a perspective that is affine, of its first six columns."""
    return np.stack([*columns, *np.zeros((2, len(columns[0])))], axis=1)


def _drawn(
    step: WholeStep, source: Int, happens: NDArray[np.bool_], numbers: Float, size: Int
) -> DrawnStep:
    kind = "perspective" if isinstance(step, WholePerspective) else "affine"
    size = np.where(happens[:, None], size, source)
    return DrawnStep(kind, step.interpolation, source, size, happens, numbers, fill_of(step))


def _center(center: tuple[float, float] | None, source: Int) -> tuple[Float, Float]:
    """x and y of the point about which images turn."""
    middle = source[:, ::-1] / 2
    x, y = (middle if center is None else np.broadcast_to(center, middle.shape)).T
    return x, y


def _expand(numbers: Float, source: Int) -> tuple[Float, Int]:
    """The rotation into an image that holds all corners, and its heights and widths."""
    a, b, c, d, e, f = numbers[:, :6].T
    height, width = source.T
    zeros = np.zeros(len(source))
    x, y = np.stack([zeros, width, width, zeros]), np.stack([zeros, zeros, height, height])
    corners = np.stack([d * x + e * y + f, a * x + b * y + c])
    size = (np.ceil(corners.max(axis=1)) - np.floor(corners.min(axis=1))).astype(np.int64).T
    down, right = (size - source).T / -2
    moved = _affine(a, b, a * right + b * down + c, d, e, d * right + e * down + f)
    return moved, size


def _inverse_affine(
    about: tuple[Float, Float],
    angle: Float,
    tx: Float,
    ty: Float,
    scale: Float,
    shear_x: Float,
    shear_y: Float,
) -> Float:
    """(N, 8): from a pixel of the result back to the image, about the point x and y."""
    x, y = about
    a = np.cos(angle - shear_y) / np.cos(shear_y)
    b = -np.cos(angle - shear_y) * np.tan(shear_x) / np.cos(shear_y) - np.sin(angle)
    c = np.sin(angle - shear_y) / np.cos(shear_y)
    d = -np.sin(angle - shear_y) * np.tan(shear_x) / np.cos(shear_y) + np.cos(angle)

    # the inverse of a matrix whose determinant is 1, then translation and centre
    a, b, c, d = d / scale, -b / scale, -c / scale, a / scale
    return _affine(a, b, a * (-x - tx) + b * (-y - ty) + x, c, d, c * (-x - tx) + d * (-y - ty) + y)


def _perspective(origins: Int, corners: Int) -> Float:
    """(N, 8): numbers that take the `corners` of the result to `origins`, both (N, 4, 2)."""
    (x, y), (u, v) = np.moveaxis(corners, 2, 0), np.moveaxis(origins, 2, 0)
    one, zero = np.ones_like(x), np.zeros_like(x)
    rows_u = np.stack([x, y, one, zero, zero, zero, -u * x, -u * y], axis=2)
    rows_v = np.stack([zero, zero, zero, x, y, one, -v * x, -v * y], axis=2)
    system = np.concatenate([rows_u, rows_v], axis=1).astype(np.float64)
    goal = np.concatenate([u, v], axis=1).astype(np.float64)

    # torchvision rounds them to single precision
    try:
        solved = np.linalg.solve(system, goal[..., None])[..., 0]
    except np.linalg.LinAlgError:
        # corners on one line, in an image a few pixels wide
        solved = np.stack([np.linalg.lstsq(*each)[0] for each in zip(system, goal, strict=True)])
    return solved.astype(np.float32).astype(np.float64)
