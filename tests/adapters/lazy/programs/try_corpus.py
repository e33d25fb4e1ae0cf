"""A command to try the programs of the corpus by hand.

PYTHONPATH=. python tests/adapters/lazy/programs/try_corpus.py [--only TEXT] [--workers 2]
    [--config torch|dali] [--no-check]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# each registers its own
import programs.array_programs
import programs.group_programs
import programs.pillow_programs
import programs.store_programs  # noqa: F401
from programs.comparing import compare
from programs.corpus import PROGRAMS
from programs.pictures import make_pictures

MEAN = 1.0  # of 255


def main() -> int:
    import dali_pipes as dp

    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="programs with this in their names")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--config", choices=("noted", "torch", "dali"), default="noted")
    parser.add_argument("--no-check", action="store_true", help="no sample is made twice")
    parser.add_argument("--why", action="store_true", help="what the loader explains")
    args = parser.parse_args()
    config = {
        "noted": lambda: None,
        "torch": lambda: dp.TorchConfig(num_workers=0),
        "dali": lambda: dp.DaliConfig(device="cpu", num_threads=1),
    }[args.config]()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        make_pictures(Path(folder))
        for name, program in PROGRAMS.items():
            if args.only not in name or program.missing or (program.wraps and config is None):
                continue
            start = time.monotonic()
            try:
                found = compare(program, args.workers, config, check=not args.no_check)
            except AssertionError as error:
                print(f"{name:40s} NOT RUN {error}", flush=True)
                continue
            bad += bool(found.difference) or found.mean > MEAN
            text = (
                found.difference
                or f"{'FAR' if found.mean > MEAN else 'equal'}, mean {found.mean:.2f}, "
                f"most {found.most:.0f}"
            )
            said = "; ".join(
                each for each in found.new.warnings if "DataLoader will create" not in each
            )
            took = time.monotonic() - start
            print(
                f"{name:40s} {took:4.1f} s, {found.new.waited:3d} waited  {text}   {said[:200]}",
                flush=True,
            )
            if args.why:
                print(found.new.explained or found.new.trace)
    print(f"different: {bad}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
