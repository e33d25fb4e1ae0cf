"""The witness of waits sees what it is there for."""

import pytest
import torch
from host_waits import GPU, waits_of

VALUES = torch.arange(3)


@pytest.mark.parametrize(
    "work",
    [
        lambda: torch.tensor([1.0], device=GPU),
        lambda: torch.empty(3, device=GPU).new_tensor(5),
        lambda: VALUES.to(GPU),
        lambda: VALUES.to(GPU, non_blocking=True),
        lambda: VALUES.pin_memory().to(GPU),
        lambda: torch.empty(3, device=GPU).copy_(VALUES),
    ],
)
def test_a_wait_is_seen(work, monkeypatch):
    assert len(waits_of(work, monkeypatch)) == 1


def test_what_needs_a_value_raises(monkeypatch):
    with pytest.raises(RuntimeError, match="meta"):
        waits_of(lambda: torch.empty((), device=GPU).item(), monkeypatch)


@pytest.mark.parametrize(
    "work",
    [
        lambda: torch.zeros(3, device=GPU) + 1,
        lambda: torch.empty(3, device=GPU).new_full((), 5),
        lambda: VALUES.pin_memory().to(GPU, non_blocking=True),
        lambda: torch.tensor([1.0]),
    ],
)
def test_what_does_not_wait_is_let_through(work, monkeypatch):
    assert waits_of(work, monkeypatch) == []
