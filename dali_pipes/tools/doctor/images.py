"""Checks a loader's decoding of generated and of given images against the CPU's pixels."""

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.backends.dali.config import DaliOptions
from dali_pipes.backends.dali.decoding import ways_out
from dali_pipes.data.demo import draw_image
from dali_pipes.data.manifest import Manifest
from dali_pipes.system.child import ChildError
from dali_pipes.tools.doctor.decoding_check import ComparedDecoding, check_decoding
from dali_pipes.tools.doctor.decoding_compare import CLOSE, FAR
from dali_pipes.tools.doctor.report import SETUP, Finding, failed, ok, warning

Pixels = NDArray[np.uint8]
# by the name of its folder, how Pillow writes the JPEGs of a kind
KINDS: dict[str, dict[str, Any]] = {
    "444": {"subsampling": "4:4:4"},
    "422": {"subsampling": "4:2:2"},
    "420": {"subsampling": "4:2:0"},
    "gray": {},
    # sampling factors of 2 × 1, which mean nothing in a gray image, but nvJPEG's engine writes
    # nothing of such images (docs/gpu-path.md)
    "gray-422": {"subsampling": "4:2:2"},
    "progressive": {"subsampling": "4:2:0", "progressive": True},
}
# (height, width): multiples of the block size and others, portrait and landscape, and one above the
# default of hybrid_huffman_threshold; so large that an image's edge is a small part of a region
SIZES = (
    *(
        (160, 240),
        (161, 243),
        (177, 209),
        (192, 320),
        (224, 224),
        (255, 257),
        (300, 200),
        (333, 500),
        (375, 500),
        (500, 333),
    ),
    *((480, 640), (1000, 1333)),
)


def make_jpeg() -> tuple[bytes, Pixels]:
    """A baseline JPEG (4:2:0, quality 90), and its pixels as Pillow decodes them, (H, W, 3).

    It is the same every time.
    """
    file = io.BytesIO()
    Image.fromarray(draw_image("rings", np.random.default_rng(0))).save(
        file, "JPEG", quality=90, subsampling="4:2:0"
    )
    return file.getvalue(), np.asarray(Image.open(file))


def difference(pixels: NDArray, expected: Pixels) -> float:
    """The mean |difference| in steps of 1/255; infinite if the shapes differ."""
    if pixels.shape != expected.shape:
        return float("inf")
    return float(np.abs(pixels.astype(np.int16) - expected).mean())


def judge(what: str, mean: float) -> Finding:
    """Tells rounding of two correct decoders from another chroma upsampling and from a fault.

    Args:
        what: the beginning of the finding's text.
        mean: what `difference` returned.
    """
    what = f"{what}; mean |difference| from Pillow's pixels {mean:.2f} of 255"

    if mean <= CLOSE:
        return ok(what)
    if mean <= FAR:
        return warning(
            f"{what}, as with another chroma upsampling",
            "loader.hw_decoder_load=0 may avoid that; docs/pixels.md",
        )

    return failed(what, f"images would be wrong: {SETUP}")


def make_images(folder: Path) -> None:
    """Writes JPEGs of all kinds × sizes, and one whose last third is missing; always the same.

    Each kind has a subfolder; the incomplete JPEG is in `truncated`.
    """
    drawn = Image.fromarray(draw_image("rings", np.random.default_rng(0)))

    for kind, options in KINDS.items():
        (folder / kind).mkdir(parents=True)
        image = drawn.convert("L") if kind.startswith("gray") else drawn
        for height, width in SIZES:
            image.resize((width, height)).save(
                folder / kind / f"{height}x{width}.jpg", quality=90, **options
            )

    # the CPU refuses a truncated JPEG, and nvJPEG may deliver the part that is there
    whole = (folder / "420/375x500.jpg").read_bytes()
    (folder / "truncated").mkdir()
    (folder / "truncated/375x500.jpg").write_bytes(whole[: 2 * len(whole) // 3])


def made_images(
    loader: DaliOptions, batch_size: int, limit_s: float, device: torch.device
) -> Finding:
    """Judges the decoding of generated images of every kind."""
    with tempfile.TemporaryDirectory() as folder:
        make_images(Path(folder))
        return images_of(Manifest.scan(folder, progress=False), loader, batch_size, limit_s, device)


def images_of(
    manifest: Manifest, loader: DaliOptions, batch_size: int, limit_s: float, device: torch.device
) -> Finding:
    """Judges the decoding of at most `decoding_check.IMAGES` images, spread over the manifest.

    They are decoded in a separate process, which may crash or hang.
    """
    try:
        found = check_decoding(manifest, "ignore", loader, batch_size, device, limit_s)
        return judge_decoding(found, loader)
    except ChildError as error:
        return failed(str(error), remedy(loader))


def judge_decoding(found: ComparedDecoding, loader: DaliOptions) -> Finding:
    shares = {"JPEG engines": found.nvjpg, "SM": found.sm}
    mean = f"{found.images} images, mean |difference| from the CPU's pixels {found.mean:.2f} of 255"

    cost = f"{found.cpu_ms:.2f} CPU-ms an image, a loader on the CPU {found.cpu_ms_on_cpu:.2f}"
    figures = [
        mean,
        cost,
        *(f"{name} up to {use:.0%}" for name, use in shares.items() if use is not None),
        found.decodes,
    ]

    if faults := found.faults():
        return failed("; ".join([*faults, *figures]), remedy(loader))
    if doubts := found.doubts():
        return warning(
            "; ".join([*figures, *doubts]),
            "dali-pipes scan verify=full names the damaged images of a data set",
        )

    return ok("; ".join(figures))


def remedy(loader: DaliOptions) -> str:
    ways = [f"loader.{way.option}={str(way.value).lower()}{way.cost}" for way in ways_out(loader)]
    return ", or ".join([*ways, "loader=dali_cpu, which needs no GPU"])
