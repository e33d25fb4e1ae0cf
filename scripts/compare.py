"""The job `compare` of dali-pipes, out of a checkout: python scripts/compare.py --help"""

from dali_pipes.cli import start

if __name__ == "__main__":
    start("compare")
