import pytest
import torch
from host_waits import GPU, waits_of
from later import later
from torch import nn

import dali_pipes as dp
from dali_pipes.training.evaluate import counts, evaluate

launching = later("dali_pipes.training.launch")


def test_counts():
    scores = torch.tensor([[9.0, 1, 2, 3, 4, 5], [5, 9, 4, 3, 2, 1], [1, 2, 3, 4, 5, 9]])
    top1, top5, loss, images = counts(scores, torch.tensor([0, 5, 0])).tolist()
    assert (top1, top5, images) == (1, 1, 3)  # class 5 and class 0 are the sixth of their images
    expected = nn.functional.cross_entropy(scores, torch.tensor([0, 5, 0]), reduction="sum")
    assert loss == pytest.approx(expected.item())


def test_fewer_than_five_classes_are_all_among_the_best():
    assert counts(torch.tensor([[0.0, 1.0]]), torch.tensor([0])).tolist()[:2] == [0, 1]


def test_counting_never_waits_for_the_gpu(monkeypatch):
    scores, labels = torch.empty(8, 10, device=GPU), torch.empty(8, dtype=torch.int64, device=GPU)
    assert waits_of(lambda: counts(scores, labels), monkeypatch) == []


class KnowsLabels(nn.Module):
    """Right for every image whose mean is as given; counts what it sees."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, images):
        self.seen += len(images)
        assert not self.training
        return torch.eye(5)[torch.zeros(len(images), dtype=torch.long)]


@pytest.mark.parametrize("batch_size", [5, 16, 64])
def test_every_image_is_counted_once(manifest, batch_size):
    model = KnowsLabels().train()
    transform = dp.EvalTransform(size=32, resize=36)
    with dp.build_loader(
        manifest, dp.TorchConfig(num_workers=0), transform=transform, batch_size=batch_size
    ) as loader:
        found = evaluate(model, loader, launching.launch("fp32"))
    assert found.images == model.seen == len(manifest) == 37 and model.training
    assert found.top1 == pytest.approx((manifest.labels == 0).mean()) and found.top5 == 1
