"""A Pillow image that is decoded when its pixels are looked at.

Pillow reads pixels only through `load()` and `im`, so code that is not known here gets the true ones, and all that it does to them in
place is done to this picture alone. What Pillow's own methods do is noted where the size and mode of the result are known.
"""

import copy
import io
import os
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageFile
import PIL.JpegImagePlugin
import PIL.PngImagePlugin
from PIL.Image import Resampling, Transform

from dali_pipes.adapters.lazy.cells import check
from dali_pipes.adapters.lazy.looks import blame
from dali_pipes.adapters.lazy.recipes import Recipe, Source, add_cooks
from dali_pipes.adapters.lazy.state import STATE, waits

PLAIN = ("RGB", "L")  # modes without a palette and without transparency
_FORMATS, _FILTERS = ("JPEG", "PNG"), frozenset(Resampling)
_WARPS = {Transform.AFFINE: 6, Transform.PERSPECTIVE: 8}  # and how many numbers each takes


class LazyPicture(PIL.Image.Image):
    """
    Args:
        info: of Pillow; None: it is not known without decoding.
        header: the true picture that `Image.open` returned, while nothing was done to it.
        kind: the class that it would have.
    """

    def __init__(
        self,
        recipe: Recipe,
        size: tuple[int, int],
        mode: str,
        info: dict[Any, Any] | None,
        header: PIL.ImageFile.ImageFile | None = None,
        kind: type = PIL.Image.Image,
    ):
        self._info, self._header, self._kind, self._loaded = info, header, kind, False
        super().__init__()
        self._recipe, self._size, self._mode, self._info = recipe, size, mode, info
        if header is not None:
            self.palette, self.readonly = header.palette, header.readonly
        self.format, self.format_description = kind.format, kind.format_description

    # what it says of itself

    @property
    def __class__(self) -> type:
        return self._kind

    @property
    def is_lazy(self) -> bool:
        """Whether what is done to it may be noted: its pixels can be read, and were not."""
        if self._im is not None or not waits("picture"):
            return False
        return (
            self._header is None
            or self._loaded
            or (self._header.fp is not None and not self._header.fp.closed)
        )

    @property
    def info(self) -> dict[Any, Any]:
        if self._info is None or (self._late_info and self._loaded):
            self.im  # noqa: B018
        return self._info

    @info.setter
    def info(self, value: dict[Any, Any]) -> None:
        self._info = value

    @property
    def _late_info(self) -> bool:
        """Whether a file may have more to say after its pixels."""
        return self._im is None and self._kind is PIL.PngImagePlugin.PngImageFile

    def getexif(self) -> PIL.Image.Exif:
        if self._late_info and "exif" not in self._info:
            self.im  # noqa: B018
        return super().getexif()

    def __getattr__(self, name: str) -> Any:
        """What only pictures of a file have, such as `text`."""
        header = self.__dict__.get("_header")
        if name.startswith("__") or header is None:
            raise AttributeError(f"{self.__dict__.get('_kind')} object has no attribute {name!r}")
        if self._loaded and header._im is None:
            header = self._header = self._recipe.make()
            header.load()
        return getattr(header, name)

    def verify(self) -> None:
        if self._header is not None and self._im is None:
            self._header.verify()

    # its pixels

    @property
    def im(self) -> Any:
        if self._im is None:
            blame()
            made = self._recipe.make() if self._header is None or self._loaded else self._header
            made.load()
            check(made, self._size, self._mode)
            if self._info is None or self._late_info:
                self._info = made.info
            self._im, self._mode, self._size = made.im, made.mode, made.size
            self.palette, self.readonly = made.palette, 0
        return PIL.Image.Image.im.fget(self)

    @im.setter
    def im(self, value: Any) -> None:
        self._im = value

    def load(self) -> Any:
        """An access to pixels, with which nothing is decoded yet."""
        if self.is_lazy and self._mode != "P":
            if self._header is not None and not self._loaded:
                self._header.__exit__()  # as Pillow does once it has the pixels
            self._loaded = True
            return _Pixels(self)
        self.im  # noqa: B018
        return super().load()

    def close(self) -> None:
        if self._header is not None:
            self._header.close()
        super().close()

    def __exit__(self, *args: object) -> None:
        if self._header is not None:
            self._header.__exit__(*args)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._im is not None or not STATE.sends:
            return self.true().__reduce_ex__(protocol)
        return (
            LazyPicture,
            (self._recipe, self._size, self._mode, self._info, None, self._kind),
            _rest(self),
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> PIL.Image.Image:
        if not self.is_lazy or self._mode == "P":
            return memo.setdefault(id(self), copy.deepcopy(self.true(), memo))
        made = LazyPicture(self._recipe, self._size, self._mode, self._known_info, None, self._kind)
        vars(made).update(copy.deepcopy(_rest(self), memo))
        return memo.setdefault(id(self), made)

    def __copy__(self) -> PIL.Image.Image:
        return self.__deepcopy__({})

    def true(self) -> PIL.Image.Image:
        """The picture that a program without this would have."""
        if self._im is None:
            made = self._recipe.make()
            made.load()
        else:
            made = PIL.Image.Image() if self._header is None else self._header
            made._im, made._mode, made._size, made.palette = (
                self._im,
                self._mode,
                self._size,
                self.palette,
            )
        made.info = made.info if self._info is None else self._info
        vars(made).update(_rest(self))
        return made

    # what Pillow does with it

    def then(
        self,
        size: tuple[int, int],
        mode: str,
        keeps_info: bool,
        name: str,
        /,
        *args: Any,
        **options: Any,
    ) -> "LazyPicture":
        """The picture after one step more; it keeps the info, or has an empty one."""
        info = (
            None if "transparency" in (self._info or ()) else self._known_info if keeps_info else {}
        )
        return LazyPicture(self._recipe.then(name, *args, **options), size, mode, info)

    @property
    def _known_info(self) -> dict[Any, Any] | None:
        """A copy of it for another picture."""
        return None if self._info is None or self._late_info else self._copy_info()

    def copy(self) -> PIL.Image.Image:
        if self.is_lazy and self._mode != "P":
            return LazyPicture(self._recipe, self._size, self._mode, self._known_info)
        return super().copy()

    def draft(self, mode: str | None, size: Any) -> Any:
        if self._header is None or self._im is not None:
            return None
        found = self._header.draft(mode, size)
        if found is not None:
            self._recipe = self._recipe.then("draft", mode, size)
            self._size, self._mode = self._header.size, self._header.mode
        return found

    def convert(self, mode: str | None = None, *args: Any, **options: Any) -> PIL.Image.Image:
        if self.is_lazy and not args and not options:
            if self._mode in PLAIN and mode in (None, self._mode):
                return self.copy()
            if (
                mode in PLAIN and self._mode != "P"
            ):  # of a palette it may warn, which a program may hear
                return self.then(self._size, mode, True, "convert", mode)
        return super().convert(mode, *args, **options)

    def crop(self, box: Any = None) -> PIL.Image.Image:
        if self.is_lazy and box is not None and self._mode in PLAIN:
            left, top, right, bottom = (int(round(each)) for each in box)
            if left < right and top < bottom and (right - left) * (bottom - top) < 2**26:
                return self.then(
                    (right - left, bottom - top),
                    self._mode,
                    True,
                    "crop",
                    (left, top, right, bottom),
                )
        return super().crop(box)

    def resize(
        self, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None
    ) -> PIL.Image.Image:
        plain = (
            self.is_lazy
            and self._mode in PLAIN
            and all(isinstance(each, (int, np.integer)) and each > 0 for each in size)
        )
        inside = box is None or (
            0 <= box[0] < box[2] <= self.width and 0 <= box[1] < box[3] <= self.height
        )
        if (
            plain
            and inside
            and (resample is None or resample in _FILTERS)
            and (reducing_gap or 1) >= 1
        ):
            size, resample = (
                tuple(map(int, size)),
                int(Resampling.BICUBIC if resample is None else resample),
            )
            return self.then(size, self._mode, True, "resize", size, resample, box, reducing_gap)
        return super().resize(size, resample, box, reducing_gap)

    def transpose(self, method: Any) -> PIL.Image.Image:
        if self.is_lazy and self._mode in PLAIN and method in range(7):
            size = self._size[::-1] if method in (2, 4, 5, 6) else self._size
            return self.then(size, self._mode, True, "transpose", int(method))
        return super().transpose(method)

    def transform(
        self,
        size: Any,
        method: Any,
        data: Any = None,
        resample: Any = 0,
        fill: int = 1,
        fillcolor: Any = None,
    ) -> PIL.Image.Image:
        if (
            self.is_lazy
            and self._mode in PLAIN
            and method in _WARPS
            and data is not None
            and resample in (0, 2, 3)
        ):
            numbers = tuple(map(float, data[: _WARPS[method]]))
            return self.then(
                tuple(size),
                self._mode,
                True,
                "transform",
                tuple(size),
                int(method),
                numbers,
                int(resample),
                fill,
                fillcolor,
            )
        return super().transform(size, method, data, resample, fill, fillcolor)

    def point(self, lut: Any, mode: str | None = None) -> PIL.Image.Image:
        if (
            self.is_lazy
            and self._mode in PLAIN
            and mode is None
            and not isinstance(lut, PIL.Image.ImagePointHandler)
        ):
            bands = len(self._mode)
            table = [lut(value) for value in range(256)] * bands if callable(lut) else list(lut)
            table = [round(value) for value in table]
            if len(table) == 256 * bands and 0 <= min(table) and max(table) <= 255:
                return self.then(self._size, self._mode, True, "point", bytes(table))
            return super().point(table)
        return super().point(lut, mode)

    def filter(self, filter: Any) -> PIL.Image.Image:
        own = (filter if isinstance(filter, type) else type(filter)).__module__ == "PIL.ImageFilter"
        if self.is_lazy and self._mode in PLAIN and own:
            made = filter() if isinstance(filter, type) else copy.deepcopy(filter)
            return self.then(self._size, self._mode, True, "filter", made)
        return super().filter(filter)


class _Pixels:
    """What `load()` returns: indexing it decodes."""

    def __init__(self, picture: LazyPicture):
        self._picture = picture

    def __getitem__(self, at: Any) -> Any:
        return self._access()[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        self._access()[at] = value

    def _access(self) -> Any:
        self._picture.im  # noqa: B018
        return self._picture.load()


def _rest(picture: LazyPicture) -> dict[str, Any]:
    """What a program has set on a picture, and the name of its file."""
    own = {name: value for name, value in vars(picture).items() if name not in _OWN}
    header = picture._header
    return own | (
        {"filename": header.filename} if header is not None and "filename" not in own else {}
    )


def _draft(picture: Any, mode: str | None, size: Any) -> Any:
    picture.draft(mode, size)
    return picture


add_cooks(
    draft=_draft,
    convert=PIL.Image.Image.convert,
    crop=PIL.Image.Image.crop,
    resize=PIL.Image.Image.resize,
    transpose=PIL.Image.Image.transpose,
    transform=PIL.Image.Image.transform,
    point=lambda picture, table: picture.point(list(table)),
    filter=PIL.Image.Image.filter,
)


def opened(original: Any, fp: Any, mode: Any = "r", formats: Any = None) -> PIL.Image.Image:
    """`Image.open`: the header is read as ever, so that a broken one raises as ever."""
    picture = original(fp, mode, formats)
    if (
        not waits("picture")
        or picture.format not in _FORMATS
        or getattr(picture, "n_frames", 1) > 1
    ):
        return picture
    source = _source(fp, picture)
    if source is None:
        return picture
    recipe = Recipe(source, picture.size, stored_mode(picture))
    return LazyPicture(recipe, picture.size, picture.mode, picture.info, picture, type(picture))


def stored_mode(picture: PIL.ImageFile.ImageFile) -> str:
    """The mode, or what is in a file of which Pillow makes another one, such as RGB;16B."""
    stored = picture.tile[0].args if picture.format == "PNG" else picture.mode
    return picture.mode if stored == picture.mode else str(stored)


def _source(fp: Any, picture: PIL.ImageFile.ImageFile) -> Source | None:
    if isinstance(fp, (str, bytes, os.PathLike)):
        return Source.of_file("pillow", fp, picture.fp.fileno())
    if (
        isinstance(fp, io.BufferedReader)
        and isinstance(fp.raw, io.FileIO)
        and isinstance(fp.name, (str, bytes))
    ):
        if os.path.exists(fp.name) and os.path.samestat(os.fstat(fp.fileno()), os.stat(fp.name)):
            return Source.of_file("pillow", fp.name, fp.fileno())
    if isinstance(fp, io.BytesIO):
        return Source.of_bytes("pillow", fp.getvalue())
    if not picture._exclusive_fp and hasattr(
        fp, "seek"
    ):  # whatever else can be read: a member of an archive, a remote file
        at = fp.tell()
        fp.seek(0)
        data = fp.read()
        fp.seek(at)
        return Source.of_bytes("pillow", data) if isinstance(data, bytes) else None
    return None


_OWN = set(vars(LazyPicture(Recipe(None, (1, 1), "L"), (1, 1), "L", {}))) - {
    "format",
    "format_description",
}
