import contextlib
import os
import shutil
import time

import psutil
import pytest

import dali_pipes as dp
from dali_pipes.measure.arms import DaliNativeConfig
from dali_pipes.measure.config import MeasureConfig
from dali_pipes.measure.protocol import Trials
from dali_pipes.measure.rounds import TrialKey, list_trials, rounds
from dali_pipes.measure.worker_process import ArmError


def test_orders_are_random_and_every_second_one_is_the_first_reversed():
    orders = rounds("abcde", 7, seed=1)
    assert len(orders) == 7 and all(sorted(order) == list("abcde") for order in orders)
    assert all(orders[at + 1] == orders[at][::-1] for at in (0, 2, 4))
    assert len({tuple(order) for order in orders}) == 7
    assert orders == rounds("abcde", 7, seed=1) != rounds("abcde", 7, seed=2)


def test_each_arm_stands_as_early_as_late():
    orders = rounds("abc", 6, seed=0)
    assert {arm: sum(order.index(arm) for order in orders) for arm in "abc"} == dict.fromkeys(
        "abc", 6
    )


DALI = dp.DaliConfig(device="cpu")


@pytest.fixture
def trials(manifest, tmp_path):
    """Small work: 37 images, batches of 8, 32 pixels."""

    def make(images=manifest, transform=None, corun=1, restart=True, **options):
        timing = {"min_seconds": 0.1, "min_batches": 2, "max_warmup_seconds": 0.1} | options
        config = MeasureConfig(
            transform=transform or dp.TrainTransform(size=32), batch_size=8, **timing
        )
        return Trials(config, images, tmp_path / "run", corun, restart)

    return make


def test_the_turns_of_an_a_b_are_rounds_with_a_control():
    planned = list(list_trials(["a", "b"], "b", 5, seed=1))
    assert [key.number for key in planned] == [number for number in range(1, 6) for _ in range(3)]
    in_rounds = [[key[::2] for key in planned if key.number == number] for number in range(1, 6)]
    assert all(
        sorted(order) == [("control", "b"), ("round", "a"), ("round", "b")] for order in in_rounds
    )
    assert in_rounds[1] == in_rounds[0][::-1] and in_rounds[3] == in_rounds[2][::-1]
    assert [key.phase for key in list_trials(["a", "b"], "b", 4, seed=1)] == ["round"] * 8
    assert {
        key.number for key in list_trials(["a", "b"], "b", 5, 1, lambda number: number < 3)
    } == {
        1,
        2,
    }


@pytest.mark.slow
def test_jobs_at_once_measure_at_the_same_time(trials, tmp_path):
    trial = trials(corun=2, min_seconds=1.0).run(TrialKey("round", 3, "dali"), DALI)
    one, other = trial["jobs"]
    assert max(one["start"], other["start"]) < min(one["end"], other["end"])
    assert (trial["arm"], trial["phase"], trial["round"]) == ("dali", "round", 3)
    assert trial["samples"][-1]["processes"] == 2 and trial["samples"][-1]["pss_mib"] > 100
    assert 0 < trial["sampler_cost"] < 0.1
    assert [file.name for file in (tmp_path / "run/trials").iterdir()] == ["001_round_3_dali.json"]


@pytest.mark.slow
def test_without_restart_the_processes_of_an_arm_sleep_between_its_trials(trials):
    arms = {"torch": dp.TorchConfig(num_workers=2), "dali": DALI}
    seen: dict[str, set[int]] = {arm: set() for arm in arms}
    with contextlib.closing(trials(restart=False)) as each:
        assert each.start(arms, "dali") == {}
        for number in (1, 2):
            for arm, loader in arms.items():
                trial = each.run(TrialKey("round", number, arm), loader)
                assert trial["jobs"][0]["images"] >= 16 and "memory_mib" in trial["gpu_missing"]
                [process] = next(
                    one.processes
                    for (phase, name, _), one in each._suspended.items()
                    if (phase, name) == ("round", arm)
                )
                family = [
                    psutil.Process(process.pid),
                    *psutil.Process(process.pid).children(recursive=True),
                ]
                deadline = time.monotonic() + 60
                while {one.status() for one in family} != {psutil.STATUS_STOPPED}:
                    assert time.monotonic() < deadline
                seen[arm] |= {one.pid for one in family}
        before = {
            pid: psutil.Process(pid).cpu_times()[:2] for pids in seen.values() for pid in pids
        }
        time.sleep(0.1)
        assert before == {pid: psutil.Process(pid).cpu_times()[:2] for pid in before}
        each.run(TrialKey("control", 1, "dali"), DALI)
        of_control = {
            process.pid
            for (phase, *_), one in each._suspended.items()
            if phase == "control"
            for process in one.processes
        }
        assert len(of_control) == 1 and not of_control & seen["dali"]
    assert len(seen["torch"]) == 3 and len(seen["dali"]) == 1
    assert not any(psutil.pid_exists(pid) for pids in seen.values() for pid in pids)


@pytest.mark.slow
def test_without_restart_an_arm_that_fails_is_ended_and_the_others_go_on(trials):
    with contextlib.closing(trials(restart=False)) as each:
        native = DaliNativeConfig(device="cpu")
        native.prefetch_queue_depth = 0
        assert (
            "prefetch_queue_depth is 0"
            in each.start({"dali": DALI, "native": native}, None)["native"]
        )
        [asleep] = each._suspended.values()
        [process] = asleep.processes
        psutil.Process(process.pid).kill()
        with pytest.raises(ArmError, match="arm dali: its process ended"):
            each.run(TrialKey("round", 1, "dali"), DALI)
        assert not each._suspended
        assert each.run(TrialKey("round", 2, "dali"), DALI)["jobs"][0]["images"] >= 16


def test_the_cores_are_counted_from_those_that_this_process_has(trials):
    one = trials(cpus=1).cpus
    assert len(one) == 1 and one <= os.sched_getaffinity(0)


def test_a_quota_bounds_every_arm(trials, monkeypatch):
    monkeypatch.setattr("dali_pipes.system.cpus.cpu_quota", lambda: 1.5)
    assert len(trials().cpus) == 1


@pytest.mark.slow
def test_a_bad_file_is_named_with_what_can_be_done(trials, image_folder, tmp_path):
    shutil.copytree(image_folder, tmp_path / "set")
    bad = dp.Manifest.scan(tmp_path / "set", progress=False)
    broken = trials(bad, min_batches=60)
    bad.path(3).write_bytes(b"")
    with pytest.raises(ArmError) as error:
        broken.run(TrialKey("round", 1, "dali"), DALI)
    assert str(error.value).startswith(f"arm dali: {bad.path(3)}: ")
    assert "dali-pipes scan verify=full" in str(error.value) and "on_bad_sample" not in str(
        error.value
    )


@pytest.mark.slow
def test_an_arm_that_cannot_be_built_is_named(trials):
    with pytest.raises(ArmError, match="arm native: DaliNativeConfig supports only TrainTransform"):
        trials(transform=dp.EvalTransform(size=32, resize=36)).run(
            TrialKey("round", 1, "native"), DaliNativeConfig(device="cpu")
        )


class Process:
    """A process that is never started; `alive` lists those that nobody has ended."""

    alive = ()
    limit = 9

    def __init__(self, *job):
        if len(self.alive) == self.limit:
            raise OSError("no memory for another process")
        self.alive.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.alive.remove(self)


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.setattr("dali_pipes.measure.protocol.MeasuringProcess", Process)
    monkeypatch.setattr(Process, "alive", [])
    return Process


def test_one_of_several_that_cannot_start_ends_those_before_it(trials, processes, monkeypatch):
    monkeypatch.setattr(Process, "limit", 1)
    with pytest.raises(OSError, match="no memory"):
        trials(corun=2).run(TrialKey("round", 1, "dali"), DALI)
    assert not processes.alive


def test_an_interrupt_while_arms_start_ends_them(trials, processes, monkeypatch):
    def interrupted(_, arm):
        assert len(processes.alive) == 3
        raise KeyboardInterrupt

    monkeypatch.setattr(Trials, "_suspend", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trials(restart=False).start({"torch": dp.TorchConfig(), "dali": DALI}, "dali")
    assert not processes.alive
