"""Images that are objects of their own in a store: their first bytes are read, and what a scan
finds is what it finds of files.
"""

import os
import zlib
from pathlib import Path

import fsspec.implementations.local
import numpy as np
import pytest
from built_files import chunk, png, rgb, saved, tiff
from turned_files import exif, jpeg, segment
from turned_files import tiff as turned_tiff

from dali_pipes import Manifest
from dali_pipes.data.sources import store_folders
from dali_pipes.data.sources.store_folders import _HEAD

LOCAL = fsspec.implementations.local.LocalFileSystem
LONG = bytes(np.random.default_rng(1).integers(0, 256, 5 * _HEAD // 4, np.uint8))
PIXELS = np.random.default_rng(2).integers(0, 256, (200, 200, 3), np.uint8)
PROFILE = chunk(b"iCCP", b"a\0\0" + zlib.compress(LONG, 0))
TEXT = chunk(b"tEXt", b"a\0" + b"x" * _HEAD)
TURN = chunk(b"eXIf", exif(6)[6:])


def turned_at(place: int) -> bytes:
    """A PNG whose orientation is a chunk that begins there."""
    before = 8 + 25 + 12  # signature, IHDR, and what a chunk has besides its data
    return png(PIXELS, 2, before=chunk(b"prVt", LONG[: place - before]) + TURN)


def with_many_strips(**tags: int) -> bytes:
    """A TIFF whose table of strips fills the first bytes, so that what stands in its other tags
    lies behind them.
    """
    content = bytearray(tiff(np.zeros((20_000, 1, 4), np.uint8), 2, **tags))
    for tag, kind in ((273, 4), (279, 4)):
        entry = content.index(
            b"".join(each.to_bytes(size, "little") for each, size in ((tag, 2), (kind, 2), (1, 4)))
        )
        content[entry + 4 : entry + 12] = (20_000).to_bytes(4, "little") + len(content).to_bytes(
            4, "little"
        )
        content += (
            np.arange(20_000, dtype="<u4").tobytes()
            if tag == 273
            else np.full(20_000, 4, "<u4").tobytes()
        )
    entry = content.index(
        (258).to_bytes(2, "little") + (3).to_bytes(2, "little") + (4).to_bytes(4, "little")
    )
    content[entry + 8 : entry + 12] = len(content).to_bytes(4, "little")
    return bytes(content) + bytes([8, 0] * 4)


# By name: files whose headers are longer than what is read first, or end just there.
FILES = {
    "PNG, orientation after a long profile": png(PIXELS, 2, before=PROFILE + TURN),
    "PNG, palette after a long text": png(
        rgb()[..., 0], 3, before=TEXT + chunk(b"PLTE", LONG[:768])
    ),
    "PNG, orientation where the first bytes end": turned_at(_HEAD),
    "PNG, orientation cut by the end of the first bytes": turned_at(_HEAD - 4),
    "PNG, pixels where the first bytes end": turned_at(_HEAD - len(TURN)),
    "PNG, end of another chunk in the last bytes": png(PIXELS, 2) + b"0123456789",
    "PNG without its end": png(PIXELS, 2, ends=False),
    "PNG without its end, after a long profile": png(PIXELS, 2, before=PROFILE + TURN, ends=False),
    "PNG of 16 bits after a long profile": png(PIXELS.astype(">u2"), 2, depth=16, before=PROFILE),
    "PNG that is cut in its profile": png(PIXELS, 2, before=PROFILE)[: _HEAD + 9],
    "JPEG, orientation after many segments": jpeg(*[LONG[:60_000]] * 3, exif(6)),
    "JPEG, orientation where the first bytes end": jpeg(
        LONG[: _HEAD - 6 - len(segment(b""))], LONG[:10], exif(6)
    ),
    "WebP": saved("WEBP", height=400, width=400, lossless=True, exif=exif(6)[6:]),
    "TIFF, tags at its end": saved("TIFF", height=200, width=200, compression="tiff_lzw"),
    "TIFF, turned": turned_tiff(6),
    "TIFF of many strips": with_many_strips(extra=2),
    "TIFF of many strips, multiplied by alpha": with_many_strips(extra=1),
    "BMP": saved("BMP", height=200, width=200),
    "PPM": saved("PPM", height=200, width=200),
    "text": b"<html>" * _HEAD,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("objects")
    (root / "a").mkdir()
    for number, content in enumerate(FILES.values()):
        (root / f"a/{number:02}.png").write_bytes(content)
    return root


def found(manifest):
    table = manifest.table
    names = [Path(os.fsdecode(path)).name for path in table["path"].to_pylist()]
    columns = (
        table[each].to_pylist() for each in ("height", "width", "orientation", "format", "problem")
    )
    return {
        list(FILES)[int(name[:2])]: values
        for name, *values in sorted(zip(names, *columns, strict=True))
    }


@pytest.mark.parametrize("verify", ["header", "full"])
def test_a_store_has_what_a_folder_has(folder, verify):
    near, far = (
        Manifest.scan(each, verify=verify, progress=False) for each in (folder, f"file://{folder}")
    )
    assert found(far) == found(near)
    turned = {name for name, values in found(near).items() if values[2] == 6}
    assert turned >= {name for name in FILES if "orientation" in name} | {"WebP", "TIFF, turned"}
    assert "multiplied by alpha" in found(near)["TIFF of many strips, multiplied by alpha"][-1]


def test_what_fits_into_the_first_bytes_is_one_request_and_a_png_two(folder, monkeypatch):
    asked, original = [], LOCAL.cat_file

    def cat_file(self, path, start=None, end=None, **options):
        asked.append((list(FILES)[int(Path(path).name[:2])], end - start))
        return original(self, path, start=start, end=end, **options)

    monkeypatch.setattr(LOCAL, "cat_file", cat_file)
    Manifest.scan(f"file://{folder}", progress=False)
    sizes = {name: [size for each, size in asked if each == name] for name in FILES}
    assert sizes["BMP"] == sizes["PPM"] == [_HEAD]
    name = "PNG, pixels where the first bytes end"
    assert sizes[name] == [_HEAD, len(FILES[name])]
    assert sizes["PNG, end of another chunk in the last bytes"][:2] == [_HEAD, 12]
    assert all(len(each) <= 3 for each in sizes.values())


def test_a_second_scan_fetches_only_what_is_new(tmp_path, monkeypatch):
    """The cache was written, and every header was read again at each start."""
    root, cache, fetched = tmp_path / "set", tmp_path / "set.arrow", []
    (root / "a").mkdir(parents=True)
    for number in range(5):
        (root / f"a/{number}.jpg").write_bytes(jpeg(exif(1 + number)))
    (root / "a/broken.jpg").write_bytes(b"no image")

    read = store_folders.read_object

    def count(url, *arguments):
        fetched.append(Path(url).name)
        return read(url, *arguments)

    def scan(**options):
        fetched.clear()
        return Manifest.scan(f"file://{root}", cache=cache, progress=False, **options)

    monkeypatch.setattr(store_folders, "read_object", count)
    first = scan()
    assert len(fetched) >= 6
    again = scan()
    assert set(fetched) == {"broken.jpg"} and again.table.equals(first.table)

    # what has changed, what is new, and what is gone
    (root / "a/1.jpg").write_bytes(jpeg(exif(8), b"longer"))
    (root / "a/7.jpg").write_bytes(jpeg(exif(3)))
    (root / "a/4.jpg").unlink()
    changed = scan()
    assert set(fetched) == {"1.jpg", "7.jpg", "broken.jpg"}
    turns = changed.take_orientations(np.arange(len(changed))).tolist()
    assert turns == [1, 8, 3, 4, 3]

    # a check that is more thorough knows nothing of these
    scan(verify="full")
    assert len(set(fetched)) == 6
    scan(verify="full")
    assert set(fetched) == {"broken.jpg"}
