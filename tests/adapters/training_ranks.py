"""One rank of a run by Accelerate or plain DDP, which notes each batch it trains. Started by
torchrun.

Arguments: "accelerate" or "ddp", manifest, output folder, epochs, seconds a step.
"""

import contextlib
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.nn.parallel import DistributedDataParallel

import dali_pipes as dp
from dali_pipes.adapters.accelerate import AccelerateLoader

TRANSFORM = dp.EvalTransform(resize=8, size=8)


class ByAccelerate:
    def __init__(self, loader, model, optimizer, out):
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        self.loader, self.model, self.optimizer = self.accelerator.prepare(
            AccelerateLoader(loader), model, optimizer
        )
        self.accelerator.register_for_checkpointing(self.loader)
        self.out = out
        if saved := sorted(out.glob("done-*"), key=lambda each: int(each.name[5:])):
            self.accelerator.load_state(saved[-1])

    def step(self, images, labels):
        with self.accelerator.accumulate(self.model):
            loss = torch.nn.functional.cross_entropy(self.model(images.flatten(1)), labels)
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self.accelerator.sync_gradients

    def save(self, number):
        self.accelerator.save_state(self.out / f"saved-{number}")
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            (self.out / f"saved-{number}").rename(self.out / f"done-{number}")


class ByDDP:
    def __init__(self, loader, model, optimizer, out):
        dist.init_process_group("gloo")
        self.loader, self.model = loader, DistributedDataParallel(model)
        self.optimizer, self.file = optimizer, out / "last.pt"
        if self.file.exists():
            state = torch.load(self.file)
            model.load_state_dict(state["model"])
            loader.load_state_dict(state["loader"])

    def step(self, images, labels):
        torch.nn.functional.cross_entropy(self.model(images.flatten(1)), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return True

    def save(self, number):
        if dist.get_rank() == 0:
            new = self.file.with_suffix(".new")
            model, state = self.model.module.state_dict(), self.loader.state_dict()
            torch.save({"model": model, "loader": state}, new)
            new.replace(self.file)
        dist.barrier()


def main(library, manifest, out, epochs, step_s):
    torch.manual_seed(0)
    rank, out = dp.Rank.from_env(), Path(out)
    loader = dp.build_loader(
        dp.Manifest.load(manifest),
        dp.TorchConfig(num_workers=0),
        transform=TRANSFORM,
        batch_size=5,
        seed=3,
        rank=rank,
        shuffle=True,
        last_batch="pad",
    )
    model = torch.nn.Linear(3 * 8 * 8, 5)
    with contextlib.closing(loader), (out / f"rank{rank.index}.jsonl").open("a") as log:
        run = {"accelerate": ByAccelerate, "ddp": ByDDP}[library](
            loader, model, torch.optim.SGD(model.parameters(), lr=0.1), out
        )
        while loader.epoch < int(epochs):
            done = (loader.epoch + 1) * len(loader) - loader.batches_left
            for number, batch in enumerate(run.loader, done):
                synchronized = run.step(*batch)
                row = [number, batch.ids.tolist(), model.weight.sum().item(), synchronized]
                log.write(json.dumps(row) + "\n")
                log.flush()
                run.save(number)
                time.sleep(float(step_s))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
