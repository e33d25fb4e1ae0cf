"""All traps, and a command to try them by hand.

PYTHONPATH=. python tests/adapters/lazy/programs/breaking.py [--only TEXT] [--later] [--no-check]
"""

import argparse
import collections
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# each registers its own
import dali_pipes as dp
import programs.batch_traps
import programs.file_traps
import programs.kind_traps
import programs.library_traps
import programs.memory_traps
import programs.picture_traps
import programs.process_traps  # noqa: F401
from programs.pictures import make_pictures
from programs.traps import TRAPS, Outcome, judge


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="traps with this in their names")
    parser.add_argument("--later", action="store_true", help="the trap is in one later sample")
    parser.add_argument("--no-check", action="store_true", help="no sample is made twice")
    parser.add_argument("--config", choices=("noted", "torch", "dali"), default="noted")
    args = parser.parse_args()
    config = {
        "noted": lambda: None,
        "torch": lambda: dp.TorchConfig(num_workers=0),
        "dali": lambda: dp.DaliConfig(device="cpu", num_threads=1),
    }[args.config]()
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        make_pictures(Path(folder))
        for name, trap in TRAPS.items():
            if args.only not in name or (args.later and not trap.item):
                continue
            try:
                outcome = judge(trap, args.later, check=not args.no_check, config=config)
            except AssertionError as error:
                outcome = Outcome("none", str(error), 0)
            counts[outcome.kind] += 1
            text = outcome.text.strip()
            text = text if outcome.kind == "loud" and args.only else (text.splitlines() or [""])[0]
            print(f"{name:60s} {outcome.kind:5s} {outcome.waited:3d}  {text[:300]}", flush=True)
    print(dict(counts))
    return int(bool(counts["WRONG"]))


if __name__ == "__main__":
    sys.exit(main())
