"""What a loader has handed out belongs to its holder: for many steps, after the loader's end, and
beside another loader.

On a GPU all that is handed out lies in PyTorch's memory, a copy of what DALI made
(`copy_to_torch_memory`). On the CPU it is DALI's own memory: the dynamic executor makes every batch
in new memory, and a tensor exported by DLPack is one of its owners
(dali/pipeline/data/dltensor.h:283-296 in DALI 2.2.0 and 2.4.0): neither the next batch nor the
pipeline's end takes it away.
"""

from threading import Barrier, Thread

import pytest
import torch
from gpu_backends import GPU_BACKENDS, needs_cuda, same_bits
from gpu_streams import new_stream, wait_for_all

import dali_pipes as dp

CONFIGS = {"dali_cpu": dp.DaliConfig(device="cpu"), **GPU_BACKENDS}
every_loader = pytest.mark.parametrize(
    "name", ["dali_cpu", *needs_cuda("dali_gpu", "dali_gpu_regions", "torch_to_gpu")]
)


def build(manifest, name, **options):
    return dp.build_loader(
        manifest, CONFIGS[name], transform=dp.TrainTransform(size=96), batch_size=8, **options
    )


def on_host(batch):
    """Copies on the CPU, also of what is there already."""
    return tuple(each.to("cpu", copy=True) for each in (batch.images, batch.labels, batch.ids))


def same(one, other):
    return all(same_bits(*pair) for pair in zip(one, other, strict=True))


@every_loader
def test_tensors_that_are_held_stay_as_they_were_delivered(manifest, name):
    """40 steps and the end of the loader; then another loader makes its own batches."""
    with build(manifest, name) as loader:
        held = [(batch, on_host(batch)) for _ in range(10) for batch in loader]
    with build(manifest, name, seed=1) as loader:
        others = [batch for _ in range(2) for batch in loader]
    assert len(held) == 40 and len(others) == 8
    assert all(same(on_host(batch), delivered) for batch, delivered in held)


@pytest.mark.compares_pixels
@every_loader
def test_two_loaders_in_two_threads_deliver_what_each_delivers_alone(manifest, name):
    """Each on a stream of its own."""
    together, both = Barrier(2), {}

    def deliver(seed):
        together.wait()
        with build(manifest, name, seed=seed) as loader, torch.cuda.stream(new_stream()):
            both[seed] = [on_host(batch) for _ in range(3) for batch in loader]

    # Threads of an executor would not do: a process that is forked in one ends with status 1, since
    # concurrent.futures has it join its own thread, and PyTorch takes that for a failed worker.
    threads = [Thread(target=deliver, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for_all()
    for seed in (1, 2):
        found = both[seed]
        with build(manifest, name, seed=seed) as loader:
            alone = [on_host(batch) for _ in range(3) for batch in loader]
        assert len(found) == len(alone) == 12
        assert all(same(*pair) for pair in zip(found, alone, strict=True))
