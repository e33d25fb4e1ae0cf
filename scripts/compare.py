"""Puts benchmark results of the same work side by side: machines, days, versions. Refuses what was not the same work.

python scripts/compare.py runs/benchmark/2026-11-21_10-00-00 /other/machine/result.json
"""

import argparse
from pathlib import Path

from rich.console import Console

from dali_pipes.cli.hydra import stop
from dali_pipes.errors import DaliPipesError
from dali_pipes.tools.benchmark.compare import compare

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="a run's folder, or its result.json")
    try:
        compare(parser.parse_args().runs, Console())
    except DaliPipesError as error:
        stop(str(error))
