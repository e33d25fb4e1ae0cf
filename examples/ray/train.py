"""Ray Train's torch_fashion_mnist_example.py, with images from dali_pipes, and going on within the
epoch when a worker has died.

python examples/ray/train.py /imagenet/train /shared/runs
"""

import sys
import tempfile
from pathlib import Path

import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, enable_reproducibility, prepare_model
from torchvision.models import get_model

import dali_pipes as dp  # dali_pipes


def get_loader(config):
    # dali_pipes
    manifest, reader = (
        dp.Manifest.open(config["images"]),
        dp.DaliConfig(num_threads=config["threads"]),
    )
    # dali_pipes: Ray has set RANK and WORLD_SIZE
    options = {"batch_size": config["batch_size"], "rank": dp.Rank.from_env()}
    # dali_pipes
    loader = dp.build_loader(
        manifest, reader, transform=dp.TrainTransform(size=config["size"]), **options
    )
    return loader, len(manifest.classes)  # dali_pipes: no prepare_data_loader


def train_func_per_worker(config):
    enable_reproducibility()
    loader, num_classes = get_loader(config)
    model = prepare_model(get_model(config["model"], num_classes=num_classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    # dali_pipes: the loader is saved with the others
    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            for name, state in torch.load(Path(folder, "state.pt"), map_location="cpu").items():
                parts[name].load_state_dict(state)
    for epoch in range(loader.epoch, config["epochs"]):  # dali_pipes: no set_epoch
        for step, (images, labels) in enumerate(loader, 1):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # dali_pipes: also within an epoch
            if step % config["every"] == 0 or loader.epoch > epoch:
                with tempfile.TemporaryDirectory() as folder:
                    if first := ray.train.get_context().get_world_rank() == 0:
                        torch.save(
                            {name: part.state_dict() for name, part in parts.items()},
                            Path(folder, "state.pt"),
                        )
                    ray.train.report(
                        {"loss": loss.item()}, Checkpoint.from_directory(folder) if first else None
                    )
    loader.close()  # dali_pipes


def train(images, storage, num_workers=8, use_gpu=True, **options):
    config = {"images": images, "batch_size": 32, "size": 224, "threads": 8}  # dali_pipes
    config |= {"model": "resnet50", "lr": 0.1, "epochs": 90, "every": 500, **options}
    scaling = ScalingConfig(num_workers=num_workers, use_gpu=use_gpu)
    run = RunConfig(storage_path=storage, failure_config=FailureConfig(max_failures=3))
    return TorchTrainer(
        train_func_per_worker, train_loop_config=config, scaling_config=scaling, run_config=run
    ).fit()


if __name__ == "__main__":
    print(train(*sys.argv[1:]))
