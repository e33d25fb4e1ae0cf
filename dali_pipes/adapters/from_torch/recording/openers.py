"""The functions that open pictures, which tell the visit of their thread while they are patched.

They are those of PIL, torchvision, OpenCV and accimage, if the user's program has imported these.
Functions of Python are patched in their code, so that it does not matter under which name a program
knows them. OpenCV's functions have no code, so they are replaced in every module that has them.
"""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import serialization

from dali_pipes.adapters.from_torch.recording.active_visit import active
from dali_pipes.adapters.from_torch.recording.cheap import CheapNoise, Copies
from dali_pipes.adapters.from_torch.recording.marks import Pixels, Snapshot
from dali_pipes.adapters.from_torch.recording.visit import Opened, Visit
from dali_pipes.adapters.transforms.reading import NotConvertibleError

Opener = Callable[..., Any]  # of the original function, the visit, and the arguments


_NOBODY = 0.5  # `_patch_code` puts the object whose `tell` is called in its place
_STUB = (lambda *args, **options: (0.5).tell(*args, **options)).__code__  # type: ignore[attr-defined]


@contextmanager
def openers_patched() -> Iterator[None]:
    """A block in which the openers tell the active visit, if there is one."""
    undo: list[Callable[[], None]] = []

    # what a file is decoded to would be what the other function makes of it
    if getattr(Image.open, "__globals__", None) is not vars(Image):
        name = getattr(Image.open, "__qualname__", repr(Image.open))
        raise NotConvertibleError(
            "PIL.Image.open",
            f"the program has put {Image.open.__module__}.{name} in its place",
            "call that function by its own name",
        )

    # libraries that the program has not imported are not imported here either
    try:
        undo += _patch(Image.open, _open_pil)
        # a program, or a library, may have put a function of its own around it
        for save in {serialization.save, torch.save}:
            undo += _patch(save, partial(_refuse_write, "torch.save"))
        if torchvision := sys.modules.get("torchvision.io.image"):
            for name, opener in _TORCHVISION.items():
                function = getattr(torchvision, name, None)
                # a function that the program has put there opens pictures by others
                if isinstance(function, FunctionType) and _is_at_home(function, torchvision):
                    undo += _patch(function, partial(opener, name))
        if opencv := sys.modules.get("cv2"):
            readers = [(getattr(opencv, name), reader) for name, reader in _OPENCV.items()]
            # one of Python is not OpenCV's, as above
            undo += _patch_everywhere(
                *(each for each in readers if not isinstance(each[0], FunctionType))
            )
        if accimage := sys.modules.get("accimage"):
            undo += _patch_everywhere((accimage.Image, _refuse_accimage))

        yield
    finally:
        for each in reversed(undo):
            each()


def _is_at_home(function: FunctionType, module: Any) -> bool:
    return function.__globals__ is vars(module)


def _patch(function: Any, opener: Opener) -> list[Callable[[], None]]:
    """Patches a function in its code, or if it is no plain function of Python, where it stands."""
    if isinstance(function, FunctionType) and not function.__code__.co_freevars:
        return [_patch_code(function, opener)]
    return _patch_everywhere((function, opener))


def _patch_code(function: Any, opener: Opener) -> Callable[[], None]:
    """Gives a Python function other code, which calls `opener` while there is an active visit."""
    code = function.__code__
    original = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__

    def tell(*args: Any, **options: Any) -> Any:
        visit = active()
        if visit is None:
            return original(*args, **options)
        return opener(original, visit, *args, **options)

    # a constant, since the function has the globals of its own module; and no closure, since
    # Python refuses code with another number of free variables than the function has
    constants = tuple(
        SimpleNamespace(tell=tell) if each == _NOBODY else each for each in _STUB.co_consts
    )
    function.__code__ = _STUB.replace(co_consts=constants, co_name=code.co_name)
    return partial(setattr, function, "__code__", code)


def _patch_everywhere(*openers: tuple[Any, Opener]) -> list[Callable[[], None]]:
    """Replaces functions that are not Python's in every module that has them as globals."""
    # one pass for all of them: it goes over the globals of all libraries
    replaced = {
        id(function): (function, _telling(function, opener)) for function, opener in openers
    }
    undo: list[Callable[[], None]] = []
    for module in list(sys.modules.values()):
        # a module that is being imported, or an object in a module's place, may have no dict
        for name, value in list((getattr(module, "__dict__", None) or {}).items()):
            if id(value) in replaced:
                function, tell = replaced[id(value)]
                setattr(module, name, tell)
                undo.append(partial(setattr, module, name, function))
    return undo


def _telling(function: Any, opener: Opener) -> Callable[..., Any]:
    """What calls `opener` while there is an active visit, and else the function."""

    def tell(*args: Any, **options: Any) -> Any:
        visit = active()
        if visit is None:
            return function(*args, **options)
        return opener(function, visit, *args, **options)

    return tell


def _source(file: Any) -> tuple[Any, bytes | None]:
    """The path of what is opened, or its bytes."""
    # str and BytesIO before PathLike, which is an abstract class and takes longer to ask for
    if isinstance(file, str):
        return file, None
    if isinstance(file, io.BytesIO):
        return None, file.getvalue()
    # an open file has the name that it was opened with; a descriptor is a number
    raw = getattr(file, "raw", file)
    if isinstance(raw, io.FileIO) and isinstance(raw.name, (str, bytes, os.PathLike)):
        return raw.name, None
    if isinstance(file, (bytes, os.PathLike)):
        return file, None

    # any other object that Image.open may read, which is then where it was before
    place = file.tell()
    file.seek(0)
    data = file.read()
    file.seek(place)
    return None, data


# PIL


def _open_pil(original: Any, visit: Visit, fp: Any, mode: str = "r", formats: Any = None) -> Any:
    path, data = (fp, None) if type(fp) is str else _source(fp)
    opened = visit.open("PIL.Image.open", path, data, ())
    if visit.is_cheap:
        return visit.hand_out_noise(opened, _cheap_image)

    with visit.paused():
        encoded = visit.encoded()
        image = original(fp if encoded is None else io.BytesIO(encoded), mode, formats)
    # as Image.open does with a path
    if encoded is not None and path is not None:
        image.filename = os.fspath(path)
    return visit.hand_out(image, opened)


def _cheap_image(opened: Opened, noise: CheapNoise) -> tuple[Image.Image, None]:
    image = noise.image()
    # a palette of 256 grays, with three values each
    if opened.mode == "P":
        image.putpalette([value // 3 for value in range(768)])
    elif opened.mode == "1":
        image = image.convert("1")
    # as Image.open has it for bytes
    image.filename = opened.path if isinstance(opened.path, str) else ""
    image.format = "JPEG"
    return image, None


# torchvision


def _decode_torchvision(
    name: str, original: Any, visit: Visit, input: Any, *args: Any, **options: Any
) -> Any:
    is_bytes = isinstance(input, torch.Tensor)
    path, data = (None, input.numpy().tobytes()) if is_bytes else (input, None)
    opened = visit.open(f"torchvision.io.{name}", path, data, (repr(args), repr(options)))
    if visit.is_cheap:
        return visit.hand_out_noise(opened, _to_chw)

    with visit.paused():
        encoded = visit.encoded()
        if encoded is None:
            decoded = original(input, *args, **options)
        else:
            # made-up bytes may be a PNG where the program reads a JPEG, and have no path
            bytes_of = torch.from_numpy(np.frombuffer(bytearray(encoded), np.uint8))
            decode = original if is_bytes else sys.modules["torchvision.io.image"].decode_image
            decoded = decode(bytes_of, *args, **options)
    return visit.hand_out(decoded, opened)


def _read_torchvision(
    name: str, original: Any, visit: Visit, path: Any, *args: Any, **options: Any
) -> Any:
    # it takes a path, which `_decode_torchvision` tells from bytes by its type
    return _decode_torchvision(name, original, visit, str(path), *args, **options)


def _read_file(name: str, original: Any, visit: Visit, path: Any) -> Any:
    # torchvision's C++ opens the file, of which Python's audit hook knows nothing
    visit.read.append(os.fsdecode(path))
    return original(path)


def _to_chw(opened: Opened, noise: CheapNoise) -> tuple[torch.Tensor, Snapshot | None]:
    make = _chw if noise.is_small else _chw.__wrapped__
    return make(noise).take()


# noise is the same object for all samples
@lru_cache(maxsize=64)
def _chw(noise: CheapNoise) -> Copies:
    pixels = noise.pixels
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return Copies(torch.from_numpy(np.ascontiguousarray(planes)))


_TORCHVISION: dict[str, Any] = {
    "read_file": _read_file,
    "read_image": _read_torchvision,
    **dict.fromkeys(("decode_image", "decode_jpeg", "decode_png"), _decode_torchvision),
}


# OpenCV


def _read_opencv(original: Any, visit: Visit, filename: Any, *args: Any, **options: Any) -> Any:
    # imread(filename, dst, flags) reads into an array; its picture is no mark, and is refused
    if args and not isinstance(args[0], int):
        return original(filename, *args, **options)
    flags = options.get("flags", args[0] if args else None)
    opened = visit.open("cv2.imread", filename, None, (flags,))
    return _opencv(visit, opened, flags, partial(original, filename, *args, **options))


def _decode_opencv(
    original: Any, visit: Visit, buf: Any, flags: Any, *args: Any, **options: Any
) -> Any:
    # imdecode(buf, flags, dst) decodes into an array; its picture is no mark, and is refused
    if args or options:
        return original(buf, flags, *args, **options)
    opened = visit.open("cv2.imdecode", None, np.asarray(buf).tobytes(), (flags,))
    return _opencv(visit, opened, flags, partial(original, buf, flags))


def _opencv(visit: Visit, opened: Opened, flags: Any, decode: Callable[[], Any]) -> Any:
    """Returns what imread and imdecode return with these flags."""
    opencv = sys.modules["cv2"]
    flags = opencv.IMREAD_COLOR if flags is None else flags
    if visit.is_cheap:
        return visit.hand_out_noise(opened, partial(_cheap_array, flags))

    with visit.paused():
        encoded = visit.encoded()
        if encoded is None:
            return visit.hand_out(decode(), opened)
        # in pauses the patched function is the original one
        made_up = opencv.imdecode(np.frombuffer(encoded, np.uint8), flags)
        return visit.hand_out(made_up, opened)


def _cheap_array(flags: int, opened: Opened, noise: CheapNoise) -> tuple[Pixels, Snapshot | None]:
    make = _array if noise.is_small else _array.__wrapped__
    return make(noise, flags).take()


@lru_cache(maxsize=64)
def _array(noise: CheapNoise, flags: int) -> Copies:
    pixels = noise.pixels
    if flags == 0:  # IMREAD_GRAYSCALE
        return Copies(pixels if pixels.ndim == 2 else pixels[..., 0])
    three = np.repeat(pixels[..., None], 3, axis=2) if pixels.ndim == 2 else pixels
    is_rgb = flags == getattr(sys.modules["cv2"], "IMREAD_COLOR_RGB", None)
    return Copies(three if is_rgb else three[..., ::-1].copy())


_OPENCV: dict[str, Any] = {
    "imread": _read_opencv,
    "imdecode": _decode_opencv,
    # its C++ opens the file, of which Python's audit hook knows nothing
    "imwrite": lambda original, visit, *args, **options: _refuse_write(
        "cv2.imwrite", original, visit, *args
    ),
}


# writers


def _refuse_write(name: str, original: Any, visit: Visit, *args: Any, **options: Any) -> Any:
    # imwrite(filename, image), save(object, file)
    at = 1 if name == "torch.save" else 0
    visit.refuse_change(f"calls {name} for", str(args[at]) if len(args) > at else "a file")


# accimage


def _refuse_accimage(original: Any, visit: Visit, path: Any) -> Any:
    return original(path)  # its pictures are no marks, so what they reach is refused
