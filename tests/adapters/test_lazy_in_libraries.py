"""What from_torch makes of a DataLoader in Lightning, Accelerate and Hugging Face's Trainer: every
batch once, and a resume goes on with the next one.
"""

import lightning.pytorch as pl
import pytest
import torch
from accelerate import Accelerator
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from transformers import Trainer, TrainingArguments

import dali_pipes as dp
from dali_pipes.adapters.accelerate import AccelerateLoader
from dali_pipes.adapters.lightning import DataModule
from dali_pipes.adapters.transformers import TrainerLoader

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The `srun` command is available"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:You passed in a `val_dataloader` but"),
]
STEPS, EPOCHS = 3, 2  # of 37 images in batches of 14
TRAIN = [transforms.RandomResizedCrop(8), transforms.RandomHorizontalFlip(), transforms.ToTensor()]


class Pictures(Dataset):
    def __init__(self, files, keys=None):
        self.files, self.keys, self.transform = files, keys, transforms.Compose(TRAIN)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        sample = self.transform(Image.open(self.files[index]).convert("RGB")), index
        return dict(zip(self.keys, sample, strict=True)) if self.keys else sample


@pytest.fixture
def files(thumbnails):
    return [str(thumbnails.path(at)) for at in range(37)]


@pytest.fixture
def build(files):
    def make(keys=None, **options):
        old = DataLoader(Pictures(files, keys), batch_size=14, shuffle=True)
        options = {"seed": 3, "check": False, "device": "cpu"} | options
        return dp.from_torch(old, dp.TorchConfig(num_workers=0), **options)

    return make


def note(images, labels):
    return labels.tolist(), images.double().sum().item()


def by_loader(build):
    """What must be trained, by the loader alone."""
    with build() as loader:
        return [note(*batch) for _ in range(EPOCHS) for batch in loader]


class Model(pl.LightningModule):
    """A tiny one, which notes each batch it has trained."""

    def __init__(self):
        super().__init__()
        self.layer, self.trained = torch.nn.Linear(3 * 8 * 8, 37), []

    def forward(self, pixel_values, labels):
        self.trained.append(note(pixel_values, labels))
        logits = self.layer(pixel_values.flatten(1))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    def training_step(self, batch, batch_idx):
        return self(*batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Save(pl.Callback):
    def __init__(self, folder):
        self.folder, self.saved = folder, {}

    def on_train_batch_end(self, trainer, model, *rest):
        done = len(model.trained)
        self.saved[done] = self.folder / f"{done}.ckpt"
        trainer.save_checkpoint(self.saved[done])


def fit(folder, build, callbacks=(), checkpoint=None, **options):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    quiet |= {"enable_checkpointing": False, "max_epochs": EPOCHS, "accelerator": "cpu"}
    trainer = pl.Trainer(default_root_dir=folder, callbacks=list(callbacks), **quiet, **options)
    model = Model()
    trainer.fit(model, datamodule=DataModule(build), ckpt_path=checkpoint, weights_only=False)
    return model.trained


@pytest.mark.parametrize("options", [{}, {"limit_train_batches": 2}], ids=str)
def test_lightning_resumes_from_every_step(build, tmp_path, options):
    per_epoch, save = options.get("limit_train_batches", STEPS), Save(tmp_path)
    everything = by_loader(build)
    expected = [
        each
        for epoch in range(EPOCHS)
        for each in everything[epoch * STEPS : epoch * STEPS + per_epoch]
    ]
    assert fit(tmp_path, build, [save], **options) == expected
    for done, checkpoint in save.saved.items():
        assert fit(tmp_path, build, checkpoint=checkpoint, **options) == expected[done:], done


def test_lightning_refuses_a_loader_that_could_not_go_on(build, tmp_path):
    with pytest.raises(dp.ConfigError, match="give from_torch a seed="):
        fit(tmp_path, lambda **where: build(seed=None, **where))


@pytest.mark.parametrize("after", [1, STEPS, STEPS + 1])
def test_accelerate_saves_and_loads(build, tmp_path, after):
    def run(loader, batches=None):
        found = []
        while loader.epoch < EPOCHS:
            for batch in loader:
                found.append(note(*batch))
                if len(found) == batches:
                    return found
        return found

    accelerator = Accelerator(cpu=True)
    with build() as loader:
        mine = accelerator.prepare(AccelerateLoader(loader))
        accelerator.register_for_checkpointing(mine)
        done = run(mine, after)
        accelerator.save_state(tmp_path)
    with build() as loader:
        mine = AccelerateLoader(loader)
        accelerator._custom_objects = [mine]
        accelerator.load_state(tmp_path)
        assert done + run(mine) == by_loader(build)


def test_accelerate_synchronizes_on_the_last_batch_and_counts_each_image_once(build):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    accelerator.gather = lambda data: data.clone()
    with build() as loader:
        model, mine = accelerator.prepare(torch.nn.Linear(1, 1), AccelerateLoader(loader))
        synchronized, labels = [], []
        for _ in range(2):
            for batch in mine:
                labels.append(accelerator.gather_for_metrics(batch[1]))
                with accelerator.accumulate(model):
                    synchronized.append(accelerator.sync_gradients)
    assert synchronized == [False, True, True] * 2
    assert torch.cat(labels).sort().values.tolist() == sorted([*range(37)] * 2)


def test_what_is_no_loader_is_refused_by_accelerate(files):
    with pytest.raises(dp.ConfigError, match="DataLoader is no loader of build_loader or from_tor"):
        AccelerateLoader(DataLoader(Pictures(files)))


@pytest.mark.slow
@pytest.mark.parametrize("keys", [None, ("pixel_values", "labels")], ids=["pairs", "dicts"])
def test_the_trainer_of_hugging_face_resumes_from_every_checkpoint(build, tmp_path, keys):
    def train(folder, checkpoint=None, **options):
        quiet = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_steps": 1}
        options = {"save_strategy": "steps"} | options
        arguments = TrainingArguments(str(folder), num_train_epochs=EPOCHS, **quiet, **options)
        with build(keys) as loader:
            trainer = Trainer(Model(), args=arguments)
            trainer.get_train_dataloader = lambda: TrainerLoader(loader)
            trainer.train(resume_from_checkpoint=checkpoint)
        return trainer.model.trained

    expected = by_loader(build)
    assert train(tmp_path) == expected
    for done in range(1, STEPS * EPOCHS):
        checkpoint = str(tmp_path / f"checkpoint-{done}")
        resumed = train(tmp_path / "resumed", checkpoint, save_strategy="no")
        assert resumed == expected[done:], done
