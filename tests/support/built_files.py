"""Image files byte by byte, where Pillow writes no such kind, and a great many odd ones."""

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from odd_inputs import ODD, jpeg, photo
from turned_files import WAYS

Array = np.ndarray


def saved(form: str, mode: str = "RGB", height: int = 96, width: int = 128, **options) -> bytes:
    buffer = io.BytesIO()
    photo(height, width).convert(mode).save(buffer, form, **options)
    return buffer.getvalue()


def rgb() -> Array:
    return np.asarray(photo().convert("RGB"))


def gray() -> Array:
    return np.asarray(photo().convert("L"))


def rgba() -> Array:
    height, width = gray().shape
    return np.dstack(
        [rgb(), np.broadcast_to(np.linspace(0, 255, width).astype(np.uint8), (height, width))]
    )


def cmyk_jpeg(marked: bool) -> bytes:
    content = saved("JPEG", "CMYK", quality=95)
    place = content.index(b"\xff\xee")
    length = struct.unpack(">H", content[place + 2 : place + 4])[0]
    return content if marked else content[:place] + content[place + 2 + length :]


def turned_tiff(mode: str = "RGB", compression: str | None = None, orientation: int = 6) -> bytes:
    return saved("TIFF", mode, compression=compression, tiffinfo={274: orientation})


def damaged_turned_tiff() -> bytes:
    """DALI's reader of TIFFs fails, and OpenCV after it turns what it has beyond its memory."""
    content = bytearray(turned_tiff(compression="tiff_adobe_deflate"))
    content[200:400] = bytes(200)
    return bytes(content)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(pixels: Array, kind: int, depth: int = 8, before: bytes = b"", ends: bool = True) -> bytes:
    """`pixels`: (H, W, …) of one or two bytes, big-endian; `kind`: PNG's color type."""
    height, width = pixels.shape[:2]
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0))
    end = chunk(b"IEND", b"") if ends else b""
    return b"\x89PNG\r\n\x1a\n" + head + before + chunk(b"IDAT", zlib.compress(lines)) + end


def pnm(kind: str, pixels: Array, maximum: int = 255) -> bytes:
    height, width = pixels.shape[:2]
    scaled = (pixels.astype(int) * maximum // 255).astype(">u2" if maximum > 255 else np.uint8)
    body = " ".join(map(str, scaled.ravel())).encode() if kind in ("P2", "P3") else scaled.tobytes()
    return f"{kind}\n{width} {height}\n{maximum}\n".encode() + body


def bmp16(red: int, green: int, blue: int) -> bytes:
    """16 bits a pixel: that many bits of each color."""
    height, width = gray().shape
    pixels = rgb()[::-1].astype(int)
    r, g, b = (pixels[..., at] >> (8 - bits) for at, bits in enumerate((red, green, blue)))
    values = (r << (green + blue) | g << blue | b).astype("<u2")
    masks = [(1 << red) - 1 << green + blue, (1 << green) - 1 << blue, (1 << blue) - 1]
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 16, 3, values.nbytes, 1, 1, 0, 0)
    return (
        b"BM"
        + struct.pack("<IHHI", 66 + values.nbytes, 0, 0, 66)
        + head
        + struct.pack("<III", *masks)
        + values.tobytes()
    )


def tiff(pixels: Array, meaning: int, bits: int = 8, **tags: int) -> bytes:
    """Uncompressed; `meaning`: PhotometricInterpretation; `tags`: further ones by the names
    below.
    """
    height, width = pixels.shape[:2]
    samples = pixels.shape[2] if pixels.ndim == 3 else 1
    more = {
        338: tags.get("extra"),
        284: tags.get("planar"),
        339: tags.get("format"),
        266: tags.get("fill"),
        274: tags.get("orientation"),
    }
    values = {
        256: width,
        257: height,
        259: 1,
        262: meaning,
        277: samples,
        278: height,
        279: pixels.nbytes,
    }
    values |= {tag: value for tag, value in more.items() if value is not None}
    count = len(values) + 2
    bits_at = 8 + 2 + 12 * count + 4
    entries = [(tag, 4, 1, value) for tag, value in values.items()] + [
        (273, 4, 1, bits_at + 2 * samples)
    ]
    entries.append(
        (258, 3, samples, bits if samples == 1 else bits | bits << 16 if samples == 2 else bits_at)
    )
    directory = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    body = struct.pack(f"<{samples}H", *[bits] * samples) + pixels.tobytes()
    return b"II*\0" + struct.pack("<IH", 8, count) + directory + bytes(4) + body


def webp_with_odd_chunk() -> bytes:
    """EXIF after a chunk of odd length, whose padding DALI's reader does not skip."""
    for width in range(64, 200):
        content = saved("WEBP", width=width, lossless=True, exif=b"II*\0\x08\0\0\0\0\0\0\0\0\0")
        if struct.unpack("<I", content[34:38])[0] % 2:
            return content
    raise AssertionError("no chunk of odd length")


# By the name of a line of docs/inputs.md: what decoders disagree on, or what is close to it and is
# decoded alike.
KINDS = {
    "CMYK JPEG without Adobe's marker": lambda: cmyk_jpeg(False),
    "PGM with a maximum of 15": lambda: pnm("P5", gray(), 15),
    "PPM with a maximum of 100": lambda: pnm("P6", rgb(), 100),
    "PPM with a maximum of 1023": lambda: pnm("P6", rgb(), 1023),
    "PPM of text": lambda: pnm("P3", rgb()),
    "PGM of text": lambda: pnm("P2", gray()),
    "PGM": lambda: pnm("P5", gray()),
    "BMP of 16 bits a pixel (565)": lambda: bmp16(5, 6, 5),
    "BMP of 16 bits a pixel (555)": lambda: bmp16(5, 5, 5),
    "TIFF with colors multiplied by alpha": lambda: tiff(rgba(), 2, extra=1),
    "TIFF with alpha": lambda: tiff(rgba(), 2, extra=2),
    "gray TIFF with alpha": lambda: tiff(rgba()[..., 2:].copy(), 1, extra=2),
    "LAB TIFF": lambda: saved("TIFF", "LAB"),
    "YCbCr TIFF": lambda: saved("TIFF", "YCbCr"),
    "palette TIFF": lambda: saved("TIFF", "P"),
    "1-bit TIFF": lambda: saved("TIFF", "1"),
    "1-bit TIFF of a fax": lambda: saved("TIFF", "1", compression="group4"),
    "TIFF with its channels one after the other": lambda: tiff(
        rgb().transpose(2, 0, 1).copy().reshape(rgb().shape), 2, planar=2
    ),
    "TIFF of signed numbers": lambda: tiff(gray(), 1, format=2),
    "TIFF of 16 bits a channel": lambda: tiff(rgb().astype("<u2") * 257, 2, bits=16),
    "TIFF with LZMA": lambda: saved("TIFF", compression="lzma"),
    "TIFF with Deflate": lambda: saved("TIFF", compression="tiff_adobe_deflate"),
    "TIFF with JPEG": lambda: saved("TIFF", compression="jpeg"),
    "TIFF whose 0 is white": lambda: tiff(gray(), 0),
    "turned CMYK TIFF": lambda: turned_tiff("CMYK"),
    "turned YCbCr TIFF with JPEG": lambda: turned_tiff("YCbCr", "jpeg", 3),
    "turned TIFF whose 0 is white": lambda: tiff(gray(), 0, orientation=5),
    "turned TIFF with its bits in reverse": lambda: tiff(rgb(), 2, fill=2, orientation=8),
    "turned TIFF with damage": damaged_turned_tiff,
    "CMYK JPEG whose marker of Adobe's is too short": lambda: (
        cmyk_jpeg(False)[:2] + b"\xff\xee\0\x09Adobe\0d" + cmyk_jpeg(False)[2:]
    ),
    "PNG without IEND": lambda: png(rgb(), 2, ends=False),
    "PNG of 16 bits a channel": lambda: png(rgb().astype(">u2") * 257, 2, depth=16),
    "PNG with gamma": lambda: png(rgb(), 2, before=chunk(b"gAMA", struct.pack(">I", 100_000))),
    "PNG with a transparent color": lambda: png(
        rgb(), 2, before=chunk(b"tRNS", struct.pack(">HHH", *map(int, rgb()[0, 0])))
    ),
    "PNG whose data fails its checksum": lambda: (
        saved("PNG")[:-14] + bytes([saved("PNG")[-14] ^ 1]) + saved("PNG")[-13:]
    ),
    "WebP with EXIF after an odd number of bytes": webp_with_odd_chunk,
}
TURNED = (
    *("JPEG, XMP only", "JPEG, two EXIF segments", "JPEG, EXIF with a LONG"),
    *("PNG, eXIf", "WebP, lossless", "TIFF", "TIFF with LZW"),
)
EVERY = {
    **ODD,
    **{name: lambda path, make=make: path.write_bytes(make()) for name, make in KINDS.items()},
    **{
        f"{way}, orientation 6": lambda path, way=way: path.write_bytes(WAYS[way][0](6))
        for way in TURNED
    },
}


def many() -> Iterator[bytes]:
    """More than three hundred files: every kind, way and size, and damage at random places."""
    yield from (make() for make in KINDS.values())
    yield from (write(number) for write, _ in WAYS.values() for number in range(1, 9))
    for at, side in enumerate((1, 2, 7, 8, 9, 16, 17, 31, 33)):
        for form in ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "PPM"):
            yield saved(form, height=side, width=1 + 5 * at)
    for compression in (None, "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "lzma", "zstd"):
        for mode in ("RGB", "L", "RGBA", "CMYK", "LA", "LAB", "YCbCr"):
            yield saved("TIFF", mode, compression=compression)
    whole, draws = jpeg(), np.random.default_rng(11)
    for _ in range(60):
        content = bytearray(whole)
        for place in draws.integers(200, len(whole) - 2, draws.integers(1, 4)):
            content[place] ^= 1 << int(draws.integers(8))
        yield bytes(content)
    for form in ("PNG", "BMP", "TIFF", "PPM", "WEBP"):
        for _ in range(6):
            content = bytearray(saved(form))
            content[int(draws.integers(len(content)))] ^= 1 << int(draws.integers(8))
            yield bytes(content)
