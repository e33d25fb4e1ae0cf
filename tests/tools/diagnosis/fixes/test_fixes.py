"""Fixes for every verdict: those of a configuration, which can be tried, and advice."""

from dataclasses import replace
from statistics import median

import pytest
from spans import COMPUTING, WAITING

import dali_pipes as dp
from dali_pipes.tools.diagnosis.fixes.advice import advice, remedies
from dali_pipes.tools.diagnosis.items.profile import ItemPart, ItemProfile
from dali_pipes.tools.diagnosis.programs.configured import propose
from dali_pipes.tools.diagnosis.verdict.figures import OneOffFigures
from dali_pipes.tools.diagnosis.verdict.rules import VERDICTS
from dali_pipes.training.config import TrainConfig


class Program:
    """Changed to its configuration alone."""

    def __init__(self, config, workers=2):
        self.config, self.workers = config, workers

    def changed(self, **options):
        return replace(self.config, **options)


def fixes(verdict, loader, **options):
    config = TrainConfig(loader=loader, **options)
    return {fix.what: fix for fix in propose(Program(config), verdict)}


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr("dali_pipes.tools.diagnosis.programs.configured.available_cpus", lambda: 8)


def test_what_is_named_is_what_is_tried():
    torch = dp.TorchConfig(num_workers=2)
    more = fixes("prep-bound (too few workers)", torch)
    assert [*more][:2] == [
        "loader.num_workers=4",
        "loader.num_workers=8",
    ] and "loader=dali_cpu" in more
    assert more["loader.num_workers=8"].program.loader == replace(torch, num_workers=8)
    assert more["loader=dali_cpu"].program.loader == dp.DaliConfig(device="cpu")
    assert "docs/pixels.md" in more["loader.decoder=torchvision"].note
    sparing = fixes("transfer-bound", torch)[
        "loader.pin_memory=true loader.normalize_on=device"
    ].program.loader
    assert sparing.pin_memory and sparing.normalize_on == "device"
    assert [*fixes("fetch-bound", torch)] == [f"loader.num_workers={count}" for count in (4, 8, 16)]
    assert [*fixes("straggler", torch)] == ["loader.prefetch_factor=8"]


def test_changes_of_the_model():
    faster = fixes("model-bound", dp.TorchConfig(), batch_size=32)
    assert [*faster] == ["precision=bf16", "batch_size=64"] and all(
        fix.part == "model" for fix in faster.values()
    )
    assert (
        faster["precision=bf16"].program.precision == "bf16"
        and faster["batch_size=64"].program.batch_size == 64
    )
    assert [*fixes("launch-bound", dp.TorchConfig(), batch_size=32)] == ["batch_size=128"]
    assert [*fixes("memory-bound", dp.TorchConfig(), batch_size=1)] == [
        "batch_size=1",
        "loader.prefetch_factor=1",
    ]


# what is changed in the loader's own options (DataLoaderProgram.other_workers), in the code of an
# item, or not at all
WITHOUT_ADVICE = {
    "inconclusive",
    "start-bound",
    "prep-bound (too many workers)",
    "prep-bound (item by item)",
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_has_a_fix_or_advice_but_for_those_that_other_places_answer(verdict):
    advised = list(advice(verdict, WAITING, OneOffFigures(), 2, 4))
    assert len(advised) <= 1 and bool(advised or fixes(verdict, dp.TorchConfig())) == (
        verdict not in WITHOUT_ADVICE
    )


def test_a_slow_object_store_is_named():
    (fix,) = advice("fetch-bound", WAITING, OneOffFigures(is_fetched=True), 1, 4)
    assert "DALI_PIPES_CACHE_GB" in fix.what and fix.why.startswith("the network")


def test_the_gain_of_advice_follows_from_the_figures():
    def speeds_up(verdict, found, **one_off):
        (fix,) = advice(verdict, found, OneOffFigures(**one_off), 1, 4)
        return {part: median(factors) for part, factors in fix.speeds_up.items()}

    # from nothing to all
    assert speeds_up("fetch-bound", replace(WAITING, loader_cores=0.25)) == {
        "loader": (1 + 4.75) / 2
    }
    assert speeds_up("fetch-bound", replace(WAITING, loader_cores=0.25), is_fetched=True) == {
        "loader": 4
    }
    assert speeds_up("straggler", replace(WAITING, straggling=0.5)) == {"loader": 3}
    assert speeds_up("sync-bound", replace(COMPUTING, blocked=0.75)) == {"model": 4}
    assert speeds_up("sync-bound", replace(COMPUTING, blocked=0.75), device_busy=0.5) == {
        "model": 2
    }
    assert speeds_up("cgroup-throttled", replace(WAITING, throttled=0.5, model_throttled=0.75)) == {
        "model": 4,
        "loader": 2,
    }
    assert speeds_up("other programs", replace(WAITING, loader_freed=2.0)) == {
        "loader": 1.5,
        "model": 1,
    }


def test_beside_other_programs_one_thread_is_tried_where_it_was_faster():
    stop, one = advice(
        "other programs", WAITING, OneOffFigures(one_thread_gain=11.0, one_thread_freed=2.0), 1, 4
    )
    assert (
        stop.speeds_up["model"] == (11.0, 11.0)
        and "torch.set_num_threads(1)" in one.what
        and one.threads == 1
    )
    (only,) = advice(
        "other programs", WAITING, OneOffFigures(one_thread_gain=0.9, one_thread_freed=2.0), 1, 4
    )
    assert only.what == stop.what and only.speeds_up["model"] == (1.0, 1.0)


def test_what_an_item_spends_its_time_with_has_a_remedy_for_its_kind():
    """Nothing of JPEGs for those who have none."""

    def items(kind, share):
        part = ItemPart(
            "np.loadtxt", "features.py:31", "np.loadtxt(path)", share, share * 1e-3, False, kind
        )
        return ItemProfile(10, 0, 1e-3, 1e-3, 0.0, 0.0, 0.0, [part])

    (fix,) = remedies("prep-bound (CPU saturated)", items("text_parsing", 0.9))
    assert (
        fix.what.startswith("np.loadtxt in features.py:31: ")
        and "np.load" in fix.what
        and "JPEG" not in fix.what + fix.why
    )
    low, high = fix.speeds_up["loader"]
    assert low == pytest.approx(1 / (0.1 + 0.9 / 5)) and low < high < 10 and fix.computes_less
    assert "resize" in next(remedies("prep-bound (CPU saturated)", items("decode", 0.6))).what
    assert not list(remedies("prep-bound (CPU saturated)", items("text_parsing", 0.1)))
    assert not list(remedies("fetch-bound", items("text_parsing", 0.9))) and not list(
        remedies("prep-bound (CPU saturated)", None)
    )
