"""One planned image with torchvision's JPEG decoder and resize; Pillow decodes the other formats."""

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2.functional import resize as resize_image

from dali_pipes.backends.common import pillow as read_pil
from dali_pipes.backends.common.pixels import cut
from dali_pipes.plan.geometry import Int


def read(encoded: np.ndarray, name: str, size: int, upright: bool, source: Int, window: Int, resize: Int, crop: Int) -> np.ndarray:
    """(size, size, 3) uint8 from an image's encoded bytes; `name` is for messages."""
    if encoded[:3].tobytes() != b"\xff\xd8\xff":
        return read_pil.read(encoded, name, size, upright, source, window, resize, crop)
    top, left, height, width = map(int, window)
    image = decode_jpeg(torch.from_numpy(encoded), mode=ImageReadMode.RGB, apply_exif_orientation=upright)
    read_pil.check_size(name, source, image.shape[1], image.shape[2])
    image = resize_image(image[:, top : top + height, left : left + width], [int(resize[0]), int(resize[1])], antialias=True)
    return cut(image.permute(1, 2, 0).numpy(), crop, size)
