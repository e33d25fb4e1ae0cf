"""Lightning: a DataModule whose loaders know their rank, and whose training resumes with the next
batch.

The Trainer asks the module for loaders when it needs them. The module builds them and keeps the
state of training; a `TrainLoader` around the training loader says where training stands.
"""

from collections.abc import Callable, Iterator
from typing import Any

from lightning.pytorch import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn

from dali_pipes.adapters.lazy.loader import LazyLoader
from dali_pipes.data.sets.classes import describe_difference
from dali_pipes.errors import ConfigError, ManifestError, SmallDataError
from dali_pipes.loader.loader import Loader
from dali_pipes.options import check_arguments
from dali_pipes.plan.plan import Rank

AnyLoader = Loader | LazyLoader
BuildLoader = Callable[..., AnyLoader] | None


class DataModule(LightningDataModule):
    """The loaders of a Trainer.

    Each is built when the Trainer asks for it, since only then its rank and device are known.
    `Trainer.fit(…, ckpt_path=…)` resumes with the first batch that was not trained, wherever in an
    epoch the checkpoint was written.

    Args:
        train, val, test, predict: each returns a loader when called with `rank=` and `device=`,
            such as `functools.partial(dp.build_loader, manifest, config, transform=transform,
            batch_size=256)` or `functools.partial(dp.from_torch, dataloader, config, seed=0)`.
    """

    def __init__(
        self,
        train: BuildLoader = None,
        val: BuildLoader = None,
        test: BuildLoader = None,
        predict: BuildLoader = None,
    ):
        super().__init__()
        self._builders = {"train": train, "val": val, "test": test, "predict": predict}
        if built := [
            name for name, build in self._builders.items() if not (build is None or callable(build))
        ]:
            loader = f"{built[0]} is a {type(self._builders[built[0]]).__name__}"
            raise ConfigError(
                f"{loader}; pass what builds it: {built[0]}=functools.partial(dp.build_loader, …)"
            )

        self._open: dict[str, AnyLoader] = {}
        self._train: TrainLoader | None = None
        self._resume: dict[str, Any] | None = None
        self._batch_size: int | None = None  # of training, instead of the builder's

    @property
    def batch_size(self) -> int | None:
        """Images of a full batch of training, on each rank; None if the function that builds the
        loader does not say.

        Lightning's tuner sets it to try other sizes (`Tuner.scale_batch_size`). Training then
        starts over, since a position among batches of another size means nothing.
        """
        return self._batch_size or getattr(self._builders["train"], "keywords", {}).get(
            "batch_size"
        )

    @batch_size.setter
    @check_arguments(batch_size=(1,))
    def batch_size(self, batch_size: int) -> None:
        self._batch_size, self._train, self._resume = batch_size, None, None
        if self.trainer is not None:
            # Lightning 2.6 would try the tuner's first size with the previous loader
            # (tuner/batch_size_scaling.py)
            self.trainer.fit_loop._combined_loader = None

    def train_dataloader(self) -> "TrainLoader":
        # the same Trainer asks again: it fits once more, or reloads its loaders every n epochs
        if self._train and self._train.trainer is self.trainer:
            self._resume = self._train.state_dict()
        self._train = None

        train = TrainLoader(self._build("train"), self.trainer)
        if self._resume:
            train.load_state_dict(self._resume)
        # only now: a checkpoint that is written because the above fails must keep the position
        self._train, self._resume = train, None
        return train

    def val_dataloader(self) -> AnyLoader | list[AnyLoader]:
        trains_only = self._builders["val"] is None and self._builders["train"] is not None
        return [] if trains_only else self._build("val")

    def test_dataloader(self) -> AnyLoader:
        return self._build("test")

    def predict_dataloader(self) -> AnyLoader:
        return self._build("predict")

    def _build(self, name: str) -> AnyLoader:
        build, trainer = self._builders[name], self.trainer
        if trainer is None:
            raise ConfigError(
                "a DataModule builds its loaders for a Trainer; pass it on: trainer.fit(model, "
                "datamodule=…)"
            )
        if build is None:
            raise ConfigError(
                f"this DataModule has no {name} loader; give it "
                f"{name}=functools.partial(dp.build_loader, …)"
            )

        # the Trainer may ask for a loader again; the one before would keep its threads
        if name in self._open:
            self._open.pop(name).close()

        ranks = trainer.distributed_sampler_kwargs or {"rank": 0, "num_replicas": 1}
        rank = Rank(ranks["rank"], ranks["num_replicas"])

        other = {"batch_size": self._batch_size} if name == "train" and self._batch_size else {}
        try:
            loader = build(rank=rank, device=trainer.strategy.root_device, **other)
        except SmallDataError as error:
            if not other:
                raise
            # the tuner tries larger and larger batches until one fails
            largest = error.images // error.ranks
            raise ConfigError(
                f"{error}; Tuner.scale_batch_size tries no larger one than max_val={largest}"
            ) from None

        self._refuse_other_classes(name, loader)
        if name == "train" and isinstance(loader, LazyLoader):
            _refuse_without_seed(loader)
        return self._open.setdefault(name, loader)

    def _refuse_other_classes(self, name: str, loader: Any) -> None:
        """Raises a ManifestError if the loaders of one model have different classes; prediction
        needs none.
        """
        if name == "predict" or not isinstance(loader, Loader):
            return

        for other, opened in self._open.items():
            if other == "predict" or not isinstance(opened, Loader):
                continue
            first, second = opened.plan.manifest, loader.plan.manifest
            if first.classes != second.classes:
                loader.close()
                raise ManifestError(
                    f"{other} ({first.root}) and {name} ({second.root}): "
                    f"{describe_difference(first.classes, second.classes)}; "
                    "give both the same: Manifest.scan(…, classes=train.classes)"
                )

    def state_dict(self) -> dict[str, Any]:
        """Returns where training stands, under "train"; None is its beginning.

        Lightning saves and loads this state with every checkpoint, but a loader's own state only in
        mid-epoch. The dict is never empty: Lightning would leave an empty one out of the checkpoint
        from which its tuner starts over after it has tried learning rates.
        """
        return {"train": self._train.state_dict() if self._train else self._resume}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next training loader resume from there.

        A checkpoint that is only validated or tested changes nothing.
        """
        if self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING:
            self._train, self._resume = None, state.get("train")

    def teardown(self, stage: str) -> None:
        """Closes all loaders. The Trainer asks for new ones when it needs them again."""
        while self._open:
            self._open.popitem()[1].close()

    def on_exception(self, exception: BaseException) -> None:
        self.teardown("exception")


def _refuse_without_seed(loader: LazyLoader) -> None:
    """Raises a ConfigError for a loader that has no state in the middle of an epoch."""
    if loader.state_dict()["fingerprint"]["seed"] is None:
        loader.close()
        raise ConfigError(
            "a Trainer saves where training stands, and this loader could not go on from there: "
            "its random numbers are its program's; give from_torch a seed="
        )


class TrainLoader:
    """A training loader whose state is the one after the last batch that was trained.

    The loader's own state differs from it in Lightning 2.6. When training_step fails, the loader
    has delivered one more batch than was trained (pytorch/loops/training_epoch_loop.py). With
    `limit_train_batches` an epoch is over before the loader has delivered all of it. With
    `overfit_batches` each epoch has the batches of the first one, with the same crops: Lightning
    itself can stop only a DataLoader's shuffling.
    """

    def __init__(self, loader: AnyLoader, trainer: Any):
        self.trainer, self._loader = trainer, loader
        self._progress = trainer.fit_loop.epoch_loop.batch_progress
        # how many batches were trained when the last one was delivered, and the loader's states
        # before and after that
        self._trained_before = -1
        self._before = self._after = loader.state_dict()

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def dataset(self) -> Any:
        return self._loader.dataset

    @property
    def batch_size(self) -> int | None:
        return self._loader.batch_size

    def __iter__(self) -> Iterator[Any]:
        if self.trainer.overfit_batches:
            self._loader.set_epoch(0)
        batches = iter(self._loader)
        self._after = self._loader.state_dict()
        for batch in batches:
            self._before, self._after = self._after, self._loader.state_dict()
            self._trained_before = self._progress.total.processed
            yield batch

    def state_dict(self) -> dict[str, Any]:
        # the batch that was delivered last has not been trained
        if self._progress.total.processed == self._trained_before:
            return self._before
        # for Lightning the epoch is over, whatever the loader has left of it
        if self._progress.is_last_batch and self._after["samples"]:
            return {**self._after, "epoch": self._after["epoch"] + 1, "samples": 0}
        return self._after

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
        self._before = self._after = self._loader.state_dict()
