"""A sweeper that searches, such as Optuna's, gets from a run of training the value of `monitor`."""

import importlib.util
import json
import math
import subprocess
import sys

import pytest
from omegaconf import OmegaConf
from training.conftest import config, run  # noqa: F401

from dali_pipes.cli import jobs, sweep
from dali_pipes.errors import ConfigError
from dali_pipes.training.trainer import TrainingError


@pytest.fixture
def search(monkeypatch):
    def go(mode):
        monkeypatch.setattr(jobs, "search_mode", lambda: mode)
        for name in ("job_folder", "sweep_folder"):
            monkeypatch.setattr(jobs, name, lambda: None)

    return go


@pytest.mark.slow
def test_a_run_returns_the_best_value_of_monitor(config, search, tmp_path):  # noqa: F811
    search("min")
    value = jobs.train(config(monitor="val_loss"))
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert value == summary["best_val_loss"] > 0


@pytest.mark.parametrize(
    ("options", "mode", "text"),
    [
        ({}, "min", "more of top1 is better: set hydra.sweeper.direction=maximize"),
        ({"monitor": "val_loss"}, "max", "less of val_loss .* hydra.sweeper.direction=minimize"),
        ({"validation": "none"}, "max", "a search needs a value to search by"),
    ],
)
def test_the_wrong_direction_is_refused_before_training(
    config,  # noqa: F811
    search,
    tmp_path,
    options,
    mode,
    text,
):
    search(mode)
    with pytest.raises(ConfigError, match=text):
        jobs.train(config(**options))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("mode", "worst"), [("max", -math.inf), ("min", math.inf)])
def test_a_run_that_diverges_is_the_worst_of_a_search(monkeypatch, search, capsys, mode, worst):
    def diverge(*_):
        raise TrainingError("the loss is nan")

    monkeypatch.setattr("dali_pipes.training.run.train", diverge)
    search(mode)
    assert jobs.train(None) == worst
    assert "error: the loss is nan" in capsys.readouterr().err
    search(None)
    with pytest.raises(TrainingError):
        jobs.train(None)


@pytest.mark.parametrize(("mode", "worst"), [("max", -math.inf), ("min", math.inf)])
def test_a_run_that_measured_only_nan_is_the_worst_of_a_search(
    monkeypatch, search, tmp_path, mode, worst
):
    (tmp_path / "summary.json").write_text(json.dumps({"loss": 1.0}))
    monkeypatch.setattr("dali_pipes.training.run.train", lambda *_: tmp_path)
    search(mode)
    assert jobs.train(None) == worst


@pytest.mark.parametrize(
    ("sweeper", "mode"),
    [({"direction": "maximize"}, "max"), ({"direction": "minimize"}, "min"), ({}, None)],
)
def test_the_direction_is_that_of_the_sweeper(monkeypatch, sweeper, mode):
    class Hydra:
        get = staticmethod(lambda: OmegaConf.create({"sweeper": sweeper}))

    monkeypatch.setattr(sweep, "HydraConfig", Hydra)
    monkeypatch.setattr(sweep, "is_sweep", lambda: True)
    assert sweep.search_mode() == mode
    monkeypatch.setattr(sweep, "is_sweep", lambda: False)
    assert sweep.search_mode() is None


def test_several_directions_are_refused(monkeypatch):
    class Hydra:
        get = staticmethod(lambda: OmegaConf.create({"sweeper": {"direction": ["minimize"] * 2}}))

    monkeypatch.setattr(sweep, "HydraConfig", Hydra)
    monkeypatch.setattr(sweep, "is_sweep", lambda: True)
    with pytest.raises(ConfigError, match="a run has one value"):
        sweep.search_mode()


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("optuna"), reason="hydra-optuna-sweeper is not installed"
)
def test_optuna_names_the_best_of_four_runs(image_folder, tmp_path):
    words = ["model.name=squeezenet1_1", "loader=dali_cpu", "transform.size=32", "batch_size=8"]
    words += ["eval_transform.resize=36", "epochs=1", "warmup_epochs=0"]
    words += [f"data.train={image_folder}", f"data.val={image_folder}"]
    words += ["hydra/sweeper=optuna", "hydra.sweeper.direction=maximize"]
    words += ["hydra.sweeper.n_trials=4", f"hydra.sweep.dir={tmp_path}"]
    words += ["optimizer.lr=tag(log,interval(0.001,0.3))"]
    command = [sys.executable, "-m", "dali_pipes.cli", "train", "-m", *words]
    subprocess.run(command, check=True, timeout=280)

    found = OmegaConf.load(tmp_path / "optimization_results.yaml")
    summaries = [json.loads(file.read_text()) for file in tmp_path.glob("*/summary.json")]
    assert len(summaries) == 4
    best = [each for each in summaries if each["best_top1"] == found.best_value]
    assert found.best_value == max(each["best_top1"] for each in summaries)
    lr = f"optimizer.lr={found.best_params['optimizer.lr']}"
    assert any(lr in each["provenance"]["overrides"] for each in best)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("optuna") is not None, reason="it is installed")
def test_a_sweeper_that_is_not_installed_is_named():
    command = [sys.executable, "-m", "dali_pipes.cli", "train", "-m", "hydra/sweeper=optuna"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no hydra/sweeper=optuna here; pip install hydra-optuna-sweeper" in done.stderr
