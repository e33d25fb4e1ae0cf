"""Steps that a plan doesn't have, carried out by themselves: `carry_out` makes an `Augment` of one.

It is the user's own class, or one of a library. It gets what its library gives it: a PIL image, a
tensor, or an array of NumPy. Its random numbers come from the plan, or it is refused
(dali_pipes/backends/pixels/functions.py).
"""

import copy
import threading
from typing import Any

import numpy as np
import torch
from PIL import Image

from dali_pipes.adapters.lazy.random_numbers import find_generators
from dali_pipes.adapters.transforms.reading import TransformReading, is_of, place_of
from dali_pipes.backends.pixels.functions import try_function, try_on_whole
from dali_pipes.errors import ConfigError
from dali_pipes.plan.augment.policies import Augment
from dali_pipes.plan.transforms.base import shape_of


class OnPillow:
    """A step that takes a PIL image, for (C, H, W) uint8 tensors."""

    def __init__(self, step: Any):
        self.step = step
        self.__qualname__ = step_name(step)

    def __call__(self, image: torch.Tensor) -> Any:
        from torchvision.transforms.v2.functional import pil_to_tensor

        pixels = _in_rows(image)
        result = self.step(Image.fromarray(pixels[:, :, 0] if len(image) == 1 else pixels))
        return pil_to_tensor(result).to(image.device) if hasattr(result, "getbands") else result

    def of_image(self, image: Image.Image) -> Any:
        """The same for a whole image."""
        return self.step(image)


class OnArray:
    """A transform of albumentations, for (C, H, W) tensors.

    It keeps random generators of its own, which are seeded by the plan, so each thread has a copy.
    """

    def __init__(self, step: Any):
        self.step, self._own = step, threading.local()
        self.__qualname__ = step_name(step)

    def __call__(self, image: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        result = np.ascontiguousarray(self._call(_in_rows(image), draws).transpose(2, 0, 1))
        return torch.from_numpy(result).to(image.device)

    def of_image(self, image: Image.Image, draws: torch.Tensor) -> Image.Image:
        """The same for a whole image."""
        return Image.fromarray(np.ascontiguousarray(self._call(np.array(image), draws)))

    def _call(self, pixels: np.ndarray, draws: torch.Tensor) -> np.ndarray:
        if not hasattr(self._own, "step"):
            self._own.step = copy.deepcopy(self.step)
        self._own.step.set_random_seed(int(draws[0] * 2**24))
        result: np.ndarray = self._own.step(image=pixels)["image"]
        return result

    def __reduce__(self) -> Any:
        return OnArray, (self.step,)


def _in_rows(image: torch.Tensor) -> np.ndarray:
    """A copy of a (C, H, W) tensor as (H, W, C)."""
    # a third of the time of NumPy's copy, and of that in torchvision's to_pil_image
    pixels: np.ndarray = torch.stack(list(image.cpu()), dim=2).numpy()
    return pixels


class UnsizedError(ConfigError):
    """A step could run as it is if another one gave all images one size."""

    def __init__(self) -> None:
        super().__init__("it comes before images have one size")


def carry_out(reading: TransformReading, step: Any) -> str:
    """Notes a step as a function of the plan, and returns in words what it becomes.

    Raises:
        UnsizedError: it could be one, but for the size of the images.
        ConfigError: it can't be, and why.
    """
    # steps on the whole image may be all that gives images their size
    resized = reading.settled if reading.resize is None else reading.resize
    size = reading.options["size"] if reading.crop else resized
    is_sized = bool(reading.crop) or isinstance(size, tuple)
    if reading.early and reading.crop:
        raise ConfigError("it comes between two crops")
    if reading.early and reading.floats:
        raise ConfigError("it takes floats before images have one size")
    if reading.floats and not is_sized:
        raise UnsizedError
    if reading.erased:
        raise ConfigError("it comes after RandomErasing")
    if not callable(step):
        raise ConfigError("it can't be called")

    # the trial may change the step, and nothing of the user's may change
    try:
        tried = copy.deepcopy(step)
    except Exception as error:
        raise ConfigError(f"it can't be copied: {error}") from None

    where = "normalized" if reading.floats else "uint8"
    policy, before = _function_of(reading, tried, where), _plain_attributes(tried)
    # of albumentations' steps the plan seeds the generators
    is_seeded = isinstance(policy.function, OnArray)
    if not is_seeded and find_generators(step=tried):
        raise ConfigError("it has a random generator of its own, whose numbers no plan has")

    if is_sized and not reading.early:
        try_function(policy, shape_of(size), channels=reading.channels)
    else:
        try_on_whole(policy, reading.channels)
    if not is_seeded and _plain_attributes(tried) != before:
        raise ConfigError("a call changes its attributes, so a resume could not repeat it")

    if not (is_sized or reading.early):
        raise UnsizedError

    policy = _function_of(reading, step, where)
    on_cpu = (
        " of an image copied to the CPU" if isinstance(policy.function, OnPillow | OnArray) else ""
    )
    if reading.early:
        reading.before.append(policy)
        return f"before: Augment({policy.title}), which runs as it is, on the whole image"

    reading.augment.append(policy)
    # what is normalized afterwards is normalized by a function too
    reading.has_function_of_floats |= reading.floats and reading.normalized is None
    reading.has_functions = True
    return f"augment: Augment({policy.title}), which runs as it is, image by image{on_cpu}"


def _plain_attributes(step: Any) -> dict[str, Any]:
    """Numbers and texts that a step holds, such as a count of its calls."""
    held = getattr(step, "__dict__", {})
    return {name: each for name, each in held.items() if isinstance(each, (int, float, str))}


def _function_of(reading: TransformReading, step: Any, where: str) -> Augment:
    if is_of(step, "albumentations"):
        return Augment(OnArray(step), draws=1, where=where)
    if not reading.tensor:
        return Augment(OnPillow(step), where=where)
    return Augment(step, where=where)


def step_name(step: Any) -> str:
    """A step's name, with its file and line if it is the user's own."""
    if hasattr(step, "__qualname__"):
        return str(step.__qualname__)
    libraries = ("torchvision", "timm", "albumentations", "torch")
    if any(is_of(step, each) for each in libraries):
        return type(step).__name__
    return place_of(type(step), "__call__")
