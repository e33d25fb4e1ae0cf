"""Image files that loaders disagree on, each written by one function."""

import io
import os
import struct
from functools import cache

import numpy as np
from PIL import Image

import dali_pipes as dp
from dali_pipes.data.demo import draw_image

BACKENDS = {
    "torch": dp.TorchConfig(num_workers=0),
    "torchvision": dp.TorchConfig(num_workers=0, decoder="torchvision"),
    "dali": dp.DaliConfig(device="cpu"),
    "dali whole": dp.DaliConfig(device="cpu", decode="whole"),
}


@cache
def drawn() -> Image.Image:
    return Image.fromarray(draw_image("rings", np.random.default_rng(3)))


def photo(height=150, width=200) -> Image.Image:
    return drawn().resize((width, height), Image.Resampling.LANCZOS)


def saved(form, make=photo, **options):
    return lambda path: make().save(path, form, **options)


def photo_as(mode, **options):
    return lambda: photo().convert(mode, **options)


def turned(orientation, form="JPEG"):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(form, exif=exif)


def raw(content):
    return lambda path: path.write_bytes(content)


@cache
def jpeg() -> bytes:
    buffer = io.BytesIO()
    photo().save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def gray16(path):
    Image.fromarray(np.asarray(photo().convert("L")).astype(np.uint16) * 257).save(path, "PNG")


def lies(height, width):
    """A JPEG whose frame header states another size than its scan holds."""

    def write(path):
        content = bytearray(jpeg())
        frame = content.index(b"\xff\xc0")
        content[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
        path.write_bytes(content)

    return write


def named(name, write):
    """The same file under another name."""

    def rename(path):
        write(path)
        path.rename(os.fsdecode(os.path.join(os.fsencode(path.parent), name)))

    return rename


def frames(form):
    return lambda path: photo().save(path, form, save_all=True, append_images=[photo().rotate(90)])


def inserted(place: int, some: bytes) -> bytes:
    return jpeg()[:place] + some + jpeg()[place:]


def flipped_bits(path):
    content = bytearray(jpeg())
    for place in range(len(content) // 2, len(content) // 2 + 40, 7):
        content[place] ^= 0x10
    path.write_bytes(content)


ODD = {
    "baseline JPEG 4:2:0": saved("JPEG", subsampling="4:2:0", quality=90),
    "baseline JPEG 4:4:4": saved("JPEG", subsampling="4:4:4", quality=90),
    "baseline JPEG 4:1:1": saved("JPEG", subsampling="4:1:1", quality=90),
    "progressive JPEG": saved("JPEG", progressive=True),
    "JPEG with restart markers": saved("JPEG", restart_marker_rows=1),
    "gray JPEG": saved("JPEG", photo_as("L")),
    "gray JPEG with sampling factors of 2 × 1": saved("JPEG", photo_as("L"), subsampling="4:2:2"),
    "gray JPEG with sampling factors of 2 × 2": saved("JPEG", photo_as("L"), subsampling="4:2:0"),
    "JPEG that stores RGB": saved("JPEG", keep_rgb=True),
    "CMYK JPEG": saved("JPEG", photo_as("CMYK")),
    "MPO (two pictures in one JPEG)": frames("MPO"),
    **{f"JPEG with EXIF orientation {number}": turned(number) for number in range(1, 9)},
    "JPEG with corrupt EXIF": saved("JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"),
    "PNG with EXIF orientation 6": turned(6, "PNG"),
    "PNG named .jpg": saved("PNG"),
    "gray PNG": saved("PNG", photo_as("L")),
    "16-bit gray PNG": gray16,
    "palette PNG": saved("PNG", photo_as("P", palette=Image.Palette.ADAPTIVE)),
    "1-bit PNG": saved("PNG", photo_as("1")),
    "RGBA PNG": saved("PNG", photo_as("RGBA")),
    "gray PNG with alpha": saved("PNG", photo_as("LA")),
    "lossless WebP named .jpg": saved("WEBP", lossless=True),
    "lossy WebP named .jpg": saved("WEBP"),
    "RGBA WebP": saved("WEBP", photo_as("RGBA"), lossless=True),
    "animated WebP": frames("WEBP"),
    "BMP named .jpg": saved("BMP"),
    "TIFF named .jpg": saved("TIFF"),
    "TIFF with LZW": saved("TIFF", compression="tiff_lzw"),
    "CMYK TIFF": saved("TIFF", photo_as("CMYK")),
    "PPM named .jpg": saved("PPM"),
    "GIF named .jpg": saved("GIF"),
    "AVIF named .jpg": saved("AVIF"),
    "1 × 1 JPEG": saved("JPEG", lambda: photo(1, 1)),
    "5000 × 1 JPEG": saved("JPEG", lambda: photo(1, 5000)),
    "1 × 5000 JPEG": saved("JPEG", lambda: photo(5000, 1)),
    "400-megapixel PNG of 389 KB": saved("PNG", lambda: Image.new("RGB", (20_000, 20_000))),
    "JPEG that states a larger height": lies(600, 200),
    "JPEG that states a smaller height": lies(60, 200),
    "JPEG that states 60000 × 60000": lies(60_000, 60_000),
    "JPEG that states 0 × 0": lies(0, 0),
    "JPEG without its last 2 bytes": lambda path: path.write_bytes(jpeg()[:-2]),
    "JPEG cut in half": lambda path: path.write_bytes(jpeg()[: len(jpeg()) // 2]),
    "JPEG with trailing garbage": lambda path: path.write_bytes(jpeg() + b"garbage" * 100),
    "JPEG with flipped bits in its scan": flipped_bits,
    "JPEG with a byte between its segments": lambda path: path.write_bytes(inserted(20, b"\0")),
    "JPEG whose scan ends early": lambda path: path.write_bytes(
        inserted(len(jpeg()) // 2, b"\xff\xd9")
    ),
    "JPEG with a comment without an end in its scan": raw(
        inserted(len(jpeg()) // 2, b"\xff\xfe\xff\xff")
    ),
    "JPEG with another JPEG's start in its scan": lambda path: path.write_bytes(
        inserted(len(jpeg()) // 2, b"\xff\xd8")
    ),
    "200 bytes of a JPEG": lambda path: path.write_bytes(jpeg()[:200]),
    "empty file": raw(b""),
    "HTML text": raw(b"<!doctype html><title>404 Not Found</title>"),
    "name that is not UTF-8": named(b"caf\xe9.jpg", saved("JPEG")),
    "name of 250 bytes": named(b"n" * 246 + b".jpg", saved("JPEG")),
}
