"""What operators of PyTorch and functions of NumPy become for a backend: it makes all of a picture,
and what it makes is what the program makes.
"""

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from lazy_works import BACKENDS, made_by_backend, opened
from PIL import Image
from torchvision.io import read_image

WIDTH, HEIGHT, COUNT = 37, 23, 3
MEAN, STD = torch.tensor([0.4, 0.5, 0.6])[:, None, None], torch.tensor([0.2, 0.25, 0.3])
pytestmark = pytest.mark.usefixtures("libraries_know_what_waits")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    found = [str(folder / f"{at}.png") for at in range(COUNT)]
    for path in found:
        picture = Image.fromarray(rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8))
        picture.save(path)
        picture.convert("L").save(path.replace(".png", " gray.png"))
    return found


def gray(path):
    return opened(path.replace(".png", " gray.png"))


def whole(path):
    return F.pil_to_tensor(opened(path))


def floats(path):
    return F.to_tensor(opened(path))


def array(path):
    return np.array(opened(path))


def changed(value, *changes):
    for change in changes:
        change(value)
    return value


def divide(value):
    value /= 255


def subtract(value):
    value -= np.float32([0.4, 0.5, 0.6])


def cut_out(value):
    value[:, 3:9, 4:20] = 0.5


TENSORS = {
    "permute": lambda path: whole(path).permute(1, 2, 0) / 255,
    "contiguous": lambda path: whole(path).contiguous().half(),
    "crop": lambda path: whole(path)[:, 3:20, 5:],
    "mean and std": lambda path: (floats(path) - MEAN) / STD[:, None, None],
    "in place": lambda path: whole(path).float().div_(255).sub_(MEAN).div_(STD[:, None, None]),
    "unsqueeze": lambda path: floats(path)[None],
    "gray, unsqueezed": lambda path: torch.from_numpy(np.array(gray(path)))[None] / 255,
    "gray, selected": lambda path: F.pil_to_tensor(gray(path))[0].long(),
    "gray, expanded": lambda path: F.to_tensor(gray(path)).expand(3, -1, -1),
    "gray, concatenated": lambda path: torch.cat([F.to_tensor(gray(path))] * 3),
    "cut out": lambda path: changed(floats(path), cut_out),
    "tensor": lambda path: torch.tensor(array(path).transpose(2, 0, 1) / 255),
    "mask": lambda path: torch.as_tensor(np.array(gray(path)), dtype=torch.int64),
    "stack": lambda path: torch.stack([floats(path), floats(path).flip(-1)]),
    "permuted clip": lambda path: torch.stack([whole(path), whole(path)]).permute(1, 0, 2, 3) / 255,
    "read_image": lambda path: read_image(path).permute(1, 2, 0).float().div(255),
}
ARRAYS = {
    "moveaxis": lambda path: np.moveaxis(array(path), -1, 0) / 255.0,
    "float": lambda path: np.asarray(opened(path), dtype=np.float32) / 255,
    "mean and std": lambda path: (array(path) / 255 - [0.4, 0.5, 0.6]) / np.array([0.2, 0.25, 0.3]),
    "in place": lambda path: changed(array(path).astype(np.float32), divide, subtract),
    "crop": lambda path: array(path)[2:20, 3:30].copy(),
    "flipud": lambda path: np.flipud(array(path)),
    "gray": lambda path: np.array(gray(path)) / 255,
    "gray, indexed": lambda path: np.array(gray(path))[..., None].astype(np.float32),
    "gray, three times": lambda path: np.stack([np.array(gray(path))] * 3, -1),
    "stack": lambda path: np.stack([array(path), array(path)[:, ::-1]]),
    "video": lambda path: np.stack([array(path), array(path)]).transpose(3, 0, 1, 2)[:, 1:],
}
PROGRAMS = {f"torch, {name}": each for name, each in TENSORS.items()}
PROGRAMS |= {f"numpy, {name}": each for name, each in ARRAYS.items()}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_backend_makes_all_of_it(name, backend, paths):
    program = PROGRAMS[name]
    made, left = made_by_backend(backend, program, paths)
    assert not left, left
    for path, value in zip(paths, made, strict=True):
        true = program(path)
        assert type(value) is type(true) and value.dtype == true.dtype
        assert value.shape == true.shape
        np.testing.assert_allclose(np.asarray(value), np.asarray(true), rtol=2e-3, atol=2e-5)
