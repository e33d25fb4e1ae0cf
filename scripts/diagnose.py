"""The job `diagnose` of dali-pipes, out of a checkout: python scripts/diagnose.py --help"""

from dali_pipes.cli import start

if __name__ == "__main__":
    start("diagnose")
