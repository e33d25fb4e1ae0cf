import pytest
from made_up import gpu, trial

from dali_pipes.measure.figures import arm_figures, not_measured, result_figures, trial_figures
from dali_pipes.measure.wording import FIGURES


def test_one_trial():
    figures = trial_figures(trial("torch", rate=640, cpu=3))
    assert figures["images_per_s"] == 640 and figures["cpu_s_per_1000_images"] == 3
    assert figures["wait_share"] == pytest.approx(1) and figures["first_batch_s"] == 0.5
    assert (
        figures["peak_rss_mib"] == 1003
        and figures["peak_pss_mib"] == 800
        and figures["threads"] == 20
    )
    assert figures["gpu_utilization"] is None and figures["joules_per_1000_images"] is None


def test_jobs_at_once_add_up():
    figures = trial_figures(trial("torch", rate=500, cpu=2, jobs=3))
    assert figures["images_per_s"] == 1500 and figures["cpu_s_per_1000_images"] == 2
    assert figures["cgroup_cpu_s_per_1000_images"] is None


def test_what_the_gpus_say():
    """A window of 10 s, from 100 to 110, with 20 J a second by the counter; idle before."""
    gpus = [[gpu(0.0, 50)], [gpu(0.1, 100)], [gpu(0.5, 200)], [gpu(0.7, 300, memory_mib=5000.0)]]
    figures = trial_figures(trial("dali", rate=64, gpus=gpus))
    assert figures["gpu_utilization"] == pytest.approx(0.6)  # the samples after 100
    assert figures["nvjpg_utilization"] == pytest.approx(0.9) and figures[
        "sm_utilization"
    ] == pytest.approx(0.4)
    assert figures["gpu_memory_mib"] == 5000
    assert figures["joules_per_1000_images"] == pytest.approx(200 / 0.64)


def test_what_a_gpu_does_not_say_is_no_figure():
    gpus = [[gpu(energy_j=None, nvjpg_utilization=None)]] * 4
    made = trial("dali", rate=64, gpus=gpus) | {"gpu_missing": {"energy_j": "NVML: Not Supported"}}
    figures = trial_figures(made)
    assert figures["joules_per_1000_images"] is None and figures["nvjpg_utilization"] is None
    assert figures["gpu_utilization"] == 0.5
    assert not_measured([made])["joules_per_1000_images"] == "NVML: Not Supported"
    assert "gpu_utilization" not in not_measured([made])


def test_without_a_gpu_the_reason_is_reported():
    assert not_measured([trial("torch")])["joules_per_1000_images"] == "no GPU was used"


def test_what_several_jobs_do_not_have_is_reported():
    alone, together = trial("torch"), trial("torch", jobs=2)
    for made in (alone, together):
        assert set(not_measured([made])) <= set(FIGURES), "the page has words for each of them"
    assert "share" in not_measured([together])["cgroup_cpu_s_per_1000_images"]


@pytest.mark.parametrize("made", [trial("torch"), trial("torch", jobs=2)])
def test_every_figure_that_is_not_there_has_its_reason(made):
    assert {name for name, value in trial_figures(made).items() if value is None} == set(
        not_measured([made])
    )


def test_an_arm_over_its_trials():
    trials = [
        trial("torch", 1, rate=900),
        trial("torch", 2, rate=1000),
        trial("torch", 3, rate=1500),
    ]
    trials[1]["jobs"][0]["warm_up"]["steady"] = False
    figures = arm_figures(trials)
    assert figures["images_per_s"] == 1000
    assert (figures["images_per_s_low"], figures["images_per_s_high"]) == (900, 1500)
    assert figures["steady"] == "2 of 3" and figures["trials"] == 3 and figures["device"] == "cpu"
    assert figures["wait_ms"]["p50"] == pytest.approx(64) and figures["wait_ms"][
        "first_of_epoch_p50"
    ] == pytest.approx(64)


def rounds(arm, rates, **options):
    return [trial(arm, number, rate=rate, **options) for number, rate in enumerate(rates, 1)]


def control(rates):
    return [trial("torch", number, "control", rate) for number, rate in enumerate(rates, 1)]


def test_ratios_are_taken_within_a_round():
    """The machine gets twice as fast; dali is 1.5 times as fast as torch in every round."""
    trials = [
        *control([101, 124, 150, 176, 199]),
        *rounds("torch", [100, 125, 150, 175, 200]),
        *rounds("dali", [150, 187.5, 225, 262.5, 300]),
    ]
    found = result_figures(trials, ["torch", "dali"], "torch")
    ratio = found["arms"]["dali"]["ratio"]["images_per_s"]
    assert found["control"]["images_per_s"]["high"] < 1.02
    assert (
        ratio["estimate"] == pytest.approx(1.5)
        and ratio["low"] == pytest.approx(1.5)
        and ratio["claim"] == "more"
    )
    assert found["control"]["holds"] and found["planning"] == []
    assert found["arms"]["dali"]["share_of_ceiling"] is None


@pytest.mark.parametrize(
    ("rate", "restarts", "claimed"),
    [
        (120, True, "untrustworthy"),
        (200, True, "more"),
        (160, True, "more"),
        (160, False, "untrustworthy"),
    ],
)
def test_a_baseline_that_differs_from_itself_voids_what_is_no_larger(rate, restarts, claimed):
    trials = [
        *control([130, 131, 129] * 2),
        *rounds("torch", [100] * 6),
        *rounds("dali", [rate] * 6),
    ]
    found = result_figures(trials, ["torch", "dali"], "torch", restarts=restarts)
    assert not found["control"]["holds"]
    assert found["arms"]["dali"]["ratio"]["images_per_s"]["claim"] == claimed


def test_the_ceiling_and_the_cost_of_planning():
    trials = [
        *rounds("synthetic", [5000] * 3),
        *rounds("dali", [1000] * 3, cpu=2.1),
        *rounds("native", [1000] * 3, cpu=2.0),
    ]
    found = result_figures(
        trials, ["synthetic", "dali", "native"], "dali", [("native", "dali"), ("left_out", "dali")]
    )
    assert found["arms"]["dali"]["share_of_ceiling"] == pytest.approx(0.2)
    assert found["arms"]["synthetic"]["share_of_ceiling"] is None
    (cost,) = found["planning"]
    assert cost["cpu_s_per_1000_images"]["estimate"] == pytest.approx(1.05)
    assert cost["native"] == "native" and cost["planned"] == "dali" and found["control"] is None


def test_the_share_of_decoding_alone():
    trials = [
        *rounds("decode_regions", [1500] * 3, cpu=0.9),
        *rounds("dali", [1000] * 3, cpu=1.2),
        *rounds("torch", [500] * 3, cpu=3),
    ]
    found = result_figures(trials, ["torch", "dali", "decode_regions"], "torch")["arms"]
    assert [found[arm]["decode_regions_share"] for arm in found] == [
        pytest.approx(0.3),
        pytest.approx(0.75),
        None,
    ]
    assert [found[arm]["decode_whole_share"] for arm in found] == [None] * 3


def test_without_its_baseline_an_arm_has_no_ratio():
    found = result_figures(rounds("dali", [100] * 3), ["torch", "dali"], "torch")
    assert set(found["arms"]) == {"dali"} and found["arms"]["dali"]["ratio"] is None
