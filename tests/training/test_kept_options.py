"""What a checkpoint keeps of the options of its run: a change of them is never without a word."""

import pytest
from later import later
from training.conftest import weights

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ConfigError
from dali_pipes.training.config import OptimizerConfig, ScheduleConfig, TaskConfig, TrainConfig
from dali_pipes.training.kept_options import describe_changes, options_to_keep

training = later("dali_pipes.training.run")


def options(**given):
    return TrainConfig(**{"transform": dp.TrainTransform(size=32)} | given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"label_smoothing": 0.1}, "label_smoothing is 0.1 from here on, and was 0.0 before"),
        ({"ema_decay": 0.9}, "ema_decay is 0.9 from here on, and was null before"),
        ({"epochs": 100}, "epochs is 100 from here on, and was 90 before"),
        ({"task": TaskConfig(loss="bce")}, "task.loss is bce from here on, and was null before"),
        (
            {"task": TaskConfig(class_weights=[1, 2.5])},
            "task.class_weights is [1.0, 2.5] from here on, and was null before",
        ),
        (
            {"schedule": ScheduleConfig(name="wsd")},
            "schedule.name is wsd from here on, and was cosine before",
        ),
        (
            {"optimizer": OptimizerConfig(lr=0.05)},
            "optimizer.lr is 0.05 from here on, and was 0.1 before",
        ),
    ],
)
def test_a_change_is_said(given, said):
    kept = options_to_keep(options())
    assert describe_changes(kept, options()) == []
    assert describe_changes(kept, options(**given)) == [f"Note: {said}"]
    assert describe_changes({}, options(**given)) == [], "an earlier version kept none"


def test_one_share_in_two_spellings_is_no_change():
    kept = options_to_keep(options(validation="split:0.3"))
    assert describe_changes(kept, options(validation="split:0.30")) == []
    assert len(describe_changes(kept, options(validation="split:0.31"))) == 1


@pytest.mark.slow
def test_no_training_image_is_evaluated(config, run, image_folder, tmp_path, capsys):
    data, few = (DataConfig(train=str(image_folder), filter=text) for text in (None, "label > 1"))
    run(config(data=data, validation="split:0.3", epochs=1, out=str(tmp_path / "split")))
    run(config(data=data, validation="none", epochs=1, out=str(tmp_path / "all")))

    def evaluate(of, **given):
        path = str(tmp_path / of / "last.pt")
        training.train(config(**{"data": data} | given, eval_only=True, checkpoint=path))
        return capsys.readouterr().err

    # the images of a smaller share of the same seed are among those of the larger one
    for share in ("0.3", "0.30", "0.2"):
        assert "Note: " not in evaluate("split", validation=f"split:{share}")
    for of, given, trained in (
        ("split", {"validation": "split:0.3", "seed": 7}, r"\d of the 11 images"),
        ("split", {"validation": "split:0.5"}, r"\d of the 1\d images"),
        ("all", {"validation": "split:0.3"}, "11 of the 11 images"),
    ):
        with pytest.raises(ConfigError, match=rf"was trained on {trained} that validation=split"):
            evaluate(of, **given)
    said = evaluate("split", data=few, validation="split:0.3")
    assert "whether it was trained on some of them is not known" in said


@pytest.mark.slow
def test_a_run_goes_on_and_is_evaluated_with_other_options(config, run, image_folder, tmp_path):
    data = DataConfig(train=str(image_folder))
    first = {"data": data, "validation": "split:0.3"}
    run(config(**first, epochs=1, out=str(tmp_path / "first")))
    path = tmp_path / "first/last.pt"
    assert weights(tmp_path / "first")["options"]["transform.mean"] == pytest.approx(
        [0.485, 0.456, 0.406]
    )

    run(config(**first, resume=str(path), label_smoothing=0.1))
    log = (tmp_path / "run/train.log").read_text()
    assert "Note: label_smoothing is 0.1 from here on, and was 0.0 before" in log
    assert "Note: epochs is 2 from here on, and was 1 before" in log and log.count("Note: ") == 2

    with pytest.raises(
        ConfigError, match=r"was trained on \d of the 11 images that .*seed=7 draws"
    ):
        run(config(**first, eval_only=True, checkpoint=str(path), seed=7))


@pytest.mark.slow
def test_other_pixels_than_those_of_the_run_are_said(config, run, tmp_path, capsys):
    run(config(epochs=1))
    path = str(tmp_path / "run/last.pt")
    dark = {"size": 32, "mean": (0.1, 0.1, 0.1)}

    def evaluate(form):
        training.train(config(eval_only=True, checkpoint=path, eval_transform=form))
        return capsys.readouterr().err

    assert "Note: " not in evaluate(dp.EvalTransform(size=32, resize=36))
    assert "set transform.mean=[0.485,0.456,0.406]" in evaluate(dp.EvalTransform(resize=36, **dark))


@pytest.mark.slow
def test_a_finished_run_says_that_it_trains_no_more(config, run, tmp_path):
    run(config(epochs=1))
    run(config(epochs=1, resume="auto"))
    assert "all 1 epochs are done already" in (tmp_path / "run/train.log").read_text()
