"""Runs one epoch through a loader: what it yields, how fast, and a picture of the first batch.

python scripts/load.py loader=dali_cpu data.train=/my/images
"""

from _hydra import run

from dali_pipes.jobs import load

if __name__ == "__main__":
    run("load", load)
