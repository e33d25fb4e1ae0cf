import contextlib
import os
import shutil
import time
from dataclasses import replace

import psutil
import pytest

import dali_pipes as dp
from dali_pipes.backends.config import DaliNativeConfig
from dali_pipes.measure.config import BenchmarkConfig
from dali_pipes.measure.protocol import Trials, rounds
from dali_pipes.measure.worker_process import ArmError
from dali_pipes.measure.workload import to_dict


def test_orders_are_random_and_every_second_one_is_the_first_reversed():
    orders = rounds("abcde", 7, seed=1)
    assert len(orders) == 7 and all(sorted(order) == list("abcde") for order in orders)
    assert all(orders[at + 1] == orders[at][::-1] for at in (0, 2, 4))
    assert len({tuple(order) for order in orders}) == 7
    assert orders == rounds("abcde", 7, seed=1) != rounds("abcde", 7, seed=2)


def test_each_arm_stands_as_early_as_late():
    orders = rounds("abc", 6, seed=0)
    assert {arm: sum(order.index(arm) for order in orders) for arm in "abc"} == dict.fromkeys("abc", 6)


@pytest.fixture
def trials(work, manifest, tmp_path):
    def make(**options):
        config = BenchmarkConfig(
            loaders={"torch": 1}, arms=["torch"], min_seconds=0.2, min_batches=2, max_warmup_seconds=0.5, **options
        )
        return Trials(replace(work, workload=config.workload), manifest, config, tmp_path / "trials")

    return make


def test_jobs_at_once_measure_at_the_same_time(trials, tmp_path):
    trial = trials(corun=2).run("dali", to_dict(dp.DaliConfig(device="cpu")), "round", 3)
    one, other = trial["jobs"]
    assert max(one["start"], other["start"]) < min(one["end"], other["end"])
    assert (trial["arm"], trial["phase"], trial["round"]) == ("dali", "round", 3)
    assert trial["samples"][-1]["processes"] == 2 and trial["samples"][-1]["pss_mib"] > 100
    assert 0 < trial["sampler_cost"] < 0.1
    assert [file.name for file in (tmp_path / "trials").iterdir()] == ["001_round_3_dali.json"]


def test_without_restart_the_processes_of_an_arm_sleep_between_its_trials(trials):
    arms = {"torch": to_dict(dp.TorchConfig(num_workers=2)), "dali": to_dict(dp.DaliConfig(device="cpu"))}
    seen: dict[str, set[int]] = {arm: set() for arm in arms}
    with contextlib.closing(trials(restart=False)) as each:
        assert each.start(arms, "dali") == {}
        for number in (1, 2, 3):
            for arm, loader in arms.items():
                trial = each.run(arm, loader, "round", number)
                assert trial["jobs"][0]["images"] >= 16 and "memory_mib" in trial["gpu_missing"]
                [process] = next(one.processes for (phase, name, _), one in each._asleep.items() if (phase, name) == ("round", arm))
                family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
                deadline = time.monotonic() + 5
                while {one.status() for one in family} != {psutil.STATUS_STOPPED}:
                    assert time.monotonic() < deadline
                seen[arm] |= {one.pid for one in family}
        before = {pid: psutil.Process(pid).cpu_times()[:2] for pids in seen.values() for pid in pids}
        time.sleep(0.3)
        assert before == {pid: psutil.Process(pid).cpu_times()[:2] for pid in before}
        each.run("dali", arms["dali"], "control", 1)
        of_control = {process.pid for (phase, *_), one in each._asleep.items() if phase == "control" for process in one.processes}
        assert len(of_control) == 1 and not of_control & seen["dali"]
    assert len(seen["torch"]) == 3 and len(seen["dali"]) == 1
    assert not any(psutil.pid_exists(pid) for pids in seen.values() for pid in pids)


def test_without_restart_an_arm_that_fails_is_ended_and_the_others_go_on(trials):
    with contextlib.closing(trials(restart=False)) as each:
        config = to_dict(dp.DaliConfig(device="cpu"))
        native = to_dict(DaliNativeConfig(device="cpu")) | {"prefetch_queue_depth": 0}
        assert "prefetch_queue_depth is 0" in each.start({"dali": config, "native": native}, None)["native"]
        each.run("dali", config, "round", 1)
        [asleep] = each._asleep.values()
        [process] = asleep.processes
        psutil.Process(process.pid).kill()
        with pytest.raises(ArmError, match="arm dali: its process ended"):
            each.run("dali", config, "round", 2)
        assert not each._asleep
        assert each.run("dali", config, "round", 3)["jobs"][0]["images"] >= 16


def test_the_cores_are_counted_from_those_that_this_process_has(trials):
    one = trials(cpus=1).cpus
    assert len(one) == 1 and one <= os.sched_getaffinity(0)


def test_a_quota_bounds_every_arm(trials, monkeypatch):
    monkeypatch.setattr("dali_pipes.system.cpus.cpu_quota", lambda: 1.5)
    assert len(trials().cpus) == 1


def test_a_bad_file_is_named_with_what_can_be_done(work, manifest, image_folder, tmp_path):
    shutil.copytree(image_folder, tmp_path / "set")
    bad = dp.Manifest.scan(tmp_path / "set", progress=False)
    bad.save(tmp_path / "bad.parquet")
    bad.path(3).write_bytes(b"")
    config = BenchmarkConfig(loaders={"torch": 1}, arms=["torch"], min_batches=6)
    with pytest.raises(ArmError) as error:
        Trials(replace(work, manifest=str(tmp_path / "bad.parquet")), bad, config, tmp_path / "trials").run(
            "dali", to_dict(dp.DaliConfig(device="cpu")), "round", 1
        )
    assert str(error.value).startswith(f"arm dali: {bad.path(3)}: ")
    assert "dali-pipes scan verify=full" in str(error.value) and "on_bad_sample" not in str(error.value)


def test_a_cold_trial_says_what_was_in_the_page_cache(trials, manifest):
    trial = trials(workload="cold").run("dali", to_dict(dp.DaliConfig(device="cpu")), "round", 1)
    assert trial["resident"] is None or 0 <= trial["resident"] <= 1
    assert trial["jobs"][0]["images"] == 40


def test_an_arm_that_cannot_be_built_is_named(trials):
    with pytest.raises(ArmError, match="arm native: DaliNativeConfig supports only the training transform"):
        failing = trials()
        failing._work = replace(failing._work, transform=dp.EvalTransform(size=32, resize=36))
        failing.run("native", to_dict(DaliNativeConfig(device="cpu")), "round", 1)
