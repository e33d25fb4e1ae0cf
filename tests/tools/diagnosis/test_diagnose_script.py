"""The job `diagnose` as it is run."""

import json

import pytest
from torch import nn

from dali_pipes.tools.diagnosis.verdict.rules import VERDICTS

SMALL = ["model.name=squeezenet1_1", "transform.size=32", "batch_size=8", "rounds=1", "seconds=0.2"]


@pytest.fixture
def diagnose(command, image_folder, tmp_path):
    def run(*options, status=0):
        data = [
            f"data.train={image_folder}",
            f"data.cache_dir={tmp_path / 'cache'}",
            f"out={tmp_path / 'out'}",
        ]
        ended = command("diagnose", *data, *SMALL, *options)
        assert ended.returncode == status, ended.stderr[-3000:]
        assert "Traceback" not in ended.stderr
        return ended

    return run


@pytest.mark.slow
def test_a_verdict_with_its_evidence_and_fixes(diagnose, tmp_path, monkeypatch):
    monkeypatch.setattr("dali_pipes.training.tasks.start.build_network", small_network)
    ended = diagnose(
        "loader=torch", "loader.num_workers=1", "batch_size=4", "verify=true", "verify_pairs=1"
    )
    result = json.loads(ended.stdout)
    (folder,) = (tmp_path / "out").iterdir()
    assert json.loads((folder / "result.json").read_text()) == result
    assert (
        result["verdict"] in VERDICTS
        and result["confidence"] in ("medium", "low")
        and result["corun"] == 1
    )
    figures = result["figures"]
    assert all(
        figures[part] > 0 for part in ("model", "loader", "together", "cold_rate", "larger_gain")
    )
    assert (
        result["verdict"] in ended.stderr
        and "loader alone" in ended.stderr
        and "training, cold files" in ended.stderr
    )
    tried = [fix for fix in result["fixes"] if fix["measured"]]
    assert (
        all(
            fix["predicted"] is None or fix["predicted"]["estimate"] >= 1.03
            for fix in result["fixes"]
        )
        and len(tried) <= 1
    )
    assert result["provenance"]["data"]["images"] == 37


def small_network(config, classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, 4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, classes),
    )


@pytest.mark.slow
def test_beside_another_program(diagnose):
    result = json.loads(diagnose("loader=dali_cpu", "corun=2", "cold=false").stdout)
    assert result["corun"] == 2 and result["alone"] > 0 and result["figures"]["cold_rate"] is None


@pytest.mark.few
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("loader=synthetic", "loader=synthetic is for benchmarks only, in the group arm"),
        ("rounds=0", "rounds is 0"),
        ("model.name=resnet", "model.name is 'resnet'"),
        ("data.train=/no/such", "/no/such: no such folder"),
        ("transform.size=20000", "GiB of memory"),
    ],
)
def test_mistakes_are_reported_in_one_line(diagnose, tmp_path, option, message):
    ended = diagnose(option, status=2)
    assert (
        message in ended.stderr
        and ended.stderr.count("error:") == 1
        and not (tmp_path / "out").exists()
    )
