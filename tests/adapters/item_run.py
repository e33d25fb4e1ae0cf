"""A run over items that a test kills: writes down what it got, and saves the loader's state after
every step.

Arguments: folder of the files, output folder, loader ("dali" or "torch"), epochs.
"""

import json
import os
import sys
import time
from pathlib import Path

from item_programs import Triplet

import dali_pipes as dp

CONFIGS = {
    "dali": dp.DaliConfig(device="cpu", num_threads=1),
    "torch": dp.TorchConfig(num_workers=1),
}


def main() -> None:
    files, out, name, epochs = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    paths = sorted(files.glob("*.jpg"))
    dataset, state = Triplet(paths, [at % 3 for at in range(len(paths))]), out / "state.json"
    loader = dp.load(
        dataset,
        CONFIGS[name],
        transform=dp.TrainTransform(size=16, dtype="uint8"),
        batch_size=4,
        num_workers=2,
        device="cpu",
    )
    with loader, (out / f"{os.getpid()}.jsonl").open("w") as log:
        if state.exists():
            loader.load_state_dict(json.loads(state.read_text()))
        while loader.epoch < epochs:
            epoch = loader.epoch
            for pictures, chosen in loader:
                after = loader.state_dict()
                row = {"epoch": epoch, "next": [after["epoch"], after["samples"]]}
                row |= {"chosen": chosen.tolist(), "sum": sum(int(each.sum()) for each in pictures)}
                log.write(json.dumps(row) + "\n")
                log.flush()
                (out / "state.new").write_text(json.dumps(after))
                (out / "state.new").replace(state)
                time.sleep(float(os.environ.get("STEP_S", "0")))


if __name__ == "__main__":
    main()
