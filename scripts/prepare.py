"""The job `prepare` of dali-pipes, out of a checkout: python scripts/prepare.py --help"""

from dali_pipes.cli import start

if __name__ == "__main__":
    start("prepare")
