"""A program that a test kills: `killed_run.py FOLDER OUT WORKERS BACKEND RANK RANKS [SECONDS]`.

It writes a line for each batch, and its state after it, and waits so long after each.
"""

import json
import sys
import time
from pathlib import Path

import pytest
import torch
from lazy_programs import CPU, Pictures
from switches import switch_every
from torch.utils.data import DataLoader
from torchvision import transforms as T

import dali_pipes as dp

CONFIGS = {
    "dali": CPU,
    "torch": dp.TorchConfig(num_workers=0),
    "auto": dp.AutoConfig(num_threads=2),  # which goes to another choice after every second batch
}
STEPS = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor()])
EPOCHS, BATCH = 2, 12


def main(folder, out, workers, backend, rank, ranks, seconds="0"):
    rank, state = dp.Rank(int(rank), int(ranks)), Path(out) / "state.json"
    pictures = Pictures(sorted(Path(folder).glob("*.jpg")), STEPS)
    if backend == "auto":
        switch_every(pytest.MonkeyPatch(), 2)
    own = DataLoader(pictures, BATCH // rank.count, True, num_workers=int(workers))
    loader = dp.from_torch(own, CONFIGS[backend], seed=5, rank=rank, device="cpu")
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    with loader, (Path(out) / f"rank{rank.index}.jsonl").open("a") as log:
        while loader.epoch < EPOCHS:
            epoch = loader.epoch
            for images, chosen, drawn, *_ in loader:
                means = torch.mean(images, (1, 2, 3)).tolist()
                after = loader.state_dict()
                place = [after["epoch"], after["samples"]]
                log.write(json.dumps([epoch, place, chosen.tolist(), drawn.tolist(), means]) + "\n")
                log.flush()
                if rank.count == 1:
                    (Path(out) / "new.json").write_text(json.dumps(after))
                    (Path(out) / "new.json").replace(state)
                time.sleep(float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
