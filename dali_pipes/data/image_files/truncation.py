"""Makes Pillow refuse truncated images even if a program has set `ImageFile.LOAD_TRUNCATED_IMAGES`
for its own images.

With that flag Pillow fills what is missing with gray. No other decoder does so, and a batch would
depend on the loader.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from PIL import ImageFile

_lock = threading.Lock()
_depth, _program_value = 0, False  # blocks in all threads, and the value that the program had set


def is_lenient() -> bool:
    """Whether the program has set the flag."""
    return bool(ImageFile.LOAD_TRUNCATED_IMAGES) or _depth > 0


@contextmanager
def only_whole_images() -> Iterator[None]:
    """A block in which Pillow refuses truncated images.

    The flag belongs to the process: it is put back when no thread is inside.
    """
    global _depth, _program_value

    with _lock:
        # only the first one inside sees the program's own value
        if not _depth:
            _program_value, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
        _depth += 1

    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth:
                ImageFile.LOAD_TRUNCATED_IMAGES = _program_value


def load_whole(image: ImageFile.ImageFile) -> ImageFile.ImageFile:
    """Returns the same image, which refuses to be decoded if it is truncated."""
    # Pillow decodes when the pixels are first asked for, after the block of `open_stored` has ended
    image.load = partial(_load, image)  # type: ignore[method-assign]
    return image


def _load(image: ImageFile.ImageFile) -> Any:
    with only_whole_images():
        pixels = type(image).load(image)
    image.__dict__.pop("load", None)  # it refers to the image, which would keep itself alive
    return pixels
