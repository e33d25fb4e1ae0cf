from functools import partial

import pytest
import torch
from later import later
from torch import nn
from torch.nn.functional import cross_entropy

import dali_pipes as dp
from dali_pipes.loader.batch import Ragged
from dali_pipes.training.config import OptimizerConfig, TrainConfig
from dali_pipes.training.optimizing.recipe import build_optimizer
from dali_pipes.training.step import Forward, TrainStep, split
from dali_pipes.training.tasks.losses import Loss
from dali_pipes.training.tasks.supervised import Classification

launching = later("dali_pipes.training.launch")


def step(accumulate, **options):
    """One step on eight images of a network without normalization; its weights after it, and the
    loss.
    """
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 5))
    fabric = launching.launch(options.get("precision", "fp32"))
    plain = OptimizerConfig(momentum=0.0, weight_decay=0.0)
    raw = build_optimizer(options.get("optimizer", plain), module)
    smoothing = {"label_smoothing": options.pop("label_smoothing", 0.0)}
    task = Classification(module, Loss(partial(cross_entropy, **smoothing), {}), 5)
    model, optimizer = fabric.setup(Forward(task), raw)
    images, labels = (
        torch.rand(8, 3, 4, 4).to(options.pop("dtype", torch.float32)),
        options.pop("labels", torch.arange(8) % 5),
    )
    take = TrainStep(
        TrainConfig(batch_size=8 // accumulate, accumulate=accumulate, **options),
        fabric,
        model,
        task,
        optimizer,
        None,
    )
    loss = take(dp.Batch(images, labels, torch.arange(8)), lr=0.1)
    return module[1].weight.detach(), loss, raw, images.float(), labels


def test_a_step_is_gradient_descent():
    weight, loss, optimizer, images, labels = step(1)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 5))
    expected = nn.functional.cross_entropy(module(images), labels)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item()) and not loss.requires_grad
    assert torch.allclose(weight, module[1].weight - 0.1 * module[1].weight.grad)
    assert optimizer.param_groups[0]["lr"] == 0.1 and all(
        each.grad is None for each in optimizer.param_groups[0]["params"]
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_gradients_are_clipped_as_by_pytorch(precision, accumulate):
    plain = {"momentum": 0.0, "weight_decay": 0.0}
    clipped, *_ = step(
        accumulate,
        precision=precision,
        optimizer=OptimizerConfig(clip_grad_norm=0.05, **plain),
    )
    free, _, _, images, labels = step(
        accumulate, precision=precision, optimizer=OptimizerConfig(**plain)
    )
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 5))
    start = module[1].weight.detach().clone()
    nn.functional.cross_entropy(module(images), labels).backward()
    norm = nn.utils.clip_grad_norm_(module.parameters(), 0.05)
    assert norm > 0.2, "else nothing is clipped"
    near = {"atol": 1e-6 if precision == "fp32" else 1e-4}
    assert torch.allclose(clipped, start - 0.1 * module[1].weight.grad, **near)
    assert (free - start).norm() > 3 * (clipped - start).norm()
    larger, *_ = step(
        accumulate, precision=precision, optimizer=OptimizerConfig(clip_grad_norm=10.0, **plain)
    )
    assert torch.allclose(larger, free, atol=1e-6)


def test_parts_add_up_to_the_whole_batch():
    whole, loss, *_ = step(1)
    parts, loss_of_parts, *_ = step(4)
    assert torch.allclose(whole, parts, atol=1e-6) and loss_of_parts.item() == pytest.approx(
        loss.item()
    )


def test_labels_are_smoothed_if_asked_for():
    assert step(1, label_smoothing=0.2)[1].item() != pytest.approx(step(1)[1].item(), abs=1e-3)


def test_images_in_half_precision_are_taken():
    assert step(1, dtype=torch.float16)[1].item() == pytest.approx(step(1)[1].item(), abs=0.01)


def test_bf16_images_lose_nothing_that_bf16_training_keeps():
    """Autocast rounds fp32 images to bf16 as well, before the first product."""
    from_bf16, from_fp32 = (
        step(1, precision="bf16", dtype=dtype) for dtype in (torch.bfloat16, torch.float32)
    )
    assert torch.equal(from_bf16[0], from_fp32[0]) and torch.equal(from_bf16[1], from_fp32[1])
    assert not torch.equal(from_bf16[1], step(1, dtype=torch.bfloat16)[1])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_soft_labels_are_taken(smoothing):
    """Those of one class each are class numbers; those of two classes weigh their losses."""
    hard = torch.arange(8) % 5
    one_hot, shifted = torch.eye(5)[hard], torch.eye(5)[(hard + 1) % 5]
    losses = [
        step(2, labels=labels, label_smoothing=smoothing)[1].item()
        for labels in (hard, one_hot, (hard + 1) % 5, 0.3 * one_hot + 0.7 * shifted)
    ]
    assert losses[0] == pytest.approx(losses[1])
    assert losses[3] == pytest.approx(0.3 * losses[0] + 0.7 * losses[2])


def test_a_batch_is_cut_with_all_that_belongs_to_its_images():
    boxes = Ragged(torch.arange(20).reshape(10, 2), [2, 0, 3, 1, 0, 4])
    batch = dp.Batch(
        torch.arange(6),
        torch.arange(6),
        torch.arange(6),
        targets={"boxes": boxes, "text": list("abcdef"), "mask": torch.arange(6)},
        views={"global": torch.arange(12).reshape(6, 2)},
    )
    parts = split(batch, 3)
    assert [part.ids.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
    assert [part.text for part in parts] == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert [part["boxes"].lengths for part in parts] == [[2, 0], [3, 1], [0, 4]]
    assert torch.equal(torch.cat([part["boxes"].values for part in parts]), boxes.values)
    assert torch.equal(torch.cat([part.views["global"] for part in parts]), batch.views["global"])
    assert split(batch, 1) == [batch]
