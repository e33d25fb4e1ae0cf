"""What a step calls that costs time on a GPU."""

import pytest
import torch

from dali_pipes.tools.diagnosis.programs.step_calls import STEPS, StepCalls

MODEL = torch.nn.Linear(4, 1)
OPTIMIZER = torch.optim.Adam(MODEL.parameters())
BATCH = torch.ones(2, 4)


def train(batch):
    OPTIMIZER.zero_grad()
    loss = MODEL(batch).sum()
    loss.backward()
    OPTIMIZER.step()
    return loss


def to_device(batch, **options):
    train(batch.to("cpu", **options))


def in_bfloat16(batch):
    with torch.autocast("cpu", torch.bfloat16):
        train(batch)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda batch: train(batch).item(), [".item() in", "float32"]),
        (lambda batch: float(train(batch).detach()), ["float() in", "float32"]),
        (lambda batch: f"{train(batch):.2f}", ["an f-string in", "float32"]),
        (lambda batch: str(train(batch)), ["print() in", "float32"]),
        (lambda batch: 1 if train(batch) > 0 else 0, ["a condition in", "float32"]),
        (to_device, [".to() in", "float32"]),
        (lambda batch: to_device(batch, non_blocking=True), ["float32"]),
        (lambda batch: train(batch.to(torch.float32)), ["float32"]),
        (in_bfloat16, []),
        (train, ["float32"]),
        (lambda batch: None, []),
    ],
)
def test_calls_are_found_and_those_of_pytorch_are_not(step, expected):
    calls = StepCalls()
    watched = calls.watching(step)
    for _ in range(3):
        watched(BATCH)
    *found, looked_at = calls.remarks(pin_memory=False)
    assert "looked at in 3 steps" in looked_at and len(found) == len(expected), found
    assert all(
        each.startswith("possible on a GPU: ") and part in each
        for each, part in zip(found, expected, strict=True)
    )
    assert all(
        "test_step_calls.py:" in each
        for each, part in zip(found, expected, strict=True)
        if "float32" not in part
    )


def test_a_call_once_in_many_steps_is_no_cause():
    calls = StepCalls()
    watched = calls.watching(lambda number: train(BATCH).item() if number == 0 else train(BATCH))
    for number in range(10):
        watched(number)
    assert not any(".item()" in each for each in calls.remarks(pin_memory=True))


@pytest.mark.parametrize(
    ("step", "is_advised"),
    [(train, True), (lambda batch: train(batch).item(), True), (to_device, False)],
)
def test_page_locked_memory_is_advised_once(step, is_advised):
    calls = StepCalls()
    watched = calls.watching(step)
    for _ in range(3):
        watched(BATCH)
    # as if the model were on a GPU
    calls.parameters = {("cuda", torch.float32)}
    remarks = calls.remarks(pin_memory=False)
    assert any("not in page-locked memory" in remark for remark in remarks) is is_advised
    assert sum("pin_memory=True" in remark for remark in remarks) == 1


def test_everything_is_put_back_after_some_steps():
    names = ("item", "to", "cpu", "__float__", "__format__")
    before, owned = [getattr(torch.Tensor, name) for name in names], set(vars(torch.Tensor))
    enter = torch.autocast.__enter__
    calls = StepCalls()
    watched = calls.watching(lambda batch: batch.sum().item())
    watched(BATCH)
    assert torch.Tensor.item is not before[0]
    for _ in range(STEPS):
        watched(BATCH)
    assert [getattr(torch.Tensor, name) for name in names] == before and set(
        vars(torch.Tensor)
    ) == owned
    calls.end_step()
    assert torch.autocast.__enter__ is enter and calls.steps == STEPS


def test_what_the_loader_calls_is_not_the_steps():
    calls = StepCalls(is_step=lambda: False)
    watched = calls.watching(lambda batch: batch.sum().item())
    watched(BATCH)
    assert calls.remarks(pin_memory=True) == [
        each for each in calls.remarks(pin_memory=True) if "nothing was found" in each
    ]
