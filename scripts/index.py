"""The job `index` of dali-pipes, out of a checkout: python scripts/index.py --help"""

from dali_pipes.cli import start

if __name__ == "__main__":
    start("index")
