"""Every row of torchvision's tensors, OpenCV and albumentations: what is noted is what is done.

Each function is called as a program calls it, with random arguments, on a picture that waits and on
the true one. The result must wait, look as the true one, and be equal to it, bit for bit.
"""

import importlib
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import PIL.Image
import pytest
import timm.data as timm_data
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lazy_works import BACKENDS, made_by, made_by_backend, steps_apart
from programs.twice import layout, seeded, true_of, waits
from torchvision.io import (
    ImageReadMode,
    decode_image,
    read_file,
    read_image,
)
from torchvision.transforms.v2 import functional as v2
from torchvision.transforms.v2.functional import InterpolationMode

from dali_pipes.adapters.lazy.compiler import lines
from dali_pipes.adapters.lazy.compiler.executor import Executor
from dali_pipes.adapters.lazy.state import PROCESS, waiting
from dali_pipes.adapters.lazy.steps import albumentations, opencv, torchvision_tensors
from dali_pipes.adapters.lazy.steps.step import STEPS

pytestmark = pytest.mark.usefixtures("libraries_know_what_waits")
HEIGHT, WIDTH, COUNT = 30, 37, 2


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Paths of pictures, by name."""
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    noise = rng.integers(0, 256, (HEIGHT // 3 + 1, WIDTH // 3 + 1, 3), np.uint8)
    # neighbours are alike, as in a photograph
    colors = PIL.Image.fromarray(noise).resize((WIDTH, HEIGHT), PIL.Image.Resampling.BICUBIC)
    exif = PIL.Image.Exif()
    for turn in range(2, 9):
        exif[0x0112] = turn
        colors.save(folder / f"turned{turn}.jpg", quality=95, exif=exif)
    colors.save(folder / "colors.png")
    colors.save(folder / "colors.jpg", quality=95)
    colors.convert("L").save(folder / "gray.png")
    return {path.name: str(path) for path in folder.iterdir()}


# What functions are called with

TENSORS = {
    "bytes": lambda files: read_image(files["colors.png"]).contiguous(),
    "channels last": lambda files: read_image(files["colors.jpg"]),
    "gray": lambda files: read_image(files["gray.png"]),
    "floats": lambda files: v2.to_dtype(read_image(files["colors.png"]), torch.float32, scale=True),
    "a part": lambda files: read_image(files["colors.png"])[:, 2:27, 3:33],
    "some": lambda files: torch.stack(
        [read_image(files[f"colors.{kind}"]) for kind in ("png", "jpg")]
    ),
}
ARRAYS = {
    "colors": lambda files: cv2.imread(files["colors.png"]),
    "gray": lambda files: cv2.imread(files["gray.png"], 0),
    "mirrored": lambda files: cv2.imread(files["colors.jpg"])[:, ::-1],
    "other colors": lambda files: cv2.imread(files["colors.png"])[..., ::-1],
    "a part": lambda files: cv2.imread(files["colors.png"])[2:27, 3:33],
    "floats": lambda files: cv2.imread(files["colors.png"]).astype(np.float32),
}
OF_BYTES = {*TENSORS} - {"floats"}


class Case(NamedTuple):
    """How a row is called.

    Attributes:
        arguments: a strategy of (positional arguments, options).
        kinds: keys of `TENSORS` or `ARRAYS`, of which it is noted.
    """

    arguments: Any
    kinds: Any = tuple(TENSORS)


def args(*strategies: Any, **options: Any) -> Any:
    return st.tuples(st.tuples(*strategies), st.fixed_dictionaries(options))


def mixed(*required: Any, **optional: Any) -> Any:
    """Some of the options."""
    return st.tuples(st.tuples(*required), st.fixed_dictionaries({}, optional=optional))


def numbers(least: float, most: float) -> Any:
    return st.integers(0, 1000).map(lambda share: least + (most - least) * share / 1000)


# from 2 on: PyTorch 2.10 cannot resize to a single pixel
factors, sides = numbers(0, 2), st.integers(2, 50)
pads = st.integers(0, 9)
MATRICES = st.tuples(
    numbers(0.7, 1.3),
    numbers(-0.4, 0.4),
    numbers(-9, 9),
    numbers(-0.4, 0.4),
    numbers(0.7, 1.3),
    numbers(-9, 9),
).map(list)
PERSPECTIVES = st.tuples(MATRICES, numbers(-0.002, 0.002), numbers(-0.002, 0.002)).map(
    lambda each: [*each[0], *each[1:]]
)
fills = st.one_of(st.none(), st.just([7.0]))
modes = st.sampled_from(["constant", "edge", "reflect", "symmetric"])
smooth = st.sampled_from(["bilinear", "bicubic", "nearest", "nearest-exact"])
smooth_v2 = smooth.map(InterpolationMode)
near = st.sampled_from(["nearest", "bilinear"])
near_v2 = near.map(InterpolationMode)
kernels = st.tuples(*[st.sampled_from([1, 3, 5, 7])] * 2).map(list)
sigmas = st.tuples(*[numbers(0.125, 3)] * 2).map(list)
sizes = (
    st.tuples(sides, sides).filter(lambda size: size not in ((HEIGHT, WIDTH), (25, 30))).map(list)
)
COLORED = {*TENSORS} - {"gray"}
NORMALIZED = args(
    st.lists(numbers(-1, 1), min_size=3, max_size=3),
    st.lists(numbers(0.25, 2), min_size=3, max_size=3),
)
ERASED = args(pads, pads, sides, sides, st.one_of(numbers(0, 1), st.just(torch.zeros(3, 1, 1))))
COLORS = {
    "adjust_brightness": Case(args(factors)),
    "adjust_contrast": Case(args(factors)),
    "adjust_saturation": Case(args(factors), COLORED),
    "adjust_sharpness": Case(args(factors)),
    "adjust_hue": Case(args(numbers(-0.5, 0.5)), COLORED),
    "posterize": Case(args(st.integers(0, 7)), OF_BYTES),
    "solarize": Case(args(numbers(0, 1))),
    "autocontrast": Case(args()),
    "equalize": Case(args(), OF_BYTES),
    "invert": Case(args()),
}
OF_V1 = [f"adjust_{name}" for name in ("brightness", "contrast", "saturation", "hue")]
CASES: dict[str, Case] = {
    **{f"v1.{name}": COLORS[name] for name in OF_V1},
    **{
        f"v2.color.{name}_image": case._replace(
            kinds=(COLORED if case.kinds is COLORED else TENSORS)
        )
        for name, case in COLORS.items()
    },
    "v1.rgb_to_grayscale": Case(args(st.sampled_from([1, 3])), COLORED - {"some"}),
    "v2.color.rgb_to_grayscale_image": Case(
        args(num_output_channels=st.sampled_from([1, 3])), COLORED - {"some"}
    ),
    "v2.color.grayscale_to_rgb_image": Case(args(), {"gray"}),
    "v2.color.permute_channels_image": Case(args(st.permutations([0, 1, 2])), COLORED),
    "v1.gaussian_blur": Case(args(kernels, sigmas)),
    "v2.misc.gaussian_blur_image": Case(mixed(kernels, sigma=st.one_of(sigmas, numbers(0.25, 2)))),
    "v1.resize": Case(mixed(sizes, interpolation=smooth, antialias=st.booleans())),
    "v2.geometry.resize_image": Case(
        st.one_of(
            mixed(sizes, interpolation=smooth_v2, antialias=st.booleans()),
            args(st.just([20]), max_size=st.just(24)),
        )
    ),
    "v1.pad": Case(
        mixed(
            st.tuples(pads, pads, pads, st.integers(1, 9)).map(list),
            fill=numbers(0, 1),
            padding_mode=modes,
        )
    ),
    "v2.geometry._pad_with_scalar_fill": Case(
        args(
            st.tuples(pads, pads, pads, st.integers(1, 9)).map(list),
            fill=numbers(0, 1),
            padding_mode=modes,
        )
    ),
    "v2.geometry._pad_with_vector_fill": Case(
        args(
            st.tuples(pads, pads, pads, st.integers(1, 9)).map(list),
            st.just([1.0, 2, 3]),
            st.just("constant"),
        ),
        COLORED,
    ),
    "v2.geometry.affine_image": Case(
        mixed(
            numbers(-180, 180),
            st.tuples(st.integers(-9, 9), st.integers(-9, 9)).map(list),
            numbers(0.5, 1.5),
            st.tuples(numbers(-30, 30), numbers(-30, 30)).map(list),
            interpolation=near_v2,
            fill=fills,
            center=st.one_of(st.none(), st.just([3.0, 4.0])),
        )
    ),
    "v2.geometry.rotate_image": Case(
        mixed(
            st.integers(-180, 180).map(lambda angle: angle + 0.5),
            interpolation=near_v2,
            expand=st.booleans(),
            fill=fills,
            center=st.one_of(st.none(), st.just([3.0, 4.0])),
        )
    ),
    "v2.geometry.perspective_image": Case(
        mixed(st.none(), st.none(), interpolation=near_v2, fill=fills).flatmap(
            lambda each: PERSPECTIVES.map(
                lambda found: (each[0], {**each[1], "coefficients": found})
            )
        )
    ),
    "v1.convert_image_dtype": Case(args(st.sampled_from([torch.float32, torch.float64])), OF_BYTES),
    "v2.misc.to_dtype_image": Case(
        mixed(st.sampled_from([torch.float32, torch.float64]), scale=st.booleans()), OF_BYTES
    ),
    "v1.normalize": Case(NORMALIZED, {"floats"}),
    "v2.misc.normalize_image": Case(NORMALIZED, {"floats"}),
    "v1.erase": Case(ERASED, COLORED),
    "v2.augment.erase_image": Case(ERASED, COLORED),
}

OF_ARRAYS, COLORED_ARRAYS = {*ARRAYS}, {*ARRAYS} - {"gray"}
ARRAYS_OF_BYTES, COLORED_BYTES = OF_ARRAYS - {"floats"}, COLORED_ARRAYS - {"floats"}
WARP = {
    "flags": st.sampled_from([0, 1, 2, 16, 17]),
    "borderMode": st.sampled_from([0, 1, 2, 4]),
    "borderValue": st.sampled_from([0, 9, (1, 2, 3)]),
}
CASES |= {
    "cv2.resize": Case(
        st.one_of(
            mixed(st.tuples(sides, sides), interpolation=st.sampled_from([0, 1, 2, 3, 4])),
            args(st.none(), fx=numbers(0.25, 2), fy=numbers(0.25, 2)),
        ),
        OF_ARRAYS,
    ),
    "cv2.cvtColor": Case(args(st.sampled_from([4, 6, 7, 40, 41])), COLORED_ARRAYS),
    "cv2.flip": Case(args(st.sampled_from([-1, 0, 1])), OF_ARRAYS),
    "cv2.rotate": Case(args(st.sampled_from([0, 1, 2])), OF_ARRAYS),
    "cv2.transpose": Case(args(), OF_ARRAYS),
    "cv2.warpAffine": Case(
        mixed(
            MATRICES.map(lambda each: np.array(each).reshape(2, 3)), st.tuples(sides, sides), **WARP
        ),
        OF_ARRAYS,
    ),
    "cv2.warpPerspective": Case(
        mixed(
            PERSPECTIVES.map(lambda each: np.array([*each, 1]).reshape(3, 3)),
            st.tuples(sides, sides),
            **WARP,
        ),
        OF_ARRAYS,
    ),
    "cv2.copyMakeBorder": Case(
        mixed(*[pads] * 4, st.sampled_from([0, 1, 2, 4]), value=st.sampled_from([0, (1, 2, 3)])),
        OF_ARRAYS,
    ),
    "cv2.GaussianBlur": Case(
        st.one_of(
            args(kernels, numbers(0.25, 3)),
            args(st.just((0, 0)), numbers(0.25, 3), sigmaY=numbers(0.25, 2)),
        ),
        OF_ARRAYS,
    ),
    "albumentations.shift_hsv": Case(args(*[numbers(-30, 30)] * 3), COLORED_BYTES),
    "albumentations.adjust_hue_torchvision": Case(args(numbers(0.01, 0.5)), COLORED_BYTES),
    "albumentations.adjust_saturation_torchvision": Case(args(numbers(0, 0.9)), COLORED_BYTES),
    "albumentations.adjust_contrast_torchvision": Case(args(numbers(0, 0.9)), COLORED_BYTES),
    "albumentations.adjust_brightness_torchvision": Case(args(numbers(1.1, 2)), ARRAYS_OF_BYTES),
    "albumentations.gamma_transform": Case(args(numbers(0.5, 2)), ARRAYS_OF_BYTES),
    "albumentations.posterize": Case(args(st.integers(1, 7)), ARRAYS_OF_BYTES),
    "albumentations.solarize": Case(args(numbers(0, 1)), ARRAYS_OF_BYTES),
    "albumentations.invert": Case(args(), ARRAYS_OF_BYTES),
    "albumentations.to_gray": Case(
        args(st.just(3), st.sampled_from(["weighted_average", "desaturation", "max"])),
        COLORED_BYTES,
    ),
    "albumentations.multiply_add": Case(
        args(numbers(0.5, 2), numbers(-50, 50), st.just(False)), ARRAYS_OF_BYTES
    ),
    "albumentations.normalize": Case(
        args(*[st.just(np.array([0.25, 0.5, 1], np.float32))] * 2), COLORED_ARRAYS
    ),
    "albumentations.to_float": Case(args(st.sampled_from([None, 255.0, 100.0])), ARRAYS_OF_BYTES),
}

MODULES = (torchvision_tensors, opencv, albumentations)


def rows_of(*modules: Any) -> set[str]:
    """Names of the rows that these modules add, of which a library's function is replaced."""
    owners = {each.__name__: each for each in modules}
    found = set()
    for name, step in STEPS.items():
        functions = [step.form, step.plan, step.on, step.make]
        mine = any(getattr(each, "__module__", None) in owners for each in functions)
        if mine and step.on is not None:
            found.add(name)
    return found


def called(name: str, value: Any, positional: Any, options: Any) -> Any:
    step = STEPS[name]
    function = importlib.import_module(step.owner)
    for part in step.attribute.split("."):
        function = getattr(function, part)
    return function(value, *positional, **options)


def prepare(kind: str, name: str, positional: Any) -> Any:
    if name.endswith(("solarize", "solarize_image")) and kind != "floats":
        return (255 * positional[0],)
    return positional


@pytest.mark.parametrize("name", sorted(CASES))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_what_is_noted_is_what_is_done(name, data, files):
    case = CASES[name]
    kinds = TENSORS if name.startswith("v") else ARRAYS
    kind = data.draw(st.sampled_from(sorted(case.kinds)))
    positional, options = data.draw(case.arguments)
    positional = prepare(kind, name, positional)
    PROCESS.failed = None

    true = called(name, kinds[kind](files), positional, options)
    with waiting(True):
        made = called(name, kinds[kind](files), positional, options)
        assert waits(made), "it is not noted"
        assert layout(made) == layout(true)
        seen = true_of(made)
    assert layout(seen) == layout(true) and PROCESS.failed is None
    np.testing.assert_array_equal(np.asarray(seen), np.asarray(true))


def test_every_row_has_a_case():
    assert rows_of(*MODULES) - {*CASES} == set()


# What backends make of the rows that have a place in the plan

AFFINE = [0.9, 0.1, 2.0, -0.1, 1.1, -3.0]
TILT = [0.9, 0.1, 2.0, -0.1, 1.1, 3.0, 0.001, 0.0005]
NEAREST = InterpolationMode.NEAREST
# row: kind of what it is done to, arguments, options
PLANNED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    **{
        f"{version}{name}{ending}": ("bytes", positional, {})
        for version, ending in [("v1.", ""), ("v2.color.", "_image")]
        for name, positional in {
            "adjust_brightness": (0.7,),
            "adjust_contrast": (1.4,),
            "adjust_saturation": (0.3,),
            "adjust_sharpness": (1.8,),
            "adjust_hue": (-0.1,),
            "posterize": (3,),
            "solarize": (120,),
            "autocontrast": (),
            "equalize": (),
            "invert": (),
            "rgb_to_grayscale": (1,),
        }.items()
        if version != "v1." or name in (*OF_V1, "rgb_to_grayscale")
    },
    "v2.color.permute_channels_image": ("bytes", ([2, 1, 0],), {}),
    "v2.color.grayscale_to_rgb_image": ("gray", (), {}),
    "v1.gaussian_blur": ("bytes", ([5, 5], [1.5, 1.5]), {}),
    "v2.misc.gaussian_blur_image": ("channels last", ([5, 5],), {}),
    "v1.resize": ("bytes", ([20, 31],), {}),
    "v2.geometry.resize_image": ("channels last", ([70, 51], InterpolationMode.BICUBIC), {}),
    "v1.pad": ("bytes", ([1, 2, 3, 4],), {"fill": 9, "padding_mode": "constant"}),
    "v2.geometry._pad_with_scalar_fill": ("bytes", ([1, 2, 3, 4], 0, "reflect"), {}),
    "v2.geometry._pad_with_vector_fill": ("bytes", ([1, 2, 3, 4], [1, 2, 3], "constant"), {}),
    "v2.geometry.affine_image": ("bytes", (20, [3, 4], 0.9, [5.0, 0.0]), {}),
    "v2.geometry.rotate_image": ("bytes", (33.0,), {"center": [20.0, 10.0]}),
    "v2.geometry.perspective_image": ("bytes", (None, None, NEAREST), {"coefficients": TILT}),
    "v1.convert_image_dtype": ("bytes", (torch.float32,), {}),
    "v2.misc.to_dtype_image": ("channels last", (torch.float32,), {"scale": True}),
    "v1.normalize": ("floats", ([0.4, 0.5, 0.6], [0.5, 0.6, 0.7]), {}),
    "v2.misc.normalize_image": ("floats", ([0.5], [0.5]), {}),
    "v1.erase": ("bytes", (3, 4, 5, 6, 0), {}),
    "v2.augment.erase_image": ("floats", (3, 4, 5, 6, torch.rand(3, 5, 6)), {}),
    "cv2.resize": ("colors", ((31, 20),), {}),
    "cv2.cvtColor": ("colors", (cv2.COLOR_BGR2RGB,), {}),
    "cv2.flip": ("mirrored", (-1,), {}),
    "cv2.rotate": ("colors", (cv2.ROTATE_90_CLOCKWISE,), {}),
    "cv2.transpose": ("gray", (), {}),
    "cv2.warpAffine": ("colors", (np.array(AFFINE).reshape(2, 3), (50, 40), None, 0, 0, 9), {}),
    "cv2.warpPerspective": (
        "colors",
        (np.array([*TILT, 1]).reshape(3, 3), (50, 40), None, 16, 0, (1, 2, 3)),
        {},
    ),
    "cv2.copyMakeBorder": ("colors", (1, 2, 3, 4, cv2.BORDER_CONSTANT), {"value": (1, 2, 3)}),
    "cv2.GaussianBlur": ("other colors", ((5, 5), 0), {}),
    "albumentations.shift_hsv": ("other colors", (-12.5, 20, 9.5), {}),
    "albumentations.adjust_hue_torchvision": ("other colors", (0.1,), {}),
    "albumentations.adjust_saturation_torchvision": ("other colors", (0.5,), {}),
    "albumentations.adjust_contrast_torchvision": ("other colors", (1.3,), {}),
    "albumentations.adjust_brightness_torchvision": ("colors", (1.3,), {}),
    "albumentations.gamma_transform": ("colors", (0.7,), {}),
    "albumentations.posterize": ("colors", (3,), {}),
    "albumentations.solarize": ("colors", (0.5,), {}),
    "albumentations.invert": ("colors", (), {}),
    "albumentations.to_gray": ("other colors", (3, "weighted_average"), {}),
    "albumentations.multiply_add": ("colors", (np.float32(1.2), -13.5), {}),
    "albumentations.normalize": (
        "other colors",
        (np.full(3, 99, np.float32), np.float32(0.01)),
        {},
    ),
    "albumentations.to_float": ("other colors", (), {}),
}
# |difference| in steps: at most this on average, and at the 99th percentile
CLOSE = (0.6, 1)
TOLERANCES = {
    # a count decides what becomes of a value
    "v2.color.equalize_image": (1.5, 6),
    "cv2.GaussianBlur": (0.8, 2),  # in whole numbers
    # OpenCV and PyTorch round places of pixels in their own way
    **dict.fromkeys(["cv2.warpAffine", "cv2.warpPerspective"], (1.0, 20)),
}


def test_every_row_with_a_plan_is_among_these():
    planned = {name for name in CASES if STEPS[name].plan is not None}
    assert planned - {*PLANNED} == set()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PLANNED)
def test_a_backend_makes_what_the_library_makes(name, backend, files):
    kind, positional, options = PLANNED[name]
    kinds = TENSORS if name.startswith("v") else ARRAYS

    def program(_: int) -> Any:
        return called(name, kinds[kind](files), positional, options)

    made, left = made_by_backend(backend, program, range(COUNT))
    true = program(0)
    assert not left, left
    floats = "float" in str(true.dtype)
    step = {"albumentations.normalize": 0.01}.get(name, 1 / 255) if floats else 1.0
    for each in made:
        difference = steps_apart(each, true, step)
        mean, high = TOLERANCES.get(name, CLOSE)
        assert difference.mean() <= mean and np.percentile(difference, 99) <= high


# Decoders


def bytes_of(path: str) -> np.ndarray:
    return np.fromfile(path, np.uint8)


DECODERS: dict[str, Any] = {
    **{
        f"imread {flags}": lambda path, flags=flags: cv2.imread(path, flags)
        for flags in (-1, 0, 1, 128, 129, 256, 384)
    },
    "imdecode": lambda path: cv2.imdecode(bytes_of(path), cv2.IMREAD_COLOR),
    "imread by name": lambda path: cv2.imread(filename=path),
    "read_image": read_image,
    "read_image by name": lambda path: read_image(path=path, mode=ImageReadMode.RGB),
    "read_image in gray": lambda path: read_image(path, ImageReadMode.GRAY),
    "read_image by EXIF": lambda path: read_image(path, "RGB", apply_exif_orientation=True),
    "decode_image of bytes": lambda path: decode_image(read_file(path), mode="RGB"),
    "decode_image of a path": lambda path: decode_image(Path(path)),
}


FILES = ["colors.png", "colors.jpg", "gray.png", *[f"turned{turn}.jpg" for turn in range(2, 9)]]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", DECODERS)
def test_what_decoders_give(name, file, files):
    true = DECODERS[name](files[file])
    with waiting(True):
        made = DECODERS[name](files[file])
        assert waits(made)
        assert layout(made) == layout(true)
        seen = true_of(made)
    assert layout(seen) == layout(true)
    np.testing.assert_array_equal(np.asarray(seen), np.asarray(true))


@pytest.mark.parametrize("flags", [cv2.IMREAD_COLOR, cv2.IMREAD_UNCHANGED])
def test_what_is_no_plain_picture_does_not_wait(flags, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 65536, (6, 5, 4), np.uint16)
    for name, array in [("a.png", pixels), ("b.png", pixels.astype(np.uint8)), ("c.bmp", pixels)]:
        cv2.imwrite(str(tmp_path / name), array.astype(np.uint8) if name == "c.bmp" else array)
        true = cv2.imread(str(tmp_path / name), flags)
        with waiting(True):
            made = cv2.imread(str(tmp_path / name), flags)
        assert type(made) is np.ndarray and np.array_equal(made, true)
    with waiting(True):
        assert cv2.imread(str(tmp_path / "none.png")) is None


# Programs of several libraries


@pytest.mark.parametrize("size", [(60, 20), (20, 50), (44, 60), (20, 22)])
@pytest.mark.parametrize("kind", ["bytes", "channels last", "some"])
def test_crops_beyond_the_edges_are_padded(kind, size, files, monkeypatch):
    monkeypatch.setattr(lines, "FEW", 1)

    def program(_: int = 0) -> Any:
        return v2.center_crop(TENSORS[kind](files), list(size))

    true = program()
    with waiting(True):
        made = program()
        assert waits(made) and layout(made) == layout(true)
        assert torch.equal(true_of(made), true)
    executor = Executor(BACKENDS["torch"], torch.device("cpu"), 2 * COUNT, ahead=0)
    try:
        by_backend = made_by(executor, program, range(COUNT))
    finally:
        executor.close()
    assert not executor.left
    for each in by_backend:
        assert steps_apart(each, true).max() <= 1


@pytest.mark.parametrize(
    "policy", ["rand-m9-mstd0.5-inc1", "augmix-m5-w2", "original-mstd0.5", "3a"]
)
def test_what_timm_makes_waits(policy, files):
    steps = timm_data.create_transform(
        24,
        is_training=True,
        auto_augment=policy,
        re_prob=1.0,
        re_mode="pixel",
        interpolation="random",
    )

    def program() -> Any:
        return torch.stack([steps(PIL.Image.open(files["colors.jpg"])) for _ in range(12)])

    true = seeded(program)
    with waiting(True):
        made = seeded(program)
        # AugMix computes with pixels
        assert waits(made) == (policy != "augmix-m5-w2")
        assert torch.equal(true_of(made) if waits(made) else made, true)
