"""A run over random samples of a DataLoader that a test kills (tests/support/killed_run.py).

Arguments: folder of the files, output folder, loader ("dali" or "torch").
"""

import sys
from pathlib import Path

from every_epoch_programs import Triplet
from killed_run import CONFIGS, run_epochs
from torch.utils.data import DataLoader

import dali_pipes as dp


def main() -> None:
    files, out, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    paths = sorted(files.glob("*.jpg"))
    dataset = Triplet(paths, [at % 3 for at in range(len(paths))])
    old = DataLoader(dataset, 4, shuffle=True, drop_last=True, num_workers=2)
    loader = dp.from_torch(old, CONFIGS[name], every_epoch=True, seed=0, device="cpu", check=False)
    run_epochs(loader, out, loader.loader)


if __name__ == "__main__":
    main()
