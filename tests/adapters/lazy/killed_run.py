"""A program that a test kills: `killed_run.py FOLDER OUT WORKERS BACKEND RANK RANKS [SECONDS]`.

It writes a line for each batch, and its state after it, and waits so long after each.
"""

import json
import random
import sys
import time
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

import dali_pipes as dp

CONFIGS = {
    "dali": dp.DaliConfig(device="cpu", num_threads=1),
    "torch": dp.TorchConfig(num_workers=0),
}
EPOCHS, BATCH = 2, 12


class Pictures(Dataset):
    def __init__(self, folder):
        self.files = sorted(Path(folder).glob("*.jpg"))
        self.steps = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor()])

    def __len__(self):
        return len(self.files)

    def __getitem__(self, at):
        return self.steps(Image.open(self.files[at]).convert("RGB")), at, random.random()


def main(folder, out, workers, backend, rank, ranks, seconds="0"):
    rank, state = dp.Rank(int(rank), int(ranks)), Path(out) / "state.json"
    own = DataLoader(Pictures(folder), BATCH // rank.count, True, num_workers=int(workers))
    loader = dp.from_torch(own, CONFIGS[backend], seed=5, rank=rank, device="cpu")
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    with loader, (Path(out) / f"rank{rank.index}.jsonl").open("a") as log:
        while loader.epoch < EPOCHS:
            epoch = loader.epoch
            for images, chosen, drawn in loader:
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
