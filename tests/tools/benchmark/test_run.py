"""The benchmark as a whole, on trials that are made up; tests/cli/test_command.py runs a real
one.
"""

import json
from types import SimpleNamespace

import pytest
import torch
from later import later
from made_up import trial

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.measure import agreement
from dali_pipes.measure.arms import DaliNativeConfig, SyntheticConfig
from dali_pipes.measure.worker_process import ArmError
from dali_pipes.tools.benchmark.config import BenchmarkConfig

tool = later("dali_pipes.tools.benchmark.run")

AGREES = {"max": 9.0, "mean": 0.1, "p99": 1.0, "same_ids": True}
RATES = {"torch": 500.0, "dali_cpu": 1000.0, "dali_native": 1010.0, "synthetic": 9000.0}
LOADERS = {
    "torch": dp.TorchConfig(num_workers=2),
    "dali_cpu": dp.DaliConfig(device="cpu", resize="dali", num_threads=2),
    "dali_native": DaliNativeConfig(device="cpu", num_threads=2),
    "synthetic": SyntheticConfig(),
    "dali": dp.DaliConfig(device="gpu"),
}


class MadeUp:
    """In place of real processes: trials with these rates, a little apart, and gates that pass."""

    def __init__(self, monkeypatch):
        self.ran, self.failing, self.rate = [], {}, lambda arm, loader: RATES[arm]
        self.agreement = AGREES
        monkeypatch.setattr(tool.Trials, "run", lambda _, *arguments: self.run(*arguments))
        monkeypatch.setattr(agreement, "_compare_in_process", lambda job, _: self.compare(job))
        monkeypatch.setattr(
            "dali_pipes.tools.benchmark.run.write_page",
            lambda folder: (folder / "report.html").write_text("page"),
        )

    def run(self, turn, loader):
        phase, number, arm = turn
        self.ran.append(turn)
        if self.failing.get(arm) == (phase, number):
            raise ArmError(f"arm {arm}: the file is broken")
        return trial(arm, number, phase, self.rate(arm, loader) * (1 + 0.001 * (len(self.ran) % 3)))

    def compare(self, job):
        reference, *others = job["loaders"]
        arms = dict.fromkeys(others, self.agreement)
        return {**self.agreement, "images": job["images"], "reference": reference, "arms": arms}


@pytest.fixture
def made_up(monkeypatch):
    return MadeUp(monkeypatch)


@pytest.fixture
def run(image_folder, tmp_path, capsys):
    def benchmark_of(arms, loaders=LOADERS, **options):
        data = DataConfig(train=str(image_folder))
        config = BenchmarkConfig(
            data=data,
            transform=dp.TrainTransform(),
            loaders=dict(loaders),
            arms=arms,
            out=str(tmp_path / "runs"),
            **options,
        )
        error = None
        try:
            tool.benchmark(config)
        except ArmError as failure:
            error = str(failure)
        out = capsys.readouterr()
        return (json.loads(out.out) if out.out else None), out.err, error

    return benchmark_of


def test_rounds_with_a_control_then_ratios(made_up, run, tmp_path):
    result, message, error = run(["synthetic", "torch", "dali_cpu", "dali_native"])
    assert error is None
    orders = [
        [(phase, arm) for phase, each, arm in made_up.ran if each == number]
        for number in range(1, 7)
    ]
    arms = [("round", arm) for arm in ("dali_cpu", "dali_native", "synthetic", "torch")]
    assert all(sorted(order) == [("control", "torch"), *arms] for order in orders)
    assert all(orders[number + 1] == orders[number][::-1] for number in (0, 2, 4))
    assert result["baseline"] == "torch" and result["control"]["holds"]
    ratio = result["arms"]["dali_cpu"]["ratio"]["images_per_s"]
    assert (
        ratio["claim"] == "more"
        and ratio["low"] < 2 < ratio["high"]
        and ratio["high"] - ratio["low"] < 0.02
    )
    assert result["planning"][0]["images_per_s"]["estimate"] == pytest.approx(1 / 1.01, abs=0.01)
    assert result["arms"]["torch"]["share_of_ceiling"] == pytest.approx(500 / 9000, rel=0.01)
    assert "dali_cpu is faster than torch: 2.00" in message
    (folder,) = (tmp_path / "runs").iterdir()
    repeated = dp.Manifest.load(folder / "manifest.parquet")
    assert (
        len(repeated) == result["work"]["epoch"] == 5000
        and result["provenance"]["data"]["images"] == 37
    )
    assert repeated.path(37) == repeated.path(0)
    assert json.loads((folder / "result.json").read_text()) == result
    assert {"manifest.parquet", "report.html", "trials"} <= {file.name for file in folder.iterdir()}


def test_without_enough_pairs_nothing_is_claimed(made_up, run):
    result, message, _ = run(["torch", "dali_cpu"], pairs=2)
    assert result["control"] is None and len(made_up.ran) == 4
    assert result["arms"]["dali_cpu"]["ratio"]["images_per_s"]["claim"] == "no interval"
    assert "Quick look, 2 rounds: dali_cpu made about" in message and "pairs=6" in message


@pytest.mark.parametrize(("minutes", "rounds"), [(0, 1), (3.5, 3), (5, 5), (60, 6)])
def test_no_round_is_begun_that_would_end_too_late(made_up, run, monkeypatch, minutes, rounds):
    """Each round takes a minute by a made-up clock, that is three trials of 20 seconds."""
    monkeypatch.setattr(
        "dali_pipes.tools.benchmark.run.time",
        SimpleNamespace(monotonic=lambda: 20.0 * len(made_up.ran)),
    )
    result, message, _ = run(["torch", "dali_cpu"], minutes=minutes)
    assert (
        result["protocol"]["pairs"] == made_up.ran[-1][1] == rounds
        and len(made_up.ran) == 3 * rounds
    )
    assert (result["control"] is None) == (rounds < 5)
    assert ("do not fit into minutes" in message) == (rounds < 6)


@pytest.mark.parametrize("when", [("round", 1), ("round", 4)])
def test_an_arm_that_raises_is_a_failure_and_never_a_rate(made_up, run, when):
    made_up.failing["dali_cpu"] = when
    result, message, error = run(["torch", "dali_cpu", "dali_native"])
    assert error == "dali_cpu failed and has no figures; the reason is above"
    assert result["arms"]["dali_cpu"] == {
        "failed": "arm dali_cpu: the file is broken",
        "skipped": None,
    }
    assert (
        message.count("dali_cpu FAILED and has no figures: arm dali_cpu: the file is broken") == 1
    )
    assert made_up.ran[-1][1] == 6 and ("round", 6, "dali_cpu") not in made_up.ran
    assert result["arms"]["dali_native"]["ratio"]["images_per_s"]["claim"] == "more"
    assert result["planning"] == []


def test_a_failing_baseline_leaves_no_ratio(made_up, run):
    made_up.failing["torch"] = ("control", 2)
    result, message, error = run(["torch", "dali_cpu"])
    assert "torch" in error and result["arms"]["dali_cpu"]["ratio"] is None
    assert result["arms"]["dali_cpu"]["images_per_s"] > 900
    assert "torch, the baseline, failed: no comparison" in message


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"same_ids": False}, "deliver different samples"),
        ({"other_targets": ["boxes", "mask"]}, "deliver other boxes and mask; nothing was timed"),
        ({"mean": 0.3}, "differ by 0.30 of 255"),
        ({"mean": float("nan")}, "differ by nan"),
        ({"p99": 3.0}, "more than max_mean_difference=0.25 and max_p99_difference=2"),
    ],
)
def test_a_failing_gate_fails_the_run_before_anything_is_timed(made_up, run, found, message):
    made_up.agreement = AGREES | found
    result, _, error = run(["torch", "dali_cpu"])
    assert message in error and result is None and made_up.ran == []


@pytest.mark.parametrize(
    ("arm", "loader", "option", "what"),
    [
        ("torch", dp.TorchConfig(), "num_workers", "workers"),
        ("dali_cpu", dp.DaliConfig(device="cpu"), "num_threads", "threads"),
        ("dali_native", DaliNativeConfig(device="cpu"), "num_threads", "threads"),
    ],
)
def test_workers_and_threads_are_swept_and_the_fastest_number_is_kept(
    made_up, run, monkeypatch, arm, loader, option, what
):
    monkeypatch.setattr("dali_pipes.measure.protocol.os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    rates = {2: 400.0, 4: 500.0, 6: 700.0, 8: 600.0}
    made_up.rate = lambda arm, loader: rates[getattr(loader, option, 4)]
    result, message, _ = run(["synthetic", arm], LOADERS | {arm: loader}, pairs=1)
    tried = [number for phase, number, _ in made_up.ran if phase == "workers"]
    assert sorted(tried[:4]) == [2, 4, 6, 8] and tried[4:] == tried[3::-1]
    assert result["workers"][arm]["kept"] == result["work"]["loaders"][arm][option] == 6
    assert f"{arm} with 6 {what}, the fastest of those tried (images/s by {what}: 2: " in message


def test_a_list_of_cpus_says_how_many_threads(made_up, run):
    listed = dp.DaliConfig(device="cpu", cpus="0")
    result, _, _ = run(["torch", "dali_cpu"], LOADERS | {"dali_cpu": listed}, pairs=1)
    assert result["workers"] == {} and {phase for phase, *_ in made_up.ran} == {"round"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_arms_that_need_a_gpu_say_so(made_up, run):
    result, message, error = run(["torch", "dali_cpu", "dali"], pairs=1)
    assert (
        error is None
        and result["arms"]["dali"]["skipped"] == "needs a GPU, and PyTorch sees none here"
    )
    assert "dali is left out: it needs a GPU" in message
    _, _, error = run(["torch", "dali"], pairs=1)
    assert "arm dali: no GPU here" in error


def test_the_baseline_can_be_chosen(made_up, run):
    assert run(["torch", "dali_cpu"], baseline="dali_cpu", pairs=1)[0]["baseline"] == "dali_cpu"


def test_the_result_names_the_decoder_that_auto_took(made_up, run, monkeypatch):
    monkeypatch.setitem(LOADERS, "torch", dp.TorchConfig(num_workers=2, decoder="auto"))
    result, _, _ = run(["torch", "dali_cpu"], pairs=2)
    assert result["work"]["loaders"]["torch"]["decoder"] == "torchvision"
