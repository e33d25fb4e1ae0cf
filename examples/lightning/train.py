"""Lightning: train a classifier on a folder of images, and go on from the last checkpoint if there
is one.

python examples/lightning/train.py IMAGES [OUT]

Lines that end in "# dali_pipes" are those that differ from Lightning's own examples.
"""

import sys
from functools import partial
from pathlib import Path

import lightning as L
import torch
import torchvision

import dali_pipes as dp  # dali_pipes
from dali_pipes.adapters.lightning import DataModule  # dali_pipes


class Classifier(L.LightningModule):
    def __init__(self, classes):
        super().__init__()
        self.model = torchvision.models.resnet18(num_classes=classes)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        accuracy = (self.model(images).argmax(1) == labels).float().mean()
        self.log("val_accuracy", accuracy, batch_size=len(images), sync_dist=True, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(images, out="lightning_run", size=224, batch_size=64, **trainer_options):
    manifest = dp.Manifest.scan(images)  # dali_pipes
    parts = manifest.split({"train": 0.9, "val": 0.1})  # dali_pipes
    build = partial(dp.build_loader, config=dp.DaliConfig(), batch_size=batch_size)  # dali_pipes
    data = DataModule(  # dali_pipes
        train=partial(build, parts["train"], transform=dp.TrainTransform(size=size)),  # dali_pipes
        # dali_pipes
        val=partial(
            build, parts["val"], transform=dp.EvalTransform(resize=size * 8 // 7, size=size)
        ),
    )  # dali_pipes
    checkpoint = L.pytorch.callbacks.ModelCheckpoint(
        dirpath=out, every_n_train_steps=2, save_last=True
    )
    last = Path(out) / "last.ckpt"
    trainer = L.Trainer(default_root_dir=out, callbacks=[checkpoint], **trainer_options)
    trainer.fit(
        Classifier(len(manifest.classes)),
        datamodule=data,
        ckpt_path=last if last.exists() else None,
    )
    return trainer


if __name__ == "__main__":
    main(*sys.argv[1:], max_epochs=10)
