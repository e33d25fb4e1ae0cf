"""The order of the next epoch is made in a thread while the present one is loaded."""

import threading
from itertools import islice

import pytest

import dali_pipes as dp
from dali_pipes.loader.work import with_order_ahead


@pytest.fixture
def made(monkeypatch):
    """The epochs whose orders were made, each with the thread."""
    made, make_order = [], dp.Plan.make_order

    def make(plan, epoch):
        made.append((epoch, threading.current_thread()))
        make_order(plan, epoch)

    monkeypatch.setattr(dp.Plan, "make_order", make)
    return made


def test_each_is_made_once_with_the_first_batch_of_the_epoch_before(manifest, made):
    plan = dp.Plan(manifest, dp.TrainTransform(size=8), 8)
    planned = with_order_ahead(plan.iter_from(2, 1), plan)
    assert not made
    batches = list(islice(planned, 2 * len(plan)))
    assert [(each.epoch, each.step) for each in batches] == [
        (each.epoch, each.step) for each in islice(plan.iter_from(2, 1), 2 * len(plan))
    ]
    for _, thread in made:
        thread.join()
    assert [epoch for epoch, _ in made] == [3, 4, 5]
    assert threading.current_thread() not in [thread for _, thread in made]


def test_a_loader_has_it_made(manifest, made):
    with dp.build_loader(
        manifest, dp.TorchConfig(num_workers=0), transform=dp.TrainTransform(size=8), batch_size=8
    ) as loader:
        next(iter(loader))
    assert [epoch for epoch, _ in made][:1] == [1]


def test_the_plan_alone_starts_no_thread(manifest, made):
    plan, before = dp.Plan(manifest, dp.TrainTransform(size=8), 8), threading.active_count()
    list(islice(plan.iter_from(), 3 * len(plan)))
    assert not made and threading.active_count() == before
