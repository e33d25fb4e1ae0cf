"""Pillow's `ImageFile.LOAD_TRUNCATED_IMAGES`, which a program may have set for its own images, and
which fills what is missing with gray: no other decoder does, so that a batch would depend on the
loader."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from PIL import ImageFile

_lock = threading.Lock()
_inside, _kept = 0, False  # how many blocks there are in all threads, and what the program had set


def is_lenient() -> bool:
    """Whether the program has set it."""
    return bool(ImageFile.LOAD_TRUNCATED_IMAGES) or _inside > 0


@contextmanager
def only_whole_images() -> Iterator[None]:
    """A block in which Pillow refuses truncated images. The flag is the process's: it is as before
    when no thread is inside.
    """
    global _inside, _kept
    with _lock:
        if not _inside:
            _kept, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                ImageFile.LOAD_TRUNCATED_IMAGES = _kept


def load_whole(image: ImageFile.ImageFile) -> ImageFile.ImageFile:
    """The same image, which refuses to be decoded if it is truncated."""
    image.load = partial(_load, image)  # type: ignore[method-assign]
    return image


def _load(image: ImageFile.ImageFile) -> Any:
    with only_whole_images():
        pixels = type(image).load(image)
    image.__dict__.pop("load", None)  # which held the image by itself
    return pixels
