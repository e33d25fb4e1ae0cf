"""Finds the fastest settings of a loader for your images on this machine; writes them for loader=tuned_HOST. See docs/tune.md.

python scripts/tune.py data.train=/my/images loader=dali
python scripts/tune.py data.train=/my/images loader=torch workload=train max_memory_mib=4000 minutes=20
python scripts/train.py data.root=/imagenet loader=tuned_HOST
"""

from dali_pipes.cli.hydra import run
from dali_pipes.tools.tuning.run import tune

if __name__ == "__main__":
    run("tune", tune)
