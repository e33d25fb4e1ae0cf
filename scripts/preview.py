"""The job `preview` of dali-pipes, out of a checkout: python scripts/preview.py --help"""

from dali_pipes.cli import start

if __name__ == "__main__":
    start("preview")
