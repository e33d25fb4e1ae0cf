import pytest
import torch

import dali_pipes as dp
from dali_pipes.benchmark import agreement as module
from dali_pipes.benchmark.agreement import agreement, follows_plan, to_steps
from dali_pipes.benchmark.run import _agreement
from dali_pipes.benchmark.work import ArmError, Work, from_plain, in_fresh_process, plain
from dali_pipes.config import BenchmarkConfig, DaliNativeConfig


@pytest.fixture
def work(manifest, tmp_path):
    manifest.save(tmp_path / "m.parquet")
    return Work(str(tmp_path / "m.parquet"), dp.TrainTransform(), 8, 0)


def job(work, **loaders):
    return {"work": work.plain(), "loaders": {name: plain(config) for name, config in loaders.items()}, "images": 20}


def test_arms_that_agree(work):
    found = agreement(job(work, torch=dp.TorchConfig(num_workers=0), dali_cpu=dp.DaliConfig(device="cpu")))
    assert found["images"] == 20 and found["reference"] == "torch" and found["same_ids"]
    assert 0 < found["mean"] <= 0.25 and found["p99"] <= 2.001 and found["max"] >= found["p99"]
    assert found["arms"]["dali_cpu"]["mean"] == found["mean"]


def test_one_wrong_arm_is_seen(work, monkeypatch):
    """Pixels that are off by 3 of 255 everywhere, and samples in another order."""
    original = module._first_images

    def spoiled(work, config, count):
        ids, images = original(work, config, count)
        return (ids.flip(0) if isinstance(config, dp.SyntheticConfig) else ids), images + 3 * isinstance(config, dp.SyntheticConfig)

    monkeypatch.setattr(module, "_first_images", spoiled)
    found = agreement(job(work, a=dp.SyntheticConfig(), b=dp.TorchConfig(num_workers=0), c=dp.TorchConfig(num_workers=0)))
    assert not found["same_ids"] and not found["arms"]["b"]["same_ids"]
    assert found["mean"] > 3


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"same_ids": False, "mean": 0, "p99": 0}, "deliver different samples"),
        ({"same_ids": True, "mean": 0.3, "p99": 1}, "differ by 0.30 of 255"),
        ({"same_ids": True, "mean": float("nan"), "p99": float("nan")}, "differ by nan"),
        ({"same_ids": True, "mean": 0.1, "p99": 3}, "more than max_mean_difference=0.25 and max_p99_difference=2"),
    ],
)
def test_a_failing_gate_stops_the_benchmark(work, monkeypatch, answer, told):
    monkeypatch.setattr("dali_pipes.benchmark.run.in_fresh_process", lambda *_: {"reference": "torch", "arms": {"dali": answer}})
    config = BenchmarkConfig(loaders={"torch": dp.TorchConfig(), "dali": dp.DaliConfig()})
    with pytest.raises(ArmError, match=told):
        _agreement(config, work)


def test_only_arms_on_the_plan_are_compared():
    assert follows_plan(dp.DaliConfig()) and follows_plan(dp.TorchConfig())
    assert not follows_plan(DaliNativeConfig()) and not follows_plan(dp.SyntheticConfig())


@pytest.mark.parametrize("dtype", ["fp32", "uint8"])
def test_steps_undo_the_normalization(dtype):
    transform = dp.TrainTransform(dtype=dtype, mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3))
    steps = torch.randint(0, 256, (2, 3, 4, 4)).float()
    mean, std = (torch.tensor(each).reshape(3, 1, 1) for each in (transform.mean, transform.std))
    images = steps if dtype == "uint8" else (steps / 255 - mean) / std
    assert torch.allclose(to_steps(images, transform), steps, atol=1e-3)


@pytest.mark.parametrize(
    "config",
    [
        dp.TrainTransform(size=99),
        dp.EvalTransform(dtype="fp16"),
        dp.DaliConfig(num_threads=3),
        DaliNativeConfig(),
        dp.TorchConfig(),
    ],
)
def test_configs_pass_through_json(config):
    assert from_plain(plain(config)) == config


def test_a_process_that_dies_is_reported_with_its_last_words():
    with pytest.raises(ArmError, match=r"(?s)arm x: its process ended with status 1.*JSONDecodeError|No module"):
        in_fresh_process("no_such_module", {}, "arm x")
