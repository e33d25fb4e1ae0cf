"""Hugging Face: train a ResNet on a folder of images, and go on from the last checkpoint if there
is one.

python examples/transformers/train.py IMAGES [OUT]

Lines that end in "# dali_pipes" are those that differ from Transformers' own examples.
"""

import sys
from functools import partial

from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import dali_pipes as dp  # dali_pipes
from dali_pipes.adapters.transformers import TrainerLoader  # dali_pipes


class ImageTrainer(Trainer):  # dali_pipes
    def get_train_dataloader(self):  # dali_pipes
        return TrainerLoader(self.train_dataset)  # dali_pipes

    def get_eval_dataloader(self, eval_dataset=None):  # dali_pipes
        return TrainerLoader(self.eval_dataset)  # dali_pipes


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


def main(images, out="transformers_run", size=224, batch_size=64, **options):
    arguments = TrainingArguments(
        out, save_steps=2, eval_strategy="epoch", per_device_eval_batch_size=batch_size, **options
    )
    manifest = dp.Manifest.scan(images)  # dali_pipes
    parts = manifest.split({"train": 0.9, "val": 0.1})  # dali_pipes
    where = {"rank": dp.Rank.from_env(), "device": arguments.device}  # dali_pipes
    # dali_pipes
    build = partial(dp.build_loader, config=dp.DaliConfig(), batch_size=batch_size, **where)
    train = build(parts["train"], transform=dp.TrainTransform(size=size))  # dali_pipes
    # dali_pipes
    val = build(
        parts["val"], transform=dp.EvalTransform(resize=size * 8 // 7, size=size), last_batch="pad"
    )
    config = ResNetConfig(
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=len(manifest.classes),
    )
    model = ResNetForImageClassification(config)
    with train, val:  # dali_pipes
        # dali_pipes
        trainer = ImageTrainer(
            model, arguments, train_dataset=train, eval_dataset=val, compute_metrics=accuracy
        )
        trainer.train(resume_from_checkpoint=get_last_checkpoint(out))
    return trainer.state


if __name__ == "__main__":
    main(*sys.argv[1:], num_train_epochs=10)
