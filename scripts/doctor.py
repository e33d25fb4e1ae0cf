"""The job `doctor` of dali-pipes, out of a checkout: python scripts/doctor.py --help"""

from dali_pipes.cli import start

if __name__ == "__main__":
    start("doctor")
