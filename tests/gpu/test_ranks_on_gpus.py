"""Two processes, each on a GPU of its own, train one model with DistributedDataParallel."""

import json
import math
from pathlib import Path

import pytest
import torch
from gpu_rank_worker import EPOCHS, GLOBAL_BATCH
from ranks import finish, start_ranks

import dali_pipes as dp

WORKER = Path(__file__).with_name("gpu_rank_worker.py")
pytestmark = [
    pytest.mark.needs_cuda,
    pytest.mark.slow,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.device_count() < 2, reason="needs two GPUs"
    ),
]


def test_each_rank_has_its_part_of_the_plan_on_its_own_gpu(thumbnails, tmp_path):
    thumbnails.save(tmp_path / "m.parquet")
    finish(start_ranks(WORKER, tmp_path / "m.parquet", tmp_path, ranks=2))

    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [each["devices"] for each in ranks] == [["cuda:0"], ["cuda:1"]]
    plan = dp.Plan(thumbnails, dp.TrainTransform(size=32), GLOBAL_BATCH)
    planned = [
        plan.batch(epoch, step).ids.tolist()
        for epoch in range(EPOCHS)
        for step in range(plan.steps)
    ]
    assert [
        first + second for first, second in zip(ranks[0]["ids"], ranks[1]["ids"], strict=True)
    ] == planned
    assert ranks[0]["weights"] == ranks[1]["weights"] and all(
        map(math.isfinite, ranks[0]["weights"])
    )
