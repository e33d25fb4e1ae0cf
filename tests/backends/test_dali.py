import gc
import multiprocessing

import psutil
import torch

import dali_pipes as dp

CONFIG = dp.DaliConfig(device="cpu", num_threads=2)


def build(manifest):
    return dp.build_loader(manifest, CONFIG, transform=dp.TrainTransform(size=32), batch_size=8)


def test_a_forked_child_survives_a_pipeline_that_it_inherited_as_garbage(manifest):
    loader = build(manifest)
    next(iter(loader))
    loader.itself = loader
    gc.disable()
    try:
        del loader
        child = multiprocessing.get_context("fork").Process(target=gc.collect)
        child.start()
    finally:
        gc.enable()
    child.join(20)
    hangs = child.is_alive()
    child.kill()
    assert not hangs and child.exitcode == 0


def test_close_ends_all_threads(manifest):
    gc.collect()
    before = psutil.Process().num_threads()
    with build(manifest) as loader:
        next(iter(loader))
        during = psutil.Process().num_threads()
    assert during > before
    assert psutil.Process().num_threads() <= before


def test_tensors_outlive_the_pipeline(manifest):
    with build(manifest) as loader:
        batches = list(loader)
        copies = [batch.images.clone() for batch in batches]
    with build(manifest) as other:
        list(other)
    assert all(torch.equal(batch.images, copy) for batch, copy in zip(batches, copies, strict=True))
