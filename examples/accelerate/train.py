"""Accelerate: train a classifier on a folder of images, and go on from the last saved state if
there is one.

accelerate launch examples/accelerate/train.py IMAGES [OUT]

Lines that end in "# dali_pipes" are those that differ from Accelerate's own examples.
"""

import sys
from pathlib import Path

import torch
import torchvision
from accelerate import Accelerator

import dali_pipes as dp  # dali_pipes
from dali_pipes.adapters.accelerate import AccelerateLoader  # dali_pipes


def main(images, out="accelerate_run", size=224, batch_size=64, epochs=10):
    accelerator = Accelerator(gradient_accumulation_steps=2)
    manifest = dp.Manifest.scan(images)  # dali_pipes
    loader = dp.build_loader(  # dali_pipes
        manifest,  # dali_pipes
        dp.DaliConfig(),  # dali_pipes
        transform=dp.TrainTransform(size=size),  # dali_pipes
        batch_size=batch_size,  # dali_pipes
        rank=dp.Rank(accelerator.process_index, accelerator.num_processes),  # dali_pipes
        device=accelerator.device,  # dali_pipes
    )  # dali_pipes
    model = torchvision.models.resnet18(num_classes=len(manifest.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # dali_pipes
    model, optimizer, loader = accelerator.prepare(model, optimizer, AccelerateLoader(loader))
    accelerator.register_for_checkpointing(loader)  # dali_pipes
    if Path(out, "state").exists():
        accelerator.load_state(Path(out, "state"))

    while loader.epoch < epochs:  # dali_pipes
        for batch_images, labels in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(batch_images), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {loader.epoch} of {epochs}: loss {loss.item():.3f}")
        accelerator.save_state(Path(out, "state"))
    loader.close()  # dali_pipes
    return loader.epoch * len(loader)


if __name__ == "__main__":
    main(*sys.argv[1:])
