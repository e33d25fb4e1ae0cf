"""Images of one channel: Pillow's `convert("L")` of red, green and blue.

It is ITU-R BT.601's luma in 16 bits, rounded to nearest: (19595 R + 38470 G + 7471 B + 32768) >> 16
(Pillow's src/libImaging/Convert.c, `L24`). torchvision's `rgb_to_grayscale` of tensors cuts
fractions off instead, and so is up to one step darker. Every loader makes an image gray as soon as
it is decoded, before any other step; of a whole image or of its region only, which is the same.
"""

import numpy as np
import torch
from PIL import Image

# of red, green and blue, in 65536 parts
WEIGHTS = (19595, 38470, 7471)
HALF = 32768


def in_channels(image: Image.Image, channels: int) -> Image.Image:
    """An image in RGB, or for one channel in L."""
    mode = "RGB" if channels == 3 else "L"
    if image.mode == mode:
        return image
    # by way of RGB, as all loaders do, which Pillow does not from some modes
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    return rgb if channels == 3 else rgb.convert("L")


def as_array(image: Image.Image) -> np.ndarray:
    """(H, W, C) uint8 of an image in RGB or L."""
    pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def as_tensor(image: Image.Image) -> torch.Tensor:
    """The same as a tensor of its own: PyTorch warns of arrays that cannot be written."""
    return torch.from_numpy(as_array(image).copy())


def from_array(pixels: np.ndarray) -> Image.Image:
    """The image of (H, W, C) uint8, in RGB or L."""
    return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0])


def gray_of(image: torch.Tensor) -> torch.Tensor:
    """(H, W, 1) uint8 of (H, W, 3), on the CPU."""
    return as_tensor(from_array(image.numpy()).convert("L"))
