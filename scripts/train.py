"""The job `train` of dali-pipes, out of a checkout: python scripts/train.py --help"""

from dali_pipes.cli import start

if __name__ == "__main__":
    start("train")
