"""The job `doctor` of dali-pipes, out of a checkout: python scripts/doctor.py --help"""

import sys

try:
    import dali_pipes.tools.doctor.run  # noqa: F401  what the job will import
    from dali_pipes.cli.jobs import start
except ImportError as error:
    sys.exit(f"error: the package cannot be imported ({error}); bash scripts/setup.sh installs what it needs")

if __name__ == "__main__":
    start("doctor")
