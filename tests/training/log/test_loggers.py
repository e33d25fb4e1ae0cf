"""The programs that collect the figures of runs. W&B and MLflow are tested where they are
installed; what belongs to us alone is tested by a logger that keeps what it gets.
"""

import csv
import json
import struct

import pytest
from later import later
from lightning.fabric.loggers.logger import Logger

from dali_pipes.errors import ConfigError, DaliPipesError
from dali_pipes.training.config import OptimizerConfig

loggers, log = later("dali_pipes.training.log.loggers"), later("dali_pipes.training.log.log")
training = later("dali_pipes.training.run")


class Kept(Logger):
    """Keeps what it is called with."""

    def __init__(self):
        self.calls = []

    name, version = "kept", 0

    def log_metrics(self, metrics, step=None):
        self.calls.append((step, metrics))

    def log_hyperparams(self, *_):
        raise AssertionError("the options are given before the run begins")

    def finalize(self, status):
        self.calls.append(status)


def rows(file):
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def board(folder):
    """Every value in TensorBoard's files: {name: {step: value}}, and the texts."""
    from tensorboardX.proto.event_pb2 import Event

    values, texts = {}, []
    for file in sorted(folder.glob("events.out.tfevents*")):
        data, place = file.read_bytes(), 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            # a length with its checksum, the event, its checksum
            event = Event.FromString(data[place + 12 : place + 12 + length])
            place += 16 + length
            for value in event.summary.value:
                if value.HasField("tensor"):
                    texts.append(value.tensor.string_val[0].decode())
                else:
                    values.setdefault(value.tag, {})[event.step] = value.simple_value
    return values, texts


def records(data):
    """Every record in a file of W&B's, a log of LevelDB with a header of 7 bytes."""
    place, record = 7, b""
    while place + 7 <= len(data):
        # a header does not cross the border of a block
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def saved(folder):
    """What the CSV files have, under the names that loggers get."""
    values = {}
    for row in rows(folder / "steps.csv"):
        for name in ("loss", "lr"):
            values.setdefault(f"train/{name}", {})[int(row["step"])] = float(row[name])
    epochs = rows(folder / "epochs.csv")
    for row in epochs:
        for name, value in row.items():
            step = (int(row["epoch"]) + 1) * 4
            values.setdefault(f"epoch/{name}", {})[step] = float(value)
    return values


def close(values):
    return {
        name: {step: pytest.approx(value, rel=1e-5) for step, value in steps.items()}
        for name, steps in values.items()
    }


def stop_after_one_epoch(monkeypatch):
    """The process ends after the first epoch has been saved, as by SIGTERM."""
    trainer = later("dali_pipes.training.trainer").Trainer
    evaluate = trainer._evaluate

    def end(self, epoch, heartbeat):
        if epoch == 1:
            raise SystemExit(143)
        return evaluate(self, epoch, heartbeat)

    monkeypatch.setattr(trainer, "_evaluate", end)


def run_in_two_parts(config, options, tmp_path, monkeypatch):
    """Trains two epochs, the second in another part; returns the folder."""
    options = options | {"resume": "auto", "seed": 5}
    with monkeypatch.context() as patch:
        stop_after_one_epoch(patch)
        with pytest.raises(SystemExit):
            training.train(config(**options))
    training.train(config(**options))
    return tmp_path / "run"


@pytest.mark.slow
def test_tensorboard_has_what_the_csv_files_have(config, run, tmp_path):
    run(config())
    values, texts = board(tmp_path / "run")
    assert values == close(saved(tmp_path / "run"))
    assert {"epoch/wait_share", "epoch/images_per_s", "epoch/top1"} <= values.keys()
    assert len(texts) == 1 and "name: mobilenet_v3_small" in texts[0]


@pytest.mark.slow
def test_tensorboard_takes_options(config, run, tmp_path):
    run(config(logger=["tensorboard"], logger_options={"tensorboard": {"filename_suffix": ".x"}}))
    assert list((tmp_path / "run").glob("events.out.tfevents*.x"))


@pytest.mark.slow
@pytest.mark.parametrize("names", ["csv", None, []])
def test_nothing_but_csv_files(config, run, tmp_path, names):
    run(config(logger=names, epochs=1, warmup_epochs=0))
    assert not list((tmp_path / "run").glob("events*"))
    assert rows(tmp_path / "run/steps.csv") and rows(tmp_path / "run/epochs.csv")


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "success"), (SystemExit(143), "KILLED"), (RuntimeError("full"), "failed")],
)
def test_a_logger_is_closed_with_how_the_run_ended(tmp_path, error, status):
    kept = Kept()

    def go():
        with log.Log(tmp_path, 0, [kept]) as written:
            written.step({"epoch": 0, "step": 0, "loss": 2.5, "lr": 0.1})
            if error:
                raise error

    if error:
        with pytest.raises(type(error)):
            go()
    else:
        go()
    assert kept.calls == [(0, {"train/loss": 2.5, "train/lr": 0.1}), status]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"logger": "comet"}, "choose one of tensorboard, wandb, mlflow, csv"),
        ({"logger": ["csv", 3]}, "choose one of tensorboard, wandb, mlflow, csv"),
        (
            {"logger_options": {"tensorboard": {"project": "birds"}}},
            r"logger_options\.tensorboard\.project: .* it takes .*flush_secs",
        ),
        ({"logger_options": {"wandb": {"project": "birds"}}}, r"logger= does not name"),
        ({"logger": "csv", "logger_options": {"csv": {}}}, r"logger= does not name"),
    ],
)
def test_mistakes_are_refused_before_a_folder_is_made(config, tmp_path, options, text):
    with pytest.raises(ConfigError, match=text):
        training.train(config(**options))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_named(config, tmp_path, monkeypatch, name):
    monkeypatch.setattr("dali_pipes.training.log.loggers.find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=f"logger={name} needs .*; pip install {name}"):
        training.train(config(logger=["tensorboard", name]))
    assert not (tmp_path / "run").exists()


def test_what_a_logger_says_when_it_opens_is_one_line(config, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no account:\n  log in")

    monkeypatch.setitem(loggers.OPEN, "tensorboard", fail)
    with pytest.raises(DaliPipesError, match=r"^logger=tensorboard: no account: log in$"):
        training.train(config())


@pytest.mark.filterwarnings("default")
def test_wandb_writes_offline_and_goes_on_in_one_run(config, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    options = {"logger": "wandb", "logger_options": {"wandb": {"project": "birds"}}}
    folder = run_in_two_parts(config, options, tmp_path, monkeypatch)
    assert wandb.run is None

    values, runs = {}, []
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for record in map(Record.FromString, records(file.read_bytes())):
            if record.HasField("run"):
                runs.append((record.run.run_id, record.run.project))
            if not record.HasField("history"):
                continue
            row = {
                each.key or "/".join(each.nested_key): json.loads(each.value_json)
                for each in record.history.item
            }
            for name, value in row.items():
                if name.startswith(("train/", "epoch/")):
                    values.setdefault(name, {})[row["trainer/global_step"]] = value

    number = json.loads((folder / "loggers.json").read_text())["wandb"]
    assert set(runs) == {(number, "birds")}
    assert values == close(saved(folder))


@pytest.mark.filterwarnings("default")
def test_mlflow_writes_into_the_folder_and_goes_on_in_one_run(config, tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow.tracking import MlflowClient

    options = {"logger": "mlflow", "optimizer": OptimizerConfig(lr=0.02, lr_batch_size=None)}
    folder = run_in_two_parts(config, options, tmp_path, monkeypatch)

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (experiment,) = [each for each in client.search_experiments() if each.name == "dali_pipes"]
    (only,) = client.search_runs([experiment.experiment_id])
    assert only.info.status == "FINISHED" and only.info.run_name == "run"
    assert only.data.params["optimizer/lr"] == "0.02"
    values = {
        name: {each.step: each.value for each in client.get_metric_history(only.info.run_id, name)}
        for name in only.data.metrics
    }
    assert values == close(saved(folder))
