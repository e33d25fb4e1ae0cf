"""Reads the headers of all images, prints a summary, and lists what is wrong.

python scripts/scan.py data.train=/my/images out=train.parquet
"""

from dali_pipes.cli.hydra import run
from dali_pipes.tools.scan import scan

if __name__ == "__main__":
    run("scan", scan)
