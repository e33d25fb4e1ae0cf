"""Hugging Face's own Trainer with our loaders."""

from functools import partial

import pytest
import torch
from adapter_ranks import example
from transformers import Trainer, TrainerCallback, TrainingArguments

import dali_pipes as dp
from dali_pipes.adapters.transformers import TrainerLoader

pytestmark = pytest.mark.usefixtures("alone")
STEPS, EPOCHS = 3, 2  # of 37 images in batches of 18
QUIET = {"report_to": "none", "use_cpu": True, "disable_tqdm": True}


@pytest.fixture
def build(thumbnails):
    options = {"last_batch": "partial", "batch_size": 18, "seed": 3, "device": "cpu"}
    return partial(dp.build_loader, thumbnails, dp.TorchConfig(num_workers=0), **options)


class Model(torch.nn.Module):
    """A tiny one, which notes each batch it has trained."""

    def __init__(self):
        super().__init__()
        self.layer, self.trained = torch.nn.Linear(3 * 8 * 8, 5), []

    def forward(self, pixel_values, labels):
        if self.training:
            self.trained.append((labels.tolist(), pixel_values.double().sum().item()))
        logits = self.layer(pixel_values.flatten(1))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class ImageTrainer(Trainer):
    def __init__(self, build, **options):
        self.training = build(transform=dp.TrainTransform(size=8))
        self.evaluation = build(transform=dp.EvalTransform(resize=8, size=8))
        super().__init__(Model(), eval_dataset=self.evaluation.plan.manifest, **options)

    def get_train_dataloader(self):
        return TrainerLoader(self.training)

    def get_eval_dataloader(self, eval_dataset=None):
        return TrainerLoader(self.evaluation)


def train(build, folder, checkpoint=None, callbacks=(), **options):
    every = {"save_strategy": "steps", "save_steps": 1, "num_train_epochs": EPOCHS, **QUIET}
    every |= {"per_device_train_batch_size": 18, "per_device_eval_batch_size": 18}
    arguments = {"args": TrainingArguments(str(folder), **every | options)}
    arguments |= {"callbacks": list(callbacks), "compute_metrics": metrics}
    trainer = ImageTrainer(build, **arguments)
    with trainer.training, trainer.evaluation:
        trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


def metrics(prediction):
    return {"images": len(prediction.label_ids), "labels": sorted(prediction.label_ids.tolist())}


def by_loader(build):
    with build(transform=dp.TrainTransform(size=8)) as loader:
        batches = [batch for _ in range(EPOCHS) for batch in loader]
    return [(batch.labels.tolist(), batch.images.double().sum().item()) for batch in batches]


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_resumed_from_every_checkpoint(build, thumbnails, tmp_path, accumulate):
    """The batches are ours alone, and those that were trained before a checkpoint are not even
    decoded again.
    """
    options = {"gradient_accumulation_steps": accumulate, "save_total_limit": None}
    expected = by_loader(build)
    whole = train(build, tmp_path, eval_strategy="epoch", **options)
    assert whole.model.trained == expected
    per_epoch = -(-STEPS // accumulate)
    assert whole.state.global_step == per_epoch * EPOCHS
    evaluated = [each["eval_images"] for each in whole.state.log_history if "eval_images" in each]
    assert evaluated == [37] * EPOCHS
    for updates in range(1, per_epoch * EPOCHS):
        epoch, update = divmod(updates, per_epoch)
        checkpoint, folder = tmp_path / f"checkpoint-{updates}", tmp_path / "resumed"
        resumed = train(build, folder, checkpoint, save_strategy="no", **options)
        assert resumed.model.trained == expected[epoch * STEPS + update * accumulate :], updates
        for old, new in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
            assert torch.equal(old, new)


def test_the_loss_of_an_evaluation_weighs_each_image_once(build, thumbnails, tmp_path):
    trainer = train(build, tmp_path, save_strategy="no", max_steps=1)
    with build(transform=dp.EvalTransform(resize=8, size=8)) as loader, torch.no_grad():
        trainer.model.eval()
        losses = [trainer.model(*batch)["loss"] * len(batch) for batch in loader]
    with build(transform=dp.EvalTransform(resize=8, size=8)) as trainer.evaluation:
        found = trainer.evaluate()
    assert found["eval_loss"] == pytest.approx(float(sum(losses)) / 37)
    assert found["eval_images"] == 37
    assert found["eval_labels"] == sorted(thumbnails.labels.tolist())


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **rest):
        control.should_training_stop = state.global_step == 4


@pytest.mark.slow
def test_stopped_in_mid_epoch_and_resumed_from_the_last_checkpoint(build, tmp_path):
    """And then once more with one loader, from the first step of epoch 0."""
    trainer = train(build, tmp_path, callbacks=[Stop()])
    second = train(build, tmp_path, checkpoint=True)
    assert trainer.model.trained + second.model.trained == by_loader(build)
    with build(transform=dp.TrainTransform(size=8)) as loader:
        once = TrainerLoader(loader)
        trainer.get_train_dataloader = lambda: once
        trainer.train()
        trainer.remove_callback(Stop)
        trainer.model.trained.clear()
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert trainer.model.trained == by_loader(build)[1:]


@pytest.mark.slow
def test_the_example(image_folder, tmp_path, caplog):
    main = example("transformers")
    options = {"size": 32, "batch_size": 8, **QUIET}
    assert main(image_folder, tmp_path, max_steps=2, **options).global_step == 2
    resumed = main(image_folder, tmp_path, max_steps=5, **options)
    evaluations = [each for each in resumed.log_history if "eval_accuracy" in each]
    assert resumed.global_step == 5 and len(evaluations) == 2
    assert "missing keys" not in caplog.text, "the weights of the checkpoint were not loaded"
