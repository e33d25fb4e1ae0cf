"""transform_from_torch(): a transform of a library, as one of dali_pipes."""

from dataclasses import replace
from typing import Any

from dali_pipes.adapters.transforms.steps import read
from dali_pipes.errors import ConfigError
from dali_pipes.plan.transforms import Transform


def transform_from_torch(transform: Any, **options: Any) -> Transform:
    """Converts a transform of torchvision or timm, such as `timm.data.create_transform(…)` or
    `Weights.….transforms()`.

    Args:
        options: options of the new transform that replace what was read: dtype, memory_format,
            exif, ….

    Raises:
        NotConvertibleError: a step cannot be carried over. It is a ConfigError.
    """
    if isinstance(transform, type):
        raise ConfigError(
            f"transform is the class {transform.__name__}; write {transform.__name__}(…)"
        )
    if isinstance(transform, Transform):
        raise ConfigError(
            f"transform is a {type(transform).__name__} of dali_pipes already; pass it on to "
            "build_loader"
        )
    return replace(read(transform).built(), **options)
