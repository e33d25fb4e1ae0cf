"""The place where the time of items goes, in programs written as files."""

import importlib.util
import random
import sys
import threading
import time

import pytest
import torch
from torch.utils.data import TensorDataset, default_collate
from torchvision.datasets import ImageFolder

from dali_pipes.tools.diagnosis.items.maker import ItemMaker
from dali_pipes.tools.diagnosis.items.profile import profile_items
from dali_pipes.tools.diagnosis.items.sampler import SignalSampler

HEAD = (
    "import time\nimport numpy as np\nfrom PIL import Image\nfrom torchvision import "
    "transforms as T\n"
)
PLANTED = {
    "text": (
        "np.loadtxt",
        "text_parsing",
        "    def __getitem__(self, i):\n        return np.loadtxt(FILE)\n",
    ),
    "sleep": (
        "time.sleep",
        "wait",
        "    def __getitem__(self, i):\n        time.sleep(0.005)\n        return i\n",
    ),
    "loop": (
        "a Python loop in resize()",
        "python_loop",
        "    def __getitem__(self, i):\n        return resize(np.ones((60, 60)))\n"
        "def resize(image):\n    out = np.empty((40, 40))\n    for y in range(40):\n       "
        " for x in range(40):\n"
        "            out[y, x] = image[int(y * 1.5), int(x * 1.5)]\n    return out\n",
    ),
    "rotation": (
        "RandomRotation",
        "transform",
        "    turn = T.Compose([T.RandomRotation(20, T.InterpolationMode.BILINEAR), "
        "T.PILToTensor()])\n"
        "    image = Image.new('RGB', (256, 256))\n"
        "    def __getitem__(self, i):\n        return self.turn(self.image)\n",
    ),
    "products": (
        "multiply()",
        "operator",
        "    weights = np.eye(200)\n    def __getitem__(self, i):\n        return "
        "multiply(self.weights)\n"
        "def multiply(weights):\n    product = weights\n    for _ in range(10):\n        "
        "product = product @ weights\n"
        "    return product\n",
    ),
    "tokens": (
        "a Python loop in split()",
        "python_loop",
        "    def __getitem__(self, i):\n        return split('a word or two ' * 500)\n"
        "def split(text):\n    return len([word.strip().lower() for word in text.split()])\n",
    ),
}


@pytest.mark.few
@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_part_is_the_largest(name, tmp_path):
    expected, kind, body = PLANTED[name]
    (tmp_path / "values.txt").write_text("1.5 2.5 3.5\n" * 300)
    file = tmp_path / f"{name}_program.py"
    file.write_text(f"{HEAD}FILE = {str(tmp_path / 'values.txt')!r}\nclass Data:\n{body}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = profile_items(module.Data(), [[i] for i in range(100_000)], lambda items: items, 0.4)
    part = found.parts[0]
    assert (part.name, part.kind) == (expected, kind), found.parts
    assert part.where.startswith(f"{file.name}:") and part.text
    assert part.waits == (name == "sleep")


def test_a_sleep_waits_also_beside_a_thread_that_computes():
    class Data:
        def __getitem__(self, index):
            time.sleep(0.005)
            return index

    over = threading.Event()

    def compute():
        while not over.is_set():
            sum(range(1000))

    beside = threading.Thread(target=compute)
    beside.start()
    try:
        part = profile_items(Data(), [[i] for i in range(100_000)], lambda items: items, 0.4).parts[
            0
        ]
    finally:
        over.set()
        beside.join()
    assert (part.name, part.kind, part.waits) == ("time.sleep", "wait", True)


def test_decoding_of_a_folder(image_folder):
    found = profile_items(
        ImageFolder(image_folder), [[i % 4] for i in range(100_000)], lambda items: items, 0.4
    )
    assert found.parts[0].kind == "decode" and found.parts[0].where == "", found.parts


def test_random_states_are_put_back_and_errors_are_not_swallowed():
    class Data:
        def __getitem__(self, index):
            random.random(), torch.rand(1)
            if index != 3:
                raise ValueError(f"item {index} is broken")
            return index

    before = random.getstate(), torch.get_rng_state()
    with pytest.raises(ValueError, match="item 0 is broken"):
        profile_items(Data(), [[0, 1]], default_collate, 0.1)
    found = profile_items(Data(), [[0, 3]], default_collate, 0.1)
    assert (found.items, found.failed) == (1, 1)
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])


def test_tensors():
    large = TensorDataset(torch.zeros(64, 100_000))  # so that collating takes most of the time
    found = profile_items(large, [range(64)] * 200, default_collate, 0.3)
    assert found.items and not [
        part for part in found.parts if part.kind in ("python_loop", "wait", "decode")
    ]
    assert "collating (torch.stack)" in {
        part.name for part in found.parts if part.kind == "collate"
    }, found.parts
    assert all("<" not in part.name for part in found.parts), found.parts
    with torch.device("cpu"):  # a mode, whose function is called for each of PyTorch's
        found = profile_items(large, [range(64)] * 200, default_collate, 0.3)
    assert "collating (torch.stack)" in {
        part.name for part in found.parts if part.kind == "collate"
    }, found.parts


@pytest.mark.parametrize("times", [1, 10_000], ids=["once", "again and again"])
def test_a_handler_that_is_interrupted_counts_for_what_it_interrupted(times):
    """As on a busy machine, where a sample takes longer than the time between two of them."""
    sampler = SignalSampler()

    class Data:
        def __getitem__(self, index):
            return self.late(sampler)

        def late(self, sampler):
            sampler.add(sys._getframe())
            return 1

    inside, clocks = [], sampler._clocks

    def interrupted():
        if len(inside) < times:
            inside.append(True)
            sampler.add(sys._getframe())  # the next signal, while the first one is in here
        return clocks()

    sampler._clocks = interrupted
    watched = ItemMaker(Data(), list, True)
    watched.take([0])
    names = {code.co_name for _, stack in sampler.stacks for code, _, _ in stack}
    assert names == {"__getitem__", "late"}
