"""What is loaded must stay the same from version to version: a run that is resumed, or repeated,
depends on it.

Each hash is over all named arrays of the first 50 steps of three epochs. A hash may only change
together with what it stands for; that breaks resuming from older checkpoints and belongs into the
release notes.
"""

import hashlib

import numpy as np
import pyarrow as pa
import pytest

from dali_pipes import (
    EvalTransform,
    Manifest,
    Plan,
    RandomCropTransform,
    Rank,
    TrainTransform,
    ViewsTransform,
)
from dali_pipes.data.table.schema import SCHEMA

IMAGES = 1_700
AUGMENTATIONS = [
    "TrivialAugmentWide",
    "RandAugment",
    "AutoAugment",
    {
        "name": "ColorJitter",
        "brightness": 0.4,
        "contrast": 0.4,
        "saturation": 0.4,
        "hue": 0.1,
        "p": 0.8,
    },
    {"name": "RandomGrayscale", "p": 0.2},
    {"name": "GaussianBlur", "kernel_size": 9, "p": 0.5},
    {"name": "RandomRotation", "degrees": 15},
    {"name": "RandomErasing", "p": 0.25},
]
TRANSFORMS = {
    "train": TrainTransform(),
    "eval": EvalTransform(),
    "padded_crop": RandomCropTransform(resize=(32, 32), padding=4),
    "progressive": TrainTransform(sizes={0: 128, 2: 192}, exif="apply"),
    **{
        policy if isinstance(policy, str) else str(policy["name"]): TrainTransform(
            size=96, augment=[policy]
        )
        for policy in AUGMENTATIONS
    },
    "all": TrainTransform(size=160, augment=AUGMENTATIONS),
    "RandomSolarize": TrainTransform(
        size=96, augment=[{"name": "RandomSolarize", "threshold": 100, "p": 0.3}]
    ),
    "one operation each": TrainTransform(
        size=96,
        augment=[
            "RandomPosterize",
            "RandomInvert",
            "RandomAutocontrast",
            "RandomEqualize",
            "RandomAdjustSharpness",
        ],
    ),
    "views": ViewsTransform(
        views={
            "global": {"count": 2},
            "local": [{"size": 96, "scale": (0.05, 0.4), "augment": AUGMENTATIONS}],
        }
    ),
}
GOLDEN = {
    "train": "e66c263e72560c30",
    "eval": "0aa8d66b89dd39d8",
    "padded_crop": "16a3c06862e7c44f",
    "progressive": "9ccde556602fc10a",
    "TrivialAugmentWide": "c5f51d21c3c3cdd7",
    "RandAugment": "8978fad2b1fdc50b",
    "AutoAugment": "1813738ca2118e26",
    "ColorJitter": "891e5b1d874dc559",
    "RandomGrayscale": "8fb6c30e9cef88f5",
    "GaussianBlur": "4b0cfa1f9e31e9ed",
    "RandomRotation": "6436cc38dc48f679",
    "RandomErasing": "369ef44f41ea255d",
    "all": "8a46ddb145c05aab",
    "RandomSolarize": "acfa3ca93923cc5d",
    "one operation each": "faffa287becf66ea",
    "views": "c25664ca2e69e831",
}


def images() -> Manifest:
    number = np.arange(IMAGES)
    columns = {
        "path": [f"{each:05d}.jpg".encode() for each in number],
        "label": number * 7 % 13,
        "bytes": number + 1,
        "mtime_ns": number,
        "height": 40 + number * 37 % 900,
        "width": 50 + number * 61 % 1100,
        "orientation": 1 + number % 8,
        "format": ["JPEG"] * IMAGES,
        "decoded": [False] * IMAGES,
        "problem": [None] * IMAGES,
        "jpeg": ["4:2:0"] * IMAGES,
        "content": [b""] * IMAGES,
        "member": [b""] * IMAGES,
        "offset": [0] * IMAGES,
        "file_bytes": [0] * IMAGES,
    }
    return Manifest.from_rows(
        "/nowhere", [str(label) for label in range(13)], pa.table(columns, schema=SCHEMA)
    )


def named_arrays(planned, labels):
    yield from {"ids": planned.ids, "labels": labels[planned.ids]}.items()
    for view in planned.views:
        # what is called region now was called window when these hashes were made
        geometry = view.geometry
        for name in ("source", "region", "resize", "crop", "flip"):
            yield name.replace("region", "window"), getattr(geometry, name)
        for name in ("ops", "magnitudes", "erased"):
            yield name, getattr(view.augmentation, name)


def digest(plan: Plan) -> str:
    found = hashlib.sha256()
    for epoch in range(3):
        for step in range(50):
            for name, array in named_arrays(plan.batch(epoch, step), plan.manifest.labels):
                found.update(
                    f"{name} {array.dtype} {array.shape}".encode()
                    + np.ascontiguousarray(array).tobytes()
                )
    return found.hexdigest()[:16]


@pytest.mark.few
@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_plan_is_that_of_earlier_versions(name):
    assert digest(Plan(images(), TRANSFORMS[name], 16, seed=3, rank=Rank(1, 2))) == GOLDEN[name]
