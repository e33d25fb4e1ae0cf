"""examples/ray/train.py on a local Ray of two CPUs. Its workers write down what they got, and rank
1 dies once in mid-epoch.

Arguments: a folder for what they write down, the batch before which rank 1 dies, the images,
options of the example as JSON, and "plan" or "lazy": a loader of build_loader, or what from_torch
makes of a DataLoader.
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


def lazy_loader(config):
    """Takes the place of the example's own `get_loader`."""
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms

    import dali_pipes as dp

    manifest = dp.Manifest.open(config["images"])
    crop = transforms.Compose([transforms.RandomResizedCrop(config["size"]), transforms.ToTensor()])

    class Pictures(Dataset):
        def __len__(self):
            return 36  # which both ranks share evenly

        def __getitem__(self, index):
            return crop(Image.open(manifest.path(index)).convert("RGB")), index

    old = DataLoader(Pictures(), config["batch_size"], shuffle=True)
    lazy = dp.from_torch(old, dp.TorchConfig(num_workers=0), seed=0, rank=dp.Rank.from_env())
    return lazy, len(manifest)


def recorded(train, out, dies_at, every, is_lazy):
    """`train` with loaders that write down each batch."""

    def train_recorded(config):
        import dali_pipes as dp
        from dali_pipes.adapters.lazy.loader import LazyLoader

        kind = LazyLoader if is_lazy else dp.Loader
        take = kind.__iter__

        def take_recorded(loader):
            rank, died = dp.Rank.from_env().index, out / "died"
            samples = loader.state_dict()["samples"]
            with (out / f"rank{rank}-{os.getpid()}.jsonl").open("a") as log:
                batches = take(loader)
                epoch = loader.epoch
                first = samples // (2 * config["batch_size"]) if samples else 0
                for step, batch in enumerate(batches, first):
                    if rank == 1 and epoch * len(loader) + step == dies_at and not died.exists():
                        died.touch()
                        # Ray's controller asks for reports, and one that it has not asked for dies
                        # with the worker.
                        wait_for_checkpoints(out, dies_at // every)
                        os._exit(1)
                    images, ids = batch if is_lazy else (batch.images, batch.ids)
                    row = {"epoch": epoch, "step": step, "ids": ids.tolist()}
                    row |= {"pixels": float(images.double().sum())}
                    log.write(json.dumps(row) + "\n")
                    log.flush()
                    yield batch

        kind.__iter__ = take_recorded
        train(config)

    return train_recorded


def main():
    out, dies_at, images = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    options, is_lazy = json.loads(sys.argv[4]), sys.argv[5] == "lazy"
    spec = importlib.util.spec_from_file_location("ray_example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    if is_lazy:
        example.get_loader = lazy_loader
    example.train_func_per_worker = recorded(
        example.train_func_per_worker, out, dies_at, options["every"], is_lazy
    )
    memory = {"object_store_memory": 80 * 2**20, "_temp_dir": str(out / "ray")}
    ray.init(num_cpus=2, include_dashboard=False, **memory)
    try:
        example.train(images, str(out), **options)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
