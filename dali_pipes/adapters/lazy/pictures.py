"""Pillow's own images, whose pixels wait.

There is no other class: a picture that waits is the very object that Pillow has made, of the class
that it has ever been, without pixels (`_im` is None). In its `__dict__` it has a recipe, `_lazy`,
and the size and mode that these pixels will have, `_form`.

- Until a program asks for pixels nothing is different: `Image.open` has read the header, the file
  is open, `tell`, `info`, `draft`, `verify` do what they do.
- `load()`, with which everything begins that wants pixels, closes the file as ever, but notes where
  it is instead of decoding it. It returns an access to pixels that decodes when it is indexed.
- What has a row in the table (steps/pillow.py) gives a picture with a longer recipe.
- `im`, by which Pillow and all others get at pixels, makes them: code that is not known here gets
  the true ones, and what it does to them in place is done to this picture alone.
"""

import copy
import io
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import PIL.Image
import PIL.ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from dali_pipes.adapters.lazy.cells import check
from dali_pipes.adapters.lazy.looks import looking
from dali_pipes.adapters.lazy.recipes import NO_OPTIONS, OPENERS, STORES_RGB, Recipe, Source
from dali_pipes.adapters.lazy.state import PROCESS, STATE, pictures_wait
from dali_pipes.adapters.lazy.steps.step import Method, Step, replace
from dali_pipes.data.image_files.disagreements import stores_rgb
from dali_pipes.data.image_files.headers import describe_jpeg

Image = PIL.Image.Image
Size = tuple[int, int]  # width, height
Call = Callable[..., Any]

PLAIN = frozenset({"RGB", "L"})  # modes of which steps are noted
_OPENED = PLAIN | {"RGBA", "LA", "CMYK"}  # modes that wait until they are converted to a plain one
_EMPTY = vars(Image())
_COPIES_LISTS = hasattr(Image, "_copy_info")  # of `info`: from Pillow 13 on


def is_lazy(value: Any) -> bool:
    """Whether it is a picture whose pixels were noted, and not made yet."""
    return isinstance(value, Image) and _is_lazy(value)


def _is_lazy(picture: Any) -> bool:
    own = picture.__dict__
    return "_lazy" in own and own["_im"] is None


def _recipe(picture: Any) -> Recipe | None:
    """Its recipe, if a step may be noted: Pillow itself may have said that it has a palette now."""
    own = picture.__dict__
    recipe: Recipe | None = own.get("_lazy")
    if recipe is None or own["_im"] is not None or own["_mode"] != own["_form"][1]:
        return None
    return recipe


def recipe_of(picture: Any) -> Recipe | None:
    """The recipe of a picture that waits, so that a step may be noted; None: it has pixels.

    A picture of which only the header was read is loaded, as by anything that wants its pixels.
    """
    if not isinstance(picture, Image) or not pictures_wait():
        return None
    recipe = _recipe(picture)
    return _load_later(picture) if recipe is None and _may_wait(picture) else recipe


def new_picture(
    recipe: Recipe, size: Size, mode: str, info: dict[Any, Any] | None = None
) -> PIL.Image.Image:
    """What Pillow would return after the last step of a recipe.

    Args:
        info: of the picture before, which is copied as by Pillow; None: it has an empty one.
    """
    kept = dict(info) if info else {}
    if _COPIES_LISTS:
        for key, each in kept.items():
            if type(each) is list:
                kept[key] = each.copy()
    picture = Image.__new__(Image)
    picture.__dict__ = {
        **_EMPTY,
        "_size": size,
        "_mode": mode,
        "info": kept,
        "_lazy": recipe,
        "_form": (size, mode),
    }
    return picture


def materialize(picture: PIL.Image.Image) -> None:
    """Makes the pixels of a picture that waits, because the program looks at them."""
    if _is_lazy(picture):
        with looking():
            finish(picture)


def finish(picture: PIL.Image.Image) -> PIL.Image.Image:
    """Makes its pixels because its batch is ready, and not because the program looks at them."""
    recipe = picture.__dict__.get("_lazy")
    if recipe is not None and picture._im is None:
        fill(picture, recipe.make())
    return picture


def fill(picture: PIL.Image.Image, made: PIL.Image.Image) -> None:
    """Gives a picture that waits the pixels of another one, which is of no use any more."""
    check(made, *picture.__dict__["_form"])
    with _LOCKS.pixels:
        # of two threads that look at once, both get what the first has made
        if picture._im is None:
            picture._im = made._im
            picture.__dict__.pop("_lazy", None)


def mark_blank(picture: Any) -> None:
    """Says that all pixels of a new picture have one color, until somebody looks for them."""
    if picture._mode in PLAIN and min(picture._size) > 0:
        picture.__dict__["_blank"] = True


def color_of_blank(picture: Any) -> Any:
    """The color of all of its pixels, as of `getpixel`; None: somebody may have changed some."""
    return picture._im.getpixel((0, 0)) if "_blank" in picture.__dict__ else None


def adopt(picture: PIL.Image.Image, made: PIL.Image.Image) -> None:
    """Makes a picture what another one is, which was made of it, as Pillow does in place."""
    for name in ("_im", "_mode", "_size", "_lazy", "_form", "_blank"):
        picture.__dict__.pop(name, None)
        if name in made.__dict__:
            picture.__dict__[name] = made.__dict__[name]


# How a step is noted


def note_on_picture(step: Step, function: Call, args: Any, options: Any) -> Any:
    """What a program gets that calls a function or a method, whose first argument is a picture."""
    picture: Any = args[0] if args else None
    own = picture.__dict__ if isinstance(picture, Image) else {}
    # with `_im` it has pixels; without a recipe its header may have been read
    recipe = _recipe(picture) if "_lazy" in own else None
    waits = recipe is not None or ("_im" in own and _may_wait(picture))
    if not waits or own["_mode"] not in PLAIN or not pictures_wait():
        return function(*args, **options)

    try:
        found = step.form(*args, **options)  # type: ignore[misc]
    except Exception:  # of arguments that the function will complain of, too
        found = None
    if found is not None and recipe is None:
        recipe = _load_later(picture)
    if found is None or recipe is None:
        return function(*args, **options)

    size, mode, keeps_info, noted = found
    if noted is None:
        made = recipe.then(step.name, *args[1:], **options)
    else:
        made = recipe.noting((step.name, noted, NO_OPTIONS))
    return new_picture(made, size, mode, picture.info if keeps_info else None)


# How a picture of a file begins to wait


def _may_wait(picture: Any) -> bool:
    """Whether only the header was read of it, and it is one of those that wait."""
    kind, own = type(picture), picture.__dict__
    if (kind is not JpegImageFile and kind is not PngImageFile) or own["_im"] is not None:
        return False
    fp = own.get("fp")
    return (
        len(own["tile"]) == 1
        and own["_mode"] in _OPENED
        and fp is not None
        # a program that has closed its file gets Pillow's error
        and not getattr(fp, "closed", False)
        and not own.get("is_animated", False)
    )


def _load_later(picture: Any) -> Recipe | None:
    """All of `ImageFile.load` but for the pixels; None: they must be read now."""
    fp, is_jpeg = picture.fp, type(picture) is JpegImageFile
    end = None
    try:
        source = _source(picture, fp)
        recipe = Recipe(source, picture._size, stored_mode(picture))
        if is_jpeg:
            end = _end_of_jpeg(picture, source, fp)
        else:
            _skip_pixels(picture, fp)
    except Exception:  # a broken or unusual file, of which Pillow knows more
        return None

    # as in the last lines of `ImageFile.load` of Pillow 11 to 13
    picture.tile, picture.readonly = [], 0
    if not picture._exclusive_fp:
        if end is not None:
            fp.seek(end)
    elif picture._close_exclusive_fp_after_loading:
        fp.close()
    picture.fp = None
    picture.__dict__.update(_form=(picture._size, picture._mode), _lazy=recipe)
    return recipe


def _source(picture: Any, fp: Any) -> Source:
    """Where the encoded picture is.

    Raises:
        Exception: it cannot be read once more.
    """
    draft = None
    if picture.decoderconfig:
        draft = picture._size, picture._mode, picture.tile[0].args, picture.decoderconfig
    options = picture.format, PIL.ImageFile.LOAD_TRUNCATED_IMAGES, draft
    coding = coding_of(picture) if type(picture) is JpegImageFile else ""

    kind = type(fp)
    raw = fp.raw if kind is io.BufferedReader else fp
    if type(raw) is io.FileIO:
        return Source.of_file("pillow", raw.name, raw.fileno(), *options, coding=coding)
    if kind is io.BytesIO:
        return Source.of_bytes("pillow", fp.getvalue(), *options, coding=coding)

    # a member of an archive, a remote file, an object of the program's
    at = fp.tell()
    fp.seek(0)
    data = bytes(memoryview(fp.read()))
    fp.seek(at)
    return Source.of_bytes("pillow", data, *options, coding=coding)


def coding_of(picture: Any) -> str:
    """How a JPEG is coded, as of `Source`; it is the same of nearly all pictures."""
    info = picture.info
    transform = "jfif" in info or info.get("adobe_transform")
    key = picture._mode, tuple(picture.layer), transform, "progressive" in info
    coding = _CODINGS.get(key)
    if coding is None:
        is_rgb = picture._mode == "RGB" and stores_rgb(picture)
        coding = STORES_RGB if is_rgb else describe_jpeg(picture)
        if len(_CODINGS) < 1000:
            _CODINGS[key] = coding
    return coding


_CODINGS: dict[Any, str] = {}


def stored_mode(picture: Any) -> str:
    """The mode, if what is in the file is just that; else a name for what Pillow makes of it."""
    stored: str = picture._mode if picture.format == "JPEG" else picture.tile[0].args
    if "transparency" in picture.info:
        return f"{stored};transparency"
    return stored  # such as RGB;16B, of which Pillow takes the upper bytes


_MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")  # what is between the pixels is none


def _end_of_jpeg(picture: Any, source: Source, fp: Any) -> int:
    """Where Pillow leaves the file after it has read a JPEG: it reads blocks up to the end marker.

    It is wrong of a file of more than a block (64 KiB) that holds several pictures and does not say
    so in its header: to look for the first end in all files would take as long as all the rest.

    Raises:
        ValueError: it has no end.
    """
    data, size, block = source.data, source.size, picture.decodermaxblock
    end = size
    if not source.is_whole or "mp" in picture.info:  # which says that another picture follows
        end = _find_end(os.pread(fp.fileno(), size, 0) if data is None else data)
    return min(size, -(-end // block) * block)


def _find_end(data: bytes) -> int:
    at = 2
    while found := _MARKER.search(data, at):
        at = found.end()
        if data[at - 1] == 0xD9:
            return at
        at += int.from_bytes(data[at : at + 2], "big")
    raise ValueError("a JPEG without an end")


def _skip_pixels(picture: Any, fp: Any) -> None:
    """Reads what a PNG has to say after its pixels: texts, EXIF."""
    length = picture._PngImageFile__prepare_idat
    fp.seek(picture.tile[0].offset)
    while True:
        fp.seek(length, os.SEEK_CUR)
        fp.read(4)  # the checksum
        kind, at, length = picture.png.read()
        if kind not in (b"IDAT", b"DDAT"):
            picture.png.push(kind, at, length)
            break
    picture._PngImageFile__idat = 0
    picture.load_end()


# How a picture of a file is read again


def _decode(file: Any, kind: str, is_lenient: bool, draft: Any) -> PIL.Image.Image:
    """The opener "pillow", without the checks of sizes that `Image.open` has made.

    Args:
        file: a path, or a file in memory.
        kind: its format.
        is_lenient: whether truncated files are right, as `ImageFile.LOAD_TRUNCATED_IMAGES` was.
        draft: size, mode and what the decoder gets, of a JPEG after `draft()`; None: without it.
    """
    open_kind: Any = PIL.Image.OPEN[kind][0]
    picture = open_kind(file, None)
    if draft is not None:
        picture._size, picture._mode, args, picture.decoderconfig = draft
        extents = (0, 0, *picture._size)
        picture.tile = [picture.tile[0]._replace(extents=extents, args=args)]
    with _lenient(is_lenient):
        try:
            picture.load()
        except BaseException:
            picture.close()
            raise
    return picture


@contextmanager
def _lenient(on: bool) -> Iterator[None]:
    """In it truncated files are right, or not."""
    if on == PIL.ImageFile.LOAD_TRUNCATED_IMAGES:
        yield
        return
    with _LOCKS.flag:
        before, PIL.ImageFile.LOAD_TRUNCATED_IMAGES = PIL.ImageFile.LOAD_TRUNCATED_IMAGES, on
        try:
            yield
        finally:
            PIL.ImageFile.LOAD_TRUNCATED_IMAGES = before


class _Locks:
    """
    Attributes:
        pixels: for who gives a picture its pixels.
        flag: for who changes `LOAD_TRUNCATED_IMAGES`.
    """

    def __init__(self) -> None:
        self.make()
        os.register_at_fork(after_in_child=self.make)  # another thread may have held one

    def make(self) -> None:
        self.pixels, self.flag = threading.Lock(), threading.Lock()


_LOCKS = _Locks()


# What is replaced in Pillow's classes


class _Pixels:
    """What `load()` returns: indexing it makes the pixels."""

    __slots__ = ("_picture",)

    def __init__(self, picture: PIL.Image.Image):
        self._picture = picture

    def __getitem__(self, at: Any) -> Any:
        return self._access()[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        self._access()[at] = value

    def _access(self) -> Any:
        materialize(self._picture)
        return self._picture.load()


def _get_im(function: Any) -> property:
    """`Image.im`"""
    get = function.fget

    def im(self: Any) -> Any:
        if self._im is None:
            materialize(self)
        else:
            self.__dict__.pop("_blank", None)  # from now on it may change
        return get(self)

    return property(im, function.fset, function.fdel, function.__doc__)


def _load(function: Call) -> Call:
    """`Image.load`"""

    @wraps(function)
    def load(self: Any) -> Any:
        if _is_lazy(self):
            if pictures_wait() and _recipe(self) is not None:
                return _Pixels(self)
            materialize(self)
        return function(self)

    return load


def _load_file(function: Call) -> Call:
    """`ImageFile.load`"""

    @wraps(function)
    def load(self: Any) -> Any:
        if self.tile and pictures_wait():
            if not _may_wait(self):
                PROCESS.opened += self._im is None
            elif _load_later(self) is not None:
                return _Pixels(self)
        elif _is_lazy(self):
            return Image.load(self)
        return function(self)

    return load


def _copy(function: Call) -> Call:
    """`Image.copy`"""

    @wraps(function)
    def copy(self: Any) -> Any:
        recipe = recipe_of(self)
        if recipe is None:
            return function(self)
        return new_picture(recipe, self._size, self._mode, self.info)

    return copy


def _reduce(_: Any, picture: Any, protocol: Any) -> Any:
    """Pickles a picture that waits as it is, if it is sent; others get pixels."""
    recipe = _recipe(picture)
    if recipe is None or not STATE.sends:
        return object.__reduce_ex__(picture, protocol)
    return _rebuild, (type(picture), _state(picture), picture._size, recipe)


def _deepcopy(_: Any, picture: Any, memo: dict[int, Any]) -> Any:
    recipe = recipe_of(picture)
    if recipe is not None:
        made = _rebuild(type(picture), copy.deepcopy(_state(picture), memo), picture._size, recipe)
    else:
        reduced: Any = object.__reduce_ex__(picture, 4)
        make, args, state, *_ = reduced
        made = make(*args)
        made.__setstate__(copy.deepcopy(state, memo))
    return memo.setdefault(id(picture), made)


def _state(picture: Any) -> Any:
    """What Pillow keeps of a picture in a pickle: here of one like it, of one pixel."""
    kind: Any = type(picture)
    small = kind.__new__(kind)
    small.__dict__ = {**picture.__dict__, "_size": (1, 1)}
    small.__dict__.pop("_lazy")
    small._im = PIL.Image.core.new(picture._mode, (1, 1))  # type: ignore[attr-defined]
    return small.__getstate__()


def _rebuild(kind: Any, state: Any, size: Size, recipe: Recipe) -> Any:
    made = kind.__new__(kind)
    made.__setstate__(state)
    made._im, made._size = None, size
    made.__dict__.update(_form=(size, made._mode), _lazy=recipe)
    return made


OPENERS["pillow"] = _decode
replace("PIL.Image", "Image.im", Method(_get_im))
replace("PIL.Image", "Image.load", Method(_load))
replace("PIL.ImageFile", "ImageFile.load", Method(_load_file))
replace("PIL.Image", "Image.copy", Method(_copy))
replace("PIL.Image", "Image.__copy__", Method(_copy))
replace("PIL.Image", "Image.__reduce_ex__", _reduce)
replace("PIL.Image", "Image.__deepcopy__", _deepcopy)
