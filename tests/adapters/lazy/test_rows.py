"""Recipes as rows of planned batches: chains of notes, made as noted and by backends.

A backend must make what the program's own libraries make, within the tolerance of docs/pixels.md,
and sizes, dtypes and strides exactly.
"""

import os
import pickle
from contextlib import suppress
from functools import partial
from pathlib import Path

import albumentations as A
import cv2
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from lazy_works import BACKENDS, made_by, opened, steps_apart, waits_for
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.io import read_image
from torchvision.transforms import v2

from dali_pipes.adapters.lazy.compiler import lines
from dali_pipes.adapters.lazy.compiler.executor import Executor
from dali_pipes.adapters.lazy.compiler.places import NotePlaces
from dali_pipes.adapters.lazy.compiler.reading import read
from dali_pipes.adapters.lazy.compiler.row import _nearest_places
from dali_pipes.adapters.lazy.found import WaitingParts
from dali_pipes.adapters.lazy.parcels import Packed, Parcel, Told
from dali_pipes.adapters.lazy.state import PROCESS, eager
from dali_pipes.adapters.lazy.steps.step import NoPlace

WIDTH, HEIGHT, COUNT = 61, 47, 3
pytestmark = pytest.mark.usefixtures("libraries_know_what_waits")


@pytest.fixture(autouse=True)
def every_kind_gets_a_backend(monkeypatch):
    monkeypatch.setattr(lines, "FEW", 1)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Paths by kind: smooth pictures as photographs are, in colors and gray."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    found = {"colors.png": [], "colors.jpg": [], "gray.png": [], "gray.jpg": []}
    for at in range(COUNT):
        coarse = Image.fromarray(rng.integers(0, 256, (7, 9, 3), np.uint8))
        colors = coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        for name, paths in found.items():
            kind, _, ending = name.partition(".")
            paths.append(str(folder / f"{kind}{at}.{ending}"))
            picture = colors if kind == "colors" else colors.convert("L")
            picture.save(paths[-1], **({"quality": 92} if ending == "jpg" else {}))
    return found


@pytest.fixture
def executor():
    made = []

    def start(backend):
        made.append(Executor(BACKENDS[backend], torch.device("cpu"), COUNT, ahead=0))
        return made[-1]

    yield start
    for each in made:
        each.close()


def without_place(picture):
    """Steps that wait, and that no backend makes."""
    return ImageEnhance.Contrast(picture).enhance(0.5).resize((20, 8))


def compare(executor, program, paths, in_a_step=1.0):
    """How far values are, in steps: the mean, and the 99th percentile."""
    torch.manual_seed(0)
    made = made_by(executor, program, paths)
    torch.manual_seed(0)
    true = [program(path) for path in paths]
    apart = [steps_apart(*each, in_a_step).ravel() for each in zip(made, true, strict=True)]
    everything = np.concatenate(apart)
    return everything.mean(), np.percentile(everything, 99)


# Chains that are drawn


@st.composite
def crops(draw, size, inside=False):
    width, height = size
    low = 0 if inside else -9
    left, top = draw(st.integers(low, width - 2)), draw(st.integers(low, height - 2))
    right = draw(st.integers(left + 1, width if inside else width + 9))
    bottom = draw(st.integers(top + 1, height if inside else height + 9))
    return partial(Image.Image.crop, box=(left, top, right, bottom)), (right - left, bottom - top)


@st.composite
def resizes(draw, size):
    new = draw(st.integers(5, 70)), draw(st.integers(5, 70))
    return partial(Image.Image.resize, size=new, resample=draw(st.sampled_from([2, 3]))), new


@st.composite
def transpositions(draw, size):
    method = draw(st.integers(0, 6))
    new = size[::-1] if method in (2, 4, 5, 6) else size
    return partial(Image.Image.transpose, method=method), new


def warp(picture, numbers, kind, fill):
    color = fill[0] if isinstance(fill, tuple) and picture.mode == "L" else fill
    return picture.transform(picture.size, 0, numbers, kind, fillcolor=color)


@st.composite
def warps(draw, size):
    number = st.floats(-0.2, 0.2)
    numbers = (1 + draw(number), draw(number), 9 * draw(number))
    numbers += (draw(number), 1 + draw(number), 9 * draw(number))
    fill = draw(st.sampled_from([None, (9, 200, 30), 128]))
    return partial(warp, numbers=numbers, kind=draw(st.sampled_from([2, 3])), fill=fill), size


@st.composite
def pads(draw, size):
    sides = [draw(st.integers(0, 5)) for _ in range(4)]
    mode = draw(st.sampled_from(["constant", "edge", "reflect", "symmetric"]))
    new = size[0] + sides[0] + sides[2], size[1] + sides[1] + sides[3]
    assume(min(size) > 5)
    return partial(T.functional.pad, padding=sides, fill=7, padding_mode=mode), new


def enhance(picture, kind, factor):
    return getattr(ImageEnhance, kind)(picture).enhance(factor)


def to_gray(picture):
    return T.functional.to_grayscale(picture, 3) if picture.mode == "RGB" else picture


def smooth(picture):
    return picture.filter(ImageFilter.SMOOTH)


def colors(size):
    kinds = st.sampled_from(["Brightness", "Contrast", "Color", "Sharpness"])
    enhanced = st.builds(partial, st.just(enhance), kind=kinds, factor=st.floats(0.4, 1.7))
    hue = st.builds(partial, st.just(T.functional.adjust_hue), hue_factor=st.floats(-0.5, 0.5))
    others = st.sampled_from([to_gray, smooth, ImageOps.autocontrast])
    return st.one_of(enhanced, hue, others).map(lambda step: (step, size))


GROW = {enhance, T.functional.adjust_hue, ImageOps.autocontrast}


def modes(size):
    convert = partial(Image.Image.convert)
    return st.sampled_from(["L", "RGB"]).map(lambda mode: (partial(convert, mode=mode), size))


@st.composite
def chains(draw, kinds, most):
    size, steps = (WIDTH, HEIGHT), []
    for _ in range(draw(st.integers(0, most))):
        step, size = draw(draw(st.sampled_from(kinds))(size))
        steps.append(step)
        assume(min(size) >= 4)
    return steps


def do(steps, picture):
    for step in steps:
        picture = step(picture)
    return picture


ENDS = {
    "array": np.array,
    "bytes": T.functional.pil_to_tensor,
    "floats": T.functional.to_tensor,
    "normalized": lambda picture: T.functional.normalize(
        T.functional.to_tensor(picture), [0.4], [0.25]
    ),
    "channels last": lambda picture: torch.from_numpy(np.array(picture)).float().div(255),
    "erased": lambda picture: T.functional.erase(
        T.functional.to_tensor(picture), 1, 2, 2, 1, torch.tensor(0.5)
    ),
}
OF_FLOATS = {"floats": 1 / 255, "normalized": 4 / 255, "channels last": 1 / 255, "erased": 1 / 255}
MANY = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("backend", BACKENDS)
@MANY
@given(
    steps=chains([crops, resizes, transpositions, warps, pads, colors, colors, modes], 6),
    end=st.sampled_from(sorted(ENDS)),
    kind=st.sampled_from(["colors.png", "colors.jpg", "gray.png", "gray.jpg"]),
)
def test_a_backend_makes_what_was_noted(backend, steps, end, kind, pictures, executor):
    program = lambda path: ENDS[end](do(steps, opened(path)))  # noqa: E731
    mean, most = compare(executor(backend), program, pictures[kind], OF_FLOATS.get(end, 1.0))
    # colors make more of the step by which libraries resize differently
    grows = any(getattr(step, "func", step) in GROW for step in steps)
    assert mean <= (0.75 if grows else 0.25) and most <= (8 if grows else 2), (mean, most)


@pytest.mark.parametrize("backend", BACKENDS)
@MANY
@given(
    steps=chains([crops, transpositions, pads, crops], 6),
    kind=st.sampled_from(["colors.png", "gray.png"]),
)
def test_without_a_resize_pixels_are_equal(backend, steps, kind, pictures, executor):
    program = lambda path: np.array(do(steps, opened(path)))  # noqa: E731
    made = executor(backend)
    for one, other in zip(
        made_by(made, program, pictures[kind]), map(program, pictures[kind]), strict=True
    ):
        assert np.array_equal(one, other)
    assert made.count == COUNT, made.left


# Programs that a backend carries out to the end

NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
FLOATS = [T.ToTensor(), NORMALIZE]
PICTURES = {
    "train": [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), *FLOATS],
    "eval": [T.Resize(40), T.CenterCrop(32), *FLOATS],
    "bicubic": [T.Resize(40, T.InterpolationMode.BICUBIC), T.CenterCrop(32), *FLOATS],
    "colors": [T.Resize(32), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomHorizontalFlip(), *FLOATS],
    "colors before a crop": [T.ColorJitter(0.4, 0, 0.4, 0.1), T.RandomCrop(32), *FLOATS],
    "two crops and resizes": [T.RandomResizedCrop(40), T.RandomCrop(32), T.Resize(24), *FLOATS],
    "a policy": [T.RandomResizedCrop(32), T.RandAugment(), *FLOATS, T.RandomErasing(1.0)],
    "a rotation": [T.Resize((32, 32)), T.RandomRotation(20), T.RandomHorizontalFlip(), *FLOATS],
    "a rotation before a crop": [T.Resize(40), T.RandomRotation(20), T.RandomCrop(32), *FLOATS],
    "affine": [T.RandomAffine(10, (0.1, 0.1), (0.8, 1.2), 5), T.Resize((32, 32)), *FLOATS],
    "a perspective": [T.RandomPerspective(p=1), T.Resize((32, 32)), *FLOATS],
    "padding": [T.Resize((32, 32)), T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), *FLOATS],
    "gray": [T.Grayscale(), T.Resize((32, 32)), T.ToTensor()],
    "gray in the end": [T.Resize((32, 32)), T.Grayscale(), T.ToTensor(), T.Normalize([0.5], [0.5])],
    "gray of three": [T.Resize((32, 32)), T.Grayscale(3), *FLOATS],
    "bytes": [T.RandomResizedCrop(32), T.PILToTensor()],
    "half precision": [T.Resize((32, 32)), *FLOATS, v2.ToDtype(torch.float16)],
    "v2": [v2.ToImage(), v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(),
           v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.5,), (0.25,))],
}  # fmt: skip


def of_pictures(steps, path):
    return T.Compose(steps)(opened(path).convert("RGB"))


def of_tensors(path):
    image = v2.RandomHorizontalFlip(1)(v2.Resize((30, 32))(read_image(path)))
    return v2.functional.to_dtype(image, torch.float32, scale=True)


def of_opencv(path, code=cv2.COLOR_BGR2RGB):
    image = cv2.imread(path)
    image = image if code is None else cv2.cvtColor(image, code)
    return torch.from_numpy(cv2.resize(image, (32, 30)).transpose(2, 0, 1).astype(np.float32) / 255)


def of_albumentations(path):
    steps = [A.Resize(40, 44), A.CenterCrop(32, 30), A.HorizontalFlip(p=1), A.Normalize()]
    return A.Compose(steps)(image=cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB))["image"]


def of_arrays(path):
    image = np.asarray(opened(path).resize((32, 30)), dtype=np.float32)
    return torch.from_numpy(np.ascontiguousarray(image[:, ::-1].transpose(2, 0, 1))) / 127.5 - 1


PROGRAMS = {name: partial(of_pictures, steps) for name, steps in PICTURES.items()} | {
    "tensors of torchvision": of_tensors,
    "OpenCV": of_opencv,
    "blue, green and red": partial(of_opencv, code=None),
    "albumentations": of_albumentations,
    "arrays": of_arrays,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_backend_has_a_place_for_the_whole_program(name, backend, pictures, executor):
    made = executor(backend)
    step = 1.0 if name == "bytes" else 1 / 255
    mean, most = compare(made, PROGRAMS[name], pictures["colors.jpg"], step)
    assert made.count == COUNT and not made.left, made.left
    # normalized, a step is up to 1 / 0.225 of itself; a policy has thresholds
    assert mean <= 0.5 and most <= 5 + 100 * (name == "a policy"), (mean, most)


SIZES = [(32, 30), (47, 61), (64, 96), (224, 224), (23, 180)]
MASKS = {
    "Pillow": lambda mask, size: np.array(mask.resize(size, Image.Resampling.NEAREST)),
    "Pillow's parts": lambda mask, size: np.array(
        mask.crop((3, 4, 50, 40)).transpose(0).resize(size, 0).crop((2, 3, 20, 19))
    ),
    "OpenCV": lambda mask, size: cv2.resize(np.array(mask), size, interpolation=0),
    "torchvision": lambda mask, size: v2.functional.resize(
        tv_tensors.Mask(T.functional.pil_to_tensor(mask)), size[::-1]
    ),
    "PyTorch, exactly": lambda mask, size: T.functional.resize(
        T.functional.pil_to_tensor(mask), size[::-1], T.InterpolationMode.NEAREST_EXACT
    ),
    "whole numbers": lambda mask, size: torch.as_tensor(
        np.array(mask.resize(size, 0)), dtype=torch.int64
    ),
    "not resized": lambda mask, size: np.array(mask.crop((3, 4, 50, 40)).transpose(2)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("library", MASKS)
def test_values_of_a_mask_are_exact(library, backend, tmp_path, executor):
    paths = []
    for at in range(COUNT):
        values = np.random.default_rng(at).integers(0, 5, (HEIGHT, WIDTH), np.uint8)
        paths.append(str(tmp_path / f"{at}.png"))
        Image.fromarray(values).save(paths[-1])

    made = executor(backend)
    for size in SIZES:
        program = lambda path, size=size: MASKS[library](opened(path), size)  # noqa: E731
        for one, other in zip(made_by(made, program, paths), map(program, paths), strict=True):
            assert steps_apart(one, other).max() == 0
    assert made.count == len(SIZES) * COUNT, made.left


def test_nearest_pixels_are_those_of_the_library_or_have_no_place():
    rng = np.random.default_rng(0)
    found = 0
    for size, out in rng.integers(1, 700, (400, 2)).tolist():
        values = np.arange(size, dtype=np.float32)[None]
        expected = {
            "opencv": cv2.resize(values, (out, 1), interpolation=0)[0],
            **{
                kind: torch.nn.functional.interpolate(
                    torch.from_numpy(values)[None], out, mode=kind
                )[0, 0]
                for kind in ("nearest", "nearest-exact")
            },
        }
        for library, places in expected.items():
            with suppress(NoPlace):
                step, start = _nearest_places(size, out, library)
                line = Image.fromarray(values).transform((out, 1), 0, (step, 0, start, 0, 1, 0))
                assert np.array_equal(np.asarray(line)[0], np.asarray(places)), (size, out)
                found += 1
    assert found > 0.95 * 3 * 400


def test_bits_palettes_and_inks_are_done_as_noted(tmp_path, executor):
    rng = np.random.default_rng(0)
    colors = Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8))
    Image.fromarray(rng.integers(0, 65536, (20, 30), np.uint16)).save(tmp_path / "wide.png")
    colors.quantize(16).save(tmp_path / "palette.png")
    colors.convert("CMYK").save(tmp_path / "ink.jpg")
    colors.convert("RGBA").save(tmp_path / "alpha.png")
    cv2.imwrite(str(tmp_path / "wide_colors.png"), rng.integers(0, 65536, (20, 30, 3), np.uint16))

    paths = [str(path) for path in tmp_path.iterdir()]
    program = lambda path: np.array(opened(path).convert("RGB").resize((8, 9)))  # noqa: E731
    made = executor("dali")
    for one, other in zip(made_by(made, program, paths), map(program, paths), strict=True):
        assert np.array_equal(one, other)
    assert made.count == 0


@pytest.mark.parametrize("turn", [3, 6, 7])
def test_opencv_turns_a_picture_as_exif_says(turn, tmp_path, pictures, executor):
    exif = Image.Exif()
    exif[0x0112] = turn
    paths = [str(tmp_path / f"{at}.jpg") for at in range(COUNT)]
    for path, old in zip(paths, pictures["colors.png"], strict=True):
        opened(old).save(path, exif=exif, quality=92)

    made = executor("dali")
    mean, _ = compare(made, of_opencv, paths, 1 / 255)
    assert mean <= 0.25 and made.count == COUNT, made.left
    mean, _ = compare(made, lambda path: cv2.imread(path, cv2.IMREAD_COLOR | 128), paths)
    assert mean <= 0.25 and made.count == 2 * COUNT, made.left


def test_truncated_files_are_right_if_the_program_says_so(
    tmp_path, pictures, executor, monkeypatch
):
    monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)
    data = Path(pictures["colors.jpg"][0]).read_bytes()
    (tmp_path / "short.jpg").write_bytes(data[: len(data) * 3 // 4])
    paths = [str(tmp_path / "short.jpg"), *pictures["colors.jpg"][1:]]
    program = lambda path: np.array(opened(path).resize((20, 8)))  # noqa: E731
    made = executor("dali")
    mean, most = compare(made, program, paths)
    assert mean <= 0.25 and most <= 2 and made.count == COUNT - 1


# What workers make


def recipe_of(program, path):
    (cell,) = waits_for(program, [path]).cells
    return cell.rows[0]


def test_a_worker_keeps_what_has_no_place(pictures):
    path, places = pictures["colors.jpg"][0], NotePlaces()
    resized = recipe_of(lambda path: np.array(opened(path).resize((20, 8))), path)
    smooth = recipe_of(lambda path: np.array(without_place(opened(path))), path)
    for _ in range(50):
        assert places.has(resized) and not places.has(smooth)
    assert places.left == {"a resize after PillowContrast": 50}


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_worker_keeps_whole_images_of_opencv_from_a_cpu(on_gpu, pictures):
    turned = recipe_of(lambda path: cv2.transpose(cv2.imread(path)), pictures["colors.jpg"][0])
    assert NotePlaces(on_gpu).has(turned) == on_gpu


def test_a_worker_keeps_pictures_of_which_each_is_of_another_kind(pictures):
    path, places = pictures["colors.jpg"][0], NotePlaces()
    of_size = lambda size: lambda path: np.array(opened(path).resize((size, 8)))  # noqa: E731
    sent = [places.has(recipe_of(of_size(size), path)) for size in range(10, 60)]
    assert all(sent[:16]) and not any(sent[32:])
    # one of them begins to come often
    assert [places.has(recipe_of(of_size(20), path)) for _ in range(20)][-1]


def test_what_a_worker_keeps_it_makes_truly(pictures):
    paths = pictures["colors.jpg"]

    def program(path, smooth):
        picture = without_place(opened(path)) if smooth else opened(path)
        return T.functional.to_tensor(picture.crop((0, 0, 20, 8)))

    def stacked(*smooth):
        each = zip(paths * 2, smooth, strict=False)
        return torch.stack([program(path, is_smooth) for path, is_smooth in each])

    def batch(*_):
        return stacked(False, True, False, False), stacked(False, True, False)

    found = waits_for(batch, [0])
    NotePlaces().make_rest(found.cells)
    in_part, whole = found.cells
    assert [isinstance(row, torch.Tensor) for row in in_part.rows] == [False, True, False, False]
    assert in_part.made is None and whole.made is not None, "few of it have a place"

    # it is sent with the others
    sent = pickle.loads(pickle.dumps(Packed(Parcel(found.batch, 1, None, Told()), copies=True)))
    with eager():
        ((one, two),) = WaitingParts(sent.batch).true()
    other, same = batch()
    assert torch.equal(one, other) and torch.equal(two, same)


@pytest.mark.parametrize("method", range(7))
@pytest.mark.parametrize("size", [(40, 40), (40, 30)])
def test_a_turn_of_a_square_result_is_no_step_on_the_whole_image(size, method, pictures):
    def program(path):
        return T.ToTensor()(opened(path).resize(size).transpose(method))

    path = pictures["colors.jpg"][0]
    row, turned = read(recipe_of(program, path)), opened(path).resize(size).transpose(method)
    assert row.size == (turned.height, turned.width)
    assert bool(row.steps) == (size == (40, 30) and method in (2, 4, 5, 6))


def test_where_few_have_a_place_nothing_needs_to_wait(pictures):
    path, few, enough = pictures["colors.jpg"][0], NotePlaces(), NotePlaces()
    for at in range(99):
        made = waits_for(lambda path: np.array(without_place(opened(path))), [path])
        sent = waits_for(lambda path: np.array(opened(path).resize((20, 8))), [path])
        few.make_rest(made.cells if at % 9 else sent.cells)
        enough.make_rest(made.cells if at % 2 else sent.cells)
        assert few.are_too_few == (at >= 63) and not enough.are_too_few


def test_what_cannot_be_made_is_left_to_the_training_process(pictures, tmp_path):
    path = tmp_path / "gone.jpg"
    path.write_bytes(Path(pictures["colors.jpg"][0]).read_bytes())
    os.utime(path, (0, 0))
    found = waits_for(lambda path: np.array(without_place(opened(path))), [path])
    path.unlink()
    NotePlaces().make_rest(found.cells)
    assert found.cells[0].made is None and PROCESS.failed is None
