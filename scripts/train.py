"""Trains an image classifier; the same samples and crops with every loader. docs/training.md has the rest.

python scripts/train.py experiment=demo_resnet18
python scripts/train.py data.root=/imagenet model=resnet50 loader=dali precision=bf16
torchrun --nproc-per-node 8 scripts/train.py experiment=imagenet_resnet50 data.root=/imagenet
"""

from typing import Any

from dali_pipes.cli.hydra import job_folder, run
from dali_pipes.errors import ConfigError


def job(config: Any) -> None:
    try:
        from dali_pipes.training.run import train
    except ModuleNotFoundError as error:
        told = f"training needs {error.name}; run bash scripts/setup.sh train, or pip install 'dali_pipes[train]'"
        raise ConfigError(told) from None
    train(config, job_folder())


if __name__ == "__main__":
    run("train", job)
