"""One rank of a run: takes batches, writes down what it got, and saves the loader's state after
every step. Started by torchrun.

Arguments: manifest, output folder, loader ("dali" or "torch"), global batch size, epochs, sampling.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

import dali_pipes as dp

CONFIGS = {
    "dali": dp.DaliConfig(device="cpu", num_threads=1),
    "torch": dp.TorchConfig(num_workers=1),
}
TRANSFORM = dp.TrainTransform(size=16)


def main() -> None:
    manifest, out, name, global_batch_size, epochs = (
        sys.argv[1],
        Path(sys.argv[2]),
        sys.argv[3],
        int(sys.argv[4]),
        int(sys.argv[5]),
    )
    sampling = sys.argv[6] if len(sys.argv) > 6 else None
    dist.init_process_group("gloo")
    rank = dp.Rank.from_env()
    state = out / "state.json"
    loader = dp.build_loader(
        dp.Manifest.load(manifest),
        CONFIGS[name],
        transform=TRANSFORM,
        batch_size=global_batch_size // rank.count,
        rank=rank,
        sampling=sampling,
    )
    with loader, (out / f"rank{rank.index}-{os.getpid()}.jsonl").open("w") as log:
        if state.exists():
            loader.load_state_dict(json.loads(state.read_text()))
        while loader.epoch < epochs:
            epoch = loader.epoch
            for batch in loader:
                row = {
                    "epoch": epoch,
                    "ids": batch.ids.tolist(),
                    "pixels": float(batch.images.double().sum()),
                    "samples": None,
                }
                after = loader.state_dict()
                row["samples"] = (
                    after["samples"] if after["epoch"] == epoch else loader.plan.epoch_samples
                )
                log.write(json.dumps(row) + "\n")
                log.flush()
                dist.barrier()
                if rank.index == 0:
                    (out / "state.new").write_text(json.dumps(after))
                    (out / "state.new").replace(state)
                dist.barrier()
                time.sleep(float(os.environ.get("STEP_S", "0")))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
