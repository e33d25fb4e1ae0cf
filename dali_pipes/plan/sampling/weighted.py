"""Draws with replacement, by the weights of images, of classes or of a column."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import OptionError
from dali_pipes.options import check_options
from dali_pipes.plan.order import Order, draw_by_weight
from dali_pipes.plan.sampling.base import Sampling, classes_of


@dataclass(kw_only=True, slots=True)
class Weighted(Sampling):
    """Each draw independent of all others, with replacement: torch's WeightedRandomSampler.

    It keeps 8 bytes of memory for each image; a draw is a binary search in them.

    Attributes:
        weights: a column of the manifest, a weight for each class by its name, or one for each
            image in the order of their ids.
    """

    # as it is: `check_options` would make a list of Python's numbers of an array with one per image
    weights: Any = field(default=None, metadata={"as_is": True})

    def __post_init__(self) -> None:
        check_options(self)
        if self.weights is None:
            raise OptionError(
                type(self),
                "weights is missing; it takes a column, a weight for each class by its name, or a "
                "number for each image",
            )

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        return Order(self._size(manifest), draw_by_weight(self._weights_of_images(manifest), seed))

    def state(self, manifest: Manifest) -> dict[str, Any]:
        digest = hashlib.sha256(self._weights_of_images(manifest).tobytes()).hexdigest()[:16]
        return Sampling.state(self, manifest) | {"weights": digest}

    def _weights_of_images(self, manifest: Manifest) -> NDArray[np.float64]:
        weights = _read_weights(manifest, self.weights)

        if weights.shape != (len(manifest),):
            raise OptionError(
                Weighted,
                f"weights has {weights.size:,} weights for {len(manifest):,} images; it takes one "
                "for each",
            )
        if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
            raise OptionError(
                Weighted,
                "weights: a weight is a number from 0 on, and one at least is above 0",
            )

        return weights


def _read_weights(manifest: Manifest, value: Any) -> NDArray[np.float64]:
    ids = np.arange(len(manifest))
    if isinstance(value, str):
        columns = manifest.take_columns(ids)
        if value not in columns:
            raise OptionError(
                Weighted,
                f"weights: there is no column {value!r} of numbers; there is "
                f"{', '.join(columns) or 'none'}",
            )
        return _to_floats(columns[value])

    if isinstance(value, Mapping):
        by_name = dict(zip(map(str, value), _to_floats(list(value.values())), strict=True))
        if set(by_name) != set(manifest.classes):
            missing, unknown = (
                set(manifest.classes) - set(by_name),
                set(by_name) - set(manifest.classes),
            )

            problem = (
                f"no weight for {sorted(missing)[0]!r}"
                if missing
                else f"there is no class {sorted(unknown)[0]!r}"
            )
            raise OptionError(Weighted, f"weights: {problem}; give one for each class")

        return np.array([by_name[name] for name in manifest.classes])[
            classes_of(manifest, Weighted, "by class ")
        ]

    return _to_floats(value)


def _to_floats(values: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError(Weighted, f"weights are no numbers: {error}") from None
