"""A run over random samples that a test kills: writes down what it got, and saves the loader's
state after every step.

Arguments: folder of the files, output folder, loader ("dali" or "torch"), epochs.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from every_epoch_programs import Triplet
from torch.utils.data import DataLoader

import dali_pipes as dp

CONFIGS = {
    "dali": dp.DaliConfig(device="cpu", num_threads=1),
    "torch": dp.TorchConfig(num_workers=1),
}


def main() -> None:
    files, out, name, epochs = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    paths = sorted(files.glob("*.jpg"))
    dataset, state = Triplet(paths, [at % 3 for at in range(len(paths))]), out / "state.json"
    old = DataLoader(dataset, 4, shuffle=True, drop_last=True, num_workers=2)
    loader = dp.from_torch(old, CONFIGS[name], every_epoch=True, seed=0, device="cpu", check=False)
    with loader, (out / f"{os.getpid()}.jsonl").open("w") as log:
        if state.exists():
            loader.load_state_dict(json.loads(state.read_text()))
        while loader.loader.epoch < epochs:
            epoch = loader.loader.epoch
            for pictures, chosen in loader:
                after = loader.state_dict()
                row = {"epoch": epoch, "next": [after["epoch"], after["samples"]]}
                row |= {"chosen": chosen.tolist(), "mean": float(torch.stack(pictures).mean())}
                log.write(json.dumps(row) + "\n")
                log.flush()
                (out / "state.new").write_text(json.dumps(after))
                (out / "state.new").replace(state)
                time.sleep(float(os.environ.get("STEP_S", "0")))


if __name__ == "__main__":
    main()
