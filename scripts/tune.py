"""The job `tune` of dali-pipes, out of a checkout: python scripts/tune.py --help"""

from dali_pipes.cli import start

if __name__ == "__main__":
    start("tune")
