"""Runs the functions of the user's that `augment` has (plan/steps/functions.py).

    functions = Functions(view)
    images = functions.run("uint8", images, planned.augmentation.numbers)

A function takes its random numbers from the plan. Those that it draws from PyTorch itself come from
a generator with a planned seed (`_PlannedRandomness`), so that the same image gets the same ones in
any thread, process and batch, and the program's own generators stay as they are. A function that
draws from `random` or `numpy.random` has them seeded for each call (`_GeneratorsKept`), and never
runs in a thread of a loader's own: the program may draw from them meanwhile.
`call_on_whole` runs one that the option `before` has on a whole image. `check_functions` tries each
function on made-up images, before the first batch.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from dali_pipes.backends.pixels.gray import as_tensor, from_array
from dali_pipes.backends.transfer import copy_to
from dali_pipes.errors import ConfigError
from dali_pipes.plan.draws import Draws
from dali_pipes.plan.steps.functions import Augment
from dali_pipes.plan.transforms import DTYPES, Transform, views_of
from dali_pipes.system.interrupts import delayed_signals

_TRIED = 4  # images that each function is tried on
# heights and widths of whole images; a function that turns an image by 90° changes both
_WHOLE_SHAPES = ((96, 128), (117, 75))
_CPU = torch.device("cpu")
_ON_GPU = "the GPU's generator"
_INSTEAD = "take random numbers from its second argument (draws=…)"


class Functions:
    """The functions of one view, in their order."""

    def __init__(self, view: Transform):
        self.steps: list[_Step] = []
        start = 0
        for policy in view.augmenter.functions:
            end = start + 1 + policy.draws
            self.steps.append(_Step(policy, slice(start, end)))
            start = end

    def __bool__(self) -> bool:
        return bool(self.steps)

    def run(self, where: str, images: torch.Tensor, numbers: NDArray[np.float64]) -> torch.Tensor:
        """The images after the functions of this `Augment.where`, which may write into `images`.

        Args:
            images: (N, C, H, W).
            numbers: of these images, as `Augmentation.numbers`.

        Raises:
            ConfigError: a function fails, or returns something other than such an image.
        """
        for step in self.steps:
            if step.policy.where == where:
                images = step.run(images, numbers)
        return images


@dataclass
class _Step:
    """One function."""

    policy: Augment
    columns: slice  # of `Augmentation.numbers`
    option: str = "augment"  # the one that it stands in, for messages

    @cached_property
    def _compiled(self) -> Callable[..., Any]:
        return torch.compile(self.policy.function)

    def run(self, images: torch.Tensor, numbers: NDArray[np.float64]) -> torch.Tensor:
        # sums in another layout are rounded in another order
        images, numbers = images.contiguous(), numbers[:, self.columns]
        seeds = numbers[:, 0].astype(np.int64).tolist()
        draws = copy_to(images.device, torch.from_numpy(numbers[:, 1:].astype(np.float32)))

        if self.policy.per == "batch":
            return self._call(images, draws, None)
        for at, seed in enumerate(seeds):
            images[at] = self._call(images[at], draws[at], seed)
        return images

    def run_on_image(self, image: Image.Image, numbers: NDArray[np.float64]) -> Image.Image:
        """The result of a function that has a method `of_image`."""
        seed, draws = int(numbers[0]), torch.from_numpy(numbers[1:].astype(np.float32))
        return self._guard(self.policy.function.of_image, image, draws, self._planned(seed))

    def _call(self, images: torch.Tensor, draws: torch.Tensor, seed: int | None) -> torch.Tensor:
        # a mode inside of compiled code would have it compiled again and again
        compiled = self.policy.compile and images.is_cuda
        function = self._compiled if compiled else self.policy.function
        context = nullcontext() if compiled else self._planned(seed)
        return self._guard(function, images, draws, context)

    @contextmanager
    def _planned(self, seed: int | None) -> Iterator[None]:
        """All random numbers that a function may draw are planned inside."""
        seeded = seed if self.policy.draws_from_globals else None
        with _GeneratorsKept(seeded), _PlannedRandomness(self.policy, seed, self.option):
            yield

    def _guard(
        self,
        function: Callable[..., Any],
        images: Any,
        draws: torch.Tensor,
        context: AbstractContextManager[None],
    ) -> Any:
        """Calls the function in this context, and checks the form of what it returns."""
        arguments = (images, draws) if self.policy.draws else (images,)
        form, what = _form_of(images), f"{self.option}: the function {self.policy.title}"
        try:
            with torch.no_grad(), context:
                result = function(*arguments)
        except (ConfigError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            failed = f"{what} failed on {_describe(form)}"
            raise ConfigError(f"{failed}: {type(error).__name__}: {error}") from error

        if (returned := _form_of(result)) != form:
            same = "size and mode" if isinstance(images, Image.Image) else "shape, dtype and device"
            raise ConfigError(
                f"{what} returned {_describe(returned)} for {_describe(form)}; it must return the "
                f"same {same}"
            )
        return result


def call_on_whole(policy: Augment, image: Image.Image, numbers: NDArray[np.float64]) -> Image.Image:
    """The result of a function of the option `before` for a whole image in RGB or L, which it may
    write into.

    A function gets it as a tensor, (C, H, W) uint8; its method `of_image`, if it has one, gets it
    as it is, which saves six copies.

    Args:
        numbers: (1 + draws,) as from `Augment.draw`.

    Raises:
        ConfigError: as `Functions.run`.
    """
    step = _Step(policy, slice(None), "before")
    if hasattr(policy.function, "of_image"):
        return step.run_on_image(image, numbers)

    # memory of its own, which the function may write into
    pixels = as_tensor(image).permute(2, 0, 1)
    result = step.run(pixels[None], numbers[None])[0]
    return from_array(result.permute(1, 2, 0).contiguous().numpy())


def _form_of(value: Any) -> tuple[Any, ...]:
    """What a function keeps of its images; of another value its type."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.device
    return (*value.size, value.mode) if isinstance(value, Image.Image) else (type(value),)


def _describe(form: tuple[Any, ...]) -> str:
    match form:
        case torch.Size() as shape, dtype, device:
            return f"a tensor of {tuple(shape)} {str(dtype).removeprefix('torch.')} on {device}"
        case width, height, mode:
            return f"an image of {width} × {height} pixels in {mode}"
    return f"a {form[0].__name__}"


class _PlannedRandomness(TorchFunctionMode):
    """Lets PyTorch's random functions draw from one generator on the CPU, in this thread only.

    What is drawn on a GPU is drawn on the CPU and copied, so that it is the same on all devices.

    Args:
        seed: of the generator; None: nothing may be drawn.
        option: the one that the function stands in, for messages.
    """

    def __init__(self, policy: Augment, seed: int | None, option: str = "augment"):
        super().__init__()
        self._policy, self._seed, self._option = policy, seed, option
        self._generator: torch.Generator | None = None

    def __enter__(self) -> "_PlannedRandomness":
        # `in_own_modes` keeps PyTorch from asking any mode, since those of the program must change
        # nothing. So that it asks this one, the others are put away.
        self._others: list[Any] = []
        if torch._C._len_torch_function_stack():
            with delayed_signals():
                while torch._C._len_torch_function_stack():
                    self._others.append(torch._C._pop_torch_function_stack())
        self._asked: Any = torch._C._EnableTorchFunction()
        self._asked.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._asked.__exit__(*error)
        if self._others:
            with delayed_signals():
                while self._others:
                    torch._C._push_on_torch_function_stack(self._others.pop())

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        has_own = any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values()))
        draws = name in _RANDOM and not has_own
        if not draws or (name in _WITHOUT_GENERATOR and not _trains(name, args, kwargs)):
            return func(*args, **kwargs)

        if self._seed is None:
            raise ConfigError(
                f"{self._option}: the function {self._policy.title} calls {name}, whose numbers "
                f"would depend on the batch; {_INSTEAD}, or set per='image'"
            )
        if name in _WITHOUT_GENERATOR:
            raise ConfigError(
                f"{self._option}: the function {self._policy.title} calls {name}, which takes no "
                f"generator; {_INSTEAD}"
            )
        if self._generator is None:
            self._generator = torch.Generator("cpu").manual_seed(self._seed)
        return _draw_on_cpu(func, name, args, kwargs, self._generator)


# functions of PyTorch that draw: new tensors, tensors like another one, tensors made of one or
# more others, and those that fill a tensor
_NEW = {"rand", "randn", "randint", "randperm"}
_LIKE = {"rand_like": "rand", "randn_like": "randn", "randint_like": "randint"}
_OF_TENSORS = {
    *("normal", "bernoulli", "multinomial", "poisson", "binomial"),
    *("_sample_dirichlet", "_standard_gamma"),
}
_FILL = {
    *("uniform_", "normal_", "random_", "bernoulli_", "exponential_", "cauchy_", "geometric_"),
    "log_normal_",
}
_WITHOUT_GENERATOR = {
    *("dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout", "rrelu"),
    *("feature_dropout_", "feature_alpha_dropout", "feature_alpha_dropout_", "native_dropout"),
    "rrelu_",
}
_RANDOM = {*_NEW, *_LIKE, *_OF_TENSORS, *_FILL, *_WITHOUT_GENERATOR}


def _trains(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a dropout draws: all take (input, p, training, …), and rrelu two numbers for p."""
    is_rrelu = name.startswith("rrelu")
    place, default = (3, False) if is_rrelu else (2, True)
    given = args[place] if len(args) > place else default
    return bool(kwargs.get("training", kwargs.get("train", given)))


def _draw_on_cpu(
    func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator
) -> torch.Tensor:
    """What `func` draws, on the device where it would be."""
    # `generator=None`, which functions of tensors also take by its position
    kwargs = {key: value for key, value in kwargs.items() if key != "generator"}
    if name in _OF_TENSORS:
        args = tuple(value for value in args if value is not None)
    if name in _LIKE:
        func, args, kwargs = getattr(torch, _LIKE[name]), (), _new_from_like(args, kwargs)

    if name in _FILL:
        # those of torch.nn.init name all of their arguments, in the order of the methods
        filled, *parameters = args or kwargs.values()
        parameters, kwargs = _on_cpu(parameters), _on_cpu(kwargs) if args else {}
        values = torch.empty(filled.shape, dtype=filled.dtype, device="cpu")
        filled.copy_(getattr(values, name)(*parameters, **kwargs, generator=generator))
        return filled

    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    default = tensors[0].device if tensors else torch.get_default_device()
    device = torch.device(kwargs.pop("device", None) or default)
    if name not in _OF_TENSORS:
        kwargs["device"] = "cpu"
    if (out := kwargs.get("out")) is not None:
        kwargs["out"] = torch.empty(0, dtype=out.dtype, device="cpu")

    drawn = func(*_on_cpu(args), **_on_cpu(kwargs), generator=generator)
    return drawn.to(device) if out is None else out.resize_(drawn.shape).copy_(drawn)


def _new_from_like(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a function of `_LIKE`, for the one that makes a new tensor."""
    kwargs = {key: value for key, value in kwargs.items() if value is not None}
    kwargs.pop("memory_format", None)
    like, *numbers = (kwargs.pop("input"), *args) if "input" in kwargs else args
    # randint_like takes (input, high) or (input, low, high)
    names = ["low"] if "high" in kwargs else ["low", "high"][-len(numbers) :]
    new = {"size": tuple(like.shape), "dtype": like.dtype, "device": like.device}
    return new | dict(zip(names, numbers, strict=False)) | kwargs


def _on_cpu(values: Any) -> Any:
    return tree_map_only(torch.Tensor, torch.Tensor.cpu, values)


def check_functions(transform: Transform, device: torch.device) -> None:
    """Tries the functions of all views on made-up images on `device`.

    Raises:
        ConfigError: a function fails, returns no such image, gives other images for the same
            random numbers, or lets an image depend on others of its batch.
    """
    for view in views_of(transform):
        for policy in view.functions_before:
            _try_on_whole(policy, view.channels)
        for policy in view.augmenter.functions:
            _try(policy, view, device)


def _try(policy: Augment, view: Transform, device: torch.device) -> None:
    images = _made_up(view.shape, view.channels).to(device)
    if policy.where == "normalized":
        images = (images.float() - 127.5).div_(64).to(getattr(torch, DTYPES[view.dtype]))
    numbers = policy.draw(Draws(0, 0, np.arange(_TRIED)), 0)
    if policy.geometry is not None:
        policy.matrices(numbers, view.shape)
    _check_step(_Step(policy, slice(None)), images, numbers)


def _try_on_whole(policy: Augment, channels: int) -> None:
    """Tries a function of the option `before`, on images of two sizes."""
    draws_from_globals = False
    numbers = policy.draw(Draws(0, 0, np.arange(_TRIED)), 0)
    for shape in _WHOLE_SHAPES:
        _check_step(_Step(policy, slice(None), "before"), _made_up(shape, channels), numbers)
        draws_from_globals |= policy.draws_from_globals
    policy.draws_from_globals = draws_from_globals


def _made_up(shape: tuple[int, int], channels: int) -> torch.Tensor:
    """Images of this height and width: noise, dark and bright noise, and one colour, since code may
    look at what an image shows.
    """
    images = np.random.default_rng(0).integers(0, 256, (_TRIED, channels, *shape), np.uint8)
    images[1] //= 16
    images[2] |= 0xF0
    images[3] = 200
    return torch.from_numpy(images)


def _check_step(step: _Step, images: torch.Tensor, numbers: NDArray[np.float64]) -> None:
    policy, name = step.policy, step.policy.title
    policy.draws_from_globals = False
    with _GeneratorsKept(0, images.device) as kept:
        step.run(images.clone(), numbers)
        changed = kept.changed()
    if changed:
        if policy.per == "batch" or policy.compile or _ON_GPU in changed:
            raise ConfigError(
                f"{step.option}: the function {name} draws from {' and '.join(changed)}, whose "
                "numbers no plan has: they would differ between loaders and after a resume; "
                f"{_INSTEAD}"
            )
        policy.draws_from_globals = True

    with _GeneratorsKept(0, images.device):
        once, again = (step.run(images.clone(), numbers) for _ in range(2))
    # as bytes: NaN, which a function may make of an image of one colour, equals nothing
    if not torch.equal(_bytes(once), _bytes(again)):
        raise ConfigError(
            f"{step.option}: the function {name} returns another image for the same image and "
            f"random numbers, so a resume could not repeat it; keep no state in it, and {_INSTEAD}"
        )

    if step.policy.per == "batch":
        parts = [step.run(images[at].clone(), numbers[at]) for at in (slice(1), slice(1, None))]
        # a step of 255, or what rounding in another order makes of normalized values
        tolerance = 1.0 if images.dtype == torch.uint8 else 1e-2
        if not torch.allclose(once.float(), torch.cat(parts).float(), 0, tolerance, equal_nan=True):
            raise ConfigError(
                f"{step.option}: the function {name} gives an image other pixels in another batch, "
                "and loaders cut batches differently; let no image depend on the others "
                "(per='image')"
            )


def _bytes(images: torch.Tensor) -> torch.Tensor:
    return images.contiguous().view(torch.uint8)


class _GeneratorsKept:
    """Seeds the generators that the whole process shares, and sets them back afterwards.

    Args:
        seed: None: nothing is done.
        device: a GPU's generator is kept as well.
    """

    def __init__(self, seed: int | None, device: torch.device = _CPU):
        self._seed, self._gpu = seed, device if device.type == "cuda" else None

    def __enter__(self) -> "_GeneratorsKept":
        if self._seed is not None:
            self._before = self._states()
            random.seed(self._seed)
            np.random.seed(self._seed)
            torch.default_generator.manual_seed(self._seed)
            self._seeded = self._states()
        return self

    def _states(self) -> dict[str, Any]:
        on_gpu = {_ON_GPU: torch.cuda.get_rng_state(self._gpu)} if self._gpu else {}
        return {
            "random": random.getstate(),
            "numpy.random": np.random.get_state(),
            "PyTorch's generator": torch.get_rng_state(),
            **on_gpu,
        }

    def changed(self) -> list[str]:
        """The generators that have been drawn from."""
        now = self._states()
        return [
            name
            for name, state in self._seeded.items()
            if repr(_plain(state)) != repr(_plain(now[name]))
        ]

    def __exit__(self, *error: object) -> None:
        if self._seed is not None:
            random.setstate(self._before["random"])
            np.random.set_state(self._before["numpy.random"])
            torch.set_rng_state(self._before["PyTorch's generator"])
        if self._seed is not None and self._gpu:
            torch.cuda.set_rng_state(self._before[_ON_GPU], self._gpu)


def _plain(state: Any) -> Any:
    """A random state as values that can be compared."""
    if isinstance(state, torch.Tensor):
        return state.tolist()
    return [part.tolist() if isinstance(part, np.ndarray) else part for part in state]


def say_functions(transform: Transform, device: torch.device) -> str:
    """Where the functions of the user's run, for the end of a backend's description; "" if there
    are none.

    Args:
        device: on which those of `augment` run.
    """
    views = views_of(transform)
    whole = [f"{policy.title} (whole images)" for view in views for policy in view.functions_before]
    titles = [
        f"{policy.title} ({'batches' if policy.per == 'batch' else 'image by image'}"
        f"{', in no thread of the loader' if policy.draws_from_globals else ''})"
        for view in views
        for policy in view.augmenter.functions
    ]
    # what runs before the crop runs where images are decoded
    by_device: dict[str, list[str]] = {"cpu": whole} if whole else {}
    if titles:
        by_device[str(device)] = by_device.get(str(device), []) + titles
    return "".join(
        f"; functions of yours on {name}{' with the interpreter lock' * (name == 'cpu')}: "
        f"{', '.join(functions)}"
        for name, functions in by_device.items()
    )
