"""gpu_check's parts grid, loader and resnet50, with more time for each and fewer arms and settings.

    PYTHONPATH=.:scripts python docs/benchmarks/gpu_h200_2026-11-27/check.py \\
        out=OUT data.train=IMAGES parts=[grid,loader,resnet50] minutes=6.3
"""

import sys

import gpu_check.run as runner
from gpu_check import grid, parts
from gpu_check.config import register

from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.cli.hydra import run
from dali_pipes.measure.workload import to_dict

ARMS = ("dali_cpu", "dali", "dali_native_fancy", "dali_fastest", "dali_native")


def cells(batch_size, cores, regions=()):
    loaders = [TorchConfig(decoder="torchvision", num_workers=count) for count in (16, 24)]
    loaders += [DaliConfig(num_threads=count) for count in (8, 4, 16)]
    return [{"loader": to_dict(each), "batch_size": batch_size} for each in loaders]


def loader(bench, before, limit):
    arm, _ = parts.best_torch(before)
    options = ["min_seconds=1.5", "loaders.dali_fastest.decode=auto", *parts.NO_GATE]
    return parts._compare(bench, "loader", before, ARMS, [f"baseline={arm}", *options], limit)


if __name__ == "__main__":
    grid.cells = cells
    runner.PARTS = parts.PARTS = {
        "grid": (55, parts._grid),
        "loader": (215, loader),
        "resnet50": (105, parts._training("resnet50", ("synthetic", "dali_cpu", "dali"), 1.0)),
    }
    register()
    run("gpu_check", lambda config: sys.exit(not runner.gpu_check(config)), __doc__ or "")
