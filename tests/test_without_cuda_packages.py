"""What works where neither DALI nor CuPy is installed, and what is said where one is needed.

A `sitecustomize` module hides them, in the processes that a program starts as well.
"""

import json
import os
import subprocess
import sys

import pytest
import torch

HIDDEN = ("nvidia.dali", "nvidia.nvimgcodec", "cupy", "cupy_backends")
HIDE = f"""
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in {HIDDEN}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hide())
"""
EXTRA = f"pip install 'dali_pipes[cu{torch.version.cuda[:2]}]'"
LOADERS = """
import sys
import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import dali_pipes as dp
from dali_pipes.measure.arms import SyntheticConfig

manifest = dp.Manifest.scan(sys.argv[1], progress=False)
how = {"transform": dp.TrainTransform(size=32), "batch_size": 8, "device": "cpu"}

def ids(config, **options):
    with dp.build_loader(manifest, config, **how | options) as loader:
        return [batch.ids.tolist() for batch in loader]

def refusal(work):
    try:
        work()
    except dp.ConfigError as error:
        return str(error)

said = {"dali": refusal(lambda: ids(dp.DaliConfig())), "cupy": ""}
expected = ids(dp.TorchConfig(num_workers=0))
assert len(expected) == len(manifest) // 8
assert ids(dp.TorchConfig(num_workers=1, decoder="torchvision")) == expected
assert ids(SyntheticConfig(), batch_transform=dp.MixUp(num_classes=5)) == expected

steps = v2.Compose([v2.RandomResizedCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
images = DataLoader(ImageFolder(sys.argv[1], steps), batch_size=8, shuffle=True)
with dp.from_torch(images, dp.TorchConfig(num_workers=0)) as loader:
    assert next(iter(loader))[0].shape == (8, 3, 32, 32)
with dp.from_torch(images) as loader:  # the program makes its pictures itself
    assert next(iter(loader))[0].shape == (8, 3, 32, 32)
    said["from_torch"] = loader.explain()
said["full"] = refusal(lambda: dp.Manifest.scan(sys.argv[1], verify="full", progress=False))

from dali_pipes.loader import mixing_kernels
said["cupy"] = refusal(mixing_kernels._import_cupy)
import json
print(json.dumps(said))
"""


@pytest.fixture
def without(tmp_path):
    """Runs Python without the packages, and returns what it prints last."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/sitecustomize.py").write_text(HIDE)
    path = os.pathsep.join([str(tmp_path / "hidden"), os.environ.get("PYTHONPATH", "")])

    def run(*arguments, status=0):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.slow
def test_loaders_that_need_neither_work_and_the_others_name_the_extra(without, image_folder):
    said = without("-c", LOADERS, image_folder)
    assert said["dali"].startswith("the backend dali needs a package that is missing (No module")
    assert "verify=full compares DALI's decoder" in said["full"]
    assert "need CuPy" in said["cupy"]
    for what, text in said.items():
        assert EXTRA in text, what


@pytest.mark.slow
def test_the_doctor_names_what_is_missing_and_its_extra(without):
    findings = without("-m", "dali_pipes.cli", "doctor", status=1)["findings"]
    found = {each["check"]: each for each in findings}
    assert found["DALI"]["status"] == "failed" and EXTRA in found["DALI"]["remedy"]
    assert "The loader torch works without it" in found["DALI"]["remedy"]
    for name in ("nvImageCodec", "CuPy"):
        assert found[name]["status"] == "warning" and EXTRA in found[name]["remedy"]


@pytest.mark.slow
def test_diagnose_needs_neither(without, image_folder, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import json
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
import dali_pipes as dp
images = ImageFolder({str(image_folder)!r}, v2.Compose([v2.Resize((32, 32)), v2.ToImage()]))
found = dp.diagnose(DataLoader(images, batch_size=8), lambda batch: batch[0].float().mean())
print(json.dumps(type(found).__name__))
"""
    )
    assert without(program)
