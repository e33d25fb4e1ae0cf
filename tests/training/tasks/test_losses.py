"""Each loss is the one of the library or the paper that it is named after."""

import numpy as np
import pytest
import torch
from timm.loss import BinaryCrossEntropy
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    one_hot,
    smooth_l1_loss,
)
from torchvision.ops import sigmoid_focal_loss

from dali_pipes.errors import ConfigError
from dali_pipes.training.config import TaskConfig
from dali_pipes.training.tasks.losses import build_loss, count_labels


class Labels:
    """What a loss asks of a manifest."""

    def __init__(self, labels, classes=4):
        self.labels, self.classes = np.array(labels), [*"abcd"][:classes]

    def __len__(self):
        return len(self.labels)


ONE_EACH, SEVERAL = Labels([0, 0, 0, 1, 1, 2, 3, 0]), Labels([[0, 1], [0, -1], [2, 3], [-1, -1]])
torch.manual_seed(0)
SCORES, LABELS = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
SHARES = torch.rand(6, 4).softmax(1)
MANY = (torch.rand(6, 4) < 0.5).float()


def loss_of(task, labels, smoothing=0.0, manifest=None, **options):
    chosen = manifest or {"classification": ONE_EACH, "multilabel": SEVERAL}.get(task, Labels([0]))
    return build_loss(TaskConfig(**options), task, smoothing, chosen)(SCORES, labels).item()


@pytest.mark.parametrize("labels", [LABELS, SHARES])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_pytorchs(labels, smoothing):
    weights = [1.0, 2, 0.5, 3]
    given = {"label_smoothing": smoothing}
    plain = cross_entropy(SCORES, labels, **given).item()
    weighted = cross_entropy(SCORES, labels, weight=torch.tensor(weights), **given).item()
    assert loss_of("classification", labels, smoothing) == pytest.approx(plain)
    assert loss_of("classification", labels, smoothing, class_weights=weights) == pytest.approx(
        weighted
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_batch_of_classes_without_weight_has_no_loss_and_no_gradient(smoothing):
    """PyTorch's mean is 0/0 there, and the run would end as one whose rate is too high."""
    loss = build_loss(TaskConfig(class_weights=[0, 1, 1, 0]), "classification", smoothing, ONE_EACH)
    scores = SCORES[:2].clone().requires_grad_()
    loss(scores, torch.tensor([0, 3])).backward()
    assert loss(scores, torch.tensor([0, 3])) == 0 and not scores.grad.any()


@pytest.mark.parametrize("threshold", [None, 0.2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bce_of_classes_is_timms(smoothing, threshold):
    ours = loss_of("classification", LABELS, smoothing, loss="bce", target_threshold=threshold)
    timms = BinaryCrossEntropy(smoothing, target_threshold=threshold)(SCORES, LABELS)
    assert ours == pytest.approx(timms.item())


def test_bce_of_mixed_labels_smooths_them_as_those_of_one_class():
    hot = one_hot(LABELS, 4).float()
    mixed = 0.3 * hot + 0.7 * hot.roll(1, 0)
    assert loss_of("classification", hot, 0.1, loss="bce") == pytest.approx(
        loss_of("classification", LABELS, 0.1, loss="bce")
    )
    # linear in the shares, without a threshold
    assert loss_of("classification", mixed, 0.1, loss="bce") == pytest.approx(
        0.3 * loss_of("classification", hot, 0.1, loss="bce")
        + 0.7 * loss_of("classification", hot.roll(1, 0), 0.1, loss="bce")
    )


def test_focal_loss_without_focus_is_the_plain_loss():
    assert loss_of("classification", LABELS, loss="focal", focal_gamma=0) == pytest.approx(
        cross_entropy(SCORES, LABELS).item()
    )
    p = SCORES.softmax(1)[torch.arange(6), LABELS]
    assert loss_of("classification", LABELS, loss="focal", focal_gamma=2) == pytest.approx(
        ((1 - p) ** 2 * -p.log()).mean().item()
    )
    assert loss_of("multilabel", MANY, loss="focal", focal_gamma=1.5) == pytest.approx(
        sigmoid_focal_loss(SCORES, MANY, alpha=-1, gamma=1.5, reduction="mean").item()
    )


def test_losses_of_numbers_are_pytorchs():
    assert loss_of("regression", MANY, loss="huber") == pytest.approx(
        huber_loss(SCORES, MANY).item()
    )
    assert loss_of("regression", MANY, loss="smooth_l1") == pytest.approx(
        smooth_l1_loss(SCORES, MANY).item()
    )
    assert loss_of("regression", MANY) == pytest.approx((SCORES - MANY).square().mean().item())
    assert loss_of("regression", MANY, loss="l1") == pytest.approx(
        (SCORES - MANY).abs().mean().item()
    )


def test_balanced_weights_are_of_the_counts():
    assert count_labels(ONE_EACH).tolist() == [4, 2, 1, 1]
    assert count_labels(SEVERAL).tolist() == [2, 1, 1, 1]
    # as scikit-learn's "balanced"
    assert loss_of("classification", LABELS, class_weights="balanced") == pytest.approx(
        cross_entropy(SCORES, LABELS, weight=torch.tensor([0.5, 1, 2, 2])).item()
    )
    pos_weight = torch.tensor([1.0, 3, 3, 3])
    assert loss_of("multilabel", MANY, pos_weight="balanced") == pytest.approx(
        binary_cross_entropy_with_logits(SCORES, MANY, pos_weight=pos_weight).item()
    )


def test_a_class_without_images_has_a_weight_all_the_same():
    few = Labels([0, 1, 1])
    assert np.isfinite(loss_of("classification", LABELS, manifest=few, class_weights="balanced"))


@pytest.mark.parametrize(
    ("task", "smoothing", "options", "message"),
    [
        ("regression", 0, {"loss": "cross_entropy"}, "cross_entropy is not for regression, whose"),
        ("classification", 0, {"loss": "mse"}, "whose losses are cross_entropy, focal, bce"),
        ("multilabel", 0.1, {}, "label_smoothing is not for the loss bce of multilabel"),
        ("multilabel", 0, {"focal_gamma": 3}, r"task\.focal_gamma is not for the loss bce"),
        (
            "classification",
            0,
            {"pos_weight": "balanced"},
            r"task\.pos_weight is not for the loss cro",
        ),
        ("multilabel", 0, {"target_threshold": 0.2}, r"task\.target_threshold is not for"),
        ("regression", 0, {"class_weights": "balanced"}, r"task\.class_weights is not for"),
        ("classification", 0, {"class_weights": [1, 2]}, "has 2 numbers, and there are 4 classes"),
    ],
)
def test_what_a_loss_does_not_have_is_refused(task, smoothing, options, message):
    with pytest.raises(ConfigError, match=message):
        loss_of(task, LABELS, smoothing, **options)


@pytest.mark.parametrize("value", ["even", [1, -2], [True], [1, "x"]])
def test_weights_that_are_none_are_refused(value):
    with pytest.raises(ConfigError, match=r"class_weights is .*; it takes balanced, or a number"):
        TaskConfig(class_weights=value)


def test_weights_that_are_all_zero_are_refused():
    with pytest.raises(ConfigError, match=r"class_weights is .*: nothing would count in the loss"):
        TaskConfig(class_weights=[0, 0, 0])
    assert TaskConfig(class_weights=[0, 1]).class_weights == [0, 1]
    assert TaskConfig(pos_weight=[0, 0]).pos_weight == [0, 0], "the other images still count"
