"""Made the two Parquet files here with datasets 5.2.0: python make.py, in an environment with
datasets and pillow.
"""

from io import BytesIO
from pathlib import Path

import datasets
import numpy as np
from PIL import Image

HERE, ROWS = Path(__file__).parent, 10


def encoded(row: int) -> bytes:
    out = BytesIO()
    pixels = np.random.default_rng(row).integers(0, 256, (3, 4, 3), np.uint8)
    Image.fromarray(pixels).resize((32 + row, 24)).save(
        out, "PNG" if row == 7 else "JPEG", quality=90
    )
    return out.getvalue()


features = datasets.Features(
    {
        "image": datasets.Image(),
        "animal": datasets.ClassLabel(names=["cat", "dog", "eft"]),
        "caption": datasets.Value("string"),
        "age": datasets.Value("float32"),
        "boxes": datasets.List(datasets.List(datasets.Value("float32"))),
        "things": datasets.List(datasets.Value("string")),
    }
)
rows = {
    "image": [
        {"bytes": encoded(row), "path": f"{row}.jpg" if row % 2 else None} if row != 4 else None
        for row in range(ROWS)
    ],
    "animal": [row % 2 for row in range(ROWS)],
    "caption": [f"animal no. {row}" for row in range(ROWS)],
    "age": [row / 4 for row in range(ROWS)],
    "boxes": [[[1.0, 2.0, 20.0 + row, 20.0]] * (row % 3) for row in range(ROWS)],
    "things": [["head"] * (row % 3) for row in range(ROWS)],
}
made = datasets.Dataset.from_dict(rows, features=features)
for number in range(2):
    made.shard(2, number, contiguous=True).to_parquet(
        HERE / f"images-{number:05d}-of-00002.parquet", batch_size=3
    )
