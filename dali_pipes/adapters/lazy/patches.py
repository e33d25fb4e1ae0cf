"""Where libraries meet lazy pictures: what their functions become in a worker.

A row of the tables below is a function of a library and a rule: what its result looks like, or None if it can not be noted. Functions of
Python are replaced in place, by their code, so that also who imported one by its name calls the new one; those of C in their module.
Whatever is not here gets true pixels, and is right all the same.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from io import BytesIO
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageEnhance
import PIL.ImageOps
import torch
import torch.multiprocessing.reductions
import torch.utils.data._utils.collate
import torchvision.io.image
import torchvision.transforms._functional_pil as F_pil
import torchvision.transforms._functional_tensor as F_t
import torchvision.transforms.functional as F
import torchvision.transforms.v2.functional._augment as v2_augment
import torchvision.transforms.v2.functional._color as v2_color
import torchvision.transforms.v2.functional._geometry as v2_geometry
import torchvision.transforms.v2.functional._misc as v2_misc
from torchvision import tv_tensors
from torchvision.io import ImageReadMode

from dali_pipes.adapters.lazy import arrays, pictures, tensors
from dali_pipes.adapters.lazy.arrays import LazyArray, new_array
from dali_pipes.adapters.lazy.pictures import PLAIN, LazyPicture
from dali_pipes.adapters.lazy.recipes import OPENERS, Recipe, Source, add_cooks
from dali_pipes.adapters.lazy.state import waits
from dali_pipes.adapters.lazy.tensors import LazyTensor, new_tensor

Rule = Callable[..., Any]
_LEFT_ALONE = (
    "numpy",
    "torch",
    "dali_pipes",
)  # whose modules inside have functions of C of their own


# How a function is replaced


def _template(*args: Any, **options: Any) -> Any:
    instead = "instead"
    return instead(*args, **options)


@contextmanager
def _in_place(function: FunctionType, instead: Callable[..., Any]) -> Iterator[None]:
    """Every reference to a function of Python runs `instead`."""
    code = function.__code__
    constants = tuple(
        instead if each == "instead" else each for each in _template.__code__.co_consts
    )
    place = {
        name: getattr(code, name)
        for name in ("co_name", "co_qualname", "co_filename", "co_firstlineno")
    }  # for who reads sources
    function.__code__ = _template.__code__.replace(co_consts=constants, **place)
    try:
        yield
    finally:
        function.__code__ = code


@contextmanager
def _wherever_imported(instead: dict[Any, Callable[..., Any]]) -> Iterator[None]:
    """The same of functions of C, in all modules that have them, but for those of libraries that need none."""
    changed = []
    for module in list(sys.modules.values()):
        own = getattr(module, "__dict__", {})
        library = str(own.get("__name__")).partition(".")
        for name, value in (
            list(own.items()) if library[0] not in _LEFT_ALONE or not library[2] else ()
        ):
            if isinstance(value, BuiltinFunctionType) and value in instead:
                changed.append((own, name, value))
                own[name] = instead[value]
    try:
        yield
    finally:
        for own, name, value in changed:
            own[name] = value


def _copied(function: FunctionType) -> FunctionType:
    """What a function was, for when it is replaced."""
    made = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


# Pictures


def _on_picture(name: str, rule: Rule, keeps_info: bool = False) -> Rule:
    def call(original: Any, *args: Any, **options: Any) -> Any:
        picture = args[0] if args else None
        if type(picture) is LazyPicture and picture.is_lazy and picture.mode in PLAIN:
            size = rule(picture, *args[1:], **options)
            if size is not None:
                return picture.then(size, picture.mode, keeps_info, name, *args[1:], **options)
        return original(*args, **options)

    return call


def _same_size(picture: LazyPicture, *_: Any, **__: Any) -> Any:
    return picture.size


def _hue(picture: LazyPicture, hue_factor: float) -> Any:
    return picture.size if picture.mode == "RGB" and -0.5 <= hue_factor <= 0.5 else None


def _gray(picture: LazyPicture, num_output_channels: int) -> Any:
    return picture.size if picture.mode == "RGB" and num_output_channels == 3 else None


def _pad(picture: LazyPicture, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> Any:
    sides = [padding] if isinstance(padding, int) else list(padding)
    if len(sides) not in (1, 2, 4) or min(sides) < 0:
        return None
    left, top, right, bottom = sides if len(sides) == 4 else sides * (4 // len(sides))
    return picture.width + left + right, picture.height + top + bottom


def _to_tensor(original: Any, picture: Any, scaled: bool) -> Any:
    if (
        type(picture) is not LazyPicture
        or not picture.is_lazy
        or picture.mode not in PLAIN
        or not waits("tensor")
    ):
        return original(picture)
    (width, height), channels, dtype = (
        picture.size,
        len(picture.getbands()),
        torch.get_default_dtype() if scaled else torch.uint8,
    )
    strides = (
        None if scaled else (1, width * channels, channels)
    )  # torchvision leaves the channels last
    recipe = (
        picture._recipe.then("to_tensor", dtype)
        if scaled
        else picture._recipe.then("pil_to_tensor")
    )
    return new_tensor(recipe, (channels, height, width), dtype, strides)


def _to_tensor_as(picture: PIL.Image.Image, dtype: torch.dtype) -> torch.Tensor:
    """`F.to_tensor`, whatever PyTorch's default type is where it is carried out."""
    return ORIGINALS["pil_to_tensor"](picture).contiguous().to(dtype).div(255)


def _to_picture(original: Any, value: Any, mode: Any = None) -> Any:
    rgb = (
        isinstance(value, LazyTensor)
        and value.waits
        and value.sides[:1] == (3,)
        and value.dtype == torch.uint8
        and not value.lead
    )
    if rgb and mode in (None, "RGB") and isinstance(value.rows[0], Recipe):
        return LazyPicture(value.rows[0].then("to_pil_image"), tuple(value.shape[:0:-1]), "RGB", {})
    return original(value, mode)


class _Enhancing:
    """Pillow's `ImageEnhance`: its classes look at the picture already when they are made."""

    @staticmethod
    def start(kind: str, original: Any, self: Any, image: Any) -> None:
        self.image = image
        if type(image) is LazyPicture and image.is_lazy and image.mode in PLAIN:
            self.waiting = (
                kind,
                image.copy(),
                original,
            )  # a copy, since the program may still change the picture
        else:
            original(self, image)

    @staticmethod
    def enhance(original: Any, self: Any, factor: float) -> Any:
        if "degenerate" in vars(self):
            return original(self, factor)
        kind, picture, start = self.waiting
        image = self.image
        if picture.is_lazy and image.is_lazy and factor != 1:
            return picture.then(
                picture.size, picture.mode, kind in ("Color", "Sharpness"), "enhance", kind, factor
            )
        start(self, picture)
        self.image = image
        return original(self, factor)


# Tensors


def _on_tensor(name: str, rule: Rule) -> Rule:
    def call(original: Any, *args: Any, **options: Any) -> Any:
        tensor = args[0] if args else None
        if isinstance(tensor, LazyTensor) and tensor.waits and len(tensor.sides) == 3:
            made = rule(tensor, *args[1:], **options)
            if made is not None:
                return (
                    made
                    if isinstance(made, LazyTensor)
                    else tensor.then(*made, name, *args[1:], **options)
                )
        return original(*args, **options)

    return call


def _same(tensor: LazyTensor, *_: Any, **__: Any) -> Any:
    return (tensor.sides, tensor.dtype) if min(tensor.sides[1:]) > 2 else None


def _same_colors(tensor: LazyTensor, *_: Any, **__: Any) -> Any:
    return (
        (tensor.sides, tensor.dtype) if tensor.sides[0] == 3 else None
    )  # others come back as they are


def _gray_tensor(tensor: LazyTensor, num_output_channels: int = 1, **_: Any) -> Any:
    return (
        ((num_output_channels, *tensor.sides[1:]), tensor.dtype) if tensor.sides[0] == 3 else None
    )


def _normalize(name: str) -> Rule:
    def rule(tensor: LazyTensor, mean: Any, std: Any, inplace: bool = False) -> Any:
        std_as_list = std.flatten().tolist() if isinstance(std, (torch.Tensor, np.ndarray)) else std
        numbers = std_as_list if isinstance(std_as_list, (list, tuple)) else [std_as_list]
        if not tensor.is_floating_point() or not all(
            isinstance(each, (int, float)) and each for each in numbers
        ):
            return None
        return _perhaps_in_place(tensor, inplace, name, mean, std)

    return rule


def _erase(name: str) -> Rule:
    def rule(
        tensor: LazyTensor, i: int, j: int, h: int, w: int, v: Any, inplace: bool = False
    ) -> Any:
        return _perhaps_in_place(tensor, inplace, name, i, j, h, w, v)

    return rule


def _perhaps_in_place(
    tensor: LazyTensor, inplace: bool, name: str, *args: Any
) -> LazyTensor | None:
    if not inplace:
        return tensor.then(tensor.sides, tensor.dtype, name, *args)
    return tensor if tensor.change(name, *args) else None


def _to_dtype(tensor: LazyTensor, dtype: torch.dtype = torch.float, scale: bool = True) -> Any:
    # with its own type it comes back as it is
    return None if tensor.dtype == dtype or not dtype.is_floating_point else (tensor.sides, dtype)


def _resize(tensor: LazyTensor, size: Any, *args: Any, max_size: Any = None, **_: Any) -> Any:
    if size is None or len(args) > 1:
        return None
    old, size = tuple(tensor.sides[1:]), [size] if isinstance(size, int) else list(size)
    new = tuple(v2_geometry._compute_resized_output_size(old, size=size, max_size=max_size))
    return None if new == old else ((tensor.sides[0], *new), tensor.dtype)


def _padded(tensor: LazyTensor, padding: Any, *_: Any, **__: Any) -> Any:
    left, right, top, bottom = padding
    channels, height, width = tensor.sides
    return (
        ((channels, height + top + bottom, width + left + right), tensor.dtype)
        if any(padding)
        else None
    )


def _read(original: Any, *args: Any, **options: Any) -> Any:
    """`read_image` and `decode_image`."""
    value, mode = (
        args[0],
        options.get("mode", args[1] if len(args) > 1 else ImageReadMode.UNCHANGED),
    )
    mode = ImageReadMode[mode.upper()] if isinstance(mode, str) else mode
    plain = (
        len(args) in (1, 2)
        and not set(options) - {"mode"}
        and mode in (ImageReadMode.RGB, ImageReadMode.UNCHANGED)
    )
    found = _header("torchvision", value, mode.value) if plain and waits("tensor") else None
    if found is None:
        return original(*args, **options)
    recipe, _ = found
    channels = 3 if recipe.mode == "RGB" or mode == ImageReadMode.RGB else 1
    width, height = recipe.size
    return new_tensor(
        recipe, (channels, height, width), torch.uint8, (1, width * channels, channels)
    )


def _header(opener: str, value: Any, *options: Any) -> tuple[Recipe, PIL.Image.Image] | None:
    """A recipe for a path or an array of encoded bytes, and what Pillow reads of its header; None: not a plain picture."""
    data = (
        value.numpy().tobytes()
        if isinstance(value, torch.Tensor)
        else value.tobytes()
        if isinstance(value, np.ndarray)
        else None
    )
    with suppress(Exception):
        with ORIGINALS["open"](str(value) if data is None else BytesIO(data)) as header:
            if (
                header.format not in ("JPEG", "PNG")
                or pictures.stored_mode(header) not in PLAIN
                or getattr(header, "n_frames", 1) > 1
            ):
                return None
            if data is None:
                source = Source.of_file(opener, str(value), header.fp.fileno(), *options)
            else:
                source = Source.of_bytes(opener, data, *options)
            return Recipe(source, header.size, header.mode), header
    return None


def _decode(path_or_bytes: Any, mode: int) -> torch.Tensor:
    if isinstance(path_or_bytes, str):
        return ORIGINALS["read_image"](path_or_bytes, ImageReadMode(mode))
    return ORIGINALS["decode_image"](
        torch.frombuffer(bytearray(path_or_bytes.getvalue()), dtype=torch.uint8),
        ImageReadMode(mode),
    )


# cv2 and albumentations


def _imread(original: Any, value: Any, flags: int = 1) -> Any:
    """`cv2.imread` and `cv2.imdecode`: they turn a picture by its EXIF tag, unless it is read as it is."""
    found = _header("cv2", value, flags) if flags in (-1, 0, 1, 256) and waits("array") else None
    if found is None or (found[1].format == "PNG" and "exif" in found[1].info):
        return original(value, flags)
    recipe, header = found
    turn = header.getexif().get(0x0112, 1) if flags >= 0 and "exif" in header.info else 1
    shape = recipe.size if turn in (5, 6, 7, 8) else recipe.size[::-1]
    recipe = recipe.then("turned", turn) if turn in range(2, 9) else recipe
    gray = flags == 0 or (flags == -1 and recipe.mode == "L")
    return new_array(recipe, shape if gray else (*shape, 3))


def _cv2_open(path_or_bytes: Any, flags: int) -> np.ndarray:
    if isinstance(path_or_bytes, str):
        made = ORIGINALS["cv2.imread"](path_or_bytes, flags)
    else:
        made = ORIGINALS["cv2.imdecode"](np.frombuffer(path_or_bytes.getvalue(), np.uint8), flags)
    if made is None:
        raise OSError("OpenCV can not decode it")
    return made


def _on_array(name: str, rule: Rule, dtype: Any = None) -> Rule:
    def call(original: Any, *args: Any, **options: Any) -> Any:
        array = args[0] if args else None
        if type(array) is LazyArray and array.waits and (array.ndim == 2 or array.shape[2] == 3):
            shape = rule(array, *args[1:], **options)
            if shape is not None:
                return array.then(np.empty(shape, dtype or array.dtype), name, *args[1:], **options)
        return original(*arrays._true(args), **arrays._true(options))

    return call


def _cv2_resize(
    array: LazyArray,
    dsize: Any = None,
    dst: Any = None,
    fx: Any = 0,
    fy: Any = 0,
    interpolation: int = 1,
) -> Any:
    return (
        (int(dsize[1]), int(dsize[0]), *array.shape[2:])
        if dsize and dst is None and min(dsize) > 0
        else None
    )


def _cv2_color(array: LazyArray, code: int, dst: Any = None, dstCn: int = 0, **_: Any) -> Any:
    shape = (
        {4: (3,), 6: (), 7: ()}.get(code) if array.ndim == 3 else {8: (3,)}.get(code)
    )  # BGR to RGB and back, to gray, from gray
    return None if shape is None or dst is not None or dstCn else (*array.shape[:2], *shape)


def _cv2_same(array: LazyArray, *args: Any, **options: Any) -> Any:
    return array.shape


def _cv2_warp(array: LazyArray, M: Any, dsize: Any, dst: Any = None, **_: Any) -> Any:
    return (int(dsize[1]), int(dsize[0]), *array.shape[2:]) if dst is None else None


def _cv2_border(
    array: LazyArray, top: int, bottom: int, left: int, right: int, *_: Any, **__: Any
) -> Any:
    return (array.shape[0] + top + bottom, array.shape[1] + left + right, *array.shape[2:])


def _cutout(array: LazyArray, holes: Any, fill: Any, random_generator: Any) -> Any:
    return None if isinstance(fill, str) else array.shape


def _multiply_add(array: LazyArray, factor: Any, value: Any, inplace: bool = False) -> Any:
    return None if inplace or array.dtype != np.uint8 else array.shape


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _contiguous_output(original: Any, value: Any) -> Any:
    if type(value) is LazyArray:
        return arrays.contiguous(np.ascontiguousarray, value)
    return original(value)


# The tables

_COLORS = [
    "adjust_brightness",
    "adjust_contrast",
    "adjust_sharpness",
    "autocontrast",
    "equalize",
    "posterize",
    "solarize",
    "invert",
]
_PYTHON: list[tuple[str, Any, str, Rule]] = [
    ("open", PIL.Image, "open", pictures.opened),
    ("default_convert", torch.utils.data._utils.collate, "default_convert", arrays.convert),
    ("collate_tensor_fn", torch.utils.data._utils.collate, "collate_tensor_fn", tensors.collated),
    ("reduce_tensor", torch.multiprocessing.reductions, "reduce_tensor", tensors.reduced),
    ("fromarray", PIL.Image, "fromarray", arrays.from_array),
    ("_Image_fromarray", F, "_Image_fromarray", arrays.from_array),
    ("autocontrast", PIL.ImageOps, "autocontrast", _on_picture("autocontrast", _same_size, keeps_info=True)),
    ("equalize", PIL.ImageOps, "equalize", _on_picture("equalize", _same_size, keeps_info=True)),
    ("hue", F_pil, "adjust_hue", _on_picture("hue", _hue)),
    ("gray", F_pil, "to_grayscale", _on_picture("gray", _gray)),
    ("pad", F_pil, "pad", _on_picture("pad", _pad)),
    ("to_tensor", F, "to_tensor", lambda original, pic: _to_tensor(original, pic, True)),
    ("pil_to_tensor", F, "pil_to_tensor", lambda original, pic: _to_tensor(original, pic, False)),
    ("to_pil_image", F, "to_pil_image", _to_picture),
    ("wrap", tv_tensors, "wrap", tensors.wrapped),
    ("read_image", torchvision.io.image, "read_image", _read),
    ("decode_image", torchvision.io.image, "decode_image", _read),
    *[(f"enhance {kind}", getattr(PIL.ImageEnhance, kind), "__init__", partial(_Enhancing.start, kind)) for kind in
      ("Color", "Contrast", "Brightness", "Sharpness")],
    ("enhance", PIL.ImageEnhance._Enhance, "enhance", _Enhancing.enhance),
    *[(f"{module.__name__}.{name}", module, name, _on_tensor(f"{module.__name__}.{name}", rule)) for module, name, rule in [
        (F_t, "convert_image_dtype", _to_dtype),
        (F_t, "normalize", _normalize(f"{F_t.__name__}.normalize")),
        (F_t, "erase", _erase(f"{F_t.__name__}.erase")),
        (F_t, "gaussian_blur", _same),
        (F_t, "resize", _resize),
        (F_t, "rgb_to_grayscale", _gray_tensor),
        *[(F_t, name, _same) for name in _COLORS],
        *[(F_t, name, _same_colors) for name in ("adjust_saturation", "adjust_hue")],
        (v2_misc, "to_dtype_image", _to_dtype),
        (v2_misc, "normalize_image", _normalize(f"{v2_misc.__name__}.normalize_image")),
        (v2_augment, "erase_image", _erase(f"{v2_augment.__name__}.erase_image")),
        (v2_misc, "gaussian_blur_image", _same),
        (v2_geometry, "resize_image", _resize),
        (v2_geometry, "_pad_with_scalar_fill", _padded),
        (v2_color, "rgb_to_grayscale_image", _gray_tensor),
        *[(v2_color, f"{name}_image", _same) for name in _COLORS],
        *[(v2_color, f"{name}_image", _same_colors) for name in ("adjust_saturation", "adjust_hue", "permute_channels")],
    ]],
]  # fmt: skip
_C: list[tuple[Any, str, Rule]] = [
    (np, "array", arrays.array_of(True)),
    (np, "asarray", arrays.array_of(False)),
    (np, "ascontiguousarray", arrays.contiguous),
    (torch, "from_numpy", arrays.from_numpy),
    (torch, "as_tensor", arrays.from_numpy),
    (torch, "tensor", arrays.tensor_of),
]
_CV2: dict[str, Rule] = {
    "imread": _imread,
    "imdecode": _imread,
    "resize": _on_array("cv2.resize", _cv2_resize),
    "cvtColor": _on_array("cv2.cvtColor", _cv2_color),
    "flip": _on_array("cv2.flip", _cv2_same),
    "warpAffine": _on_array("cv2.warpAffine", _cv2_warp),
    "copyMakeBorder": _on_array("cv2.copyMakeBorder", _cv2_border),
}
_ALBUMENTATIONS: list[tuple[str, str, Rule]] = [
    ("albumentations.core.utils", "ensure_contiguous_output", _contiguous_output),
    (
        "albumentations.augmentations.dropout.functional",
        "cutout",
        _on_array("albucore.cutout", _cutout),
    ),
    (
        "albumentations.augmentations.pixel.functional",
        "shift_hsv",
        _on_array("albucore.shift_hsv", _cv2_same),
    ),
    (
        "albumentations.augmentations.pixel.functional",
        "gamma_transform",
        _on_array("albucore.gamma_transform", _cv2_same),
    ),
    ("albucore.functions", "normalize", _on_array("albucore.normalize", _cv2_same, np.float32)),
    ("albucore.functions", "multiply_add", _on_array("albucore.multiply_add", _multiply_add)),
]
ORIGINALS: dict[str, Any] = {
    name: _copied(inspect.unwrap(getattr(owner, attribute)))
    for name, owner, attribute, _ in _PYTHON
}
OPENERS |= {"pillow": ORIGINALS["open"], "torchvision": _decode, "cv2": _cv2_open}
_OWN_COOKS = {
    "turned": lambda array, turn: array,  # OpenCV has done it
    "to_tensor": _to_tensor_as,
    "enhance": lambda picture, kind, factor: getattr(PIL.ImageEnhance, kind)(picture).enhance(
        factor
    ),
}
add_cooks(**ORIGINALS | _OWN_COOKS)
_FOR_GOOD: list[Any] = []


def know_libraries() -> None:
    """Takes up the functions of those that are imported by now, before they are replaced."""
    cv2 = sys.modules.get("cv2")
    if cv2 is not None and "cv2.imread" not in ORIGINALS:
        ORIGINALS.update(
            {
                f"cv2.{name}": function
                for name, function in vars(cv2).items()
                if inspect.isbuiltin(function)
            }
        )
        add_cooks(**{f"cv2.{name}": ORIGINALS[f"cv2.{name}"] for name in _CV2})
    if "albumentations" in sys.modules and "albucore.normalize" not in ORIGINALS:
        originals = {
            f"albucore.{name}": _copied(_function(module, name))
            for module, name, _ in _ALBUMENTATIONS
        }
        ORIGINALS.update(originals)
        add_cooks(**originals)


def _function(module: str, name: str) -> Any:
    return inspect.unwrap(getattr(importlib.import_module(module), name))


@contextmanager
def patched() -> Iterator[None]:
    """In it libraries know lazy pictures. In threads that do not wait all is as ever."""
    know_libraries()
    with ExitStack() as stack:
        for name, owner, attribute, rule in _PYTHON:
            stack.enter_context(
                _in_place(inspect.unwrap(getattr(owner, attribute)), partial(rule, ORIGINALS[name]))
            )
        instead = {
            getattr(module, name): partial(rule, getattr(module, name)) for module, name, rule in _C
        }
        for name, function in [each for each in ORIGINALS.items() if each[0].startswith("cv2.")]:
            rule = _CV2.get(name[4:]) or _on_array(name, _nothing)  # its functions want true arrays
            instead[function] = partial(rule, function)
        stack.enter_context(_wherever_imported(instead))
        for module, name, rule in _ALBUMENTATIONS if "albucore.normalize" in ORIGINALS else ():
            stack.enter_context(
                _in_place(_function(module, name), partial(rule, ORIGINALS[f"albucore.{name}"]))
            )
        yield


def patch_for_good() -> None:
    """In a worker, or where a loader without workers runs."""
    if not _FOR_GOOD:
        _FOR_GOOD.append(patched())
        _FOR_GOOD[0].__enter__()
