import os
import shutil
from dataclasses import replace

import pytest

import dali_pipes as dp
from dali_pipes.benchmark.fresh_process import ArmError
from dali_pipes.benchmark.protocol import Blocks, rounds
from dali_pipes.benchmark.work import plain
from dali_pipes.jobs import BenchmarkConfig


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
def blocks(work, manifest, tmp_path):
    def make(**options):
        config = BenchmarkConfig(
            loaders={"torch": 1}, arms=["torch"], min_seconds=0.2, min_batches=2, max_warmup_seconds=0.5, **options
        )
        return Blocks(replace(work, workload=config.workload), manifest, config, tmp_path / "blocks")

    return make


def test_jobs_at_once_measure_at_the_same_time(blocks, tmp_path):
    block = blocks(corun=2).run("dali", plain(dp.DaliConfig(device="cpu")), "round", 3)
    one, other = block["jobs"]
    assert max(one["start"], other["start"]) < min(one["end"], other["end"])
    assert (block["arm"], block["phase"], block["round"]) == ("dali", "round", 3)
    assert block["samples"][-1]["processes"] == 2 and block["samples"][-1]["pss_mib"] > 100
    assert 0 < block["sampler_cost"] < 0.1
    assert [file.name for file in (tmp_path / "blocks").iterdir()] == ["001_round_3_dali.json"]


def test_the_cores_are_counted_from_those_that_this_process_has(blocks):
    one = blocks(cpus=1).cpus
    assert len(one) == 1 and one <= os.sched_getaffinity(0)


def test_a_quota_bounds_every_arm(blocks, monkeypatch):
    monkeypatch.setattr("dali_pipes.cpus.cpu_quota", lambda: 1.5)
    assert len(blocks().cpus) == 1


def test_a_bad_file_is_named_with_what_can_be_done(work, manifest, image_folder, tmp_path):
    shutil.copytree(image_folder, tmp_path / "set")
    bad = dp.Manifest.scan(tmp_path / "set", progress=False)
    bad.save(tmp_path / "bad.parquet")
    bad.path(3).write_bytes(b"")
    config = BenchmarkConfig(loaders={"torch": 1}, arms=["torch"], min_batches=6)
    with pytest.raises(ArmError) as error:
        Blocks(replace(work, manifest=str(tmp_path / "bad.parquet")), bad, config, tmp_path / "blocks").run(
            "dali", plain(dp.DaliConfig(device="cpu")), "round", 1
        )
    assert str(error.value).startswith(f"arm dali: {bad.path(3)}: ")
    assert "scan.py verify=full" in str(error.value) and "on_bad_sample" not in str(error.value)


def test_a_cold_block_says_what_was_in_the_page_cache(blocks, manifest):
    block = blocks(workload="cold").run("dali", plain(dp.DaliConfig(device="cpu")), "round", 1)
    assert block["resident"] is None or 0 <= block["resident"] <= 1
    assert block["jobs"][0]["images"] == 40


def test_an_arm_that_cannot_be_built_is_named(blocks):
    with pytest.raises(ArmError, match="arm native: loader=dali_native knows only the training transform"):
        failing = blocks()
        failing._work = replace(failing._work, transform=dp.EvalTransform(size=32, resize=36))
        failing.run("native", plain(dp.config.DaliNativeConfig(device="cpu")), "round", 1)
