"""Tuning from start to end on made-up trials: what is written, and what is left alone."""

import json
from pathlib import Path

import pytest
from tools.tuning.conftest import MadeUp, config

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ConfigError, DaliPipesError
from dali_pipes.measure import agreement
from dali_pipes.measure.protocol import Trials
from dali_pipes.tools.tuning import search as search_module
from dali_pipes.tools.tuning.run import tune
from dali_pipes.tools.tuning.settings import Setting

AGREES = {"max": 0.0, "mean": 0.0, "p99": 0.0, "same_ids": True}


@pytest.fixture
def bench(monkeypatch):
    """In place of real processes and of the clock."""
    bench = MadeUp()

    def run(_, turn, loader, batch_size):
        setting = Setting(
            (("num_workers", loader.num_workers), ("prefetch_factor", loader.prefetch_factor)),
            batch_size,
        )
        return bench(turn, setting)

    monkeypatch.setattr(Trials, "run", run)
    monkeypatch.setattr(search_module.time, "monotonic", lambda: bench.now)
    bench.agreement = dict(AGREES)
    monkeypatch.setattr(
        agreement,
        "_compare_in_process",
        lambda *_: {
            **bench.agreement,
            "images": 9,
            "reference": "default",
            "arms": {"tuned": bench.agreement},
        },
    )
    bench.rate = lambda setting: 500.0 * dict(setting.options)["num_workers"]
    return bench


@pytest.fixture
def run(image_folder, tmp_path, capsys):
    """Runs `tune`; returns the result, what was given, and the file, None if there is none."""

    def tuned(**options):
        into = tmp_path / "loader"
        into.mkdir(exist_ok=True)
        (into / "tuned_x.yaml").write_text("what was there before\n")
        data = DataConfig(train=str(image_folder))
        folders = {"into": str(into), "out": str(tmp_path / "runs"), "host": "x"}
        error = None
        try:
            tune(
                config(
                    data=data, loader_name="torch", **{"cpus": 1, "minutes": 60} | folders | options
                )
            )
        except (DaliPipesError, KeyboardInterrupt) as failure:
            error = failure
        out = capsys.readouterr()
        return (
            (json.loads(out.out) if out.out else None),
            out.err,
            (into / "tuned_x.yaml").read_text(),
            error,
        )

    return tuned


def test_the_winner_is_written_with_where_it_comes_from(bench, run, tmp_path):
    result, message, written, error = run(overrides=["loader=torch", "minutes=60"])
    assert error is None and result["kept"] == "tuned" and result["setting"]["num_workers"] == 2
    assert "num_workers: 2\n" in written and "- torch_schema" in written
    head = " ".join(line.removeprefix("# ") for line in written.split("defaults:")[0].splitlines())
    assert "dali-pipes tune loader=torch minutes=60" in head and result["conclusion"] in head
    assert result["provenance"]["date"] in head and "for batches of 64" in head
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "result.json").read_text()) == result
    assert (
        result["conclusion"] in message
        and "Control, the default against itself" in message
        and "Settings that were tried" in message
    )
    ratio = result["comparison"]["arms"]["tuned"]["ratio"]["images_per_s"]
    assert ratio["claim"] == "more" and ratio["low"] < 2 < ratio["high"]
    assert {one["out"] for one in result["tries"]} >= {None, "slower"}


def test_where_nothing_is_faster_the_default_is_written_as_it_was_given(bench, run):
    bench.rate = lambda _: 1000.0
    result, message, written, _ = run(loader=dp.TorchConfig(), cpus=1)
    assert result["kept"] == "default" and "num_workers: null\n" in written
    assert "The default stays" in message and "The default stays" in written


def test_the_batch_size_that_was_found_is_reported(bench, run):
    bench.rate = lambda setting: 10.0 * setting.batch_size
    result, message, written, _ = run(batch_sizes=[32, 128])
    assert result["setting"]["batch_size"] == 128 and "for batches of 128" in written
    assert "batch_size=128" in message and "batch_size: " not in written


@pytest.mark.parametrize("after", [1, 5, 60])
def test_an_interrupted_run_leaves_the_file_as_it_was(bench, run, after):
    rate = bench.rate

    def interrupted(setting):
        if len(bench.ran) == after:
            raise KeyboardInterrupt
        return rate(setting)

    bench.rate = interrupted
    bench.drift = 0.0
    result, _, written, error = run(batch_sizes=[32, 128])
    assert (
        isinstance(error, KeyboardInterrupt)
        and result is None
        and written == "what was there before\n"
    )


def test_other_pixels_end_the_run_and_nothing_is_written(bench, run):
    bench.agreement |= {"mean": 3.0}
    result, _, written, error = run()
    assert (
        "tuned and default differ by 3.00 of 255" in str(error)
        and result is None
        and written == "what was there before\n"
    )


def test_a_limit_that_nothing_keeps_is_reported_with_the_tries(bench, run):
    result, message, written, error = run(max_memory_mib=100)
    assert (
        isinstance(error, ConfigError) and "not even the smallest" in str(error) and result is None
    )
    assert "500 MiB of host memory" in message and written == "what was there before\n"


def test_every_key_is_documented(bench, run):
    message = (Path(__file__).parents[3] / "docs/tune.md").read_text()
    result, *_ = run()
    keys = {*result, *result["tries"][0], *result["comparison"], *result["limits"]} - {
        "num_workers",
        "prefetch_factor",
    }
    assert sorted(key for key in keys if f"`{key}`" not in message) == []
