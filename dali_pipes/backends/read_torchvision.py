"""One planned image with torchvision's decoder and resize."""

import numpy as np
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms.v2.functional import resize as resize_image

from dali_pipes.backends.torch import check_size
from dali_pipes.geometry import Int


def read(path: str, size: int, upright: bool, source: Int, window: Int, resize: Int, crop: Int) -> np.ndarray:
    """(size, size, 3) uint8."""
    top, left, height, width = map(int, window)
    encoded = read_file(path)
    if bytes(encoded[:4].numpy()) == b"GIF8":
        raise ValueError(f"{path}: GIF, which only torchvision would decode")
    image = decode_image(encoded, mode=ImageReadMode.RGB, apply_exif_orientation=upright)
    check_size(path, source, image.shape[1], image.shape[2])
    image = resize_image(image[:, top : top + height, left : left + width], [int(resize[0]), int(resize[1])], antialias=True)
    pixels: np.ndarray = image.permute(1, 2, 0).numpy()
    return pixels[crop[0] : crop[0] + size, crop[1] : crop[1] + size]
