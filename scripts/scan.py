"""The job `scan` of dali-pipes, out of a checkout: python scripts/scan.py --help"""

from dali_pipes.cli import start

if __name__ == "__main__":
    start("scan")
