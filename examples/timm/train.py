"""timm's train.py in short, with images from dali_pipes. Killed and started again, it goes on where
it was, within the epoch.

python examples/timm/train.py /imagenet/train /imagenet/val last.pt
"""

import sys
from pathlib import Path

import torch
from timm import create_model, optim, scheduler, utils
from timm.data import create_transform, resolve_data_config
from timm.loss import SoftTargetCrossEntropy

import dali_pipes as dp  # dali_pipes


def train(images, val, last, arch="resnet50", epochs=100, batch_size=256, every=500, threads=8):
    utils.random_seed(42)
    manifest, config = dp.Manifest.open(images), dp.DaliConfig(num_threads=threads)  # dali_pipes
    classes = {"num_classes": len(manifest.classes)}  # dali_pipes
    model = create_model(arch, **classes).to("cuda" if torch.cuda.is_available() else "cpu")
    # dali_pipes
    seen = dp.transform_from_torch(create_transform(**resolve_data_config(model=model)))
    # dali_pipes
    augmented = dp.TrainTransform(
        size=seen.size, interpolation=seen.interpolation, mean=seen.mean, std=seen.std
    )
    mixup = dp.RandomChoice([dp.MixUp(alpha=0.8, **classes), dp.CutMix(**classes)])  # dali_pipes
    # dali_pipes
    loader = dp.build_loader(
        manifest, config, transform=augmented, batch_size=batch_size, batch_transform=mixup
    )
    # dali_pipes
    loader_eval = dp.build_loader(
        dp.Manifest.open(val), config, transform=seen, batch_size=batch_size
    )
    optimizer = optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    lr_scheduler = scheduler.CosineLRScheduler(
        optimizer, t_initial=epochs * len(loader), t_in_epochs=False
    )
    # dali_pipes: the loader's state is saved with the others
    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    if Path(last).exists():
        for name, state in torch.load(last).items():
            parts[name].load_state_dict(state)
    for epoch in range(loader.epoch, epochs):  # dali_pipes: no sampler.set_epoch
        model.train()
        for input, target in loader:  # dali_pipes: on the device, and mixed
            loss = SoftTargetCrossEntropy()(model(input), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # dali_pipes: true after a resume as well
            updates = (loader.epoch + 1) * len(loader) - loader.batches_left
            lr_scheduler.step_update(num_updates=updates)
            if updates % every == 0 or loader.epoch > epoch:  # dali_pipes: also within an epoch
                torch.save({name: part.state_dict() for name, part in parts.items()}, f"{last}.new")
                Path(f"{last}.new").replace(last)
        print(
            f"epoch {epoch}: loss {loss.item():.3f}, accuracy {validate(model, loader_eval):.2f} %"
        )


@torch.inference_mode()
def validate(model, loader):
    model.eval()
    top1_m = utils.AverageMeter()
    for input, target in loader:
        top1_m.update(utils.accuracy(model(input), target)[0].item(), len(input))
    return top1_m.avg


if __name__ == "__main__":
    train(*sys.argv[1:])
