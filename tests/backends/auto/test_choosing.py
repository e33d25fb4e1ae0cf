"""Which loader is chosen, in simulated trainings."""

import numpy as np
import pytest
from worlds import World

from dali_pipes.backends.auto.choosing import FIRST, Choosing, StepTime


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.release)])
def test_the_best_loader_is_chosen_at_little_cost(count):
    best, against_first, lost = [], [], []
    for seed in range(count):
        world = World(seed)
        rates, choosing = world.rates(), world.choosing()
        steps = max(2 * world.epoch, int(400 / world.model))
        ends = world.train(steps, choosing)
        best.append(rates[choosing.leader] / rates.max())
        against_first.append(steps / (ends[-1] - world.start[0]) / rates[0])
        lost.append(choosing.lost / ends[-1])
    assert np.mean(np.array(best) >= 0.98) >= 0.95, sorted(best)[:5]
    # from the first step to the last, with all trials
    assert min(against_first) >= 0.95
    assert np.mean(np.array(lost) <= 0.02) >= 0.95, sorted(lost)[-5:]


def steps_of(choosing, *costs, steps, waited=0.0, cpu=0.0):
    """Gives it steps of these periods, by choice; the choices that it made."""
    made = []
    for _ in range(steps):
        made.append(choosing.current)
        period = costs[choosing.current]
        choosing.add(StepTime(period, waited * period, cpu * period))
    return made


def test_nothing_is_tried_where_training_hardly_waits():
    choosing = Choosing([4, 4], 4, 10_000)
    assert set(steps_of(choosing, 0.1, 0.01, steps=1000, waited=0.005, cpu=3.0)) == {0}
    assert choosing.is_decided and len(choosing.tried) == 1


@pytest.mark.parametrize("reason", ["waits", "cores", "device"])
def test_others_are_tried_where_they_may_be_faster(reason):
    choosing = Choosing([4, 4], 4, 10_000, [0] if reason == "device" else [])
    given = {"waits": {"waited": 0.02}, "cores": {"cpu": 3.5}, "device": {}}[reason]
    made = steps_of(choosing, 0.2, 0.1, steps=300, **given)
    assert made[:FIRST] == [0] * FIRST and made[-1] == 1


def test_among_equals_the_one_with_less_cpu_time_stays():
    choosing = Choosing([4, 4], 4, 10_000)
    for _ in range(500):
        choosing.add(StepTime(0.1, 0.01, [0.3, 0.2][choosing.current]))
    assert choosing.leader == 1


def test_one_that_is_much_slower_ends_soon():
    choosing = Choosing([4, 4], 4, 100_000)
    made = steps_of(choosing, 0.1, 1.0, steps=500, waited=0.5)
    assert 0 < made.count(1) <= 10 and made[-1] == 0


def decided():
    """One that has tried the other loader, which was slower."""
    choosing = Choosing([4, 4], 4, 1000)
    made = steps_of(choosing, 0.1, 0.11, steps=400, waited=0.02)
    assert 1 in made and choosing.is_decided and choosing.leader == 0 and not choosing._left
    return choosing


def test_it_looks_again_when_training_waits_more():
    choosing = decided()
    assert 1 not in steps_of(choosing, 0.1, 0.01, steps=1500, waited=0.02)
    made = steps_of(choosing, 0.1, 0.05, steps=1000, waited=0.5)
    assert made[-1] == 1


def test_it_looks_again_when_steps_take_another_time_and_training_still_waits():
    """Such as after an epoch whose files came from the disk."""
    choosing = decided()
    made = steps_of(choosing, 0.05, 0.03, steps=4000, waited=0.02)
    assert 1 not in made[:500] and made[-1] == 1


def test_another_round_costs_a_part_of_one_epoch():
    choosing = decided()
    steps_of(choosing, 0.1, 0.11, steps=50_000, waited=0.02)
    steps_of(choosing, 0.1, 0.6, steps=1000, waited=0.5)
    assert 1 <= choosing.lost <= 0.02 * 1000 * 0.1


def test_one_that_begins_slowly_is_not_begun_again_and_again():
    """Its first batches wait for it, while those of the leader are still delivered."""
    choosing, begun = Choosing([4, 4], 4, 1500), 0
    for _ in range(6000):
        before = choosing.current
        if choosing.add(StepTime(0.1, 0.05, 0.1)) == 1 and before == 0:
            begun += 1
            choosing.pass_over(StepTime(2.1, 2.0, 0.1))
    assert 0 < begun <= 3


def test_short_epochs_are_not_spent_on_trials():
    choosing = Choosing([4, 4], 4, 100)
    made = steps_of(choosing, 0.01, 0.02, steps=2000, waited=0.5)
    assert set(made) == {0}  # 20 s, of which a switch alone would take 5 %
    steps_of(choosing, 0.01, 0.005, steps=20_000, waited=0.5)
    assert choosing.leader == 1


def test_what_cannot_be_had_is_left_out():
    choosing = Choosing([4, 4, 4], 4, 10_000)
    choosing.fail(0, "no GPU")
    assert choosing.current == choosing.leader == 1
    made = steps_of(choosing, 0.1, 0.1, 0.01, steps=400, waited=0.5)
    assert 0 not in made and made[-1] == 2
    choosing.fail(2, "gone")
    assert choosing.current == 1


def test_a_resume_begins_with_what_was_chosen():
    choosing = Choosing([4, 4], 4, 10_000)
    choosing.go_on_with(1)
    assert choosing.current == 1
    made = steps_of(choosing, 0.01, 0.1, steps=400, waited=0.5)
    assert made[:FIRST] == [1] * FIRST and made[-1] == 0


def test_equals_are_not_tried_for_ever():
    random = np.random.default_rng(0)
    choosing = Choosing([4, 4, 4], 4, 10_000)
    made = []
    for _ in range(5000):
        made.append(choosing.current)
        period = 0.1 * np.exp(random.normal(0, 0.1))
        choosing.add(StepTime(period, 0.5 * period, 0.1))
    assert choosing.is_decided and len(set(made[-1500:])) == 1


def test_what_one_trial_may_not_take_leaves_time_for_others():
    choosing = Choosing([4, 4, 4], 4, 10_000)
    made = steps_of(choosing, 0.1, 1.0, 0.05, steps=400, waited=0.5)
    assert made.count(1) <= 10 and made[-1] == 2


def test_one_that_failed_is_tried_after_the_others():
    choosing = Choosing([4, 4, 4], 4, 10_000)
    steps_of(choosing, 0.1, 0.1, 0.1, steps=55, waited=0.5)
    assert choosing.current == 1
    choosing.put_off(1)
    assert choosing.current == 0
    made = steps_of(choosing, 0.1, 0.01, 0.2, steps=400, waited=0.5)
    assert made.index(2) < made.index(1) and made[-1] == 1


def test_a_resume_in_the_middle_of_a_trial_begins_anew():
    choosing = Choosing([4, 4], 4, 10_000)
    steps_of(choosing, 0.1, 0.2, steps=60, waited=0.5)
    assert choosing.current == 1
    choosing.go_on_with(1)
    made = steps_of(choosing, 0.1, 0.2, steps=400, waited=0.5)
    assert made[:FIRST] == [1] * FIRST and made[-1] == 0 and choosing.is_decided
