from types import SimpleNamespace

import pytest

from dali_pipes.errors import ConfigError
from dali_pipes.training.config import ScheduleConfig, TrainConfig
from dali_pipes.training.tasks.monitor import Monitor, choose_monitor
from dali_pipes.training.tasks.supervised import Classification

NAN = float("nan")


def history(*values):
    """A row of each epoch; None: it was not evaluated."""
    return [
        {"epoch": epoch} | ({} if value is None else {"x": value})
        for epoch, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("mode", "values", "best"),
    [
        ("max", [1, 3, 2], [True, True, False]),
        ("min", [1, 3, 0.5], [True, False, True]),
        ("max", [1, 1, 1], [True, False, False]),
        ("max", [None, 1, None, 2], [False, True, False, True]),
        ("max", [NAN, 1, NAN], [False, True, False]),
    ],
)
def test_the_best_epoch_is_better_than_all_before(mode, values, best):
    rows, monitor = history(*values), Monitor("x", mode)
    assert [monitor.is_best(rows[: end + 1]) for end in range(len(rows))] == best
    places = [place for place, is_best in enumerate(best) if is_best]
    assert monitor.best(rows) is rows[places[-1]]


@pytest.mark.parametrize(
    ("values", "over"),
    [
        ([1, 2, 3], [False, False, False]),
        ([3, 2, 1], [False, False, True]),
        ([3, None, 2, None, 1], [False, False, False, False, True]),
        ([3, NAN, 1], [False, False, True]),
        ([1, 1, 1], [False, False, True]),
    ],
)
def test_patience_is_of_evaluations(values, over):
    rows, monitor = history(*values), Monitor("x", "max", 2)
    assert [monitor.is_over(rows[: end + 1]) for end in range(len(rows))] == over
    assert not Monitor("x", "max").is_over(rows) and not Monitor(None, patience=2).is_over(rows)


def test_a_monitor_that_was_never_a_number():
    monitor = Monitor("x", "max")
    assert monitor.is_nan(history(None, NAN)) and not monitor.is_nan(history(NAN, 1))
    assert not monitor.is_nan(history(None)) and not Monitor(None).is_nan(history(NAN))


def test_a_mode_that_keeps_the_worst_epoch_is_refused():
    with pytest.raises(ConfigError, match="would keep the worst epoch: less of val_loss is better"):
        choose_monitor(TrainConfig(monitor="val_loss", monitor_mode="max"), task(), True)
    assert choose_monitor(TrainConfig(monitor="val_loss", monitor_mode="min"), task(), True)
    # a task of the user's may mean something else by the name
    own = TrainConfig(function="m:make", monitor="val_loss", monitor_mode="max")
    assert choose_monitor(own, task(own=True), True).mode == "max"


def task(own=False, evaluates=True):
    directions = {"val_loss": "min", "loss": "min"} if own else Classification.directions
    return SimpleNamespace(
        name="own" if own else "classification",
        directions=directions,
        monitored="val_loss" if own else "top1",
        evaluates=evaluates,
    )


def test_what_is_monitored():
    own = {"function": "my:make"}
    assert choose_monitor(TrainConfig(), task(), True) == Monitor("top1", "max")
    assert choose_monitor(TrainConfig(monitor="val_loss"), task(), True) == Monitor(
        "val_loss", "min"
    )
    assert choose_monitor(TrainConfig(**own), task(own=True), True) == Monitor("val_loss", "min")
    assert choose_monitor(TrainConfig(), task(), False) == Monitor(None)
    assert choose_monitor(TrainConfig(monitor="loss"), task(), False) == Monitor("loss", "min")
    chosen = TrainConfig(**own, monitor="iou", monitor_mode="max", patience=3)
    assert choose_monitor(chosen, task(own=True), True) == Monitor("iou", "max", 3)


@pytest.mark.parametrize(
    ("options", "own", "evaluates", "has_val", "message"),
    [
        (
            {"monitor": "map"},
            False,
            True,
            True,
            "map is not measured for classification; what is: ",
        ),
        ({"monitor": "iou"}, True, True, True, "iou: whether more or less .* monitor_mode=max"),
        ({"monitor": "top1"}, False, True, False, "top1 is of an evaluation, and validation=none"),
        ({"monitor": "iou"}, True, False, True, r"and my:make has no evaluate\(\)"),
        (
            {"schedule": ScheduleConfig(name="plateau")},
            *(False, True, False),
            "schedule=plateau is for what an evaluation measures",
        ),
        ({"patience": 2}, False, True, False, "patience is for what an evaluation measures"),
    ],
)
def test_what_cannot_be_monitored_is_refused(options, own, evaluates, has_val, message):
    config = TrainConfig(**options, **({"function": "my:make"} if own else {}))
    with pytest.raises(ConfigError, match=message):
        choose_monitor(config, task(own, evaluates), has_val)
