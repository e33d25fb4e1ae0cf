"""examples/ray/train.py on a local Ray of two CPUs. Its workers write down what they got, and rank
1 dies once in mid-epoch.

Arguments: a folder for what they write down, the batch before which rank 1 dies, the images, and
options of the example as JSON.
"""

import contextlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import ray

EXAMPLE = Path(__file__).parents[2] / "examples/ray/train.py"


def wait_for_checkpoints(out, count, seconds=120):
    """Waits until Ray's controller has written down so many checkpoints."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for file in out.glob("*/checkpoint_manager_snapshot.json"):
            with contextlib.suppress(ValueError):  # it may be half written
                if len(json.loads(file.read_text())["checkpoint_results"]) >= count:
                    return
        time.sleep(0.05)


def recorded(train, out, dies_at, every):
    """`train` with loaders that write down each batch."""

    def train_recorded(config):
        import dali_pipes as dp

        take = dp.Loader.__iter__

        def take_recorded(loader):
            rank, died = dp.Rank.from_env().index, out / "died"
            with (out / f"rank{rank}-{os.getpid()}.jsonl").open("a") as log:
                for batch in take(loader):
                    left = loader.batches_left % len(loader)
                    epoch, step = loader.epoch - (not left), len(loader) - left - 1
                    if rank == 1 and epoch * len(loader) + step == dies_at and not died.exists():
                        died.touch()
                        # Ray's controller asks for reports, and one that it has not asked for dies
                        # with the worker.
                        wait_for_checkpoints(out, dies_at // every)
                        os._exit(1)
                    row = {
                        "epoch": epoch,
                        "step": step,
                        "ids": batch.ids.tolist(),
                        "pixels": float(batch.images.double().sum()),
                    }
                    log.write(json.dumps(row) + "\n")
                    log.flush()
                    yield batch

        dp.Loader.__iter__ = take_recorded
        train(config)

    return train_recorded


def main():
    out, dies_at, images, options = (
        Path(sys.argv[1]),
        int(sys.argv[2]),
        sys.argv[3],
        json.loads(sys.argv[4]),
    )
    spec = importlib.util.spec_from_file_location("ray_example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.train_func_per_worker = recorded(
        example.train_func_per_worker, out, dies_at, options["every"]
    )
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        _temp_dir=str(out / "ray"),
    )
    try:
        example.train(images, str(out), **options)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
