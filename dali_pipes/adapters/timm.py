"""timm's evaluation transform, carried out by our loaders."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.errors import ConfigError, check_choice, check_range
from dali_pipes.plan.geometry import Geometry
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.transforms import EvalTransform

_SAME = ("interpolation", "mean", "std")  # as in EvalTransform, with the same defaults
_KEYS = ("input_size", "crop_pct", "crop_mode", *_SAME)


def eval_transform(data_config: Mapping[str, Any], **options: Any) -> EvalTransform:
    """What `timm.data.create_transform(**data_config)` does (timm 1.0.31, data/transforms_factory.py, transforms_imagenet_eval).

    Args:
        data_config: of `timm.data.resolve_data_config`.
        options: further ones of `EvalTransform`: dtype, memory_format, exif.

    Raises:
        ConfigError: something of it that our loaders do not do, such as crop_mode="border" or interpolation="lanczos".
    """
    if unknown := sorted(data_config.keys() - set(_KEYS)):
        raise ConfigError(f"timm's {', '.join(unknown)} cannot be carried over; a data config can hold {', '.join(_KEYS)}")
    given = data_config.get("input_size", 224)
    channels, height, width = (3, given, given) if isinstance(given, int) else (3, *given)[-3:]
    if channels != 3:
        raise ConfigError(f"timm's input_size is {tuple(given)}, but images are loaded with 3 channels; convert them in the model")
    mode, share = data_config.get("crop_mode") or "center", data_config.get("crop_pct") or 0.875
    check_choice("timm's crop_mode", mode, ("center", "squash"))
    check_range("timm's crop_pct", share, 0, 1)
    resize = math.floor(height / share), math.floor(width / share)
    same = {key: data_config[key] for key in _SAME if key in data_config} | options
    if mode == "squash":
        return EvalTransform(size=(height, width), resize=resize, **same)
    if height == width:
        return EvalTransform(size=height, resize=resize[0], **same)
    return CoveringEvalTransform(size=(height, width), resize=resize, **same)


@dataclass(kw_only=True, slots=True)
class CoveringEvalTransform(EvalTransform):
    """The image resized until it just covers `resize`, (height, width), at its own aspect ratio, then a central crop.

    timm's ResizeKeepRatio(resize) and CenterCrop(size), for sizes that are not square (timm 1.0.31, data/transforms.py).
    """

    @property
    def crops(self) -> bool:
        return True

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        resize = np.rint(source / (source / self.resize).min(axis=1, keepdims=True)).astype(np.int64)
        crop = np.rint((resize - self.shape) / 2).astype(np.int64)
        never = np.zeros(len(source), bool)
        return Geometry(source, np.concatenate([np.zeros_like(source), source], axis=1), resize, crop, never, never)
