"""What a task measures over a whole validation set; every image counts once, on any number of
ranks.

`validate` builds a loader for one evaluation; `evaluate` takes the batches of any loader.
"""

import math
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.loader.batch import Batch
from dali_pipes.loader.build import build_loader
from dali_pipes.plan.plan import Rank
from dali_pipes.plan.sampling import Sequential
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.launch import all_gather
from dali_pipes.training.supervision import Heartbeat
from dali_pipes.training.tasks.task import BY_CLASS, CONFUSION, Measured, Task


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was measured of a task's images.

    Attributes:
        values: by name; "loss" is among them if the task measures it.
        by_class: the same of each class, in the order of the classes.
        images: how many.
        confusion: images by their class (rows) and by the class that was found (columns), if the
            task counts that.
    """

    values: dict[str, float]
    by_class: dict[str, list[float]]
    images: int
    confusion: list[list[int]] | None = None

    def columns(self) -> dict[str, float]:
        """The values as a row of the history has them."""
        renamed = {
            "val_loss" if name == "loss" else name: self.values[name] for name in self.values
        }
        return {**renamed, "val_images": self.images}


def validate(
    config: TrainConfig, task: Task, val: Manifest, fabric: Any, heartbeat: Heartbeat
) -> Evaluation:
    """Evaluates all validation images, with a loader that exists only for this evaluation."""
    with build_loader(
        val,
        config.loader,
        transform=getattr(config, config.eval_with),
        batch_size=config.eval_batch_size,
        # said here, since a transform with random draws would be shuffled, and its epoch cut
        sampling=Sequential(),
        last_batch="partial",
        seed=config.seed,
        rank=Rank(fabric.global_rank, fabric.world_size),
        on_bad_sample=config.on_bad_sample,
        max_bad_fraction=config.max_bad_fraction,
        device=fabric.device,
    ) as loader:
        return evaluate(task, heartbeat.watch(loader), fabric)


@torch.no_grad()
def evaluate(task: Task, batches: Iterable[Batch], fabric: Any) -> Evaluation:
    """Evaluates one epoch of a loader; its ranks together deliver every image once
    (`last_batch="partial"`).

    The ranks may have different numbers of batches: nothing is exchanged before the end, so `task`
    is not the module that DDP has wrapped.

    Raises:
        ConfigError: a measurement is neither a number nor one for each image.
    """
    was_training = task.training
    task.eval()
    task.begin_evaluation()
    metrics: list[Any] = [each for each in task.modules() if isinstance(each, _metric_types())]
    for metric in metrics:
        metric.reset()

    sums = Sums(fabric.device, metrics)
    for batch in batches:
        with fabric.autocast():
            measured = task.evaluate(batch)
        sums.add(measured, len(batch))
    task.end_evaluation()
    task.train(was_training)
    return sums.over_ranks(fabric)


class Sums:
    """Adds up what is measured, batch by batch, without waiting for the device.

    Args:
        metrics: the task's, of torchmetrics, in the same order on every rank.
    """

    def __init__(self, device: torch.device, metrics: list[Any]):
        self._device, self._metrics, self._images = device, metrics, 0
        self._totals: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()  # of the images that a total is of
        self._used: dict[str, int] = {}  # places in `metrics`

    def add(self, measured: Mapping[str, Measured], images: int) -> None:
        self._images += images
        for name, value in measured.items():
            if isinstance(value, _metric_types()):
                self._used[name] = self._place(name, value)
                continue
            total = self._total(name, _to_tensor(name, value, self._device), images)
            self._totals[name] = self._totals[name] + total if name in self._totals else total
            self._counts[name] += images

    def _place(self, name: str, metric: object) -> int:
        for place, each in enumerate(self._metrics):
            if each is metric:
                return place
        raise ConfigError(
            f"evaluate() returns the metric {name}, which is no attribute of the object; keep it "
            "as one, so that it is moved to the device and begins anew with each evaluation"
        )

    def _total(self, name: str, value: Tensor, images: int) -> Tensor:
        if value.numel() == 1 and not (value.ndim and images == 1):
            return value.reshape(()).double() * images
        if value.shape == (images,):
            return value.double().sum()
        raise ConfigError(
            f"evaluate() returns {name} of shape {tuple(value.shape)} for {images} images; return "
            "one number, one for each image, or a metric of torchmetrics"
        )

    def over_ranks(self, fabric: Any) -> Evaluation:
        totals = {name: total.item() for name, total in self._totals.items()}
        gathered = all_gather(fabric, (totals, self._counts, self._used, self._images))
        images = sum(each for *_, each in gathered)

        # of the images that have it: a task may measure something in some batches only
        counts = sum((each for _, each, _, _ in gathered), Counter[str]())
        values, by_class = dict[str, float](), dict[str, list[float]]()
        for totals, *_ in gathered:
            for name, total in totals.items():
                values[name] = values.get(name, 0.0) + total / max(counts[name], 1)

        # a rank without a batch does not know the names, and takes part in computing them
        used: dict[str, int] = {}
        for _, _, of_rank, _ in gathered:
            used |= of_rank
        if fabric.world_size > 1 and self._metrics:
            fill_lists(self._metrics, fabric)
        confusion: list[list[int]] | None = None
        for name, place in sorted(used.items(), key=lambda each: each[1]):
            for key, value in _compute(name, self._metrics[place]).items():
                if key == CONFUSION:
                    # torchmetrics gives a number for a single class
                    confusion = (value if value.ndim else value.reshape(1, 1)).tolist()
                elif value.numel() == 1 and not key.endswith(BY_CLASS):
                    values[key] = value.item()
                else:
                    by_class[key.removesuffix(BY_CLASS)] = value.reshape(-1).tolist()
        return Evaluation(values, by_class, images, confusion)


def _to_tensor(name: str, value: Any, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(device)
    try:
        return torch.tensor(float(value), dtype=torch.float64, device=device)
    except (TypeError, ValueError):
        raise ConfigError(
            f"evaluate() returns {name} as {type(value).__name__}; return a number, a tensor, or a "
            "metric of torchmetrics"
        ) from None


def _metric_types() -> tuple[type, ...]:
    """What torchmetrics calls a metric, if it has been imported, which takes seconds."""
    if "torchmetrics" not in sys.modules:
        return ()
    from torchmetrics import Metric, MetricCollection

    return Metric, MetricCollection


def fill_lists(metrics: list[Any], fabric: Any) -> None:
    """Gives what is empty on this rank the form that it has on another one.

    torchmetrics takes a vector of fractions for a list of no batch. If the other ranks send
    integers or rows, gloo ends the process.
    """
    from torchmetrics import MetricCollection
    from torchmetrics.utilities import dim_zero_cat

    for each in metrics:
        if isinstance(each, MetricCollection):
            # its parts share their states from the first access on
            list(each.values(copy_state=False))
    lists = [
        (each, name)
        for each in metrics
        if not isinstance(each, MetricCollection)
        for name, reduce in each._reductions.items()
        if reduce is dim_zero_cat and isinstance(each._defaults[name], list)
    ]
    mine = [getattr(each, name)[:1] for each, name in lists]
    forms = all_gather(fabric, [[(one.dtype, one.shape[1:]) for one in first] for first in mine])
    for (each, name), first, *of_ranks in zip(lists, mine, *forms, strict=True):
        if not first and (found := next(filter(None, of_ranks), None)):
            dtype, shape = found[0]
            setattr(each, name, [torch.empty((0, *shape), dtype=dtype, device=each.device)])


def _compute(name: str, metric: Any) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes that no image has
        try:
            found = metric.compute()
        except ValueError:  # of too few images, as R² of one
            if not isinstance(metric, nn.ModuleDict):
                return {name: _on_cpu(math.nan)}
            # a MetricCollection, of which the others have a value
            parts = [_compute(key, metric[key]) for key in metric]
            found = {key: value for part in parts for key, value in part.items()}
    if not isinstance(found, dict):
        found = {name: found}
    return {key: _to_number(key, value) for key, value in found.items()}


def _to_number(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    try:
        return _on_cpu(float(value))
    except (TypeError, ValueError):
        raise ConfigError(
            f"the metric {name} that evaluate() returns is {type(value).__name__} and no number, "
            "as of a curve; return a metric that is a number, or one for each class"
        ) from None


def _on_cpu(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device="cpu")
