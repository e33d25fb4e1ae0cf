"""A run over items of `dp.load` that a test kills (tests/support/killed_run.py).

Arguments: folder of the files, output folder, loader ("dali" or "torch").
"""

import sys
from pathlib import Path

from item_programs import Triplet
from killed_run import CONFIGS, run_epochs

import dali_pipes as dp


def main() -> None:
    files, out, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    paths = sorted(files.glob("*.jpg"))
    loader = dp.load(
        Triplet(paths, [at % 3 for at in range(len(paths))]),
        CONFIGS[name],
        transform=dp.TrainTransform(size=16, dtype="uint8"),
        batch_size=4,
        num_workers=2,
        device="cpu",
    )
    run_epochs(loader, out)


if __name__ == "__main__":
    main()
