"""Functions as users write them, for `Augment`: in a module, where workers and YAML find them."""

import random

import numpy as np
import torch


def brighten(image, draws):
    return (image.float() * (0.5 + draws[0])).clamp(0, 255).to(torch.uint8)


def add_noise(image):
    """Draws from PyTorch itself, and writes into the image."""
    return image.add_(0.1 * torch.randn_like(image))


def shift_batch(images, draws):
    return (images + draws[:, 0, None, None, None]).to(images.dtype)


def move_right(image, draws):
    """By up to 9 whole pixels."""
    pixels = int(draws[0] * 10)
    moved = torch.zeros_like(image)
    moved[:, :, pixels:] = image[:, :, : image.shape[2] - pixels]
    return moved


def moves_right(draws, shape):
    matrices = np.tile(np.eye(2, 3), (len(draws), 1, 1))
    matrices[:, 0, 2] = -np.trunc(draws[:, 0] * 10)
    return matrices


def draw_from_random(image):
    return image.roll(random.randrange(2, 9), 1)


def draw_from_numpy(image):
    return image.roll(np.random.randint(2, 9), 1)


def draw_for_batches(images):
    return images.roll(random.randrange(2, 9), 2)


def return_half(image):
    return image[:, ::2]


def return_floats(image):
    return image.float()


def return_nothing(image):
    image.zero_()


def fail(image):
    raise IndexError("index 7 is out of range")


def subtract_batch_mean(images):
    return (images.float() - images.float().mean()).to(images.dtype)


def drop_out(image):
    return torch.nn.functional.dropout(image.float(), 0.5, True).to(image.dtype)


class Counting:
    """Another image in every call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, image):
        self.calls += 1
        return image.roll(self.calls, 2)


def add_bytes(image):
    """Draws bytes from PyTorch itself, and writes into the image."""
    image //= 2
    image += torch.randint(0, 100, image.shape).byte()
    return image


def turn_right(image):
    return image.rot90(1, (1, 2))
