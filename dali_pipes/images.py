"""From what a user said to a manifest."""

from typing import Any

from dali_pipes.config import DataConfig
from dali_pipes.demo import make_demo_set
from dali_pipes.manifest import Manifest


def open_images(data: DataConfig, split: str, **options: Any) -> Manifest:
    """The images of "train" or "val". The demo set is made if it is asked for and not there yet.

    Args:
        options: verify and max_pixels, as for `Manifest.open`.

    Raises:
        ConfigError, ManifestError: no images are given, or none are there.
    """
    source = data.source(split)
    if data.demo and source == f"{data.root}/{split}":
        make_demo_set(str(data.root))
    return Manifest.open(source, cache_dir=data.cache_dir, **options)
