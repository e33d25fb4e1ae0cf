"""Ways in which an image file goes bad after it was scanned."""

import os

from PIL import Image


def replaced_by_gif(path):
    with Image.open(path) as image:
        image.convert("P").save(path.with_suffix(".gif"))
    path.with_suffix(".gif").replace(path)


def resized(path):
    with Image.open(path) as image:
        half = image.resize((max(1, image.width // 2), max(1, image.height // 2)))
    half.save(path)


def rewritten(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


TRUNCATED = "truncated to half"
FAULTS = {
    TRUNCATED: rewritten(lambda good: good[: len(good) // 2]),
    "header only": rewritten(lambda good: good[:200]),
    "zero bytes": rewritten(lambda good: b""),
    "garbage": rewritten(lambda good: os.urandom(5000)),
    "HTML text": rewritten(lambda good: b"<!doctype html><title>404 Not Found</title>" * 20),
    "deleted": lambda path: path.unlink(),
    "a folder in its place": lambda path: (path.unlink(), path.mkdir()),
    "GIF named .jpg": replaced_by_gif,
    "another size": resized,
}
