"""Two ranks of a Lightning run, which note each batch they train. Arguments: manifest, output
folder, epochs, seconds a step.
"""

import json
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import torch

import dali_pipes as dp
from dali_pipes.adapters.lightning import DataModule

TRANSFORM = dp.TrainTransform(size=8)


class Model(pl.LightningModule):
    def __init__(self, out, step_s):
        super().__init__()
        self.layer, self.out, self.step_s = torch.nn.Linear(3 * 8 * 8, 5), out, step_s

    def training_step(self, batch, batch_idx):
        time.sleep(self.step_s)
        with (self.out / f"rank{self.global_rank}.jsonl").open("a") as log:
            row = [self.global_step, batch.ids.tolist(), batch.images.double().sum().item()]
            log.write(json.dumps(row) + "\n")
        return torch.nn.functional.cross_entropy(self.layer(batch.images.flatten(1)), batch.labels)

    def validation_step(self, batch, batch_idx):
        options = {"reduce_fx": "sum", "sync_dist": True, "batch_size": len(batch)}
        self.log("images", float(len(batch)), **options)

    def on_validation_end(self):
        assert self.trainer.sanity_checking or self.trainer.callback_metrics["images"] == 37

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(manifest, out, epochs, step_s):
    warnings.simplefilter("ignore")
    out = Path(out)
    config, options = dp.TorchConfig(num_workers=0), {"batch_size": 6, "seed": 3}
    build = partial(dp.build_loader, dp.Manifest.load(manifest), config, **options)
    evaluation = dp.EvalTransform(resize=8, size=8)
    data = DataModule(partial(build, transform=TRANSFORM), partial(build, transform=evaluation))
    save = pl.callbacks.ModelCheckpoint(dirpath=out, every_n_train_steps=1, save_last=True)
    options = {"accelerator": "cpu", "strategy": "ddp", "devices": 2, "logger": False}
    options |= {"max_epochs": int(epochs), "callbacks": [save], "default_root_dir": out}
    last = out / "last.ckpt" if (out / "last.ckpt").exists() else None
    pl.Trainer(**options).fit(Model(out, float(step_s)), datamodule=data, ckpt_path=last)


if __name__ == "__main__":
    main(*sys.argv[1:])
