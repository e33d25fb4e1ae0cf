"""A run in this process: what it leaves, how it is stopped and gone on with, what it refuses."""

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from later import later
from torch.profiler import ProfilerActivity, profile
from training.conftest import same, weights

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.data.objects import TYPES
from dali_pipes.data.table.schema import replace_column
from dali_pipes.errors import ConfigError, ManifestError
from dali_pipes.measure.arms import SyntheticConfig
from dali_pipes.system.traces import PREFIX
from dali_pipes.training.checkpoint import CheckpointError
from dali_pipes.training.claim import Claim
from dali_pipes.training.config import MixingConfig, ModelConfig, OptimizerConfig, ScheduleConfig

training, trainer = later("dali_pipes.training.run"), later("dali_pipes.training.trainer")

GENTLE = OptimizerConfig(lr=0.005, lr_batch_size=None)
LEARNED = ("model", "ema", "optimizer", "scaler", "loader", "random")


def rows(file):
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def stop_at(monkeypatch, step, number=signal.SIGTERM):
    """The signal comes while this step is taken."""
    take = trainer.TrainStep.__call__

    def stepped(self, batch, lr):
        self.count = getattr(self, "count", 0) + 1
        if self.count == step:
            os.kill(os.getpid(), number)
        return take(self, batch, lr)

    monkeypatch.setattr(trainer.TrainStep, "__call__", stepped)


@pytest.mark.slow
def test_a_run_explains_itself(config, run, tmp_path):
    summary = run(config(ema_decay=0.5))
    out = tmp_path / "run"
    assert json.loads((out / "summary.json").read_text()) == summary
    assert summary["epochs"] == 2 and summary["images"] == 64 and summary["val_images"] == 37
    assert 0 <= summary["top1"] <= summary["top5"] == 1 and 0 <= summary["wait_share"] <= 1
    assert (
        summary["images_per_s"] == pytest.approx(64 / summary["seconds"])
        and summary["cpu_s_per_1000_images"] > 0
    )
    assert (
        "bound" in summary["conclusion"]
        and summary["conclusion"] in (out / "train.log").read_text()
    )
    assert summary["provenance"]["data"]["images"] == 37
    assert "name: mobilenet_v3_small" in (out / "config.yaml").read_text()
    assert [row["step"] for row in rows(out / "steps.csv")] == [str(step) for step in range(8)]
    assert [float(row["lr"]) for row in rows(out / "steps.csv")][:5] == pytest.approx(
        [0.005, 0.01, 0.015, 0.02, 0.02]
    )
    epochs = rows(out / "epochs.csv")
    assert [row["epoch"] for row in epochs] == ["0", "1"] and float(epochs[1]["top1"]) == summary[
        "top1"
    ]
    steps = rows(out / "steps.csv")
    assert float(epochs[0]["loss"]) == pytest.approx(
        sum(float(row["loss"]) for row in steps[:4]) / 4
    )
    assert list(out.glob("events.out.tfevents*"))
    best = weights(out, "best.pt")
    assert best["history"][-1]["top1"] == summary["best_top1"]


@pytest.mark.slow
def test_the_rates_of_a_schedule_are_taken_and_gone_on_with(config, run, tmp_path, monkeypatch):
    schedule = ScheduleConfig(name="step", unit="epoch", decay_epochs=1, warmup_lr=0.001)
    with monkeypatch.context() as patched:
        stop_at(patched, 6)
        with pytest.raises(SystemExit):
            training.train(config(schedule=schedule, epochs=3))
    run(config(schedule=schedule, epochs=3, resume="auto"))
    assert [float(row["lr"]) for row in rows(tmp_path / "run/steps.csv")] == pytest.approx(
        [0.001] * 4 + [0.02] * 4 + [0.002] * 4
    )


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "number"),
    [(1, signal.SIGTERM), (3, signal.SIGUSR1), (4, signal.SIGUSR2), (7, signal.SIGINT)],
)
def test_stopped_and_gone_on_with_is_as_if_never_stopped(
    config, run, tmp_path, monkeypatch, step, number
):
    """In the first and in a later epoch, after an epoch's last step; weights, average, optimizer,
    random numbers, and logs.
    """
    run(config(ema_decay=0.5, out=str(tmp_path / "never")))
    with monkeypatch.context() as patched:
        stop_at(patched, step, number)
        with pytest.raises(SystemExit) as stopped:
            training.train(config(ema_decay=0.5))
    assert stopped.value.code == 128 + number
    state = weights(tmp_path / "run")
    assert state["loader"]["epoch"] * 32 + state["loader"]["samples"] == step * 8
    assert not (tmp_path / "run/summary.json").exists()
    summary = run(config(ema_decay=0.5, resume="auto"))
    assert summary["images"] == 64
    never, stopped = weights(tmp_path / "never"), weights(tmp_path / "run")
    assert all(same(never[part], stopped[part]) for part in LEARNED)
    assert rows(tmp_path / "never/steps.csv") == rows(tmp_path / "run/steps.csv")
    kept = [
        [{name: row[name] for name in ("loss", "top1", "val_loss")} for row in state["history"]]
        for state in (never, stopped)
    ]
    assert kept[0] == kept[1]
    if step % 4:
        assert (tmp_path / f"run/config_from_step_{step}.yaml").exists()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_lamb_with_clipping_is_gone_on_with_bit_for_bit(
    config, run, tmp_path, monkeypatch, precision
):
    pytest.importorskip("timm")
    lamb = OptimizerConfig(
        name="lamb", lr=0.01, decay_norm_and_bias=False, clip_grad_norm=0.5, lr_batch_size=None
    )
    options = {"optimizer": lamb, "precision": precision}
    run(config(**options, out=str(tmp_path / "never")))
    with monkeypatch.context() as patched:
        stop_at(patched, 6, signal.SIGTERM)
        with pytest.raises(SystemExit):
            training.train(config(**options))
    run(config(**options, resume="auto"))
    never, stopped = weights(tmp_path / "never"), weights(tmp_path / "run")
    assert all(same(never[part], stopped[part]) for part in LEARNED)


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [False, True])
def test_a_run_names_its_parts_for_profilers_if_asked(config, run, wanted):
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        run(config(epochs=1, warmup_epochs=0, trace=wanted))
    found = {each.key for each in profiled.key_averages() if each.key.startswith(PREFIX)}
    assert found == (
        {f"{PREFIX}{name}" for name in ("plan", "decode", "targets", "wait")} if wanted else set()
    )


@pytest.mark.slow
def test_memory_that_is_short_is_given_back_around_each_validation(config, run, monkeypatch):
    """The training loader keeps its batches meanwhile, and validation needs others."""
    events, validate = [], trainer.validate
    monkeypatch.setattr(
        "dali_pipes.training.trainer.release_if_short", lambda device: events.append(device.type)
    )
    monkeypatch.setattr(
        "dali_pipes.training.trainer.validate",
        lambda *arguments: (events.append("validation"), validate(*arguments))[1],
    )
    run(config(epochs=2))
    assert events == ["cpu", "validation", "cpu"] * 2


@pytest.mark.slow
def test_a_validation_has_the_loader_that_training_has_chosen(config, run, monkeypatch):
    seen, validate = [], trainer.validate
    monkeypatch.setattr(
        "dali_pipes.training.trainer.validate",
        lambda config, *others: (seen.append(config.loader), validate(config, *others))[1],
    )
    monkeypatch.setattr("dali_pipes.loader.work.Work.learned", property(lambda self: "torch"))
    run(config(epochs=1, loader=dp.AutoConfig()))
    assert [type(each) for each in seen] == [dp.TorchConfig]


@pytest.mark.slow
def test_a_run_with_mixing_goes_on_with_the_same_mixes_and_under_no_others(
    config, run, tmp_path, monkeypatch
):
    mixing = MixingConfig(mixup_alpha=0.2, cutmix_alpha=1.0, probability=0.9)
    mixed = run(config(mixing=mixing, out=str(tmp_path / "never")))
    plain = run(config(out=str(tmp_path / "plain")))
    assert mixed["loss"] != plain["loss"] and mixed["val_images"] == 37
    with monkeypatch.context() as patched:
        stop_at(patched, 3)
        with pytest.raises(SystemExit):
            training.train(config(mixing=mixing))
    with pytest.raises(
        ConfigError, match=r"have changed: batch_transform \({'kind': 'RandomChoice'.* → None\)"
    ):
        training.train(config(resume="auto"))
    run(config(mixing=mixing, resume="auto"))
    never, stopped = weights(tmp_path / "never"), weights(tmp_path / "run")
    assert all(same(never[part], stopped[part]) for part in LEARNED)
    assert rows(tmp_path / "never/steps.csv") == rows(tmp_path / "run/steps.csv")


@pytest.mark.slow
def test_a_finished_run_has_nothing_left_to_do(config, run, tmp_path):
    first = run(config())
    again = run(config(resume="auto"))
    assert {name: first[name] for name in ("top1", "images", "seconds")} == {
        name: again[name] for name in ("top1", "images", "seconds")
    }


@pytest.mark.slow
def test_more_epochs_go_on_from_the_last(config, run, tmp_path):
    run(config(epochs=1, warmup_epochs=0))
    assert (
        run(config(epochs=3, warmup_epochs=0, resume=str(tmp_path / "run/last.pt")))["epochs"] == 3
    )


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.slow)])
def test_half_precision(config, run, tmp_path, precision):
    """Images come in the same precision."""
    images = {
        "transform": dp.TrainTransform(size=32, dtype=precision),
        "eval_transform": dp.EvalTransform(size=32, resize=36),
    }
    summary = run(config(epochs=1, precision=precision, **images))
    state = weights(tmp_path / "run")
    assert all(each.dtype != torch.float16 for each in state["model"].values())
    assert summary["loss"] > 0 and (state["scaler"] is None) == (precision == "bf16")
    if precision == "fp16":
        assert state["scaler"]["scale"] > 1
    run(config(epochs=2, precision=precision, resume="auto", **images))


@pytest.mark.slow
def test_evaluation_alone_finds_the_same(config, run, tmp_path):
    trained = run(config(ema_decay=0.9))
    found = run(
        config(
            eval_only=True, checkpoint=str(tmp_path / "run/last.pt"), out=None, eval_batch_size=7
        )
    )
    assert (found["top1"], found["images"]) == (trained["top1"], 37)
    assert found["loss"] == pytest.approx(trained["val_loss"], rel=1e-5)


@pytest.mark.slow
def test_the_loss_curves_of_two_loaders_lie_on_each_other(config, run, tmp_path):
    """The pixels differ by up to a few steps of 255; so do the losses, a little, and more as the
    weights move apart.
    """
    for name, loader in (
        ("torch", dp.TorchConfig(num_workers=1)),
        ("dali", dp.DaliConfig(device="cpu", num_threads=1)),
    ):
        run(config(loader=loader, out=str(tmp_path / name), optimizer=GENTLE, epochs=3))
    torch_losses, dali_losses = (
        [float(row["loss"]) for row in rows(tmp_path / name / "steps.csv")]
        for name in ("torch", "dali")
    )
    assert dali_losses != torch_losses
    assert dali_losses == pytest.approx(torch_losses, abs=0.02)


@pytest.mark.slow
def test_the_loader_is_changed_at_a_checkpoint(config, run, tmp_path, monkeypatch):
    torch_loader = dp.TorchConfig(num_workers=1)
    run(config(loader=torch_loader, out=str(tmp_path / "never"), optimizer=GENTLE))
    with monkeypatch.context() as patched:
        stop_at(patched, 3)
        with pytest.raises(SystemExit):
            training.train(config(loader=torch_loader, optimizer=GENTLE))
    run(config(resume="auto", optimizer=GENTLE))
    never, changed = rows(tmp_path / "never/steps.csv"), rows(tmp_path / "run/steps.csv")
    assert never[:3] == changed[:3] and len(changed) == 8
    assert [float(row["loss"]) for row in changed] == pytest.approx(
        [float(row["loss"]) for row in never], abs=0.02
    )


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_the_run_and_leaves_the_last_checkpoint(
    config, run, tmp_path
):
    run(config(epochs=1))
    before = (tmp_path / "run/last.pt").read_bytes()
    wild = OptimizerConfig(lr=1e30, lr_batch_size=None)
    with pytest.raises(
        trainer.TrainingError,
        match=(
            r"the loss is (nan|inf) at epoch 2, step \d, .*; resume from .*run/last\.pt with " r"a"
        ),
    ):
        training.train(config(epochs=3, optimizer=wild, resume="auto"))
    with pytest.raises(
        trainer.TrainingError,
        match=r"; nothing is saved yet: start again with a lower optimizer\.lr",
    ):
        training.train(config(out=str(tmp_path / "other"), epochs=1, optimizer=wild))
    assert (tmp_path / "run/last.pt").read_bytes() == before


@pytest.mark.slow
def test_a_folder_has_one_run_at_a_time(config, run, tmp_path, monkeypatch):
    monkeypatch.setattr("dali_pipes.training.claim._WAIT_S", 0.0)
    out = tmp_path / "run"
    with Claim(out, "out=DIR") as other:
        other.take()  # there is nothing to take yet
        run(config(epochs=1))
        for name in (".last.pt.0a1b", ".best.pt.2c3d", ".other"):
            (out / name).write_bytes(b"killed while it was written")
        before = (out / "last.pt").read_bytes()
        other.take()
        with pytest.raises(ConfigError, match="run: another run is writing there; wait for its"):
            training.train(config(resume="auto"))
    assert (out / "last.pt").read_bytes() == before
    run(config(resume="auto"))
    assert [each.name for each in out.iterdir() if each.name.startswith(".")] == [".other"]


@pytest.mark.slow
def test_a_run_that_begins_at_the_same_moment_is_left_alone(config, run, tmp_path, monkeypatch):
    first = config(epochs=1, resume="auto")
    start = training.start_task

    def another(*given):
        monkeypatch.setattr("dali_pipes.training.run.start_task", start)
        training.train(first)
        return start(*given)

    monkeypatch.setattr("dali_pipes.training.run.start_task", another)
    with pytest.raises(ConfigError, match="another run has begun in"):
        training.train(config(resume="auto"))
    assert len(weights(tmp_path / "run")["history"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("resume", [None, "auto"])
def test_the_best_weights_of_a_run_whose_last_are_gone_stay(config, run, tmp_path, resume):
    run(config(epochs=1))
    (tmp_path / "run/last.pt").unlink()
    with pytest.raises(ConfigError, match=r"holds best\.pt of another run, and no last\.pt; go on"):
        training.train(config(resume=resume))
    run(config(resume=str(tmp_path / "run/best.pt")))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["freeze", "lr_scale", "optimizer"])
def test_the_optimizer_goes_on_with_the_parameters_that_it_had(config, run, kind):
    """Others of the same number would get their momentum, and PyTorch would say nothing."""

    def given(part):
        pattern = f"features.{part}.*"
        if kind == "freeze":
            return {"model": ModelConfig(name="mobilenet_v3_small", freeze=[pattern])}
        if kind == "lr_scale":
            return {"optimizer": OptimizerConfig(lr=0.02, lr_scale={pattern: 0.1})}
        name = "lamb" if part == 5 else "adamw"
        return {"optimizer": OptimizerConfig(name=name, lr=0.001)}

    run(config(epochs=1, **given(5)))
    message = {
        "freeze": r"features\.6\.block\.0\.0\.weight was trained, and is not now",
        "lr_scale": r"features\.6\.block\.0\.0\.weight has another weight_decay or lr_scale now",
        "optimizer": r"lamb there, and adamw now",
    }[kind]
    with pytest.raises(CheckpointError, match=rf"of another optimizer \({message}\)"):
        run(config(resume="auto", **given(6)))


@pytest.mark.slow
def test_a_run_is_not_written_over_nor_begun_in_vain(config, run, tmp_path):
    run(config(epochs=1))
    with pytest.raises(ConfigError, match="holds a run already; resume it"):
        training.train(config())
    with pytest.raises(ConfigError, match=r"choose another folder with hydra\.sweep\.dir=DIR"):
        training.train(config(out=None), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"set hydra\.sweep\.dir=DIR instead"):
        training.train(config(), tmp_path / "sweep/0")
    with pytest.raises(ConfigError, match="this loader is for benchmarks only"):
        training.train(config(loader=SyntheticConfig()))
    with pytest.raises(ConfigError, match="name it: out=DIR"):
        training.train(config(out=None, resume="auto"))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({"mask": pa.array([""], TYPES["mask"])}, "its images have masks"),
        (
            {
                "boxes": pa.array([[]], TYPES["boxes"]),
                "box_labels": pa.array([[]], TYPES["box_labels"]),
            },
            "its images have boxes",
        ),
        ({"text": pa.array(["t"], pa.large_string())}, "its images have no labels"),
    ],
)
def test_images_without_a_class_are_refused_by_what_they_have(
    config, manifest, tmp_path, targets, message
):
    table = replace_column(manifest.samples[:1], "label", pa.array([[]], pa.list_(pa.int32())))
    for name, values in targets.items():
        table = table.append_column(f"target:{name}", values)
    dp.Manifest.from_rows(manifest.root, [], table).save(tmp_path / "m.arrow")
    with pytest.raises(
        ConfigError,
        match=rf"m\.arrow: {message}, and a network learns them.*function=my_train:make",
    ):
        training.train(
            config(data=DataConfig(train=str(tmp_path / "m.arrow"), val=str(tmp_path / "m.arrow")))
        )


def mistakes(config, folder, out):
    from dali_pipes.data.config import DataConfig

    other, fewer = folder.parent / "other", folder.parent / "fewer"
    yield (
        "no val",
        config(data=DataConfig(train=str(folder), val="/no/such")),
        ManifestError,
        "/no/such: no such folder",
    )
    message = (
        r"not the same classes: 1 only in the first \(checkers\); 1 only in the second "
        r"\(chess\)"
    )
    yield (
        "classes",
        config(data=DataConfig(train=str(folder), val=str(other))),
        ManifestError,
        message,
    )
    yield (
        "model",
        config(resume=str(out / "last.pt"), model=ModelConfig(name="squeezenet1_1")),
        CheckpointError,
        "of mobilenet_v3_small",
    )
    both = DataConfig(train=str(fewer), val=str(fewer))
    yield (
        "other classes",
        config(resume=str(out / "last.pt"), data=both),
        CheckpointError,
        "and the images: not the same classes",
    )
    yield (
        "average",
        config(resume=str(out / "last.pt"), ema_decay=0.9),
        CheckpointError,
        "kept no average",
    )
    adamw = OptimizerConfig(decay_norm_and_bias=False)
    yield (
        "optimizer",
        config(resume=str(out / "last.pt"), optimizer=adamw),
        CheckpointError,
        "of another optimizer",
    )
    # the same groups, so that PyTorch takes the saved options without a word
    for name, value in (("weight_decay", 0.5), ("momentum", 0.1), ("lr_scale", {"*": 0.5})):
        others = OptimizerConfig(lr=0.02, lr_batch_size=None, **{name: value})
        yield (
            f"another {name}",
            config(resume=str(out / "last.pt"), optimizer=others),
            CheckpointError,
            rf"of another optimizer \({name} is .* there, and .* now\)",
        )
    yield (
        "seed",
        config(resume=str(out / "last.pt"), seed=1),
        ConfigError,
        r"cannot resume, since these have changed: seed \(0 → 1\)",
    )
    yield (
        "no checkpoint",
        config(resume="/no/such.pt"),
        CheckpointError,
        "/no/such.pt: no such checkpoint",
    )
    yield (
        "unknown model",
        config(model=ModelConfig(name="resnet")),
        ConfigError,
        "model.name is 'resnet'",
    )
    yield (
        "another network of the name",
        config(
            resume=str(out / "last.pt"),
            model=ModelConfig(name="mobilenet_v3_small", options={"dropout": 0.5}),
        ),
        CheckpointError,
        r"built with \{\}, and model.options is \{dropout: 0.5\}",
    )
    yield (
        "unknown argument of the model",
        config(model=ModelConfig(name="mobilenet_v3_small", options={"drop_path_rate": 0.5})),
        ConfigError,
        "model.options: torchvision's MobileNetV3 takes no drop_path_rate",
    )
    yield (
        "too large for memory",
        config(transform=dp.TrainTransform(size=20_000)),
        ConfigError,
        r"needs at least .* GiB of memory",
    )
    yield (
        "large batch",
        config(batch_size=64),
        ConfigError,
        "37 images do not fill one global batch of 64",
    )


@pytest.mark.few(6)
@pytest.mark.slow
@pytest.mark.parametrize("number", range(16))
def test_a_mistake_is_reported_and_the_last_checkpoint_left_whole(
    config, run, image_folder, tmp_path, number
):
    run(config(epochs=1))
    before = (tmp_path / "run/last.pt").read_bytes()
    shutil.copytree(image_folder, tmp_path / "images")
    (shutil.copytree(image_folder, tmp_path / "other") / "checkers").rename(
        tmp_path / "other/chess"
    )
    shutil.rmtree(shutil.copytree(image_folder, tmp_path / "fewer") / "checkers")
    made = list(mistakes(config, tmp_path / "images", tmp_path / "run"))
    assert len(made) == 16
    name, wrong, kind, message = made[number]
    if wrong.resume != str(tmp_path / "run/last.pt"):
        wrong.out = str(tmp_path / "another")
    with pytest.raises(kind, match=message):
        training.train(wrong)
    assert not (tmp_path / "another").exists()
    assert (tmp_path / "run/last.pt").read_bytes() == before, name


@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_the_last_good_checkpoint(config, run, tmp_path, monkeypatch):
    run(config(epochs=1))
    before = (tmp_path / "run/last.pt").read_bytes()

    def no_space(state, file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dali_pipes.training.checkpoint.torch.save", no_space)
    with pytest.raises(
        CheckpointError,
        match=r"last\.pt: the checkpoint could not be written \(no space left on device\)",
    ):
        training.train(config(resume="auto"))
    assert (tmp_path / "run/last.pt").read_bytes() == before
    assert (
        sorted(file.suffix for file in (tmp_path / "run").iterdir() if file.name.startswith("."))
        == []
    )


@pytest.mark.slow
def test_a_bad_image_is_named_or_replaced(config, run, image_folder, tmp_path):
    folder = shutil.copytree(image_folder, tmp_path / "images")
    bad = config()
    bad.data.train = bad.data.val = str(folder)
    manifest = dp.Manifest.open(str(folder), cache_dir=bad.data.cache_dir)
    path = Path(manifest.path(3))
    path.write_bytes(path.read_bytes()[:200] + b"\0" * (path.stat().st_size - 200))
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    bad.on_bad_sample, bad.max_bad_fraction = "substitute", 0.1
    manifest.save(tmp_path / "m.parquet")
    bad.data.train = bad.data.val = str(tmp_path / "m.parquet")
    summary = run(bad)
    assert summary["bad_samples"][0]["path"] == str(path) and summary["val_images"] == 37
    assert str(path) in (tmp_path / "run/train.log").read_text()
    bad.on_bad_sample, bad.out = "raise", str(tmp_path / "raises")
    with pytest.raises(dp.BadSampleError, match=path.name):
        training.train(bad)
