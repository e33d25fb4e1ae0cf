"""What is measured of a validation set is what a straightforward computation gives, whatever the
batches.
"""

import math

import pytest
import torch
from host_waits import GPU, waits_of
from later import later
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import BinaryROC

import dali_pipes as dp
from dali_pipes.errors import ConfigError
from dali_pipes.training.tasks.evaluate import evaluate, fill_lists
from dali_pipes.training.tasks.losses import Loss
from dali_pipes.training.tasks.supervised import Classification, MultiLabel, Regression
from dali_pipes.training.tasks.task import Task

launching = later("dali_pipes.training.launch")


class Outputs(nn.Module):
    """Returns of each "image" its first row: the outputs that a test wants."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, images):
        assert not self.training
        return images[:, 0, 0]


def batches(outputs, labels, size):
    images = outputs[:, None, None]
    ids = torch.arange(len(labels))
    for start in range(0, len(labels), size):
        part = slice(start, start + size)
        yield dp.Batch(images[part], labels[part], ids[part])


def measure(kind, outputs, labels, size):
    task = kind(Outputs(), Loss(cross_entropy, {}), outputs.shape[1]).train()
    fabric = launching.launch("fp32")
    first, again = (evaluate(task, batches(outputs, labels, size), fabric) for _ in range(2))
    assert task.training and first.images == len(labels)
    assert first.values == pytest.approx(again.values, abs=0, nan_ok=True)
    assert str(first.by_class) == str(again.by_class), "as text, since NaN equals nothing"
    return first


@pytest.mark.parametrize("size", [1, 5, 64])
def test_one_class_each(size):
    torch.manual_seed(0)
    scores, labels = torch.randn(41, 7), torch.randint(6, (41,))
    found = measure(Classification, scores, labels, size)

    order = scores.argsort(dim=1, descending=True)
    hits = order == labels[:, None]
    assert found.values["top1"] == pytest.approx(hits[:, 0].float().mean().item())
    assert found.values["top5"] == pytest.approx(hits[:, :5].any(1).float().mean().item())
    assert found.values["loss"] == pytest.approx(cross_entropy(scores, labels).item())

    f1 = [
        2 * (labels[order[:, 0] == c] == c).sum() / ((labels == c).sum() + (order[:, 0] == c).sum())
        for c in range(7)
    ]
    assert found.by_class["f1"] == pytest.approx([each.item() for each in f1])
    assert found.values["f1"] == pytest.approx(torch.stack(f1).mean().item())

    confidence, error = scores.softmax(1).amax(1), 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            gap = hits[inside, 0].float().mean() - confidence[inside].mean()
            error += gap.abs().item() * inside.float().mean().item()
    assert found.values["calibration_error"] == pytest.approx(error, abs=1e-6)


def test_a_single_class_has_a_matrix_too():
    found = measure(Classification, torch.randn(4, 1), torch.zeros(4, dtype=torch.int64), 3)
    assert found.confusion == [[4]] and found.by_class == {"f1": [1.0]}


def test_fewer_than_five_classes_are_all_among_the_best():
    found = measure(Classification, torch.tensor([[0.0, 1.0]]), torch.tensor([0]), 1)
    assert (found.values["top1"], found.values["top5"]) == (0, 1)


@pytest.mark.parametrize("size", [1, 5, 64])
def test_several_classes_each(size):
    torch.manual_seed(0)
    scores, labels = torch.randn(41, 4), (torch.rand(41, 4) < 0.4).float()
    labels[:, 3] = 0  # a class that no image has
    found = measure(MultiLabel, scores, labels, size)
    loss = binary_cross_entropy_with_logits(scores, labels)
    assert found.values["loss"] == pytest.approx(loss.item())

    precisions = []
    for c in range(3):
        ranked = labels[scores[:, c].argsort(descending=True), c]
        at = ranked.cumsum(0) / torch.arange(1, 42)
        precisions.append((at * ranked).sum().item() / ranked.sum().item())
    assert found.by_class["ap"] == pytest.approx([*precisions, math.nan], abs=1e-6, nan_ok=True)
    assert found.values["map"] == pytest.approx(sum(precisions) / 3, abs=1e-6)
    both = ((scores > 0) & (labels > 0)).sum()
    micro = 2 * both / ((scores > 0).sum() + labels.sum())
    assert found.values["f1_micro"] == pytest.approx(micro.item())


@pytest.mark.parametrize("size", [1, 5, 64])
@pytest.mark.parametrize("numbers", [1, 3])
def test_numbers(size, numbers):
    torch.manual_seed(0)
    outputs, labels = torch.randn(41, numbers), torch.randn(41, numbers)
    found = measure(Regression, outputs, labels[:, 0] if numbers == 1 else labels, size)
    error = outputs - labels
    assert found.values["mae"] == pytest.approx(error.abs().mean().item())
    assert found.values["loss"] == pytest.approx(error.square().mean().item())
    assert found.values["rmse"] == pytest.approx(error.square().mean().sqrt().item())
    spread = (labels - labels.mean(0)).square().sum(0)
    assert found.values["r2"] == pytest.approx((1 - error.square().sum(0) / spread).mean().item())


def test_r2_of_large_numbers_that_differ_little():
    torch.manual_seed(0)
    labels = 100_000 + 10 * torch.randn(2000, 2, dtype=torch.float64)
    outputs = labels + 5 * torch.randn(2000, 2)
    outputs, labels = outputs.float(), labels.float()
    found = measure(Regression, outputs, labels, 64)
    error, spread = (outputs - labels).double(), labels.double() - labels.double().mean(0)
    r2 = (1 - error.square().sum(0) / spread.square().sum(0)).mean()
    assert found.values["r2"] == pytest.approx(r2.item(), abs=1e-6)


def test_r2_of_one_image_is_no_number():
    found = measure(Regression, torch.ones(1, 1), torch.zeros(1), 1)
    assert found.values["mae"] == 1 and found.values["r2"] != found.values["r2"]


def test_measuring_a_batch_never_waits_for_the_gpu(monkeypatch):
    """Metrics do, and get what they need after the last batch."""
    scores, labels = torch.empty(8, 10, device=GPU), torch.empty(8, dtype=torch.int64, device=GPU)
    task = Classification(Outputs().to(GPU).eval(), Loss(cross_entropy, {}), 10)
    task.begin_evaluation()
    batch = dp.Batch(scores[:, None, None], labels, labels)
    assert waits_of(lambda: task.evaluate(batch), monkeypatch) == []


def test_outputs_that_wait_for_the_metrics_are_bounded(monkeypatch):
    monkeypatch.setattr("dali_pipes.training.tasks.supervised._KEPT_BYTES", 100)
    torch.manual_seed(0)
    scores, labels = torch.randn(41, 7), torch.randint(6, (41,))
    bounded = measure(Classification, scores, labels, 5)
    monkeypatch.undo()
    assert bounded == measure(Classification, scores, labels, 5)


class Own(Task):
    """Measures what a test wants of each batch."""

    name = "own"

    def __init__(self, measured):
        super().__init__()
        self._network, self._measured = Outputs(), measured
        self.mean = MeanMetric()
        self.several = MetricCollection({"a": MeanMetric(), "b": MeanMetric()})

    @property
    def network(self):
        return self._network

    def step(self, batch):
        return self.network(batch.images).mean()

    def evaluate(self, batch):
        return self._measured(self, batch)


def own(measured, size=4, images=10):
    numbers = torch.arange(float(images))
    return evaluate(
        Own(measured), batches(numbers[:, None], numbers, size), launching.launch("fp32")
    )


@pytest.mark.parametrize("size", [1, 4, 10])
def test_means_are_over_images_and_metrics_are_computed_once(size):
    def measured(task, batch):
        task.mean.update(batch.labels)
        task.several.update(batch.labels)
        each = {"each": batch.labels, "whole": batch.labels.mean(), "number": 1}
        return {**each, "mean": task.mean, "several": task.several}

    found = own(measured, size)
    assert found.values == pytest.approx(
        {"each": 4.5, "whole": 4.5, "number": 1, "mean": 4.5, "a": 4.5, "b": 4.5}
    )


def test_what_some_batches_do_not_have_is_of_the_images_of_the_others():
    def measured(task, batch):
        return {"all": 1.0} | ({"small": batch.labels} if batch.labels.max() < 8 else {})

    assert own(measured).values == pytest.approx({"all": 1, "small": 3.5})


def test_a_curve_is_no_measurement():
    def measured(task, batch):
        task.curve.update(batch.labels.sigmoid(), batch.labels.long() % 2)
        return {"curve": task.curve}

    task, numbers = Own(measured), torch.arange(4.0)
    task.curve = BinaryROC()
    with pytest.raises(ConfigError, match=r"the metric curve .* is tuple and no"):
        evaluate(task, batches(numbers[:, None], numbers, 2), launching.launch("fp32"))


def test_a_rank_without_an_image_takes_part_with_empty_tensors(monkeypatch):
    """As many numbers of the same type and shape: gloo ends a process that sends others."""
    tasks = [MultiLabel(Outputs(), Loss(cross_entropy, {}), 4) for _ in range(2)]
    for task in tasks:
        task.begin_evaluation()
    tasks[0].metrics.update(torch.rand(3, 4), torch.ones(3, 4, dtype=torch.int64))

    forms = []
    gather = lambda _, mine: [*forms, forms.append(mine) or mine]  # noqa: E731
    monkeypatch.setattr("dali_pipes.training.tasks.evaluate.all_gather", gather)
    for task in tasks:
        fill_lists([each for each in task.modules() if hasattr(each, "compute")], None)

    for name in ("map", "ap_by_class"):
        for state in ("preds", "target"):
            full, empty = (getattr(task.metrics[name], state) for task in tasks)
            assert len(full) == len(empty) == 1 and full[0].shape == (3, 4)
            assert empty[0].shape == (0, 4) and empty[0].dtype == full[0].dtype


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        (lambda task, batch: {"x": torch.zeros(3, 2)}, r"x of shape \(3, 2\) for 4 images"),
        (lambda task, batch: {"x": "good"}, "x as str; return a number"),
        (lambda task, batch: {"x": MeanMetric()}, "metric x, which is no attribute"),
    ],
)
def test_what_does_not_fit_is_named(measured, message):
    with pytest.raises(ConfigError, match=message):
        own(measured)


@pytest.mark.parametrize("batch_size", [5, 16, 64])
def test_every_image_is_counted_once(manifest, batch_size):
    class FirstClass(nn.Module):
        seen = 0

        def __init__(self):
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(1))

        def forward(self, images):
            self.seen += len(images)
            return torch.eye(5)[torch.zeros(len(images), dtype=torch.long)]

    network, transform = FirstClass(), dp.EvalTransform(size=32, resize=36)
    task = Classification(network, Loss(cross_entropy, {}), 5)
    with dp.build_loader(
        manifest, dp.TorchConfig(num_workers=0), transform=transform, batch_size=batch_size
    ) as loader:
        found = evaluate(task, loader, launching.launch("fp32"))
    assert found.images == network.seen == len(manifest) == 37
    assert found.values["top1"] == pytest.approx((manifest.labels == 0).mean())
    assert found.values["top5"] == 1
