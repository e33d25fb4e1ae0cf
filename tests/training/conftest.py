"""A small run: 37 images in 5 classes, 32 pixels, batches of 8, so 4 steps an epoch."""

import json

import pytest
import torch
from later import later

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.training.config import ModelConfig, OptimizerConfig, TrainConfig

training = later("dali_pipes.training.run")


@pytest.fixture
def config(image_folder, tmp_path, monkeypatch):
    """mobilenet_v3_small draws random numbers (dropout), has normalizations, and is small."""
    torch_threads = torch.get_num_threads()
    # tests run side by side
    monkeypatch.setattr("dali_pipes.training.launch.available_cpus", lambda: 1)

    def make(**options):
        return TrainConfig(
            **{
                "data": DataConfig(
                    train=str(image_folder),
                    val=str(image_folder),
                    cache_dir=str(tmp_path / "cache"),
                ),
                "transform": dp.TrainTransform(size=32),
                "eval_transform": dp.EvalTransform(size=32, resize=36),
                "loader": dp.DaliConfig(device="cpu", num_threads=1),
                "model": ModelConfig(name="mobilenet_v3_small"),
                "optimizer": OptimizerConfig(lr=0.02, lr_batch_size=None),
                "epochs": 2,
                "warmup_epochs": 1,
                "batch_size": 8,
                "out": str(tmp_path / "run"),
            }
            | options
        )

    yield make
    torch.set_num_threads(torch_threads)


@pytest.fixture
def run(capsys):
    """Trains, and returns the line of JSON."""

    def go(config):
        training.train(config)
        return json.loads(capsys.readouterr().out)

    return go


def weights(folder, name="last.pt"):
    return torch.load(folder / name, weights_only=True)


def same(one, other):
    """Bit for bit, all through."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
