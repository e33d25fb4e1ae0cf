"""Runs that start from weights, of other classes, and train a part; stopped and resumed."""

import os
import shutil
import signal

import pytest
import torch
from later import later
from training.conftest import same, weights

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ConfigError
from dali_pipes.training.checkpoint import CheckpointError
from dali_pipes.training.config import ModelConfig, OptimizerConfig
from dali_pipes.training.tasks.start import start_task

training, trainer = later("dali_pipes.training.run"), later("dali_pipes.training.trainer")
NAME = "mobilenet_v3_small"


@pytest.fixture
def begun(config, run, image_folder, tmp_path):
    """A run over five classes; returns how to train on four of them from its weights."""
    run(config(epochs=1, out=str(tmp_path / "begun")))
    shutil.rmtree(shutil.copytree(image_folder, tmp_path / "fewer") / "checkers")
    data = DataConfig(train=str(tmp_path / "fewer"), val=str(tmp_path / "fewer"))
    begun = str(tmp_path / "begun/last.pt")

    def make(**options):
        model = ModelConfig(name=NAME, weights=begun, freeze=["backbone.*"])
        return config(**{"model": model, "data": data, "warmup_epochs": 0} | options)

    return make


@pytest.mark.slow
def test_only_the_head_is_new_and_trained(begun, run, tmp_path):
    run(begun())
    before, after = weights(tmp_path / "begun")["model"], weights(tmp_path / "run")["model"]
    changed = {name for name in before if not same(before[name], after[name])}
    assert changed == {"classifier.3.weight", "classifier.3.bias"}
    assert len(after["classifier.3.bias"]) == 4
    log = (tmp_path / "run/train.log").read_text()
    assert "Starts from" in log and "the head (classifier.3.weight" in log
    assert "% of the weights are trained" in log


@pytest.mark.slow
def test_stopped_and_resumed_without_the_file(begun, run, tmp_path, monkeypatch):
    """What is trained, at which rates, and the running statistics are as if never stopped."""
    scaled = OptimizerConfig(lr=0.02, lr_batch_size=None, lr_scale={"classifier.0.*": 0.1})
    model = ModelConfig(name=NAME, weights=str(tmp_path / "begun/last.pt"), freeze=["features.*"])
    options = {"model": model, "optimizer": scaled}
    run(begun(**options, out=str(tmp_path / "never")))

    take, taken = trainer.TrainStep.__call__, []

    def stepped(self, batch, lr):
        taken.append(lr)
        if len(taken) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return take(self, batch, lr)

    with monkeypatch.context() as patched:
        patched.setattr(trainer.TrainStep, "__call__", stepped)
        with pytest.raises(SystemExit):
            training.train(begun(**options))
    (tmp_path / "begun/last.pt").unlink()
    run(begun(**options, resume="auto"))
    never, stopped = weights(tmp_path / "never"), weights(tmp_path / "run")
    assert all(same(never[part], stopped[part]) for part in ("model", "optimizer", "random"))


@pytest.mark.slow
def test_a_network_of_a_function(config, run, tmp_path, monkeypatch):
    (tmp_path / "small_network.py").write_text(
        "from torch import nn\n"
        "def make(num_classes=10):\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(),\n"
        "        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = ModelConfig(function="small_network:make")
    run(config(model=model, epochs=1))
    assert weights(tmp_path / "run")["name"] == "small_network:make"
    evaluated = run(
        config(model=model, eval_only=True, checkpoint=str(tmp_path / "run/last.pt"), out=None)
    )
    assert evaluated["images"] == 37
    with pytest.raises(CheckpointError, match=r"set model\.function=small_network:make"):
        training.train(config(resume=str(tmp_path / "run/last.pt")))


def mistakes(begun, tmp_path):
    torch.save({"module.other.weight": torch.zeros(3)}, tmp_path / "other.pth")
    file = str(tmp_path / "begun/last.pt")
    yield {"weights": str(tmp_path / "none.pth")}, "none.pth: no such"
    yield {"weights": str(tmp_path / "other.pth")}, "other.pth: of another network"
    yield {"weights": "IMAGENET1K_V9"}, "IMAGENET1K_V9 is no file, and torchvision has no such"
    yield {"weights": file, "freeze": ["*"]}, "leaves nothing to train"
    yield {"freeze": ["body.*"]}, r"model\.freeze=body\.\* is of no parameter of the network"
    yield {"name": "resnet18", "weights": file}, "of another network"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_a_mistake_leaves_no_folder(begun, tmp_path, number):
    options, message = [*mistakes(begun, tmp_path)][number]
    with pytest.raises((ConfigError, CheckpointError), match=message) as caught:
        training.train(begun(model=ModelConfig(**{"name": NAME} | options)))
    assert not (tmp_path / "run").exists() and "\n" not in str(caught.value)


@pytest.mark.slow
def test_another_normalization_is_named(config, run, tmp_path, monkeypatch):
    from torchvision.models import MobileNet_V3_Small_Weights, mobilenet_v3_small

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub/checkpoints"
    folder.mkdir(parents=True)
    url = MobileNet_V3_Small_Weights.IMAGENET1K_V1.url
    monkeypatch.setattr("torch.hub.HASH_REGEX", __import__("re").compile("(no hash)"))
    torch.save(mobilenet_v3_small().state_dict(), folder / url.rpartition("/")[2])
    model = ModelConfig(name=NAME, weights="IMAGENET1K_V1")
    run(config(model=model, epochs=1, transform=dp.TrainTransform(size=32, mean=[0.5, 0.5, 0.5])))
    log = (tmp_path / "run/train.log").read_text()
    assert "Note: transform.mean is [0.5,0.5,0.5]" in " ".join(log.split())


def test_a_head_of_the_classes_in_another_order_is_refused(config, manifest, tmp_path):
    transformers = pytest.importorskip("transformers")
    shape = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "layer_type": "basic"}
    theirs = {"same": manifest.classes, "other": manifest.classes[::-1], "new": [*"vwxyz"]}
    for folder, classes in theirs.items():
        places = {name: place for place, name in enumerate(classes)}
        own = transformers.ResNetConfig(**shape, label2id=places, id2label=dict(enumerate(classes)))
        transformers.ResNetForImageClassification(own).save_pretrained(tmp_path / folder)

    def start(folder, resumes=False):
        model = ModelConfig(name=str(tmp_path / folder))
        return start_task(config(model=model), manifest, resumes)

    assert start("same").said == []
    assert start("new").said[0].startswith("Note: the head is that of the folder, whose classes")
    with pytest.raises(ConfigError, match=rf"data\.classes=\[{','.join(theirs['other'])}\]"):
        start("other")
    assert start("other", resumes=True).said == []
