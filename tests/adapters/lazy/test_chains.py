"""Transforms as programs chain them: lazily made they are what the program makes, bit for bit, and
a backend makes them within its tolerance.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lazy_works import BACKENDS, made_by_backend, steps_apart
from PIL import Image, ImageEnhance, ImageOps
from programs.twice import seeded, true_of, waits
from torchvision import transforms as v1
from torchvision.transforms import v2

from dali_pipes.adapters.lazy.state import waiting

pytestmark = pytest.mark.usefixtures("libraries_know_what_waits")
MOST = 3.0  # of 255, on average: where operations decide by thresholds what becomes of a pixel
COUNT = 3

# Torchvision's transforms that programs use, each as its name and its arguments
TRANSFORMS = [
    ("Resize", (20,)),
    ("CenterCrop", (20,)),
    ("RandomCrop", (28, 4)),
    ("RandomResizedCrop", (20,)),
    ("RandomHorizontalFlip", (1.0,)),
    ("RandomVerticalFlip", (1.0,)),
    ("Pad", (3,)),
    ("RandomRotation", (30,)),
    ("RandomAffine", (20, (0.1, 0.1), (0.8, 1.2), 10)),
    ("RandomPerspective", (0.3, 1.0)),
    ("ColorJitter", (0.4, 0.4, 0.4, 0.1)),
    ("Grayscale", (3,)),
    ("RandomGrayscale", (1.0,)),
    ("GaussianBlur", (5,)),
    ("RandomInvert", (1.0,)),
    ("RandomPosterize", (3, 1.0)),
    ("RandomSolarize", (100, 1.0)),
    ("RandomAdjustSharpness", (2.0, 1.0)),
    ("RandomAutocontrast", (1.0,)),
    ("RandomEqualize", (1.0,)),
    ("TrivialAugmentWide", ()),
    ("RandAugment", ()),
    ("AutoAugment", ()),
]


# what programs call themselves
CALLS = {
    "crop": lambda picture: picture.crop((3, 2, picture.width - 4, picture.height - 1)),
    "resize": lambda picture: picture.resize((48, 48), Image.Resampling.BILINEAR),
    "bicubic": lambda picture: picture.resize((44, 52)),
    "nearest": lambda picture: picture.resize((50, 46), Image.Resampling.NEAREST),
    "flip": lambda picture: picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "turn": lambda picture: picture.transpose(Image.Transpose.ROTATE_90),
    "transpose": lambda picture: picture.transpose(Image.Transpose.TRANSPOSE),
    "transverse": lambda picture: picture.transpose(Image.Transpose.TRANSVERSE),
    "rotate": lambda picture: picture.rotate(20, Image.Resampling.BILINEAR),
    "gray": lambda picture: picture.convert("L").convert("RGB"),
    "enhance": lambda picture: ImageEnhance.Color(picture).enhance(1.4),
    "autocontrast": ImageOps.autocontrast,
    "mirror": ImageOps.mirror,
}
ENDS = {
    "tensor": v1.ToTensor(),
    "normalized": v1.Compose([v1.ToTensor(), v1.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.25])]),
    "bytes": v1.PILToTensor(),
    "array": lambda picture: torch.from_numpy(
        (np.array(picture, np.float32) / 127.5 - 1).transpose(2, 0, 1)
    ),
    "v2": v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Paths of smooth pictures of several sizes, in colors and in gray, by number."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    paths = []
    for at, size in enumerate([(90, 70), (64, 96), (81, 81), (120, 75)]):
        coarse = Image.fromarray(rng.integers(0, 256, (7, 9, 3), np.uint8))
        picture = coarse.resize(size, Image.Resampling.BICUBIC)
        paths.append(folder / f"{at}.{'png' if at == 2 else 'jpg'}")
        (picture.convert("L") if at == 3 else picture).save(paths[-1], quality=95)
    return list(map(str, paths))


@pytest.mark.parametrize("of", ["v1", "v2", "v2 of tensors"])
@pytest.mark.parametrize("name, arguments", TRANSFORMS)
def test_what_torchvision_makes_waits(name, arguments, of, files):
    library = v1 if of == "v1" else v2
    step = getattr(library, name)(*arguments)
    first = [v2.ToImage()] if of == "v2 of tensors" else []
    last = [] if of == "v2 of tensors" else [v1.ToTensor()]
    steps = v1.Compose([*first, step, *last])

    def program() -> Any:
        return [steps(Image.open(files[0])) for _ in range(6)]

    true = seeded(program)
    with waiting(True):
        made = seeded(program)
        assert all(map(waits, made))
        for one, other in zip(made, true, strict=True):
            assert torch.equal(true_of(one), other)


def step_of(kind: str, name: str) -> Any:
    if kind == "call":
        return CALLS[name]
    return getattr(v1 if kind == "v1" else v2, name)(*dict(TRANSFORMS)[name])


NAMED = [
    *[(kind, name) for kind in ("v1", "v2") for name, _ in TRANSFORMS],
    *[("call", name) for name in CALLS],
]
chains = st.tuples(
    st.integers(0, 3), st.lists(st.sampled_from(NAMED), max_size=4), st.sampled_from(sorted(ENDS))
)


def program_of(chain: Any, files: Any) -> Any:
    at, named, end = chain
    steps = [step_of(*each) for each in named]

    def program(_: int = 0) -> Any:
        made = Image.open(files[at]).convert("RGB")
        for step in steps:
            made = step(made)
        return ENDS[end](made)

    return program


@settings(max_examples=150, deadline=None)
@given(chain=chains)
def test_a_chain_is_made_lazily_as_truly(chain, files):
    program = program_of(chain, files)
    true = seeded(program)
    with waiting(True):
        made = seeded(program)
        assert waits(made)
        assert torch.equal(true_of(made), true)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=25, deadline=None)
@given(chain=chains)
def test_a_chain_is_made_by_a_backend(backend, chain, files):
    program = program_of(chain, files)
    true = seeded(lambda: [program() for _ in range(COUNT)])
    made, _ = seeded(made_by_backend, backend, program, range(COUNT))
    step = {"bytes": 1, "array": 2 / 255, "normalized": 4 / 255}.get(chain[2], 1 / 255)
    for one, other in zip(made, true, strict=True):
        assert steps_apart(one, other, step).mean() < MOST
