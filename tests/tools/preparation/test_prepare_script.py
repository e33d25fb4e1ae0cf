"""The job prepare as a user runs it, its options, and its measurement."""

import json

import pytest
from made_up import trial
from prepared import config

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.measure.protocol import Trials
from dali_pipes.tools.preparation.config import PrepareConfig


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out": None}, "set out=DIR"),
        ({}, "nothing to do: resize=N makes the images smaller"),
        ({"resize": 0}, "resize is 0; it must be at least 1"),
        ({"quality": 101}, "quality is 101; it must lie between 1 and 100"),
        ({"to": "lmdb"}, "to is 'lmdb'; choose one of folder, shards"),
        ({"to": "shards", "shard_mib": 0}, "shard_mib is 0"),
        ({"to": "shards", "exif": "apply"}, "exif=apply turns pixels"),
        ({"to": "shards", "measure": True}, "measure=true compares two folders"),
        ({"exif": "strip"}, "exif is 'strip'"),
        ({"archive": "x.tar.gz"}, "belong to source=cifar10"),
        ({"source": "mnist"}, "source is 'mnist'"),
        ({"source": "cifar10", "data": DataConfig()}, "archive=cifar-10-binary.tar.gz"),
        ({"source": "cifar100", "data": DataConfig()}, "archive=cifar-100-binary.tar.gz"),
        ({"source": "cifar10", "archive": "x", "sha256": "12"}, "takes 64 hexadecimal digits"),
        ({"source": "cifar10", "archive": "x", "resize": 16}, "run dali-pipes prepare once more"),
        (
            {"source": "cifar10", "archive": "x"},
            "takes its images from the archive; leave data.root",
        ),
    ],
)
def test_options_that_cannot_work_are_reported(options, message):
    with pytest.raises(dp.ConfigError, match=message):
        PrepareConfig(**{"data": DataConfig(train="/images"), "out": "/out"} | options)


def test_a_mistake_ends_in_one_clear_line(command, tmp_path):
    done = command("prepare", "source=cifar10", "archive=none.tar.gz", f"out={tmp_path / 'out'}")
    assert done.returncode == 2 and done.stdout == ""
    assert (
        done.stderr == "error: none.tar.gz: no such file; give the archive as it was downloaded\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_from_the_command_line_with_a_measurement(command, image_folder, tmp_path):
    timing = [
        "pairs=1",
        "min_seconds=0.3",
        "min_batches=2",
        "max_warmup_seconds=1",
        "batch_size=16",
    ]
    sizes = [
        "transform.size=64",
        "eval_transform.size=64",
        "eval_transform.resize=64",
        "agreement_images=10",
    ]
    folders = [
        f"data.train={image_folder}",
        f"out={tmp_path / 'out'}",
        f"data.cache_dir={tmp_path / 'cache'}",
    ]
    asked = [
        "resize=64",
        "quality=80",
        "measure=true",
        "loader=dali_cpu",
        "loader.num_threads=1",
        f"report={tmp_path / 'runs'}",
    ]
    done = command("prepare", *folders, *asked, *timing, *sizes)
    assert done.returncode == 0, done.stderr
    assert "pixels, evaluation" in done.stdout and "over 10 images" in done.stdout
    assert "Quick look, one round: after made about" in done.stdout
    assert "No interval and no control yet" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    measured = json.loads((folder / "result.json").read_text())
    assert set(measured["arms"]) == {"before", "after"} and measured["control"] is None
    assert all(arm["images_per_s"] > 0 for arm in measured["arms"].values())
    assert measured["arms"]["after"]["ratio"]["images_per_s"]["claim"] == "no interval"
    sizes = {name: each["data"]["mean_kib"] for name, each in measured["provenance"].items()}
    assert sizes["after"] < sizes["before"]
    assert {file.parent.parent.name for file in folder.rglob("*_round_*.json")} == {
        "before",
        "after",
    }
    assert f"Figures: {folder / 'result.json'}" in done.stdout


def test_the_measured_sets_are_the_same_samples(image_folder, tmp_path, monkeypatch, capsys):
    """Made-up trials, after being twice as fast as before."""
    from dali_pipes.tools.preparation import measure as module
    from dali_pipes.tools.preparation.run import prepare

    asked = []

    class Asked(Trials):
        def run(self, turn, loader):
            manifest = dp.Manifest.load(self.work.manifest)
            asked.append(
                (turn.number, turn.phase, turn.arm, type(loader).__name__, manifest, self.work)
            )
            return trial(
                turn.arm,
                turn.number,
                turn.phase,
                2000.0 if turn.arm == "after" else 1000.0 + turn.number,
            )

    monkeypatch.setattr(module, "Trials", Asked)
    prepare(
        config(
            image_folder,
            tmp_path / "out",
            resize=64,
            measure=True,
            pairs=5,
            images=20,
            report=str(tmp_path / "runs"),
        )
    )
    out = capsys.readouterr().out
    assert (
        "after is faster than before: 1.99 [" in out
        and "Control, before against itself: images/s 1.00" in out
    )
    (folder,) = (tmp_path / "runs").iterdir()
    result = json.loads((folder / "result.json").read_text())
    assert (
        set(result["arms"]) == set(result["provenance"]) == {"before", "after"}
        and result["protocol"]["pairs"] == 5
    )
    assert (
        result["work"]["loader"]["kind"] == "DaliConfig"
        and f"Figures: {folder / 'result.json'}" in out
    )
    assert [number for number, *_ in asked] == [number for number in range(1, 6) for _ in range(3)]
    for number in range(1, 6):
        turns = sorted((phase, arm) for each, phase, arm, *_ in asked if each == number)
        assert turns == [("control", "before"), ("round", "after"), ("round", "before")]
    before, after = (
        next(manifest for *_, arm, _, manifest, _ in asked if arm == name)
        for name in ("before", "after")
    )
    assert len(before) == len(after) == 5000 and (before.labels == after.labels).all()
    assert [before.path(number).name for number in range(20)] == [
        after.path(number).name for number in range(20)
    ]
    assert {work.seed for *_, work in asked} == {0} and {kind for _, _, _, kind, *_ in asked} == {
        "DaliConfig"
    }
