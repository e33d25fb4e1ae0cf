"""The job `benchmark` of dali-pipes, out of a checkout: python scripts/benchmark.py --help"""

from dali_pipes.cli import start

if __name__ == "__main__":
    start("benchmark")
