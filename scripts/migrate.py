"""The job `migrate` of dali-pipes, out of a checkout: python scripts/migrate.py --help"""

from dali_pipes.cli import start

if __name__ == "__main__":
    start("migrate")
