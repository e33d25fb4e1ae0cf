"""The learning rate of every step, against PyTorch's and timm's own schedulers."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from dali_pipes.errors import ConfigError
from dali_pipes.training.config import ScheduleConfig, TrainConfig
from dali_pipes.training.optimizing.schedule import factor_on_plateau, lr_at

PEAK = 0.4
STEPS = 7  # in an epoch


def rates(epochs, warmup_epochs, peak=PEAK, **schedule):
    config = TrainConfig(
        epochs=epochs, warmup_epochs=warmup_epochs, schedule=ScheduleConfig(**schedule)
    )
    return [lr_at(config, step, STEPS, peak) for step in range(epochs * STEPS)]


def optimizer(lr=PEAK):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def near(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(st.integers(1, 40), st.floats(0, 50), st.floats(1e-5, 10))
def test_without_options_the_rates_are_those_of_versions_without_schedules_bit_for_bit(
    epochs, warmup_epochs, peak
):
    steps, warmup = epochs * STEPS, round(warmup_epochs * STEPS)
    assert rates(epochs, warmup_epochs, peak) == [
        peak * (step + 1) / warmup
        if step < warmup
        else peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
        for step in range(steps)
    ]


def test_the_cosine_is_halfway_in_the_middle_and_ends_one_step_before_zero():
    cosine = rates(10, 0)
    assert cosine[0] == PEAK
    assert cosine[5 * STEPS] == pytest.approx(PEAK / 2)
    assert cosine == sorted(cosine, reverse=True)
    assert 0 < cosine[-1] < 1e-3 * PEAK


def test_the_warm_up_is_linear_and_reaches_the_peak():
    risen = rates(10, 2)
    assert risen[: 2 * STEPS] == pytest.approx(
        [PEAK * step / (2 * STEPS) for step in range(1, 2 * STEPS + 1)]
    )
    assert max(risen) == risen[2 * STEPS - 1] == risen[2 * STEPS] == PEAK


@given(
    name=st.sampled_from(["cosine", "linear", "constant", "step", "wsd"]),
    epochs=st.integers(2, 30),
    warmup=st.integers(0, 8),
    unit=st.sampled_from(["step", "epoch"]),
    prefix=st.booleans(),
    min_lr=st.sampled_from([0.0, 1e-3]),
    warmup_lr=st.sampled_from([0.0, 1e-4]),
    cooldown=st.sampled_from([0.1, 0.2, 0.55]),
    decay_epochs=st.sampled_from([1, 2.5, 30]),
)
def test_schedules_are_those_of_timm(
    name, epochs, warmup, unit, prefix, min_lr, warmup_lr, cooldown, decay_epochs
):
    scheduler_factory = pytest.importorskip("timm.scheduler.scheduler_factory")
    by_epoch = unit == "epoch"
    prefix |= name == "wsd"  # timm's always is
    assume(warmup < epochs)
    assume(name != "wsd" or round(cooldown * (epochs - warmup) * (1 if by_epoch else STEPS)))
    if name == "step":
        min_lr = 0.0  # timm's has none

    trained = optimizer()
    theirs, _ = scheduler_factory.create_scheduler_v2(
        trained,
        # timm's polynomial has its power in decay_rate
        sched="poly" if name == "linear" else name,
        decay_rate=1.0 if name == "linear" else 0.3,
        # timm does not count a prefix among the epochs
        num_epochs=epochs - warmup if prefix else epochs,
        warmup_epochs=warmup,
        warmup_prefix=prefix,
        warmup_lr=warmup_lr,
        min_lr=min_lr,
        decay_epochs=cooldown if name == "wsd" else decay_epochs,
        step_on_epochs=by_epoch,
        updates_per_epoch=STEPS,
    )
    expected = []
    for step in range(epochs * STEPS):
        theirs.step(step // STEPS) if by_epoch else theirs.step_update(step)
        expected.append(trained.param_groups[0]["lr"])

    assert rates(
        epochs,
        warmup,
        name=name,
        unit=unit,
        warmup_prefix=prefix,
        min_lr=min_lr,
        warmup_lr=warmup_lr,
        decay_epochs=decay_epochs,
        decay_rate=0.3,
        cooldown=cooldown,
    ) == near(expected)


SCHEDULERS = {
    "cosine": lambda of, duration: lr_scheduler.CosineAnnealingLR(of, duration, eta_min=1e-3),
    "linear": lambda of, duration: lr_scheduler.PolynomialLR(of, duration),
    "constant": lambda of, duration: lr_scheduler.ConstantLR(of, factor=1.0),
    "step": lambda of, duration: lr_scheduler.StepLR(of, step_size=4, gamma=0.3),
    "exponential": lambda of, duration: lr_scheduler.ExponentialLR(of, gamma=0.9),
}
# the options with which ours are these
OPTIONS = {
    "cosine": {"min_lr": 1e-3},
    "step": {"decay_epochs": 4, "decay_rate": 0.3},
    "exponential": {"decay_epochs": 1, "decay_rate": 0.9},
}


# PyTorch's SequentialLR steps its schedulers in an order that it warns of itself
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SCHEDULERS)
@given(epochs=st.integers(2, 30), warmup=st.integers(0, 8))
def test_schedules_by_epoch_are_those_of_torchvision_s_reference_program(name, epochs, warmup):
    assume(warmup < epochs)
    trained = optimizer()
    theirs = SCHEDULERS[name](trained, epochs - warmup)
    if warmup:
        rising = lr_scheduler.LinearLR(trained, start_factor=0.01, total_iters=warmup)
        theirs = lr_scheduler.SequentialLR(trained, [rising, theirs], milestones=[warmup])

    expected = []
    for _ in range(epochs):
        expected += [trained.param_groups[0]["lr"]] * STEPS
        trained.step()
        theirs.step()

    options = {"unit": "epoch", "warmup_lr": 0.01 * PEAK} | OPTIONS.get(name, {})
    assert rates(epochs, warmup, name=name, **options) == near(expected)


def test_the_warm_up_is_a_linear_lr_that_ends_with_its_last_step():
    trained, expected = optimizer(), []
    theirs = lr_scheduler.LinearLR(trained, start_factor=1 / (3 * STEPS), total_iters=3 * STEPS - 1)
    for _ in range(3 * STEPS):
        expected.append(trained.param_groups[0]["lr"])
        trained.step()
        theirs.step()
    assert rates(5, 3)[: 3 * STEPS] == near(expected)


def test_exponential_is_gradual_by_step():
    exponential = rates(4, 0, name="exponential", decay_epochs=2, decay_rate=0.25)
    assert exponential[:: 2 * STEPS] == near([PEAK, PEAK / 4])
    assert exponential[STEPS] == near(PEAK / 2)
    assert len(set(exponential)) == len(exponential)


@pytest.mark.parametrize("name", ["step", "exponential"])
def test_no_rate_is_below_min_lr(name):
    low = rates(9, 0, name=name, decay_epochs=1, decay_rate=0.1, min_lr=1e-3)
    assert min(low) == low[-1] == 1e-3


@given(
    values=st.lists(
        st.one_of(st.floats(-2, 2), st.sampled_from([0.5, 0.50001, math.nan, math.inf])),
        max_size=60,
    ),
    mode=st.sampled_from(["max", "min"]),
    patience=st.integers(0, 5),
    factor=st.sampled_from([0.1, 0.5]),
    threshold=st.sampled_from([0.0, 1e-4, 0.1]),
)
def test_plateaus_are_those_of_torch(values, mode, patience, factor, threshold):
    trained = optimizer(1.0)
    theirs = lr_scheduler.ReduceLROnPlateau(
        trained, mode=mode, factor=factor, patience=patience, threshold=threshold, eps=0.0
    )
    for count, value in enumerate(values, 1):
        theirs.step(value)
        assert factor_on_plateau(
            values[:count], mode, patience, factor, threshold
        ) == pytest.approx(trained.param_groups[0]["lr"], rel=1e-9)
    assert factor_on_plateau([], mode) == 1.0


@pytest.mark.parametrize("warmup", [0.5, 1.5, 2.5, 2.999])
def test_a_part_of_an_epoch_is_warmed_up_by_step_and_refused_by_epoch(warmup):
    """Half an epoch was none, and 1.5 and 2.5 were both 2: Python rounds to the even number."""
    with pytest.raises(ConfigError, match=rf"warmup_epochs is {warmup}.*schedule\.unit=step"):
        TrainConfig(epochs=5, warmup_epochs=warmup, schedule=ScheduleConfig(unit="epoch"))

    found = rates(5, warmup)
    assert found.index(PEAK) == round(warmup * STEPS) - 1
    assert rates(5, 2, unit="epoch")[: 2 * STEPS : STEPS] == [PEAK / 2, PEAK]
