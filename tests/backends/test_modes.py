"""What a program sets for its model, such as autocast or a default dtype, changes no pixel, label
or target of any backend.
"""

import ast
import ctypes
import locale
import os
import random
import tempfile
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dali_pipes as dp
from dali_pipes.measure.arms import SyntheticConfig
from dali_pipes.plan.steps.operations import CODE, OPS, TABLES, Slot
from dali_pipes.plan.steps.policies import Policy, RandomErasing
from dali_pipes.system.modes import in_own_modes

PACKAGE = Path(dp.__file__).parent
BACKENDS = {
    "dali_cpu": dp.DaliConfig(device="cpu"),
    "dali_cpu_graph": dp.DaliConfig(device="cpu", resize="dali"),
    "torch_pil": dp.TorchConfig(num_workers=0),
    "torch_device": dp.TorchConfig(num_workers=0, normalize_on="device", decoder="torchvision"),
    "torch_pil_workers": dp.TorchConfig(num_workers=2),
    "torch_torchvision_workers": dp.TorchConfig(decoder="torchvision", num_workers=2),
    "synthetic": SyntheticConfig(),
}
STRENGTHS = (
    dict.fromkeys(OPS, 0.4)
    | dict.fromkeys(("TranslateX", "TranslateY"), 9)
    | {"Rotate": 33, "Posterize": 3, "GaussianBlur": 1.3}
)


@dataclass(kw_only=True, slots=True)
class Every(Policy):
    """Each of some operations in turn, on one image after the other, and then every third image is
    turned.
    """

    ops: tuple[str, ...] = tuple(op for op in OPS if op not in TABLES)

    @property
    def slots(self):
        return Slot(self.ops[1:], "bilinear", 9), Slot(("Rotate",), "nearest")

    def draw(self, draws, first, size):
        count = len(draws.uniform(first)[0])
        in_turn = np.arange(count) % len(self.ops)
        chosen = np.array([CODE[op] for op in self.ops], np.int8)[in_turn]
        turned = np.where(np.arange(count) % 3, CODE["Identity"], CODE["Rotate"]).astype(np.int8)
        strength = np.array([STRENGTHS[op] for op in self.ops], np.float32)[in_turn]
        return np.stack([chosen, turned], axis=1), np.stack(
            [strength, np.full(count, 21, np.float32)], axis=1
        )


@contextmanager
def set_for_now(get, put, value):
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


@contextmanager
def seeded():
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


# what glibc's localedef makes of `decimal_point ","`: machines of CI have no locale with one
COMMA = bytes.fromhex(
    "14110320060000002000000022000000"
    "24000000280000002c00000030000000"
    "2c002e00030300002c0000002e000000"
    "414e53495f58332e342d3139363800"
)


@contextmanager
def decimal_comma():
    """C's own functions then read and write 1,5, and take 1.5 for 1."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "comma").mkdir()
        (folder / "comma/LC_NUMERIC").write_bytes(COMMA)
        stack.enter_context(patch.dict(os.environ, LOCPATH=str(folder)))
        stack.enter_context(
            set_for_now(
                lambda: locale.setlocale(locale.LC_NUMERIC),
                lambda name: locale.setlocale(locale.LC_NUMERIC, name),
                "comma",
            )
        )
        strtod = ctypes.CDLL(None).strtod
        strtod.restype = ctypes.c_double
        assert (locale.str(1.5), strtod(b"1.5", None)) == ("1,5", 1.0)
        yield


@contextmanager
def deterministic():
    with set_for_now(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ):
        yield


@contextmanager
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("error", UserWarning)
        yield


@contextmanager
def precision_64_true():
    """As Lightning has it around a training's steps."""
    with default_dtype(torch.float64), torch.device("cpu"):
        yield


class Doubles(TorchDispatchMode):
    """A mode of a program's own, which changes what every operation returns."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        return (
            made.double()
            if isinstance(made, torch.Tensor) and made.dtype == torch.float32
            else made
        )


class Halves(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        return (
            made.half() if isinstance(made, torch.Tensor) and made.dtype == torch.float32 else made
        )


def default_dtype(dtype):
    return set_for_now(torch.get_default_dtype, torch.set_default_dtype, dtype)


def default_device(device):
    return set_for_now(torch.get_default_device, torch.set_default_device, device)


MODES = {
    "autocast bfloat16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "default dtype bfloat16": lambda: default_dtype(torch.bfloat16),
    "default dtype float16": lambda: default_dtype(torch.float16),
    "default dtype float64": lambda: default_dtype(torch.float64),
    "default device meta": lambda: default_device("meta"),
    "with a device": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
    "deterministic algorithms": deterministic,
    "one thread": lambda: set_for_now(torch.get_num_threads, torch.set_num_threads, 1),
    "three threads": lambda: set_for_now(torch.get_num_threads, torch.set_num_threads, 3),
    "medium precision of products": lambda: set_for_now(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "denormals are zero": lambda: set_for_now(lambda: False, torch.set_flush_denormal, True),
    "without oneDNN": lambda: set_for_now(
        torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, False
    ),
    "anomalies are looked for": lambda: torch.autograd.set_detect_anomaly(True),
    "tensors without data": FakeTensorMode,
    "a mode for operations": Doubles,
    "a mode for functions": Halves,
    "NumPy raises": lambda: np.errstate(all="raise"),
    "warnings are errors": warnings_are_errors,
    "seeds": seeded,
    "decimal comma": decimal_comma,
    "Lightning's 64-true": precision_64_true,
}


def batches(manifest, name, around=ExitStack, inside=ExitStack):
    """All of an epoch; `around` the whole, `inside` around the loop alone."""
    mix = dp.RandomChoice([dp.MixUp(num_classes=9), dp.CutMix(num_classes=9)])
    transform = dp.TrainTransform(size=(48, 40), augment=[Every(), RandomErasing(p=0.5)])
    with around():
        options = {
            "transform": transform,
            "batch_size": 19,
            "last_batch": "partial",
            "batch_transform": mix,
        }
        with dp.build_loader(manifest, BACKENDS[name], **options) as loader, inside():
            return list(loader)


def exactly(batch):
    yield from (batch.images, batch.labels, batch.ids, *batch.targets.values())


@pytest.fixture(scope="module")
def without_modes(thumbnails):
    return {name: batches(thumbnails, name) for name in BACKENDS}


def check(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for value, plain in zip(exactly(one), exactly(other), strict=True):
            assert (value.dtype, value.device, value.shape) == (
                plain.dtype,
                plain.device,
                plain.shape,
            )
            assert torch.equal(value, plain)
            assert not value.is_inference() and not value.requires_grad


@pytest.mark.slow
def test_every_operation_is_in_it(thumbnails, without_modes):
    with dp.build_loader(
        thumbnails,
        SyntheticConfig(),
        transform=dp.TrainTransform(size=8, augment=[Every()]),
        batch_size=37,
    ) as one:
        drawn = set(one.plan.batch(0, 0).augmentation.ops.ravel())
        assert drawn == {CODE[op] for op in OPS if op not in TABLES}
    assert all(len(each) == 2 for each in without_modes.values())


@pytest.mark.few
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BACKENDS)
def test_a_mode_changes_no_pixel(thumbnails, without_modes, name, mode):
    check(batches(thumbnails, name, around=MODES[mode]), without_modes[name])


@pytest.mark.few
@pytest.mark.parametrize(
    "mode", ["autocast bfloat16", "default dtype bfloat16", "default device meta", "inference mode"]
)
@pytest.mark.parametrize("name", ["dali_cpu", "torch_pil", "torch_pil_workers"])
def test_a_mode_that_is_set_after_the_loader_was_built(thumbnails, without_modes, name, mode):
    check(batches(thumbnails, name, inside=MODES[mode]), without_modes[name])


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_changes_no_target(tmp_path, mode):
    rng = np.random.default_rng(4)
    for number in range(4):
        for folder in ("images", "masks"):
            (tmp_path / folder).mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)).save(
            tmp_path / f"images/{number}.jpg"
        )
        Image.fromarray(rng.integers(0, 4, (40, 50), np.uint8)).save(
            tmp_path / f"masks/{number}.png"
        )
    manifest = dp.Manifest.from_masks(
        tmp_path / "images", tmp_path / "masks", classes=list("abcd"), progress=False
    )
    transform = dp.TrainTransform(size=32, augment=[{"name": "RandomRotation", "degrees": 30}])

    def targets():
        with dp.build_loader(
            manifest, dp.TorchConfig(num_workers=0), transform=transform, batch_size=4
        ) as loader:
            return list(loader)

    expected = targets()
    with MODES[mode]():
        found = targets()
    check(found, expected)
    assert found[0].targets


@pytest.mark.parametrize("mode", [each for each in MODES if each != "seeds"])
def test_the_programs_own_modes_come_back(mode):
    def state():
        precision = (
            torch.get_float32_matmul_precision(),
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
        )
        kinds = (
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_autocast_enabled("cpu"),
        )
        return *precision, *kinds, tuple(np.geterr().items())

    with MODES[mode]():
        before = state()
        in_own_modes(lambda: None)()
        assert state() == before


# what makes a tensor out of numbers, and so asks for the default dtype or the default device
MAKERS = (
    "tensor",
    "empty",
    "zeros",
    "ones",
    "full",
    "arange",
    "linspace",
    "rand",
    "randn",
    "randint",
    "eye",
    "as_tensor",
    "logspace",
)
WHOLE_NUMBERS = ("arange", "randint")
# what may read them: models are made there, by whose modes a user means what they say
OF_MODELS = ("training/network/memory.py", "measure/consumers.py", "measure/agreement.py")


def makers_without(source):
    for call in ast.walk(ast.parse(source)):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in MAKERS
        ):
            given = {each.arg for each in call.keywords}
            of_torch = isinstance(call.func.value, ast.Name) and call.func.value.id == "torch"
            if of_torch and None not in given and not {"dtype", "device"} <= given:
                yield call.lineno, ast.unparse(call)


def test_a_tensor_is_made_with_its_dtype_and_its_device():
    for file in sorted(PACKAGE.rglob("*.py")):
        if str(file.relative_to(PACKAGE)) not in OF_MODELS and "tools" not in file.parts:
            assert not list(makers_without(file.read_text())), file
