"""All traps and all programs of the corpus, and a command to try them by hand.

PYTHONPATH=. python tests/adapters/lazy/programs/breaking.py traps|corpus [--only TEXT] [--later]
    [--no-check] [--workers 2] [--config torch|dali]
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
import programs.array_programs
import programs.batch_traps
import programs.call_traps
import programs.file_traps
import programs.group_programs
import programs.kind_traps
import programs.library_traps
import programs.memory_traps
import programs.picture_traps
import programs.pillow_programs
import programs.process_traps
import programs.store_programs  # noqa: F401
from programs.corpus import PROGRAMS
from programs.pictures import make_pictures
from programs.traps import MEAN, TRAPS, Outcome, judge

CONFIGS = {
    "noted": None,
    "torch": dp.TorchConfig(num_workers=0),
    "dali": dp.DaliConfig(device="cpu", num_threads=1),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("traps", "corpus"))
    parser.add_argument("--only", default="", help="those with this in their names")
    parser.add_argument("--later", action="store_true", help="the trap is in one later sample")
    parser.add_argument("--no-check", action="store_true", help="no sample is made twice")
    parser.add_argument("--workers", type=int, default=0, help="of programs")
    parser.add_argument("--config", choices=CONFIGS, default="noted")
    args = parser.parse_args()
    options = {"config": CONFIGS[args.config], "check": not args.no_check}

    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        make_pictures(Path(folder))
        for name, each in (TRAPS if args.what == "traps" else PROGRAMS).items():
            if args.only not in name or (args.later and not each.item):
                continue
            try:
                if args.what == "traps":
                    outcome = judge(each, args.later, **options)
                else:
                    outcome = _try_program(each, args.workers, options)
            except AssertionError as error:
                outcome = Outcome("none", str(error), 0)
            counts[outcome.kind] += 1
            text = outcome.text.strip()
            text = text if args.only else (text.splitlines() or [""])[0][:300]
            print(f"{name:60s} {outcome.kind:5s} {outcome.waited:3d}  {text}", flush=True)
    print(dict(counts))
    return int(bool(counts["WRONG"]))


def _try_program(program, workers, options):
    if program.missing or (program.wraps and options["config"] is None):
        return Outcome("none", "a library or a config is missing", 0)
    found = program.compare(workers, **options)
    kind = "WRONG" if found.difference or found.mean > MEAN else "equal"
    distance = f"mean {found.mean:.2f}, most {found.most:.0f}"
    return Outcome(kind, f"{found.difference or distance}\n{found.new.trace}", found.new.waited)


if __name__ == "__main__":
    sys.exit(main())
