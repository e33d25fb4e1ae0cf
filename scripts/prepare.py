"""Makes images ready once, before training: smaller JPEGs, shards, or CIFAR as a folder. docs/prepare.md has the rest.

python scripts/prepare.py data.train=/my/images out=/my/images_256 resize=256 quality=90
python scripts/prepare.py data.root=/imagenet out=/imagenet_shards to=shards
python scripts/prepare.py source=cifar10 archive=cifar-10-binary.tar.gz out=/cifar10
"""

from dali_pipes.cli.hydra import run
from dali_pipes.tools.preparation.run import prepare

if __name__ == "__main__":
    run("prepare", prepare)
