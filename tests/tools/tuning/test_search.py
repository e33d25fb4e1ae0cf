"""The search on made-up trials: what it finds, what it drops and why, and when it ends."""

import itertools

import pytest
from tools.tuning.conftest import MadeUp, setting

from dali_pipes.errors import ConfigError
from dali_pipes.measure.rounds import TrialKey
from dali_pipes.measure.worker_process import ArmError
from dali_pipes.tools.tuning.search import Race, trials_of
from dali_pipes.tools.tuning.verdict import winner_of

DEFAULT = setting(1)
OTHERS = [
    setting(workers, prefetch)
    for workers, prefetch in itertools.product((1, 2, 3, 4), (1, 2, 4))
    if (workers, prefetch) != (1, 2)
]


def rising(each):
    """More workers are faster, three are the best; prefetching a little."""
    options = dict(each.options)
    return {1: 500.0, 2: 900.0, 3: 1000.0, 4: 800.0}[options["num_workers"]] * (
        1 + 0.05 * (options["prefetch_factor"] == 4)
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_all_is_found_on_a_machine_that_slows_down(seed):
    bench = MadeUp(noise=0.01)
    bench.rate, bench.drift = rising, 0.005
    race = bench.search(OTHERS, DEFAULT, seed=seed, minutes=60)
    assert winner_of(race) == setting(3, 4)
    assert race.against_default(setting(3, 4)).estimate == pytest.approx(2.1, rel=0.03)
    assert len(bench.ran) - 1 <= trials_of(len(OTHERS))


def test_a_rung_is_an_order_and_its_reverse_and_the_slower_half_drops_out(bench):
    bench.rate = rising
    race = bench.search(OTHERS, DEFAULT, minutes=60)
    first, second = ([each for _, number, each in bench.ran if number == at] for at in (1, 2))
    assert first == second[::-1] and set(first) == {DEFAULT, *OTHERS}
    third = {each for _, number, each in bench.ran if number == 3}
    assert len(third) == 7 and DEFAULT in third
    slowest = min(OTHERS, key=rising)
    assert race.out[slowest] == "slower" and slowest not in third


def test_equal_settings_end_the_search_early_and_the_default_stays(bench):
    race = bench.search(OTHERS, DEFAULT, minutes=60)
    assert winner_of(race) == DEFAULT
    assert list(race.out.values()).count("not faster than the default beyond the noise") >= 1
    assert len(bench.ran) - 1 < trials_of(len(OTHERS))


def test_what_is_faster_than_the_default_but_equal_among_itself_is_not_run_on(bench):
    bench.rate = lambda each: 500.0 if each == DEFAULT else 1000.0
    race = bench.search(OTHERS, DEFAULT, minutes=60)
    assert winner_of(race) != DEFAULT
    assert any(why.startswith("as fast as") for why in race.out.values())
    assert max(number for _, number, _ in bench.ran) == 6


def test_a_setting_slower_than_the_default_never_wins(bench):
    bench.rate = lambda each: 1000.0 if each == DEFAULT else 900.0
    assert winner_of(bench.search(OTHERS[:2], DEFAULT, minutes=60)) == DEFAULT


def test_out_of_memory_drops_all_that_are_as_large_and_the_search_goes_on(bench):
    bench.rate = lambda each: float(each.in_flight)  # the larger, the faster
    bench.fails = lambda each: (
        "torch.OutOfMemoryError: CUDA out of memory." if each.in_flight >= 384 else None
    )
    race = bench.search(OTHERS, DEFAULT, minutes=60)
    assert winner_of(race).in_flight == 256
    large = [each for each in OTHERS if each.in_flight >= 384]
    assert all("ran out of memory" in race.out[each] for each in large)
    assert "slower" in race.out.values() and len(
        [each for _, _, each in bench.ran if each in large]
    ) < len(large)


def test_a_default_that_runs_out_of_memory_leaves_the_smaller_ones(bench):
    bench.fails = lambda each: (
        "Can't allocate 123 bytes on device 0." if each.in_flight >= 512 else None
    )
    bench.rate = rising
    race = bench.search(OTHERS, setting(4, 2), minutes=60)
    assert race.out[setting(4, 2)] == "ran out of memory" and race.out[setting(3, 4)].startswith(
        "no smaller than"
    )
    assert (
        dict(winner_of(race).options)["num_workers"] == 3
        and race.against_default(winner_of(race)) is None
    )
    assert [each for _, _, each in bench.ran].count(setting(4, 2)) == 1


def test_a_default_that_runs_out_of_memory_later_does_not_end_the_search(bench):
    bench.fails = lambda each: (
        "Bus error; shared memory" if each == DEFAULT and len(bench.ran) > 20 else None
    )
    bench.rate = rising
    assert winner_of(bench.search(OTHERS, DEFAULT, minutes=60)) != DEFAULT


def test_any_other_failure_of_a_setting_discards_it_alone_and_of_the_default_ends_the_search(bench):
    bench.fails = lambda each: "the file is broken" if each == OTHERS[0] else None
    race = bench.search(OTHERS, DEFAULT, minutes=60)
    assert race.out[OTHERS[0]].startswith("failed: arm num_workers=1,prefetch_factor=1")
    bench.fails = lambda each: "the file is broken"
    with pytest.raises(ArmError, match="the file is broken"):
        bench.search(OTHERS, DEFAULT, minutes=60)


def test_settings_over_a_limit_are_discarded_with_the_figure(bench):
    bench.rate, bench.memory = rising, lambda each: 100.0 * dict(each.options)["num_workers"]
    race = bench.search(OTHERS, DEFAULT, minutes=60, max_memory_mib=250)
    assert dict(winner_of(race).options)["num_workers"] == 2
    assert race.out[setting(4)] == "400 MiB of host memory, more than max_memory_mib=250"
    race = bench.search(OTHERS, DEFAULT, minutes=60, max_cpus=0.95)
    assert race.out[setting(3, 4)].endswith("cores, more than max_cpus=0.95")
    assert dict(winner_of(race).options)["num_workers"] in (2, 4)


def test_a_default_over_a_limit_cannot_win_but_is_what_others_are_compared_with(bench):
    bench.rate, bench.memory = rising, lambda each: 100.0 * dict(each.options)["num_workers"]
    race = bench.search(OTHERS, setting(3), minutes=60, max_memory_mib=250)
    assert dict(winner_of(race).options)["num_workers"] == 2
    assert race.against_default(winner_of(race)).estimate < 1


def test_a_limit_that_even_the_smallest_setting_exceeds(bench):
    race = bench.search(OTHERS, DEFAULT, minutes=60, max_memory_mib=100)
    with pytest.raises(
        ConfigError,
        match=(
            r"not even the smallest, num_workers=1 prefetch_factor=1 batch_size=64: 500 MiB of "
            r"host"
        ),
    ):
        winner_of(race)


def test_a_limit_on_what_is_not_measured_is_refused(bench):
    with pytest.raises(
        ConfigError,
        match="max_gpu_memory_mib=100 cannot be kept: MiB of GPU memory cannot be measured here",
    ):
        bench.search(OTHERS, DEFAULT, minutes=60, max_gpu_memory_mib=100)


@pytest.mark.parametrize("minutes", [2, 5, 9])
def test_the_search_keeps_within_its_minutes(bench, minutes):
    bench.rate = rising
    race = bench.search(OTHERS, DEFAULT, minutes=minutes)
    assert bench.now <= 60 * minutes
    tried = {each for _, _, each in bench.ran}
    assert tried == {DEFAULT, *race.others} and len(tried) > 2
    assert bench.message[0].startswith(
        f"Searching {len(race.others)} of 11 settings besides the default"
    )
    assert winner_of(race) == max(tried, key=rising)


@pytest.mark.parametrize("seed", range(5))
def test_where_only_a_few_can_be_tried_their_threads_differ(bench, seed):
    race = bench.search(OTHERS, DEFAULT, minutes=3.8, seed=seed)
    assert sorted(dict(each.options)["num_workers"] for each in race.others) == [1, 2, 3, 4]


def test_with_a_limit_the_smallest_is_among_those_tried(bench):
    race = bench.search(OTHERS, DEFAULT, minutes=2, max_memory_mib=600)
    assert setting(1, 1) in race.others and len(race.others) == 2


def test_trials_that_take_longer_than_the_first_end_the_search_in_time(bench):
    race = Race(DEFAULT, OTHERS, 0)
    plan = race.plan(lambda: bench.now < 100)
    for number, each in plan:
        race.add(each, bench(TrialKey("search", number, "arm"), each))
    assert bench.now == 100 and winner_of(race) in (DEFAULT, *OTHERS)


def test_no_time_for_a_single_setting_is_said(bench):
    with pytest.raises(
        ConfigError,
        match=(
            r"minutes=0.3 is too short: a trial takes 10 s here, and a single setting 0.8 "
            r"minutes"
        ),
    ):
        bench.search(OTHERS, DEFAULT, minutes=0.3)


def test_the_number_of_trials_is_known_beforehand(bench):
    bench.rate = lambda each: 500.0 + 100 * OTHERS.index(each) if each != DEFAULT else 400.0
    for count in range(1, 12):
        bench.ran.clear()
        bench.search(OTHERS[:count], DEFAULT, minutes=60)
        assert len(bench.ran) - 1 == trials_of(count)
