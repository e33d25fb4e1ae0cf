"""Whole little programs at random: a picture is opened, and steps of Pillow, torchvision, NumPy,
OpenCV and PyTorch follow each other. All numbers of a program are drawn before it runs.
"""

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
import torchvision.transforms.functional as F
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.io import ImageReadMode, read_image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as v2F

from programs import pictures
from programs.pictures import aged

COUNT = 6  # numbers of a step, from 0 to 1
LARGEST = 160  # pixels of a side; what would be larger is left as it is

Numbers = tuple[float, ...]
Action = Callable[[Any, Numbers], Any]


class Step(NamedTuple):
    """
    Attributes:
        kinds: classes of what it takes.
        smooth: whether a small change of the pixels stays a small one.
    """

    act: Action
    kinds: tuple[type, ...]
    smooth: bool


class Program(NamedTuple):
    """
    Attributes:
        source: a key of `sources()`.
        opener: a key of OPENERS.
        steps: names and numbers.
        kept: after how many steps the value is kept, to be looked at in the end.
    """

    source: str
    opener: str
    steps: tuple[tuple[str, Numbers], ...]
    kept: int

    def run(self) -> Any:
        """What is made of the picture, what it was after some steps, and what went wrong where."""
        value, heard, kept = OPENERS[self.opener](sources()[self.source]), [], []
        for at, (name, numbers) in enumerate(self.steps):
            if at == self.kept:
                kept = [value, _size_of(value)]
            step = STEPS[name]
            if not isinstance(value, step.kinds):
                continue
            try:
                made = step.act(value, numbers)
            except Exception as error:
                heard.append((at, type(error).__name__))
                continue
            sides = _size_of(made)
            value = made if sides and min(sides) > 0 and max(sides) <= LARGEST else value
        return {"value": value, "kept": kept, "heard": heard}


class Programs(Dataset):
    def __init__(self, programs: list[Program]):
        self.programs = programs

    def __len__(self) -> int:
        return len(self.programs)

    def __getitem__(self, at: int) -> Any:
        return self.programs[at].run()


def programs(only_smooth: bool = False) -> st.SearchStrategy[Program]:
    names = [name for name, step in STEPS.items() if step.smooth or not only_smooth]
    number = st.integers(0, 40).map(lambda each: each / 40)
    step = st.tuples(st.sampled_from(names), st.tuples(*[number] * COUNT))
    return st.builds(
        Program,
        st.sampled_from(PLAIN if only_smooth else SOURCES),
        st.sampled_from(list(OPENERS)),
        st.lists(step, min_size=1, max_size=9).map(tuple),
        st.integers(0, 6),
    )


# Sources

SOURCES = (
    *("rgb.jpg", "odd.jpg", "gray.jpg", "cmyk.jpg", "progressive.jpg", "turned.jpg", "tiny.jpg"),
    *("rgb.png", "gray.png", "alpha.png", "gray_alpha.png", "palette.png", "bit.png", "deep.png"),
)
PLAIN = ("rgb.jpg", "odd.jpg", "rgb.png", "progressive.jpg")


def sources() -> dict[str, Path]:
    folder = pictures.FOLDER / "sources"
    if not folder.exists():
        folder.mkdir()
        for name, (picture, options) in _drawn().items():
            picture.save(folder / name, **options)
            aged(folder / name)
    return {name: folder / name for name in SOURCES}


def _drawn() -> dict[str, tuple[Image.Image, dict[str, Any]]]:
    rgb = pictures.draw(np.random.default_rng(3), 64, 48)
    odd, alpha, exif = rgb.crop((0, 0, 51, 37)), rgb.copy(), Image.Exif()
    alpha.putalpha(odd.convert("L").resize(rgb.size))
    exif[0x0112] = 6
    deep = Image.fromarray(np.asarray(rgb.convert("L"), np.uint16) * 257)
    made = [rgb, odd, rgb.convert("L"), rgb.convert("CMYK"), rgb, odd, rgb.crop((0, 0, 3, 2))]
    made += [
        rgb,
        rgb.convert("L"),
        alpha,
        alpha.convert("LA"),
        rgb.quantize(20),
        rgb.convert("1"),
        deep,
    ]
    options: dict[str, Any] = {
        "progressive.jpg": {"progressive": True},
        "turned.jpg": {"exif": exif},
    }
    return {name: (each, options.get(name, {})) for name, each in zip(SOURCES, made, strict=True)}


OPENERS: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: Image.open(path),
    "text": lambda path: Image.open(str(path)).convert("RGB"),
    "bytes": lambda path: Image.open(io.BytesIO(path.read_bytes())),
    "array": lambda path: np.array(Image.open(path).convert("RGB")),
    "cv2": lambda path: cv2.imread(str(path)),
    "gray cv2": lambda path: cv2.imread(str(path), 0),
    "tensor": lambda path: read_image(str(path), ImageReadMode.RGB),
    "tensor as it is": lambda path: (
        read_image(str(path)) if "png" not in path.name else _opened(path)
    ),
}


def _opened(path: Path) -> Any:
    return F.pil_to_tensor(Image.open(path).convert("RGB"))


def _size_of(value: Any) -> tuple[int, ...]:
    return tuple(value.size if isinstance(value, Image.Image) else value.shape)


# Steps

STEPS: dict[str, Step] = {}
PICTURE, TENSOR, ARRAY = (Image.Image,), (torch.Tensor,), (np.ndarray,)


def _add(kinds: tuple[type, ...], smooth: bool = False, **actions: Action) -> None:
    if twice := STEPS.keys() & actions.keys():
        raise ValueError(f"two steps are called {twice}")
    STEPS.update({name: Step(action, kinds, smooth) for name, action in actions.items()})


def _pick(number: float, *choices: Any) -> Any:
    return choices[min(int(number * len(choices)), len(choices) - 1)]


def _box(sides: tuple[int, ...], n: Numbers, beyond: float = 0.0) -> tuple[int, int, int, int]:
    """Left, top, right and bottom; with `beyond` some are outside."""
    (width, height), out = sides, beyond
    left, right = sorted(round((each * (1 + 2 * out) - out) * width) for each in n[:2])
    top, bottom = sorted(round((each * (1 + 2 * out) - out) * height) for each in n[2:4])
    return left, top, max(right, left + 1), max(bottom, top + 1)


def _side(number: float) -> int:
    return 1 + round(number * 80)


def _filter(number: float) -> Any:
    return Image.Resampling(min(int(number * 6), 5))


def _mode(number: float) -> Any:
    names = ("NEAREST", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS")
    return InterpolationMode[_pick(number, *names[:3])]


def _drawn_on(picture: Image.Image, n: Numbers) -> Image.Image:
    ImageDraw.Draw(picture).rectangle((2, 2, _side(n[0]), _side(n[1])), fill=round(n[2] * 255))
    return picture


def _pasted(picture: Image.Image, n: Numbers) -> Image.Image:
    picture.paste(picture.resize((9, 9)), (round(n[0] * 20), round(n[1] * 20)))
    return picture


def _small(picture: Image.Image, n: Numbers) -> Image.Image:
    picture.thumbnail((_side(n[0]), _side(n[1])))
    return picture


def _drafted(picture: Image.Image, n: Numbers) -> Image.Image:
    picture.draft(_pick(n[0], "RGB", "L"), (_side(n[1]), _side(n[2])))
    return picture


def _corners(sides: tuple[int, ...], n: Numbers) -> Any:
    width, height = sides
    start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    moved = [[x + (n[at] - 0.5) * 9, y + (n[at + 1] - 0.5) * 9] for at, (x, y) in enumerate(start)]
    return start, moved


_add(
    PICTURE,
    smooth=True,
    crop=lambda p, n: p.crop(_box(p.size, n)),
    resize=lambda p, n: p.resize((_side(n[0]), _side(n[1])), _filter(n[2])),
    resize_of_a_box=lambda p, n: p.resize((_side(n[4]), 20), _filter(n[5]), _box(p.size, n)),
    transpose=lambda p, n: p.transpose(Image.Transpose(min(int(n[0] * 7), 6))),
    flip=lambda p, n: F.hflip(p) if n[0] < 0.5 else F.vflip(p),
    f_crop=lambda p, n: F.crop(p, round(n[0] * 20), round(n[1] * 20), _side(n[2]), _side(n[3])),
    f_center=lambda p, n: F.center_crop(p, [_side(n[0]), _side(n[1])]),
    f_resize=lambda p, n: F.resize(p, [_side(n[0]), _side(n[1])], _mode(n[2])),
    f_resize_shorter=lambda p, n: F.resize(p, _side(n[0]), _mode(n[1]), _pick(n[2], None, 150)),
    f_resized_crop=lambda p, n: F.resized_crop(p, 2, 3, 20, 25, [_side(n[0]), _side(n[1])]),
    f_brightness=lambda p, n: F.adjust_brightness(p, n[0] * 2),
    f_contrast=lambda p, n: F.adjust_contrast(p, n[0] * 2),
    f_saturation=lambda p, n: F.adjust_saturation(p, n[0] * 2),
    f_blur=lambda p, n: F.gaussian_blur(p, _pick(n[0], 3, 5), n[1] + 0.1),
    f_invert=lambda p, n: F.invert(p),
    to_rgb=lambda p, n: p.convert("RGB"),
    copied=lambda p, n: p.copy(),
)
_add(
    PICTURE,
    crop_beyond=lambda p, n: p.crop(_box(p.size, n, 0.3)),
    resize_with_gap=lambda p, n: p.resize((_side(n[0]), 9), _filter(n[1]), None, 1 + n[2] * 3),
    convert=lambda p, n: p.convert(_pick(n[0], "L", "RGB", "RGBA", "1", "HSV", "CMYK", "F")),
    rotate=lambda p, n: p.rotate(n[0] * 360, _pick(n[1], 0, 2, 3), n[2] > 0.5),
    right_angle=lambda p, n: p.rotate(_pick(n[0], 0, 90, 180, 270), expand=n[1] > 0.5),
    warp=lambda p, n: p.transform(
        (_side(n[0]), _side(n[1])),
        0,
        (n[2] + 0.5, n[3] / 9, 3, 0, n[4] + 0.5, 2),
        _pick(n[5], 0, 2, 3),
    ),
    point=lambda p, n: p.point([round(each * n[0]) for each in range(256)] * len(p.getbands())),
    point_by_a_function=lambda p, n: p.point(lambda each: each + round(n[0] * 300) - 150),
    filters=lambda p, n: p.filter(
        _pick(
            n[0],
            ImageFilter.BLUR,
            ImageFilter.GaussianBlur(n[1] * 3),
            ImageFilter.MedianFilter(3),
            ImageFilter.UnsharpMask(),
            ImageFilter.BoxBlur(1),
        )
    ),
    enhance=lambda p, n: _pick(
        n[0],
        ImageEnhance.Color,
        ImageEnhance.Contrast,
        ImageEnhance.Brightness,
        ImageEnhance.Sharpness,
    )(p).enhance(n[1] * 3 - 0.5),
    autocontrast=lambda p, n: ImageOps.autocontrast(p, round(n[0] * 9)),
    equalize=lambda p, n: ImageOps.equalize(p),
    posterize=lambda p, n: ImageOps.posterize(p, 1 + round(n[0] * 7)),
    solarize=lambda p, n: ImageOps.solarize(p, round(n[0] * 255)),
    grayscale=lambda p, n: F.to_grayscale(p, _pick(n[0], 1, 3)),
    expand=lambda p, n: ImageOps.expand(p, round(n[0] * 9), round(n[1] * 99)),
    exif_transpose=lambda p, n: ImageOps.exif_transpose(p),
    reduce=lambda p, n: p.reduce(1 + round(n[0] * 3)),
    split=lambda p, n: p.split()[-1],
    thumbnail=_small,
    draft=_drafted,
    draw=_drawn_on,
    paste=_pasted,
    f_pad=lambda p, n: F.pad(
        p,
        [round(each * 9) for each in n[:4]],
        round(n[4] * 99),
        _pick(n[5], "constant", "edge", "reflect", "symmetric"),
    ),
    f_hue=lambda p, n: F.adjust_hue(p, n[0] - 0.5),
    f_gamma=lambda p, n: F.adjust_gamma(p, n[0] * 2),
    f_sharpness=lambda p, n: F.adjust_sharpness(p, n[0] * 3),
    f_affine=lambda p, n: F.affine(
        p,
        n[0] * 90 - 45,
        [round(n[1] * 9), round(n[2] * 9)],
        n[3] + 0.5,
        [n[4] * 30, 0.0],
        _mode(n[5]),
    ),
    f_rotate=lambda p, n: F.rotate(
        p, n[0] * 360, _mode(n[1]), expand=n[2] > 0.5, fill=round(n[3] * 99)
    ),
    f_perspective=lambda p, n: F.perspective(p, *_corners(p.size, n), _mode(n[0])),
    f_posterize=lambda p, n: F.posterize(p, 1 + round(n[0] * 7)),
    f_solarize=lambda p, n: F.solarize(p, n[0] * 255),
    deep_copied=lambda p, n: copy.deepcopy(p),
)

# from pictures to tensors and arrays, and back
_add(
    PICTURE,
    smooth=True,
    to_tensor=lambda p, n: F.to_tensor(p),
    pil_to_tensor=lambda p, n: F.pil_to_tensor(p),
    to_image=lambda p, n: v2F.to_image(p),
    to_array=lambda p, n: np.array(p),
)
_add(
    PICTURE,
    as_array=lambda p, n: np.asarray(p),
    to_array_of_floats=lambda p, n: np.array(p, dtype=np.float32),
    to_image_of_floats=lambda p, n: v2F.to_dtype(v2F.to_image(p), torch.float32, scale=n[0] > 0.3),
)
_add(ARRAY, smooth=True, from_numpy=lambda a, n: torch.from_numpy(a))
_add(
    ARRAY,
    from_array=lambda a, n: Image.fromarray(a),
    a_to_tensor=lambda a, n: F.to_tensor(a),
    tensor_of=lambda a, n: torch.tensor(a),
    as_tensor=lambda a, n: torch.as_tensor(np.ascontiguousarray(a)),
)
_add(
    TENSOR,
    to_pil=lambda x, n: F.to_pil_image(x),
    numpy=lambda x, n: x.numpy(),
    to_wrapped=lambda x, n: tv_tensors.Image(x),
    unwrapped=lambda x, n: x.as_subclass(torch.Tensor),
)

# on tensors


def _set_box(x: Any, n: Numbers) -> Any:
    left, top, right, bottom = _box((x.shape[-1], x.shape[-2]), n)
    x[..., top:bottom, left:right] = n[4]
    return x


def _scaled(x: Any, n: Numbers) -> Any:
    return x.mul_(n[0] + 0.5)


def _normal(x: Any, n: Numbers, inplace: bool = False) -> Any:
    return F.normalize(
        x, [n[0], n[1], 0.4][: x.shape[-3]], [n[2] + 0.1, 0.5, 0.3][: x.shape[-3]], inplace
    )


_add(
    TENSOR,
    smooth=True,
    t_float=lambda x, n: F.convert_image_dtype(x, torch.float32),
    t_flip=lambda x, n: F.hflip(x) if n[0] < 0.5 else F.vflip(x),
    t_crop=lambda x, n: F.crop(x, round(n[0] * 9), round(n[1] * 9), _side(n[2]), _side(n[3])),
    t_resize=lambda x, n: F.resize(
        x, [_side(n[0]), _side(n[1])], _mode(n[2]), antialias=n[3] > 0.3
    ),
    t_normalize=_normal,
    t_scale=lambda x, n: x * (n[0] + 0.5) - n[1] if x.is_floating_point() else x,
    t_slice=lambda x, n: x[..., round(n[0] * 9) :, round(n[1] * 9) :],
)
_add(
    TENSOR,
    t_dtype=lambda x, n: F.convert_image_dtype(
        x, _pick(n[0], torch.float64, torch.uint8, torch.float16)
    ),
    t_to=lambda x, n: x.to(_pick(n[0], torch.float32, torch.float64, torch.uint8, torch.int32)),
    t_center=lambda x, n: F.center_crop(x, [_side(n[0]), _side(n[1])]),
    t_resize_shorter=lambda x, n: F.resize(x, _side(n[0]), _mode(n[1]), antialias=True),
    t_pad=lambda x, n: F.pad(
        x, [round(each * 9) for each in n[:4]], n[4], _pick(n[5], "constant", "edge")
    ),
    t_normalize_in_place=lambda x, n: _normal(x, n, True),
    t_brightness=lambda x, n: F.adjust_brightness(x, n[0] * 2),
    t_contrast=lambda x, n: F.adjust_contrast(x, n[0] * 2),
    t_saturation=lambda x, n: F.adjust_saturation(x, n[0] * 2),
    t_hue=lambda x, n: F.adjust_hue(x, n[0] - 0.5),
    t_gamma=lambda x, n: F.adjust_gamma(x, n[0] * 2),
    t_sharpness=lambda x, n: F.adjust_sharpness(x, n[0] * 3),
    t_gray=lambda x, n: F.rgb_to_grayscale(x, _pick(n[0], 1, 3)),
    t_blur=lambda x, n: F.gaussian_blur(x, _pick(n[0], 3, 5), n[1] + 0.1),
    t_autocontrast=lambda x, n: F.autocontrast(x),
    t_equalize=lambda x, n: F.equalize(x),
    t_posterize=lambda x, n: F.posterize(x, 1 + round(n[0] * 7)),
    t_solarize=lambda x, n: F.solarize(x, n[0] * 255),
    t_invert=lambda x, n: F.invert(x),
    t_erase=lambda x, n: F.erase(
        x, round(n[0] * 20), round(n[1] * 20), 5, 6, torch.tensor(n[2]), n[3] > 0.5
    ),
    t_affine=lambda x, n: F.affine(
        x, n[0] * 90 - 45, [round(n[1] * 9), 2], n[3] + 0.5, [n[4] * 30, 0.0]
    ),
    t_rotate=lambda x, n: F.rotate(x, n[0] * 360, _pick(n[1], *list(InterpolationMode)[:2])),
    v_resize=lambda x, n: v2F.resize(
        x, [_side(n[0]), _side(n[1])], _mode(n[2]), antialias=n[3] > 0.3
    ),
    v_resized_crop=lambda x, n: v2F.resized_crop(x, 2, 3, 20, 25, [_side(n[0]), _side(n[1])]),
    v_dtype=lambda x, n: v2F.to_dtype(x, _pick(n[0], torch.float32, torch.uint8), scale=n[1] > 0.3),
    v_permute=lambda x, n: v2F.permute_channels(x, [2, 0, 1]),
    v_erase=lambda x, n: v2F.erase(
        x, round(n[0] * 20), 3, 5, 6, torch.full((3, 5, 6), n[2]), n[3] > 0.5
    ),
    t_number=lambda x, n: _pick(
        n[0], x / 255, x * n[1], x + n[1], x - n[1], 1 - x, x * 2, x / 2 + 1
    ),
    t_shape=lambda x, n: _pick(
        n[0], x[None], x.unsqueeze(0), x.permute(1, 2, 0), x.mT, x[0], x.flip(-1)
    ),
    t_view=lambda x, n: _pick(
        n[0], x.view(x.shape), x.reshape(-1, x.shape[-1]), x.squeeze(), x.detach()
    ),
    t_index=lambda x, n: _pick(n[0], x[[2, 0, 1]], x[:, ::2], x[..., 3], x[1:], x[:, 2:-2, 3:]),
    t_stack=lambda x, n: _pick(
        n[0], torch.stack([x, x]), torch.cat([x, x]), torch.cat([x[None], x[None]])
    ),
    t_copy=lambda x, n: _pick(
        n[0], x.clone(), x.contiguous(), copy.deepcopy(x), x.float(), x.double()
    ),
    t_reduce=lambda x, n: x - x.float().mean() if n[0] < 0.5 else x.clamp(0, n[1]),
    t_set_box=_set_box,
    t_scale_in_place=_scaled,
    t_add_in_place=lambda x, n: x.add_(round(n[0] * 9)),
)

# on arrays
_add(
    ARRAY,
    a_slice=lambda a, n: a[round(n[0] * 9) :, round(n[1] * 9) :],
    a_flip=lambda a, n: _pick(n[0], a[::-1], a[:, ::-1], a[..., ::-1], np.fliplr(a), np.flip(a)),
    a_turn=lambda a, n: np.rot90(a, round(n[0] * 3)),
    a_transpose=lambda a, n: a.transpose(_pick(n[0], (2, 0, 1), (1, 0, 2), (0, 1, 2))),
    a_t=lambda a, n: _pick(n[0], a.T, np.moveaxis(a, -1, 0), a.swapaxes(0, 1), a[None]),
    a_copy=lambda a, n: _pick(n[0], a.copy(), np.ascontiguousarray(a), np.array(a), copy.copy(a)),
    a_type=lambda a, n: a.astype(_pick(n[0], np.float32, np.float64, np.uint8, np.int32)),
    a_number=lambda a, n: _pick(n[0], a / 255, a / 255.0 - 0.5, a * np.float32(n[1]), 1 - a, a * 2),
    a_colour=lambda a, n: (a - np.array(n[:3])) / (np.array(n[3:], np.float32) + 0.1),
    a_add_in_place=lambda a, n: np.add(a, a.dtype.type(round(n[0] * 9)), out=a),
    a_clip=lambda a, n: np.clip(a, n[0] * 9, 99),
    a_channel=lambda a, n: a[..., 0],
    a_pad=lambda a, n: np.pad(a, ((1, 2), (3, 0), (0, 0))[: a.ndim]),
    c_resize=lambda a, n: cv2.resize(a, (_side(n[0]), _side(n[1])), None, 0, 0, int(n[2] * 4)),
    c_colour=lambda a, n: cv2.cvtColor(a, _pick(n[0], *range(4, 9), cv2.COLOR_BGR2HSV)),
    c_flip=lambda a, n: cv2.flip(a, round(n[0] * 2) - 1),
    c_turn=lambda a, n: cv2.rotate(a, round(n[0] * 2)),
    c_warp=lambda a, n: cv2.warpAffine(
        a, cv2.getRotationMatrix2D((20, 20), n[0] * 90, n[1] + 0.5), (_side(n[2]), _side(n[3])),
        flags=_pick(n[4], 0, 1, 2), borderMode=_pick(n[5], 0, 1, 4),
    ),
    c_border=lambda a, n: cv2.copyMakeBorder(a, 1, round(n[0] * 9), 2, 3, _pick(n[4], 0, 1, 4)),
    c_blur=lambda a, n: cv2.GaussianBlur(a, (3, 3), n[0]),
    c_lut=lambda a, n: cv2.LUT(a, (np.arange(256) * n[0]).astype(np.uint8)),
)  # fmt: skip
