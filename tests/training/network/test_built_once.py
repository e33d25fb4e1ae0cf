"""A network is built once, since it may be large and a function of the user's may do more."""

import sys
from dataclasses import fields

import pytest

from dali_pipes.data.manifest import Manifest
from dali_pipes.tools.diagnosis.config import DiagnoseConfig
from dali_pipes.tools.diagnosis.programs.configured import ConfiguredProgram
from dali_pipes.training.config import ModelConfig
from dali_pipes.training.run import train


@pytest.fixture
def counted(config, tmp_path, monkeypatch):
    """A configuration whose network counts how often it is built, and a function for the count."""
    (tmp_path / "counting_network.py").write_text(
        "from torch import nn\n"
        "built = []\n"
        "def make(num_classes):\n"
        "    built.append(num_classes)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes), nn.Dropout())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield (
        config(model=ModelConfig(name=None, function="counting_network:make"), epochs=1),
        lambda: len(sys.modules["counting_network"].built),
    )
    sys.modules.pop("counting_network", None)


def test_training_builds_its_network_once(counted):
    options, count = counted
    train(options)
    assert count() == 1


def test_diagnose_builds_the_network_of_all_changed_programs_once(counted, image_folder):
    options, count = counted
    shared = {field.name: getattr(options, field.name) for field in fields(options)}
    config = DiagnoseConfig(**shared | {"warmup_epochs": 0})
    program = ConfiguredProgram(config, Manifest.scan(image_folder), [])
    program.check_memory()

    losses = []
    for each in (program, program.changed(precision="bf16"), program):
        with each.feed() as feed:
            losses += each.step()(next(feed.batches))
    assert count() == 1
    # the same weights and draws
    assert losses[0] == losses[2] != losses[1]
