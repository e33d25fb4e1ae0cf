"""Pictures that no data set has. What a program does with them shows what depends on pixels.

Each of `MADE_UP` is encoded anew for the nth file of a visit, so that two files never look alike.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from PIL import Image, ImageCms

_MOST_PIXELS = 2**22  # of a picture that is enlarged


@dataclass(frozen=True, slots=True)
class MadeUp:
    """One kind of picture.

    Attributes:
        name: what it is, for people.
        size: height and width.
        mode: Pillow's mode of the encoded picture.
        format: Pillow's name of the format.
        draw: makes the pixels (H, W, 3) uint8; None: noise.
        orientation: the value of its EXIF tag; 1: upright.
        trait: what the file is of, as `traits_of` says.
        scale: how many times its size is that of the table below.
    """

    name: str
    size: tuple[int, int]
    mode: str = "RGB"
    format: str = "PNG"
    draw: Callable[[np.random.Generator, tuple[int, int]], np.ndarray] | None = None
    orientation: int = 1
    trait: str = "RGB"
    scale: int = 1

    def encode(self, number: int, mode: str | None = None) -> bytes:
        """The encoded picture for the nth file.

        Args:
            mode: another one, such as that of a mask.
        """
        # the cache keeps small ones only
        encode = _encode if self.scale == 1 else _encode.__wrapped__
        return encode(self, number, mode or self.mode)

    def enlarged(self, scale: int) -> "MadeUp":
        """A picture of this kind that is so many times as large; a tiny one stays what it is, and
        so does a large one.
        """
        height, width = (scale * side for side in self.size)
        if max(self.size) < SQUARE.size[0] or height * width > _MOST_PIXELS:
            return self
        return replace(self, size=(height, width), scale=scale)


@cache
def _encode(made_up: MadeUp, number: int, mode: str) -> bytes:
    # other noise for each file and kind, since pictures are recognized by their pixels
    noise = np.random.default_rng([number, len(made_up.name), *made_up.size])
    draw = made_up.draw or _noise
    image = Image.fromarray(draw(noise, made_up.size)).convert(mode)
    # programs lay what is transparent over white, or leave it as it is
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(noise.integers(0, 256, made_up.size, np.uint8)))

    # noise cannot be compressed
    options: dict[str, object] = {"compress_level": 0}
    if made_up.trait == TRANSPARENT:
        first = image.getpixel((0, 0))
        options["transparency"] = first
    if made_up.trait == PROFILED:
        options["icc_profile"] = _other_profile()
    if made_up.orientation != 1:
        exif = Image.Exif()
        # the number of EXIF's tag Orientation
        exif[0x0112] = made_up.orientation
        options["exif"] = exif.tobytes()
    with io.BytesIO() as file:
        # JPEG keeps these modes only
        is_jpeg = made_up.format == "JPEG" and mode in ("RGB", "L", "CMYK")
        image.save(file, "JPEG" if is_jpeg else "PNG", **options)
        return file.getvalue()


TRANSPARENT, PROFILED = "a transparent colour", "a colour profile"


def traits_of(image: Image.Image) -> set[str]:
    """What a file is of: Pillow's mode, and what else programs treat in their own way."""
    kinds = {image.mode}
    if "transparency" in image.info:
        kinds.add(TRANSPARENT)
    if image.info.get("icc_profile"):
        kinds.add(PROFILED)
    return kinds


def name_traits(traits: set[str]) -> str:
    """What a file is of, for people."""
    more = (TRANSPARENT, PROFILED)
    return " and ".join(
        trait if trait in more else f"Pillow's mode {trait}" for trait in sorted(traits)
    )


def _other_profile() -> bytes:
    """That of sRGB with red and blue changed, so that to convert it changes all colours."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    red, blue = data.index(b"rXYZ"), data.index(b"bXYZ")
    data[red : red + 4], data[blue : blue + 4] = b"bXYZ", b"rXYZ"
    return bytes(data)


def _noise(noise: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return noise.integers(0, 256, (*size, 3), np.uint8)


def _framed(noise: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """Noise in a wide black frame."""
    pixels = _noise(noise, size)
    top, left = size[0] // 4, size[1] // 4
    pixels[:top], pixels[-top:], pixels[:, :left], pixels[:, -left:] = 0, 0, 0, 0
    return pixels


def _dark(noise: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return noise.integers(0, 9, (*size, 3), np.uint8)


def _bright(noise: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return noise.integers(246, 256, (*size, 3), np.uint8)


def _gray(noise: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return noise.integers(0, 256, (*size, 1), np.uint8).repeat(3, axis=2)


def _black(noise: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return np.zeros((*size, 3), np.uint8)


def _white(noise: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return np.full((*size, 3), 255, np.uint8)


# Nobody can tell two of them apart, so only files and values are compared.
BLANK = (
    MadeUp("a black picture", (68, 74), draw=_black),
    MadeUp("a white picture", (74, 68), draw=_white),
)
SQUARE = MadeUp("a square picture", (64, 64))
# All of them are in colour, and must reach the transform as they are. Rules of a program's own,
# such as to crop away what is black or to shrink what is large, show in some of them.
MADE_UP = (
    MadeUp("noise", (90, 120)),
    MadeUp("a JPEG of noise", (200, 160), format="JPEG"),
    MadeUp("noise in a black frame", (120, 100), draw=_framed),
    MadeUp("a gray picture in colour", (84, 66), draw=_gray),
    MadeUp("a dark picture", (72, 96), draw=_dark),
    MadeUp("a bright picture", (97, 71), draw=_bright),
    MadeUp("a tiny picture", (9, 13)),
    MadeUp("a small picture", (40, 30)),
    SQUARE,
    MadeUp("a wide picture", (30, 260)),
    MadeUp("a high picture", (260, 30)),
    MadeUp("a large JPEG", (1100, 1500), format="JPEG"),
)
# a picture that programs turn upright, or do not
TURNED = MadeUp("a JPEG with an EXIF tag", (70, 110), format="JPEG", orientation=6)
# pictures in other modes than RGB, which programs convert, or do not
OTHER_MODES = tuple(
    MadeUp(f"a picture of {trait}", (80, 64 + 2 * number), mode, format, trait=trait)
    for number, (trait, mode, format) in enumerate(
        (
            ("L", "L", "JPEG"),
            ("L", "L", "PNG"),
            ("P", "P", "PNG"),
            ("RGBA", "RGBA", "PNG"),
            ("LA", "LA", "PNG"),
            ("1", "1", "PNG"),
            ("CMYK", "CMYK", "JPEG"),
            (TRANSPARENT, "P", "PNG"),
            (TRANSPARENT, "RGB", "PNG"),
            (PROFILED, "RGB", "PNG"),
        )
    )
)
