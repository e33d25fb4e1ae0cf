"""Lightning's own Trainer on our loaders: every batch once, whatever stops it, whatever it resumes
from.
"""

from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from adapter_ranks import example, rows, start
from lazy_programs import Pictures, make_pictures
from lightning.pytorch.tuner import Tuner
from ranks import finish, kill_after
from torch.utils.data import DataLoader, IterableDataset

import dali_pipes as dp
from dali_pipes.adapters.lightning import DataModule

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The `srun` command is available"),
    pytest.mark.filterwarnings(
        "ignore:Trying to infer the `batch_size` from an ambiguous collection"
    ),
]
STEPS, EPOCHS = 3, 2  # of 37 images in batches of 12


@pytest.fixture(scope="session")
def loaders(thumbnails):
    return partial(
        dp.build_loader, thumbnails, dp.TorchConfig(num_workers=0), batch_size=12, seed=3
    )


@pytest.fixture
def train(loaders):
    return partial(loaders, transform=dp.TrainTransform(size=8))


@pytest.fixture
def val(loaders):
    return partial(loaders, transform=dp.EvalTransform(resize=8, size=8))


class Model(pl.LightningModule):
    """A tiny one, which notes each batch it has trained, and the ids of each validation."""

    def __init__(self, fail_at=-1):
        super().__init__()
        self.layer, self.fail_at = torch.nn.Linear(3 * 8 * 8, 5), fail_at
        self.trained, self.validated, self.lr = [], [], 0.1

    def training_step(self, batch, batch_idx):
        images, labels = batch
        if len(self.trained) == self.fail_at:
            raise RuntimeError("as planned")
        loss = torch.nn.functional.cross_entropy(self.layer(images.flatten(1)), labels)
        self.log("loss", loss, on_epoch=True)
        self.trained.append((batch_idx, batch.ids.tolist(), images.double().sum().item()))
        return loss

    def on_validation_epoch_start(self):
        self.validated.append([])

    def validation_step(self, batch, batch_idx):
        self.validated[-1] += batch.ids.tolist()
        self.log("val_images", float(len(batch)), reduce_fx="sum", batch_size=len(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class SaveEverywhere(pl.Callback):
    """Checkpoints from every hook in which people save; each is named after how many batches were
    trained.
    """

    def __init__(self, folder):
        self.folder, self.saved = folder, {}

    def save(self, trainer, model, hook):
        if not trainer.sanity_checking:
            self.saved[hook, len(model.trained)] = self.folder / f"{hook}-{len(model.trained)}.ckpt"
            trainer.save_checkpoint(self.saved[hook, len(model.trained)])

    def on_train_batch_end(self, trainer, model, *rest):
        self.save(trainer, model, "batch end")

    def on_validation_end(self, trainer, model):
        self.save(trainer, model, "validation end")

    def on_train_epoch_end(self, trainer, model):
        self.save(trainer, model, "epoch end")

    def on_exception(self, trainer, model, error):
        self.save(trainer, model, "exception")


def trainer(tmp_path, callbacks=(), **options):
    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    given = dict.fromkeys(quiet, False) | {"accelerator": "cpu", "callbacks": list(callbacks)}
    given |= {} if "max_steps" in options else {"max_epochs": EPOCHS}
    return pl.Trainer(default_root_dir=tmp_path, **given | options)


def fit(tmp_path, data, callbacks=(), checkpoint=None, fail_at=-1, **options):
    model = Model(fail_at)
    trainer(tmp_path, callbacks, **options).fit(
        model, datamodule=data, ckpt_path=checkpoint, weights_only=False
    )
    return model


def by_loader(train, steps=STEPS):
    """What must be trained, by the loader alone."""
    found = []
    with train() as loader:
        for _ in range(EPOCHS):
            for step, batch in zip(range(steps), loader, strict=False):
                found.append((step, batch.ids.tolist(), batch.images.double().sum().item()))
    return found


# the batch is moved as a whole; its tensors are converted one by one
@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_loaders_alone_are_fitted(train, val, tmp_path, precision):
    """Version 0.1: "A frozen dataclass was passed to `apply_to_collection` but this is not
    allowed".
    """
    model = Model()
    with train() as loader, val() as validation:
        trainer(tmp_path, precision=precision).fit(model, loader, validation)
    assert model.trained == by_loader(train)


@pytest.mark.parametrize(
    "options", [{"val_check_interval": 2}, {"limit_train_batches": 2}, {"max_steps": 5}], ids=str
)
def test_resumed_from_wherever_it_was_saved(train, val, tmp_path, options):
    save = SaveEverywhere(tmp_path)
    whole = fit(tmp_path, DataModule(train, val), [save], **options)
    limit = options.get("limit_train_batches", STEPS)
    expected = by_loader(train, limit)[: options.get("max_steps")]
    assert whole.trained == expected
    assert all(sorted(ids) == list(range(37)) for ids in whole.validated[1:])
    for (hook, done), checkpoint in save.saved.items():
        resumed = fit(tmp_path, DataModule(train, val), checkpoint=checkpoint, **options)
        assert resumed.trained == expected[done:], (hook, done)


def test_a_step_that_failed_is_done_again(train, val, tmp_path):
    save = SaveEverywhere(tmp_path)
    with pytest.raises(RuntimeError, match="as planned"):
        fit(tmp_path, DataModule(train, val), [save], fail_at=STEPS - 1)
    checkpoint = save.saved["exception", STEPS - 1]
    resumed = fit(tmp_path, DataModule(train, val), checkpoint=checkpoint)
    assert resumed.trained == by_loader(train)[STEPS - 1 :]


def test_goes_on_after_a_stop_in_mid_epoch(train, val, tmp_path):
    """As Trainer(max_time=…) does: Lightning takes the epoch for over, but no batch is left out."""

    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer, *rest):
            trainer.should_stop = True

    first, save = by_loader(train), SaveEverywhere(tmp_path)
    assert fit(tmp_path, DataModule(train, val), [Stop(), save]).trained == first[:1]
    resumed = fit(tmp_path, DataModule(train, val), checkpoint=save.saved["epoch end", 1])
    assert [each[1:] for each in resumed.trained] == [each[1:] for each in first[1:STEPS]]


def test_fitted_again_and_with_loaders_built_anew(train, val, tmp_path):
    data, model = DataModule(train), Model()
    again = trainer(tmp_path, limit_val_batches=0, reload_dataloaders_every_n_epochs=1)
    again.fit_loop.max_epochs = 1
    again.fit(model, datamodule=data)
    again.fit_loop.max_epochs = EPOCHS
    again.fit(model, datamodule=data)
    assert model.trained == by_loader(train)


def broken(**where):
    raise OSError("as planned")


@pytest.mark.parametrize("changed", [{"seed": 4}, None], ids=["another seed", "no loader"])
def test_a_resume_that_fails_keeps_its_place(train, val, tmp_path, changed):
    """A checkpoint that is written on the exception replaces the one before, and must not begin
    anew.
    """
    save = SaveEverywhere(tmp_path)
    fit(tmp_path, DataModule(train, val), [save])
    with pytest.raises((dp.ConfigError, OSError)):
        data = DataModule(partial(train, **changed) if changed else broken, val)
        failed, checkpoint = SaveEverywhere(tmp_path), save.saved["batch end", STEPS + 1]
        fit(tmp_path, data, [failed], checkpoint)
    resumed = fit(tmp_path, DataModule(train, val), checkpoint=failed.saved["exception", 0])
    assert resumed.trained == by_loader(train)[STEPS + 1 :]


def test_a_checkpoint_that_is_only_validated_moves_nothing(train, val, tmp_path):
    fit(tmp_path, DataModule(train, val), [save := SaveEverywhere(tmp_path)])
    data, model = DataModule(train, val), Model()
    checkpoint = save.saved["batch end", 1]
    trainer(tmp_path).validate(model, datamodule=data, ckpt_path=checkpoint, weights_only=False)
    trainer(tmp_path).fit(model, datamodule=data)
    assert model.trained == by_loader(train)


def test_what_is_missing_is_named(train, tmp_path):
    with pytest.raises(dp.ConfigError, match="no val loader; give it val="):
        trainer(tmp_path).validate(Model(), datamodule=DataModule(test=train))


@pytest.mark.slow
def test_two_ranks_killed_and_resumed(thumbnails, train, tmp_path):
    """By SIGKILL in mid-epoch; what both trained together is what one process trains with the
    batches of both.
    """
    thumbnails.save(tmp_path / "m.parquet")
    options = [tmp_path / "m.parquet", tmp_path, EPOCHS]
    kill_after(
        start("lightning_ranks", *options, 0.3),
        lambda: len(rows(tmp_path, 0)) > STEPS and (tmp_path / "last.ckpt").exists(),
    )
    finish(start("lightning_ranks", *options, 0))
    steps = [{row[0]: row[1:] for row in rows(tmp_path, rank)} for rank in (0, 1)]
    # at most the step that was killed is done again
    assert len(rows(tmp_path, 0)) <= STEPS * EPOCHS + 1
    for step, (_, ids, pixels) in enumerate(by_loader(train)):
        (first, one), (second, other) = steps[0][step], steps[1][step]
        assert first + second == ids and one + other == pytest.approx(pixels)


@pytest.mark.slow
def test_the_example(image_folder, tmp_path):
    main = example("lightning")
    options = {"size": 32, "batch_size": 8, "accelerator": "cpu"}
    options |= {"enable_progress_bar": False, "logger": False}
    assert main(image_folder, tmp_path, max_steps=3, **options).global_step == 3
    resumed = main(image_folder, tmp_path, max_steps=5, **options)
    assert resumed.global_step == 5 and 0 <= resumed.callback_metrics["val_accuracy"] <= 1


def test_validation_with_other_classes_is_refused(train, thumbnails, tmp_path):
    other = thumbnails.map_classes({"class 1": "class 7"})
    options = {"batch_size": 12, "transform": dp.EvalTransform(resize=8, size=8)}
    val = partial(dp.build_loader, other, dp.TorchConfig(num_workers=0), **options)
    problem = r"not the same classes: 1 only in the first .*; give both the same"
    with pytest.raises(dp.ManifestError, match=problem):
        fit(tmp_path, DataModule(train, val))


def test_a_fit_after_the_learning_rate_was_sought_has_whole_epochs(train, val, tmp_path):
    """The tuner trains a few batches and goes back to a checkpoint from before the first one."""
    data, model, sought = DataModule(train, val), Model(), trainer(tmp_path)
    Tuner(sought).lr_find(model, datamodule=data, num_training=4, attr_name="lr")
    model.trained.clear()
    sought.fit(model, datamodule=data)
    assert model.trained == by_loader(train)


@pytest.mark.slow
def test_the_tuner_finds_the_batch_size_of_the_module(train, val, tmp_path):
    """It tries its first one too, and not the loader that was there, whose batches are too
    large.
    """

    class Small(Model):
        def training_step(self, batch, batch_idx):
            if len(batch) > 9:
                raise RuntimeError("CUDA out of memory.")
            return super().training_step(batch, batch_idx)

    data, model, seeking = DataModule(train, val), Small(), trainer(tmp_path)
    options = {"mode": "binsearch", "max_trials": 8, "steps_per_trial": 1, "margin": 0}
    found = Tuner(seeking).scale_batch_size(model, datamodule=data, init_val=8, **options)
    assert found == data.batch_size == 9

    model.trained.clear()
    seeking.fit(model, datamodule=data)
    assert {len(ids) for _, ids, _ in model.trained} == {9}


def test_a_tuner_that_asks_for_more_than_there_is_is_told_the_largest_batch(train, val, tmp_path):
    tuner, options = Tuner(trainer(tmp_path)), {"init_val": 32, "steps_per_trial": 1}
    problem = r"37 images do not fill one global batch of 64 .*max_val=37"
    with pytest.raises(dp.ConfigError, match=problem):
        tuner.scale_batch_size(Model(), datamodule=DataModule(train, val), **options)


@pytest.mark.parametrize("options", [{}, {"reload_dataloaders_every_n_epochs": 1}], ids=str)
def test_overfitted_batches_are_the_same_in_each_epoch(train, val, tmp_path, options):
    save = SaveEverywhere(tmp_path)
    options = {"overfit_batches": 2, **options}
    whole = fit(tmp_path, DataModule(train, val), [save], **options)
    assert whole.trained == by_loader(train)[:2] * EPOCHS
    for (hook, done), checkpoint in save.saved.items():
        resumed = fit(tmp_path, DataModule(train, val), checkpoint=checkpoint, **options)
        assert resumed.trained == whole.trained[done:], (hook, done)


def test_a_trainer_that_has_ended_in_mid_epoch_goes_on_there(train, val, tmp_path):
    data, model, stopped = DataModule(train, val), Model(fail_at=1), trainer(tmp_path, max_steps=4)
    with pytest.raises(RuntimeError, match="as planned"):
        stopped.fit(model, datamodule=data)
    model.fail_at = -1
    stopped.fit(model, datamodule=data)
    stopped.fit_loop.epoch_loop.max_steps = STEPS * EPOCHS
    stopped.fit(model, datamodule=data)
    assert [each[1:] for each in model.trained] == [each[1:] for each in by_loader(train)]


class Stream(IterableDataset):
    """Pictures, of which nobody knows how many there are."""

    def __init__(self, pictures):
        self.pictures = pictures

    def __iter__(self):
        return (self.pictures[at] for at in range(len(self.pictures)))


class Means(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.steps = torch.nn.Linear(3, 5), 0

    def training_step(self, batch, batch_idx):
        images, labels, *_ = batch
        self.steps += 1
        return torch.nn.functional.cross_entropy(self.layer(images.mean((2, 3))), labels % 5)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.filterwarnings("ignore:.*state of a loader in the middle")
@pytest.mark.parametrize("kind", [lambda pictures: pictures, Stream], ids=["files", "a stream"])
def test_a_users_loader_without_a_seed_is_saved_in_the_middle_of_an_epoch(tmp_path, kind):
    """Lightning asks for its state with each checkpoint, and chooses its epoch."""
    data, module = kind(Pictures(make_pictures(tmp_path))), Means()
    saves = pl.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1)
    with dp.from_torch(DataLoader(data, 4), dp.DaliConfig(device="cpu")) as loader:
        trainer(tmp_path, [saves], enable_checkpointing=True).fit(module, loader)
        epoch = len(list(loader))
    assert module.steps == EPOCHS * epoch
    assert len(list(tmp_path.glob("*.ckpt"))) == module.steps // 2
