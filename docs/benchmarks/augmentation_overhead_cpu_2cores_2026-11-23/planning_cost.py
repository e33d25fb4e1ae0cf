"""What the plan costs: CPU microseconds an image, alone and fed into DALI.

python docs/benchmarks/augmentation_overhead_cpu_2cores_2026-11-23/planning_cost.py \\
    data.train=IMAGES batch_size=256 transform=imagenet_trivialaugment

It takes the options of `dali-pipes preview`, and runs a pipeline that is fed the plan, as the real
one is, and decodes nothing.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from nvidia.dali import pipeline_def
from nvidia.dali.data_node import DataNode
from torch.utils._pytree import tree_leaves

from dali_pipes.backends.dali.backend import shut_down
from dali_pipes.backends.dali.feed import plan_nodes, planned_inputs
from dali_pipes.cli.hydra import run
from dali_pipes.data.images import open_images
from dali_pipes.data.manifest import Manifest
from dali_pipes.plan.plan import Plan, PlannedBatch
from dali_pipes.plan.transforms import Transform
from dali_pipes.tools.preview.run import PreviewConfig


def planning_cost(
    manifest: Manifest, transform: Transform, batch_size: int, images: int = 100_000
) -> dict[str, float]:
    """CPU microseconds per image of this process.

    "plan" is for the plan alone, "plan_and_feed" for the plan fed into DALI and returned as its
    outputs. A small manifest is repeated to 20,000 rows, so that epochs are as long as in real
    training.
    """
    manifest = manifest.subset(np.resize(np.arange(len(manifest)), max(len(manifest), 20_000)))

    plan = Plan(manifest, transform, batch_size, last_batch="pad")
    steps = max(1, images // batch_size)
    pipeline = _planning_pipeline(
        manifest, transform, plan.iter_from(), batch_size=batch_size, num_threads=1, device_id=None
    )
    pipeline.build()

    walk = plan.iter_from()
    costs = {}
    for name, step in (("plan", lambda: next(walk)), ("plan_and_feed", pipeline.run)):
        for _ in range(10):  # warms up
            step()

        start = time.process_time()
        for _ in range(steps):
            step()
        costs[name] = (time.process_time() - start) / steps / batch_size * 1e6

    shut_down(pipeline)
    return costs


@pipeline_def
def _planning_pipeline(
    manifest: Manifest, transform: Transform, planned: Iterator[PlannedBatch]
) -> tuple[DataNode, ...]:
    # the files are not read
    nodes = replace(
        plan_nodes(manifest, planned_inputs(manifest, transform), planned, None), encoded=None
    )
    return tuple(each for each in tree_leaves(nodes) if isinstance(each, DataNode))


def print_costs(config: PreviewConfig) -> None:
    manifest = open_images(config.data, config.split)
    costs = planning_cost(manifest, config.transform, config.batch_size)
    print("".join(f"{name}: {cost:.2f} CPU-µs an image\n" for name, cost in costs.items()), end="")


if __name__ == "__main__":
    run("preview", print_costs, __doc__ or "")
