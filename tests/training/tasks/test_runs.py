"""Runs of every task: from the labels of the images, and of objects of the user's; stopped and
resumed as if never stopped.
"""

import csv
import os
import signal

import numpy as np
import pytest
import torch
from later import later
from training.conftest import same, weights

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ConfigError
from dali_pipes.training.checkpoint import CheckpointError
from dali_pipes.training.config import ModelConfig, OptimizerConfig, ScheduleConfig, TaskConfig

training, trainer = later("dali_pipes.training.run"), later("dali_pipes.training.trainer")

LEARNED = ("model", "ema", "optimizer", "loader", "random")
LABELS = {
    "multilabel": lambda sample: ";".join(
        name for bit, name in enumerate("abc") if sample >> bit & 1
    ),
    "regression": lambda sample: sample / 10 + 0.05,
}


@pytest.fixture
def table(manifest, tmp_path):
    """Writes a table of the images with labels of a task, and returns the options of its data."""

    def write(task):
        lines = [f"{manifest.path(i)},{LABELS[task](i % 7 + 1)}" for i in range(len(manifest))]
        (tmp_path / "t.csv").write_text("\n".join(["path,label", *lines]))
        separator = ";" if task == "multilabel" else None
        path = str(tmp_path / "t.csv")
        return DataConfig(train=path, val=path, label_separator=separator)

    return write


def rows(file):
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def stop_in_step(monkeypatch, step):
    take, taken = trainer.TrainStep.__call__, []

    def stepped(self, batch, lr):
        taken.append(lr)
        if len(taken) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return take(self, batch, lr)

    monkeypatch.setattr(trainer.TrainStep, "__call__", stepped)


def check_resumes(config, run, tmp_path, monkeypatch, **options):
    """Trains, and trains again with a stop in the second epoch; both end alike, bit for bit."""
    options = {"ema_decay": 0.5} | options
    summary = run(config(**options, out=str(tmp_path / "never")))
    with monkeypatch.context() as patched:
        stop_in_step(patched, 6)
        with pytest.raises(SystemExit):
            training.train(config(**options))
    again = run(config(**options, resume="auto"))
    never, stopped = weights(tmp_path / "never"), weights(tmp_path / "run")
    assert all(same(never[part], stopped[part]) for part in LEARNED)
    assert rows(tmp_path / "never/steps.csv") == rows(tmp_path / "run/steps.csv")
    return summary, again


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("task", [*LABELS])
def test_the_labels_choose_the_task(config, run, table, tmp_path, monkeypatch, task):
    summary, again = check_resumes(config, run, tmp_path, monkeypatch, data=table(task))
    best, names = {
        "multilabel": ("map", {"map", "f1", "f1_micro", "val_loss"}),
        "regression": ("mae", {"mae", "rmse", "r2", "val_loss"}),
    }[task]
    assert names <= summary.keys() and summary[f"best_{best}"] == again[f"best_{best}"]
    assert weights(tmp_path / "run")["task"] == task
    values = [float(row[best]) for row in rows(tmp_path / "run/epochs.csv")]
    better = (max if task == "multilabel" else min)(values)
    assert summary[f"best_{best}"] == pytest.approx(better)
    if task == "multilabel":
        assert [row["class"] for row in rows(tmp_path / "run/classes.csv")] == ["a", "b", "c"]

    data, path = table(task), str(tmp_path / "run/last.pt")
    evaluated = run(config(data=data, eval_only=True, checkpoint=path))
    assert evaluated[best] == pytest.approx(again[best])
    with pytest.raises(
        CheckpointError, match=f"of the task {task}, and the labels of these images"
    ):
        training.train(config(eval_only=True, checkpoint=path))


@pytest.mark.slow
def test_the_loss_and_its_weights_are_options(config, run, table, tmp_path):
    balanced = TaskConfig(name="multilabel", loss="bce", pos_weight="balanced")
    run(config(data=table("multilabel"), task=balanced, epochs=1, out=str(tmp_path / "balanced")))
    run(config(data=table("multilabel"), epochs=1))
    first = [rows(tmp_path / name / "steps.csv")[0]["loss"] for name in ("balanced", "run")]
    assert first[0] != first[1]
    with pytest.raises(ConfigError, match=r"task\.name=regression, and .*: its labels are several"):
        training.train(
            config(data=table("multilabel"), task=TaskConfig(name="regression"), out=None)
        )


def test_a_share_of_the_training_images_is_for_validation(config, run, image_folder, tmp_path):
    data = DataConfig(train=str(image_folder))
    summary = run(config(data=data, validation="split:0.3", epochs=1))
    assert summary["val_images"] == 11 and summary["provenance"]["data"]["images"] == 26
    path = str(tmp_path / "run/last.pt")
    evaluated = run(config(data=data, validation="split:0.3", eval_only=True, checkpoint=path))
    assert evaluated["images"] == 11 and evaluated["top1"] == summary["top1"]


def test_the_confusion_of_classes_counts_every_image(config, run, image_folder, tmp_path):
    summary = run(config(epochs=1))
    counts = rows(tmp_path / "run/confusion.csv")
    names = [row.pop("class") for row in counts]
    images = [(image_folder / name).rglob("*.*") for name in names]
    of_classes = [sum(file.is_file() for file in each) for each in images]
    assert [sum(map(int, row.values())) for row in counts] == of_classes and sum(of_classes) == 37
    right = sum(int(row[name]) for name, row in zip(names, counts, strict=True))
    assert right == round(37 * summary["top1"])


@pytest.mark.slow
def test_nothing_is_evaluated(config, run, image_folder, tmp_path):
    data = DataConfig(train=str(image_folder))
    summary = run(config(data=data, validation="none"))
    assert summary["val_images"] == 0 and "top1" not in summary and "best_epoch" not in summary
    assert (tmp_path / "run/last.pt").exists() and not (tmp_path / "run/best.pt").exists()

    run(config(data=data, validation="none", monitor="loss", out=str(tmp_path / "by_loss")))
    losses = [row["loss"] for row in weights(tmp_path / "by_loss")["history"]]
    kept = weights(tmp_path / "by_loss", "best.pt")["history"]
    assert len(kept) - 1 == losses.index(min(losses))


@pytest.mark.slow
def test_every_third_epoch_and_the_last_are_evaluated(config, run, tmp_path):
    run(config(epochs=5, evaluate_every=3))
    evaluated = [row["top1"] != "" for row in rows(tmp_path / "run/epochs.csv")]
    assert evaluated == [False, False, True, False, True]


@pytest.mark.slow
def test_a_run_ends_when_it_is_not_better_any_more(config, run, tmp_path):
    still = OptimizerConfig(lr=0.0, lr_batch_size=None)
    frozen = ModelConfig(name="shufflenet_v2_x0_5", freeze=["conv*", "stage*"])
    summary = run(config(epochs=9, optimizer=still, model=frozen, patience=2, monitor="val_loss"))
    assert summary["epochs"] == 3 and summary["best_epoch"] == 0
    assert (
        "val_loss was not better in the last 2 evaluations"
        in (tmp_path / "run/train.log").read_text()
    )
    # and a resumed run knows it
    again = run(
        config(
            epochs=9,
            optimizer=still,
            model=frozen,
            patience=2,
            monitor="val_loss",
            resume="auto",
        )
    )
    assert again["epochs"] == 3


@pytest.mark.slow
def test_the_rate_falls_when_a_run_is_not_better_any_more(config, run, tmp_path, monkeypatch):
    """And goes on so after a stop."""
    frozen = ModelConfig(name="shufflenet_v2_x0_5", freeze=["conv*", "stage*"])
    still = OptimizerConfig(lr=1e-30, lr_batch_size=None)
    plateau = ScheduleConfig(name="plateau", patience=0, decay_rate=0.5)
    options = {"epochs": 3, "warmup_epochs": 0, "model": frozen, "optimizer": still}
    options |= {"schedule": plateau, "monitor": "val_loss"}
    check_resumes(config, run, tmp_path, monkeypatch, ema_decay=None, **options)
    rates = [float(row["lr"]) for row in rows(tmp_path / "run/steps.csv")]
    assert rates == pytest.approx([1e-30] * 8 + [5e-31] * 4)


OWN = """
import torch
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torchmetrics import MeanMetric


class SimCLR(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torchvision.models.shufflenet_v2_x0_5(num_classes=16)
        self.mean = MeanMetric()

    def loss(self, batch):
        views = batch.views["global"].transpose(0, 1).flatten(0, 1).float()
        each = normalize(self.encoder(views))
        similar = (each @ each.T / 0.2).fill_diagonal_(-torch.inf)
        return cross_entropy(similar, torch.arange(len(each)).roll(len(each) // 2))

    def step(self, batch):
        return self.loss(batch)

    def evaluate(self, batch):
        loss = self.loss(batch)
        self.mean.update(loss)
        return {"loss": loss, "mean": self.mean}


def make(config, manifest):
    assert config.batch_size == 8 and len(manifest) == 37
    return SimCLR()


class Plain:
    '''No module, but it has some.'''

    def __init__(self, classes):
        self.network = torchvision.models.shufflenet_v2_x0_5(num_classes=classes)

    def step(self, batch):
        return cross_entropy(self.network(batch.images), batch.labels)


def make_plain(config, manifest):
    return Plain(len(manifest.classes))


class Broken(Plain):
    def step(self, batch):
        return super().step(batch).item()


def make_broken(config, manifest):
    return Broken(5)


def make_lightning(config, manifest):
    from lightning import LightningModule

    class Module(LightningModule):
        def training_step(self, batch):
            return 0

    return Module()


def make_without_step(config, manifest):
    return nn.Linear(2, 2)


class Empty:
    def step(self, batch):
        return batch.images.mean()


def make_empty(config, manifest):
    return Empty()


def make_hidden(config, manifest):
    plain = Plain(5)
    plain.heads = {"one": [nn.Linear(2, 2)]}
    return plain


def make_parameter(config, manifest):
    plain = Plain(5)
    plain.scale = nn.Parameter(torch.ones(()))
    return plain


def make_items(config, manifest):
    plain = Plain(5)
    plain.items = nn.Linear(2, 2)
    return plain


class Unnamed(SimCLR):
    def evaluate(self, batch):
        return {1: 0.5}


def make_unnamed(config, manifest):
    return Unnamed()


def make_without_arguments():
    return SimCLR()


class Faulty(SimCLR):
    def evaluate(self, batch):
        return {"loss": torch.ones(2) @ torch.ones(3)}


def make_faulty(config, manifest):
    return Faulty()
"""


@pytest.fixture
def own(config, tmp_path, monkeypatch):
    """Options of a run on two views by a function in own_task.py."""
    (tmp_path / "own_task.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "own_task", raising=False)
    views = dp.ViewsTransform(views={"global": {"count": 2, "size": 32, "scale": (0.5, 1)}})

    def make(function="make", **options):
        return config(
            **{
                "function": f"own_task:{function}",
                "transform": views,
                "eval_with": "transform",
                "model": ModelConfig(name=None),
            }
            | options
        )

    return make


@pytest.mark.slow
def test_a_task_of_the_users_trains_on_views(own, config, run, tmp_path, monkeypatch):
    summary, again = check_resumes(own, run, tmp_path, monkeypatch)
    assert summary["val_loss"] == pytest.approx(again["val_loss"]) and summary["best_val_loss"]
    assert np.isfinite(summary["mean"])
    assert "batch.views" not in (tmp_path / "run/train.log").read_text()
    path = str(tmp_path / "run/last.pt")
    assert run(own(eval_only=True, checkpoint=path))["loss"] == pytest.approx(again["val_loss"])
    with pytest.raises(
        CheckpointError, match="of function=own_task:make, and function is not given"
    ):
        training.train(config(eval_only=True, checkpoint=path))


@pytest.mark.slow
def test_a_fault_in_evaluate_is_placed_and_costs_no_epoch(own, run, tmp_path):
    with pytest.raises(RuntimeError, match="size") as raised:
        training.train(own("make_faulty", epochs=1))
    where, kept = raised.value.__notes__[-1].split("; ")
    line = 1 + OWN.splitlines().index('        return {"loss": torch.ones(2) @ torch.ones(3)}')
    assert where == f"{tmp_path / 'own_task.py'}, line {line}, in evaluate"
    out = tmp_path / "run"
    assert kept == f"{out / 'last.pt'} is kept: resume=auto out={out} goes on from it"
    log = (out / "train.log").read_text()
    assert "ERROR the run failed" in log and "in evaluate" in log

    # of another length: Python takes a file of the same second and length for the one it compiled
    (tmp_path / "own_task.py").write_text(OWN.replace("torch.ones(3)", "torch.ones((2,))"))
    __import__("sys").modules.pop("own_task")
    summary = run(own("make_faulty", epochs=1, resume="auto"))
    assert summary["val_loss"] == 2 and summary["images"] == 32
    assert [int(row["step"]) for row in rows(out / "steps.csv")] == [0, 1, 2, 3]


def test_validation_without_views_is_said_at_the_start(own, tmp_path):
    with pytest.raises(KeyError, match="global"):  # a fault of the task's own keeps its traceback
        training.train(own(eval_with="eval_transform"))
    log = (tmp_path / "run/train.log").read_text()
    assert "no batch.views; eval_with=transform evaluates on views" in " ".join(log.split())


def test_a_task_without_evaluation_is_any_object_with_modules(own, run, tmp_path):
    single = {"transform": dp.TrainTransform(size=32), "accumulate": 2}
    summary = run(own("make_plain", **single))
    assert summary["val_images"] == 0 and not (tmp_path / "run/best.pt").exists()
    assert any(name.startswith("network.") for name in weights(tmp_path / "run")["model"])
    with pytest.raises(ConfigError, match=r"makes an object without evaluate\(batch\)"):
        path = str(tmp_path / "run/last.pt")
        training.train(own("make_plain", **single, eval_only=True, checkpoint=path))


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("make_without_step", {}, r"returns Linear, which has no step\(batch\)"),
        ("make_lightning", {}, r"is a LightningModule; .*adapters\.lightning\.DataModule"),
        ("make_empty", {}, "returns Empty, which has nothing to train"),
        ("make_hidden", {}, r"Plain\.heads would be neither trained nor saved"),
        ("make_parameter", {}, r"Plain\.scale would be neither trained nor saved"),
        ("make_items", {}, r"Plain\.items has a name that nn\.ModuleDict has too"),
        ("make_unnamed", {}, r"evaluate\(batch\) returns 1 as a name"),
        ("make_without_arguments", {}, r"is called as make_without_arguments\(config, manifest\)"),
        (
            "make_broken",
            {"transform": dp.TrainTransform(size=32)},
            r"step\(batch\) returns float; it",
        ),
        ("nothing", {}, "has no function nothing"),
        ("make", {"monitor": "iou"}, "iou: whether more or less of it is better is not known"),
    ],
)
def test_a_task_that_cannot_be_trained_is_one_line(own, tmp_path, function, options, message):
    with pytest.raises(ConfigError, match=message):
        training.train(own(function, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": ModelConfig(weights="x.pt")}, r"model\.weights is for the network and the loss"),
        ({"label_smoothing": 0.1}, "label_smoothing is for the network and the loss"),
        ({"task": TaskConfig(loss="bce")}, r"task\.loss is for"),
        ({"task": TaskConfig(focal_gamma=3)}, r"task\.focal_gamma is for"),
        ({"task": TaskConfig(target_threshold=0.0)}, r"task\.target_threshold is for"),
    ],
)
def test_options_of_the_built_in_tasks_are_refused(own, options, message):
    with pytest.raises(ConfigError, match=message):
        own(**options)


@pytest.mark.slow
def test_an_unknown_measurement_ends_the_run_after_it_is_saved(own, run, tmp_path):
    with pytest.raises(
        trainer.TrainingError, match=r"monitor=iou, and evaluate\(\) returns loss, mean; name one"
    ):
        training.train(own(monitor="iou", monitor_mode="max"))
    assert len(weights(tmp_path / "run")["history"]) == 1
    run(own(monitor="mean", monitor_mode="min", resume="auto"))
    assert torch.isfinite(torch.tensor(weights(tmp_path / "run")["history"][-1]["mean"]))
