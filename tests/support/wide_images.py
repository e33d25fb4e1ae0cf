"""A folder of images with 16 bits a channel, and what they become by NumPy alone."""

from pathlib import Path

import numpy as np
from built_files import chunk, png, tiff

SIZES = [(60, 80), (46, 44)]


def colors(height, width, channels=3, seed=0):
    """(height, width, channels) uint16 with all of its 16 bits in use."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width] / 9
    waves = [np.sin(rows * (at + 1)) * np.cos(columns) for at in range(channels)]
    noise = rng.normal(0, 900, (height, width, channels))
    return (32768 + 31000 * np.stack(waves, -1) + noise).clip(0, 65535).astype(np.uint16)


def exif(orientation):
    """A PNG's chunk eXIf with this orientation."""
    entry = b"MM\0*\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0" + bytes([orientation]) + bytes(6)
    return chunk(b"eXIf", entry)


def write_wide(folder: Path) -> dict[str, np.ndarray]:
    """Images of each kind, one also turned by EXIF and some of 8 bits; what is stored in them."""
    stored = {}
    for at, (height, width) in enumerate(SIZES):
        rgb, gray = colors(height, width, 3, at), colors(height, width, 1, at + 10)
        stored |= {f"{at}_rgb.png": rgb, f"{at}_gray.png": gray, f"{at}_rgb.tif": rgb}
        stored |= {f"{at}_gray.tif": gray, f"{at}_turned.png": rgb}
        stored |= {f"{at}_turned.tif": gray, f"{at}_eight.png": (rgb >> 8).astype(np.uint8)}
    for name, pixels in stored.items():
        (folder / name).write_bytes(_encode(name, pixels))
    return stored


def _encode(name, pixels):
    kind = 2 if pixels.shape[2] == 3 else 0
    if pixels.dtype == np.uint8:
        return png(pixels, kind)
    turn = 6 if "turned" in name else 1
    if name.endswith("png"):
        before = exif(turn) if turn > 1 else b""
        return png(pixels.astype(">u2"), kind, 16, before)
    flat = pixels if kind else pixels[..., 0]
    return tiff(flat.astype("<u2"), 2 if kind else 1, 16, orientation=turn)


def resize(values, shape, interpolation="bilinear"):
    """(*shape, C) of values, (H, W, C), in float64: Pillow's antialiased filter."""
    for axis, out in enumerate(shape):
        weights = _weights(values.shape[axis], out, interpolation)
        values = np.moveaxis(np.tensordot(weights, values, (1, axis)), 0, axis)
    return values


def _weights(size, out, interpolation):
    radius = {"bilinear": 1.0, "bicubic": 2.0}[interpolation]
    scale = max(size / out, 1.0)
    centre = (np.arange(out)[:, None] + 0.5) * size / out
    places = np.arange(size)
    first = (centre - radius * scale + 0.5).astype(int).clip(0)
    last = (centre + radius * scale + 0.5).astype(int).clip(max=size)
    distance = np.abs((places + 0.5 - centre) / scale)
    if interpolation == "bilinear":
        weights = (1 - distance).clip(0)
    else:
        a, d = -0.5, distance
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = (((d - 5) * d + 8) * d - 4) * a
        weights = np.where(d < 1, near, np.where(d < 2, far, 0))
    weights = np.where((places >= first) & (places < last), weights, 0)
    return weights / weights.sum(1, keepdims=True)


def expected(stored, orientation, view, at, channels, interpolation="bilinear"):
    """(channels, H, W) float64 from 0 to 1 of one image of a planned view."""
    values = np.asarray(stored, np.float64)
    if orientation == 6:
        values = np.rot90(values, -1)
    if values.shape[2] == 3 and channels == 1:
        values = values @ np.array([19595, 38470, 7471])[:, None] / 65536
    place = view.geometry.take(at)
    top, left, height, width = map(int, place.region)
    values = values[top : top + height, left : left + width]
    if (height, width) != tuple(place.resize.tolist()):
        values = resize(values, tuple(place.resize.tolist()), interpolation)
    values = values.clip(0, 65535) / 65535

    top, left = map(int, place.crop)
    height, width = view.shape
    values = np.pad(values, ((height, height), (width, width), (0, 0)))
    values = values[top + height : top + 2 * height, left + width : left + 2 * width]
    values = values[:: -1 if place.vertical_flip else 1, :: -1 if place.flip else 1]
    return np.broadcast_to(values, (height, width, channels)).transpose(2, 0, 1)
