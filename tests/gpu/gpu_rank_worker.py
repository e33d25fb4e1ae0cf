"""One rank of two, each on a GPU of its own: batches of DALI, and DistributedDataParallel over
gloo. Started by torchrun.

Arguments: manifest, output folder. Writes the ids and devices of its batches, and the weights at
the end, to OUT/RANK.json.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import dali_pipes as dp

GLOBAL_BATCH, EPOCHS, CLASSES = 8, 2, 5


def main() -> None:
    manifest, out = dp.Manifest.load(sys.argv[1]), Path(sys.argv[2])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("gloo")
    rank = dp.Rank.from_env()
    # weights that differ, until DistributedDataParallel sends those of the first rank
    torch.manual_seed(rank.index)
    model = DistributedDataParallel(
        torch.nn.Linear(CLASSES, CLASSES).to(device), device_ids=[device]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    ids, devices = [], set()
    options = {
        "transform": dp.TrainTransform(size=32),
        "batch_size": GLOBAL_BATCH // rank.count,
        "rank": rank,
    }
    with dp.build_loader(manifest, dp.DaliConfig(device="gpu"), **options) as loader:
        for _ in range(EPOCHS):
            for batch in loader:
                ids.append(batch.ids.tolist())
                devices |= {str(batch.images.device), str(batch.labels.device)}
                one_hot = torch.nn.functional.one_hot(batch.labels, CLASSES).float()
                torch.nn.functional.cross_entropy(model(one_hot), batch.labels).backward()
                optimizer.step()
                optimizer.zero_grad()

    weights = [
        value for weight in model.parameters() for value in weight.detach().flatten().tolist()
    ]
    (out / f"{rank.index}.json").write_text(
        json.dumps({"ids": ids, "devices": sorted(devices), "weights": weights})
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
