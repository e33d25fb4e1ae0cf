"""Pillow's pictures wait, and a program cannot tell."""

import copy
import io
import os
import pickle
import random
import struct
import tarfile
import threading
import warnings
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL
import PIL.PngImagePlugin
import pytest
import torch
import torchvision.transforms.functional as F
from PIL import (
    Image,
    ImageChops,
    ImageDraw,
    ImageEnhance,
    ImageFile,
    ImageFilter,
    ImageOps,
    ImageStat,
)

from dali_pipes.adapters.lazy import pictures
from dali_pipes.adapters.lazy.patching import patched
from dali_pipes.adapters.lazy.pictures import finish, is_lazy, recipe_of
from dali_pipes.adapters.lazy.recipes import Changed
from dali_pipes.adapters.lazy.state import PROCESS, eager, sending, waiting

OLD = 1_600_000_000  # when the files of these tests were written, in seconds


def noise(mode="RGB", size=(60, 50), seed=0):
    bands = len(Image.new(mode, (1, 1)).getbands())
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], bands), np.uint8)
    values //= 2
    values += np.linspace(0, 120, size[0]).astype(np.uint8)[None, :, None]
    return Image.frombytes(mode, size, values.tobytes())


def chunk(kind, data):
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def png(size, bits, colors, rows, *more):
    """A PNG of raw rows, as Pillow does not write it; chunks of `more` come after the pixels."""
    header = struct.pack(">IIBBBBB", *size, bits, colors, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    half = len(data) // 2
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", data[:half]), chunk(b"IDAT", data[half:])]
    return b"\x89PNG\r\n\x1a\n" + b"".join([*parts, *more, chunk(b"IEND", b"")])


def exif(turn):
    made = Image.Exif()
    made[0x0112] = turn
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Paths of encoded pictures by what is special in them, all of them old."""
    folder = tmp_path_factory.mktemp("pictures")
    paths = {}

    def save(name, picture, **options):
        paths[name] = str(folder / name)
        picture.save(paths[name], **options)

    def write(name, data):
        paths[name] = str(folder / name)
        Path(paths[name]).write_bytes(data)

    save("rgb.jpg", noise(), dpi=(72, 72))
    save("other.jpg", noise(seed=1), quality=95)
    save("large.jpg", noise(size=(320, 240)), quality=95)
    save("gray.jpg", noise("L"))
    save("cmyk.jpg", noise("CMYK"))
    save(
        "progressive.jpg", noise(size=(320, 240)), quality=95, progressive=True, comment=b"\xff\xd9"
    )
    save("turned.jpg", noise(), exif=exif(6))
    save("mirrored.jpg", noise(), exif=exif(4))
    save("rgb.png", noise(), dpi=(72, 72))
    save("gray.png", noise("L"))
    save("rgba.png", noise("RGBA"))
    save("la.png", noise("LA"))
    save("bits.png", noise("L").convert("1"))
    save("palette.png", noise().quantize(40))
    save("clear.png", noise(), transparency=(5, 5, 5))
    save("clear_palette.png", noise().quantize(40), transparency=3)
    save("turned.png", noise(), exif=exif(8))
    save("frames.png", noise(), save_all=True, append_images=[noise(seed=2), noise(seed=3)])
    save("still.gif", noise().quantize(40))
    save("rgb.bmp", noise())
    save("rgb.webp", noise())

    rows = [np.random.default_rng(row).bytes(6 * 60) for row in range(50)]
    write("deep.png", png((60, 50), 16, 2, rows))
    write("deep_gray.png", png((180, 50), 16, 0, rows))
    late = [chunk(b"tEXt", b"late\0text"), chunk(b"eXIf", exif(3).tobytes()[6:])]
    late += [chunk(b"prVt", b"private")]
    rows = [np.random.default_rng(row).bytes(3 * 60) for row in range(50)]
    write("late.png", png((60, 50), 8, 2, rows, *late))
    write("broken_late.png", png((60, 50), 8, 2, rows)[:-12] + b"\0\0\0\x09tEXtab")

    large = Path(paths["large.jpg"]).read_bytes()
    write("truncated.jpg", large[:70_000])
    write("truncated_small.jpg", Path(paths["rgb.jpg"]).read_bytes()[:1200])
    write("followed.jpg", large + bytes(200_000))
    write("doubled.jpg", Path(paths["rgb.jpg"]).read_bytes() + large)
    write("truncated.png", Path(paths["rgb.png"]).read_bytes()[:5000])
    write("no.jpg", b"this is no picture at all")
    for path in paths.values():
        os.utime(path, (OLD, OLD))
    return paths


@pytest.fixture(autouse=True)
def fresh():
    PROCESS.failed, PROCESS.opened = None, 0
    PROCESS.seen.clear()
    yield
    assert PROCESS.failed is None or isinstance(PROCESS.failed, OSError | SyntaxError)


@pytest.fixture
def lazy():
    """In a test with it pictures wait."""
    with patched(), waiting(True):
        yield


def describe(value):
    """All that a program sees of it, pixels last."""
    if isinstance(value, Image.Image):
        names = ("filename", "text", "layers", "n_frames", "encoderinfo", "decoderconfig", "tile")
        own = {name: getattr(value, name, None) for name in names}
        exif = dict(value.getexif())
        palette = value.palette and (value.palette.mode, bytes(value.palette.palette))
        about = (value.mode, value.size, value.info, value.format, palette)
        return type(value), about, own, exif, value.getbands(), value.tobytes()
    if isinstance(value, (list, tuple)):
        return [describe(each) for each in value]
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.numpy().tobytes()
    return value


def outcome(program, files):
    """What a program makes, its error, and what it was warned of."""
    random.seed(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            made = describe(program(files))
        except Exception as error:
            made = type(error), str(error).replace(hex(id(error)), "")
    return made, [
        (each.category, str(each.message))
        for each in caught
        if each.category is not ResourceWarning
    ]


PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


NAMES = (
    "rgb.jpg", "gray.jpg", "cmyk.jpg", "progressive.jpg", "turned.jpg", "rgb.png", "gray.png", "rgba.png",
    "la.png", "bits.png", "palette.png", "clear.png", "clear_palette.png", "turned.png", "frames.png",
    "still.gif", "rgb.bmp", "rgb.webp", "deep.png", "deep_gray.png", "late.png", "broken_late.png", "truncated.jpg",
    "truncated_small.jpg", "followed.jpg", "doubled.jpg", "truncated.png", "no.jpg",
)  # fmt: skip
STEPS = {
    "nothing": lambda picture: picture,
    "load": lambda picture: (picture.load(), picture)[1],
    "load_twice": lambda picture: (picture.load(), picture.load(), picture)[2],
    "pixel": lambda picture: picture.load()[3, 4],
    "copy": lambda picture: picture.copy(),
    "convert": lambda picture: picture.convert(),
    "convert_rgb": lambda picture: picture.convert("RGB"),
    "convert_gray": lambda picture: picture.convert("L"),
    "convert_gray_rgb": lambda picture: picture.convert("L").convert("RGB"),
    "convert_rgba": lambda picture: picture.convert("RGBA"),
    "convert_hsv": lambda picture: picture.convert("RGB").convert("HSV"),
    "convert_matrix": lambda picture: picture.convert("L", (0.5, 0.25, 0.25, 0)),
    "crop": lambda picture: picture.crop((5, 6, 50, 40)),
    "crop_outside": lambda picture: picture.crop((-5.4, 6, 150, 40.5)),
    "crop_all": lambda picture: picture.crop((0, 0, *picture.size)),
    "crop_none": lambda picture: picture.crop(),
    "crop_wrong": lambda picture: picture.crop((50, 40, 5, 6)),
    "crop_empty": lambda picture: picture.crop((5, 6, 5, 40)),
    "crop_list": lambda picture: picture.crop([1, 2, 30, 40]),
    "resize": lambda picture: picture.resize((33, 44)),
    "resize_list": lambda picture: picture.resize([33, 44], Image.BILINEAR),
    "resize_array": lambda picture: picture.resize(np.array([33, 44]), Image.NEAREST),
    "resize_same": lambda picture: picture.resize(picture.size, Image.LANCZOS),
    "resize_box": lambda picture: picture.resize((33, 44), box=(3.5, 4, 40, 45)),
    "resize_gap": lambda picture: picture.resize((8, 9), Image.BICUBIC, reducing_gap=2.0),
    "resize_wrong_box": lambda picture: picture.resize((33, 44), box=(3, 4, 4000, 45)),
    "resize_wrong_filter": lambda picture: picture.resize((33, 44), 77),
    "resize_nothing": lambda picture: picture.resize((0, 44)),
    "resize_words": lambda picture: picture.resize("ab"),
    **{f"transpose_{at}": lambda picture, at=at: picture.transpose(at) for at in range(7)},
    "transpose_wrong": lambda picture: picture.transpose(9),
    "rotate": lambda picture: picture.rotate(30, Image.BILINEAR, expand=True, fillcolor=3),
    "rotate_90": lambda picture: picture.rotate(90, expand=True),
    "affine": lambda picture: picture.transform((40, 50), Image.AFFINE, (1, 0.1, 2, 0, 1.2, -3)),
    "perspective": lambda picture: picture.transform(
        (40, 50), Image.PERSPECTIVE, [1, 0.1, 2, 0, 1.2, -3, 0.001, 0.002], Image.BICUBIC, fillcolor="red"
    ),
    "extent": lambda picture: picture.transform((40, 50), Image.EXTENT, (1, 2, 30, 40)),
    "warp_wrong": lambda picture: picture.transform((40, 50), Image.AFFINE, (1, 2)),
    "point": lambda picture: picture.point(lambda value: value * 0.7 + 20),
    "point_list": lambda picture: picture.point([255 - at for at in range(256)] * len(picture.mode)),
    "point_over": lambda picture: picture.point(lambda value: value * 3),
    "point_wrong": lambda picture: picture.point([1, 2, 3]),
    "point_mode": lambda picture: picture.point(lambda value: 255 * (value > 99), "1"),
    "filter": lambda picture: picture.filter(ImageFilter.GaussianBlur(2)),
    "filter_class": lambda picture: picture.filter(ImageFilter.SHARPEN),
    "filter_wrong": lambda picture: picture.filter("sharp"),
    "thumbnail": lambda picture: (picture.thumbnail((30, 30)), picture)[1],
    "thumbnail_later": lambda picture: (picture.load(), picture.thumbnail((30, 30)), picture)[2],
    "thumbnail_copy": lambda picture: (other := picture.copy(), other.thumbnail((30, 99), 2), other)[2],
    "thumbnail_large": lambda picture: (picture.thumbnail((999, 999)), picture)[1],
    "draft": lambda picture: (picture.draft("L", (30, 30)), picture)[1],
    "draft_resize": lambda picture: (
        picture.draft("RGB", (60, 60)), picture.convert("RGB").resize((9, 9)))[1],
    "split": lambda picture: list(picture.split()),
    "merge": lambda picture: Image.merge("RGB", picture.convert("RGB").split()[::-1]),
    "stat": lambda picture: ImageStat.Stat(picture).mean,
    "histogram": lambda picture: picture.histogram(),
    "getbbox": lambda picture: picture.getbbox(),
    "palette": lambda picture: (picture.getpalette(), picture.palette and bytes(picture.palette.palette)),
    "exif_transpose": lambda picture: ImageOps.exif_transpose(picture),
    "exif_in_place": lambda picture: (ImageOps.exif_transpose(picture, in_place=True), picture)[1],
    "autocontrast": lambda picture: ImageOps.autocontrast(picture, 2),
    "autocontrast_named": lambda picture: ImageOps.autocontrast(image=picture),
    "equalize": lambda picture: ImageOps.equalize(picture),
    "invert": lambda picture: ImageOps.invert(picture),
    "posterize": lambda picture: ImageOps.posterize(picture, 3),
    "solarize": lambda picture: ImageOps.solarize(picture, 99),
    "grayscale": lambda picture: ImageOps.grayscale(picture),
    "fit": lambda picture: ImageOps.fit(picture, (40, 40)),
    "contain": lambda picture: ImageOps.contain(picture, (40, 40)),
    "pad": lambda picture: ImageOps.pad(picture, (40, 40)),
    "expand": lambda picture: ImageOps.expand(picture, 3, 7),
    **{
        f"enhance_{kind.__name__}": lambda picture, kind=kind: [
            kind(picture).enhance(factor) for factor in (0, 0.5, 1, 1.7)
        ]
        for kind in (ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Brightness, ImageEnhance.Sharpness)
    },
    "degenerate": lambda picture: (
        (enhancer := ImageEnhance.Color(picture)).degenerate, enhancer.enhance(0.3), enhancer.image),
    "hue": lambda picture: F.adjust_hue(picture, 0.2),
    "gray_3": lambda picture: F.to_grayscale(picture, 3),
    "pad_edge": lambda picture: F.pad(picture, [1, 2, 3, 4], padding_mode="edge"),
    "pad_fill": lambda picture: F.pad(picture, 3, fill=(1, 2, 3)),
    "pad_inside": lambda picture: F.pad(picture, [-3, 2], padding_mode="reflect"),
    "to_tensor": lambda picture: F.to_tensor(picture),
    "pil_to_tensor": lambda picture: F.pil_to_tensor(picture),
    "array": lambda picture: np.array(picture),
    "asarray": lambda picture: np.asarray(picture.convert("RGB")),
    "pickle": lambda picture: pickle.loads(pickle.dumps(picture)),
    "pickle_copy": lambda picture: pickle.loads(pickle.dumps(picture.crop((1, 2, 30, 40)))),
    "deepcopy": lambda picture: copy.deepcopy(picture),
    "deepcopy_later": lambda picture: copy.deepcopy([picture.convert("RGB")] * 2),
    "copy_module": lambda picture: copy.copy(picture),
    "equal": lambda picture: (picture == picture.copy(), picture.copy() == picture.copy()),
    "verify": lambda picture: picture.verify(),
    "verify_load": lambda picture: (picture.verify(), picture.load())[0],
    "seek": lambda picture: (picture.seek(0), picture.tell(), picture)[2],
    "seek_on": lambda picture: (picture.seek(1), picture.tell(), picture)[2],
    "seek_later": lambda picture: (picture.load(), picture.seek(1), picture.tell(), picture)[3],
    "save": lambda picture: (picture.save(out := io.BytesIO(), "PNG"), out.getvalue())[1],
    "close": lambda picture: (picture.load(), picture.close(), picture.convert("L")),
    "close_copy": lambda picture: (other := picture.copy(), picture.close(), other.crop((1, 2, 30, 40)))[2],
    "with": lambda picture: (picture.__exit__(), picture.convert("RGB")),
    "with_loaded": lambda picture: (picture.load(), picture.__exit__(), picture.convert("RGB"))[2],
    "in_place": lambda picture: (
        made := picture.convert("RGB"), kept := made.copy(), made.putpixel((3, 3), (1, 2, 3)), [made, kept])[3],
    "draw": lambda picture: (
        made := picture.convert("RGB"), ImageDraw.Draw(made).line((0, 0, 20, 20), 3), made)[2],
    "paste": lambda picture: (
        made := Image.new("RGB", (99, 99), (5, 6, 7)), made.paste(picture.convert("RGB"), (3, 4)), made)[2],
    "paste_mask": lambda picture: (
        made := picture.convert("RGB"), made.paste((1, 2, 3), (0, 0), picture.convert("L")), made)[2],
    "composite": lambda picture: Image.composite(
        picture.convert("RGB"), picture.convert("L").convert("RGB"), picture.convert("L")),
    "putalpha": lambda picture: (made := picture.convert("RGB"), made.putalpha(99), made)[2],
    "putpalette": lambda picture: (
        made := picture.convert("L"), made.putpalette([at % 256 for at in range(768)]), made.convert("RGB"))[2],
    "quantize": lambda picture: picture.convert("RGB").quantize(9),
    "blend": lambda picture: Image.blend(picture.convert("RGB"), picture.convert("L").convert("RGB"), 0.3),
    "chops": lambda picture: ImageChops.add(picture.convert("RGB"), picture.convert("RGB").transpose(0)),
    "write_pixels": lambda picture: (
        made := picture.convert("RGB"), access := made.load(), access.__setitem__((2, 3), (9, 8, 7)), made)[3],
    "info_changed": lambda picture: (
        picture.info.__setitem__("mine", [1]), made := picture.copy(), made.info["mine"].append(2), made)[3],
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_a_program_cannot_tell_that_pictures_wait(files, step):
    for name in NAMES:
        for opened in ("path", "file"):

            def run(files, name=name, opened=opened):
                if opened == "path":
                    return STEPS[step](Image.open(files[name]))
                with open(files[name], "rb") as file:
                    made = STEPS[step](Image.open(file))
                    at = None if file.closed else file.tell()
                    # what still wants its pixels must not find the file open
                    made = describe(made)
                    return made, at, file.closed or file.tell()

            true = outcome(run, files)
            with patched(), waiting(True):
                found = outcome(run, files)
            PROCESS.failed = None
            assert found == true, (name, opened)
