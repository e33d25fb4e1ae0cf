"""Generates a folder of JPEGs of every kind that decoders treat differently."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dali_pipes.data.demo import draw_image

KINDS: dict[str, dict[str, Any]] = {
    "444": {"subsampling": "4:4:4"},
    "422": {"subsampling": "4:2:2"},
    "420": {"subsampling": "4:2:0"},
    "gray": {},
    "progressive": {"subsampling": "4:2:0", "progressive": True},
}
# (height, width): multiples of the block size and others, portrait and landscape, and one above the default of
# hybrid_huffman_threshold. All are so large that the edge which nvJPEG before 13.2 may get wrong (decoding.EDGE) is a small part of
# a window.
SIZES = (
    *((160, 240), (161, 243), (177, 209), (192, 320), (224, 224), (255, 257), (300, 200), (333, 500), (375, 500), (500, 333)),
    *((480, 640), (1000, 1333)),
)


def make_images(folder: Path) -> None:
    """All kinds × sizes, a subfolder for each kind, and one in `truncated` whose last third is missing; the same every time."""
    drawn = Image.fromarray(draw_image("rings", np.random.default_rng(0)))
    for kind, options in KINDS.items():
        (folder / kind).mkdir(parents=True)
        image = drawn.convert("L") if kind == "gray" else drawn
        for height, width in SIZES:
            image.resize((width, height)).save(folder / kind / f"{height}x{width}.jpg", quality=90, **options)
    whole = (folder / "420/375x500.jpg").read_bytes()
    (folder / "truncated").mkdir()
    (folder / "truncated/375x500.jpg").write_bytes(whole[: 2 * len(whole) // 3])
