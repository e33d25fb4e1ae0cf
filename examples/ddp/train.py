"""PyTorch alone: train a classifier with DistributedDataParallel, and go on from the last
checkpoint if there is one.

torchrun --nproc-per-node=8 examples/ddp/train.py IMAGES [OUT], or python for one process

Lines that end in "# dali_pipes" are those that differ from PyTorch's own examples.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel

import dali_pipes as dp  # dali_pipes


def main(images, out="ddp_run", size=224, batch_size=64, epochs=10):
    gpu, ranks = torch.cuda.is_available(), int(os.environ.get("WORLD_SIZE", "1"))
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
    )
    if ranks > 1:
        dist.init_process_group("nccl" if gpu else "gloo")
    manifest = dp.Manifest.scan(images)  # dali_pipes
    loader = dp.build_loader(  # dali_pipes
        manifest,  # dali_pipes
        dp.DaliConfig(),  # dali_pipes
        transform=dp.TrainTransform(size=size),  # dali_pipes
        batch_size=batch_size,  # dali_pipes
        rank=dp.Rank.from_env(),  # dali_pipes
        device=device,  # dali_pipes
    )  # dali_pipes
    model = torchvision.models.resnet18(num_classes=len(manifest.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parts, last = {"model": model, "optimizer": optimizer, "loader": loader}, Path(out, "last.pt")
    if last.exists():
        for name, state in torch.load(last, map_location=device).items():
            parts[name].load_state_dict(state)
    trained = DistributedDataParallel(model) if ranks > 1 else model

    while loader.epoch < epochs:  # dali_pipes
        for batch_images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(trained(batch_images), labels).backward()
            optimizer.step()
        if not dist.is_initialized() or dist.get_rank() == 0:
            last.parent.mkdir(exist_ok=True)
            torch.save({name: part.state_dict() for name, part in parts.items()}, last)
    loader.close()  # dali_pipes
    if dist.is_initialized():
        dist.destroy_process_group()
    return loader.epoch * len(loader)


if __name__ == "__main__":
    main(*sys.argv[1:])
