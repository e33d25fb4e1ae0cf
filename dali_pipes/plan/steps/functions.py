"""A function of the user's as one more step of the augmentation."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_choice, check_int, describe_value
from dali_pipes.errors import ConfigError
from dali_pipes.options import check_options, option
from dali_pipes.plan.draws import Draws
from dali_pipes.system.functions import import_function

MAX_DRAWS = 64
# draw numbers reserved for each function: one for the seed, and one for every four of its draws
RANGE = 1 + MAX_DRAWS // 4

Matrices = NDArray[np.float64]


@dataclass(slots=True)
class Augment:
    """A function of your own, after all other policies but `RandomErasing`.

    It is called with an image and, if `draws` is set, with that many planned random numbers. It
    runs where the loader finishes images: in the DataLoader's workers, in the threads of
    `DaliConfig(device="cpu")`, or on the GPU. The same sample gets the same numbers on every
    loader, on any number of ranks, and after a resume.

    What it draws from PyTorch (`torch.rand`, `Tensor.uniform_` …) comes from a generator with a
    planned seed, so modules of torchvision.transforms.v2 can be given as they are. If it draws from
    `random` or `numpy.random`, these get a planned seed for each call, and their states back after
    it. A function that keeps a state is refused when the loader is built.

    Args:
        function: takes an image, (C, H, W), and returns one of the same shape, dtype and device. It
            may write into the image, and may be called in several threads at once. Text, as in
            YAML, is the name of a function to import, "package.module:function" or
            "./file.py:function".
        draws: how many random numbers the function takes as its second argument: (draws,) float32
            in [0, 1), on the image's device. At most 64.
        per: "image", or "batch" for a function of (N, C, H, W) images and (N, draws) numbers, which
            costs less on a GPU. N is any number from 1 on, and no image may depend on the others.
        where: "uint8" for pixels of 0 to 255, or "normalized" for what the model gets.
        geometry: of a function that moves pixels, so that boxes and masks go along: takes (N,
            draws) numbers as a NumPy array and the images' (height, width), and returns (N, 2, 3)
            matrices from x and y in the result to x and y before, measured from the corner of the
            first pixel. None: pixels stay in place.
        compile: compiles the function with `torch.compile` where it runs on a GPU. It takes its
            random numbers from `draws` then.

    Attributes:
        draws_from_globals: whether it was seen to draw from generators that the whole process
            shares, so that it must run in the thread that asks for the batch, or in a worker.
    """

    function: Any
    _: KW_ONLY
    name: str = "Augment"
    draws: int = option(0, check_int, 0, MAX_DRAWS)
    per: str = option("image", check_choice, ("image", "batch"))
    where: str = option("uint8", check_choice, ("uint8", "normalized"))
    geometry: Any = None
    compile: bool = False
    draws_from_globals: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self)
        arguments: tuple[str, ...]
        arguments, instead = ("image",), "set draws, or let it take only the image"
        if self.draws:
            arguments, instead = ("image", "numbers"), "let it take these, or leave draws at 0"
        self.function = _to_function("function", self.function, arguments, instead)

        if self.geometry is not None:
            arguments, instead = ("numbers", "shape"), "let it take these"
            self.geometry = _to_function("geometry", self.geometry, arguments, instead)

    @property
    def title(self) -> str:
        """The function's name, for messages."""
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def draw(self, draws: Draws, first: int) -> NDArray[np.float64]:
        """(N, 1 + draws): a seed of 32 bits, then numbers in [0, 1)."""
        words = draws.uniform(np.arange(first, first + 1 + -(-self.draws // 4)))
        seeds = words[:1, :, 0].T * 2**32
        numbers = words[:, :, 1:].transpose(1, 2, 0).reshape(len(seeds), -1)[:, : self.draws]
        # 24 bits are exact in float32; more could be rounded up to 1
        return np.hstack([seeds, np.floor(numbers * 2**24) / 2**24])

    def matrices(self, numbers: NDArray[np.float64], shape: tuple[int, int]) -> Matrices:
        """(N, 2, 3) from pixels of the result to pixels before, for `numbers` as from `draw`."""
        matrices = np.asarray(self.geometry(numbers[:, 1:], shape), np.float64)
        if matrices.shape != (len(numbers), 2, 3) or not np.isfinite(matrices).all():
            raise ConfigError(
                f"augment: geometry of {self.title} returned {describe_value(matrices.shape)} for "
                f"{len(numbers)} images; it must return finite matrices of ({len(numbers)}, 2, 3)"
            )
        return matrices


def _to_function(
    option: str, value: Any, arguments: tuple[str, ...], instead: str
) -> Callable[..., Any]:
    if isinstance(value, str):
        try:
            value = import_function(value, arguments, instead=instead)
        except ConfigError as error:
            raise ConfigError(f"augment: {option} of Augment: {error}") from None
        except ImportError as error:  # of a module that this one imports
            raise ConfigError(
                f"augment: {option} of Augment is {value!r}, which cannot be imported: {error}"
            ) from None

    if isinstance(value, type) or not callable(value):
        raise ConfigError(
            f"augment: {option} of Augment is {describe_value(value)}; it takes a function of a "
            "tensor, or an object that can be called"
        )
    return value
