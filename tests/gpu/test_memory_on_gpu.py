"""Neither epochs nor bad files make a loader grow, on the host or on the GPU.

The memory of the GPU is that of all its processes, so that nobody else may use it meanwhile.
"""

import ctypes
import gc
import shutil

import psutil
import pytest
import torch
from gpu_backends import GPU_BACKENDS, needs_cuda, simulated
from later import later
from simulated_gpu.device import forget
from torch.nn.functional import cross_entropy

import dali_pipes as dp
from dali_pipes.data.demo import make_demo_set
from dali_pipes.system.gpu_memory import release_unused
from dali_pipes.training.config import OptimizerConfig, TrainConfig
from dali_pipes.training.optimizing.recipe import build_ema, build_optimizer
from dali_pipes.training.step import Forward, Readback, TrainStep
from dali_pipes.training.tasks.losses import Loss
from dali_pipes.training.tasks.supervised import Classification

launching = later("dali_pipes.training.launch")

pytestmark = pytest.mark.alone
CONFIGS = {"dali_cpu": dp.DaliConfig(device="cpu"), **GPU_BACKENDS}
MOST = 64  # MiB; one batch of 10 images kept in each step would be 2 GiB in 180 epochs
every_loader = pytest.mark.parametrize(
    "name", ["dali_cpu", *needs_cuda("dali_gpu", "torch_to_gpu")]
)


def build(manifest, name, batch_size, **options):
    transform = dp.TrainTransform(size=224)
    return dp.build_loader(
        manifest,
        CONFIGS[name],
        transform=transform,
        batch_size=batch_size,
        last_batch="partial",
        **options,
    )


def used():
    """MiB of this process and its children on the host, and of the GPU; what malloc keeps for later
    is given back first.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    if simulated():
        forget()
    me = psutil.Process()
    mib = {
        "host": sum(each.memory_info().rss for each in [me, *me.children(recursive=True)]) / 2**20
    }
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        mib["device"] = (total - free) / 2**20
    return mib


def held():
    """As `used`, without what DALI's pools keep for the next pipeline: they grow at once by as much
    as a pipeline, where an old one ends a little after a new one has begun.
    """
    gc.collect()
    if torch.cuda.is_available():
        release_unused()
    return used()


def growth(before):
    return {place: now - before[place] for place, now in held().items()}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Two images of each class."""
    return dp.Manifest.scan(
        make_demo_set(tmp_path_factory.mktemp("demo"), train=20, val=10) / "train", progress=False
    )


@every_loader
def test_memory_is_flat_over_200_epochs_of_the_demo_set(demo, name):
    """Between the 20th epoch and the 200th it grows by less than 64 MiB."""
    with build(demo, name, 10) as loader:
        for epoch in range(200):
            if epoch == 20:
                before = held()
            for _ in loader:
                pass
        grown = growth(before)
    assert max(grown.values()) < MOST, grown


@pytest.mark.slow
@pytest.mark.parametrize("name", needs_cuda("dali_gpu", "torch_to_gpu"))
def test_memory_is_flat_over_1000_steps_of_training(demo, name):
    """Between the 200th step and the 1,000th it grows by less than 64 MiB."""
    config = TrainConfig(precision="fp32", ema_decay=0.9)
    fabric = launching.launch(config.precision)
    layers = [
        torch.nn.Conv2d(3, 8, 3, 2),
        torch.nn.BatchNorm2d(8),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
    ]
    module = torch.nn.Sequential(*layers, torch.nn.Linear(8, 10)).to(fabric.device)
    task = Classification(module, Loss(cross_entropy, {}), 10)
    raw, ema = build_optimizer(OptimizerConfig(), module), build_ema(config, task)
    model, optimizer = fabric.setup(Forward(task), raw)
    step, readback = (
        TrainStep(config, fabric, model, task, optimizer, ema),
        Readback(fabric.device),
    )
    steps = 0
    transform = dp.TrainTransform(size=32)
    with dp.build_loader(demo, CONFIGS[name], transform=transform, batch_size=4) as loader:
        while steps < 1000:
            for batch in loader:
                if steps == 200:
                    before = held()
                readback.push(step(batch, 0.001))
                steps += 1
        grown = growth(before)
    assert max(grown.values()) < MOST, grown


@pytest.mark.parametrize("name", ["dali_cpu", *needs_cuda("dali_gpu")])
def test_what_a_failed_pipeline_held_comes_back(image_folder, tmp_path, name):
    """One more bad file in each of 25 epochs of one batch: what their pipelines held comes back
    while the loader goes on, and all of it when it is closed.

    DALI's pools grow by as much as a pipeline at once, and give it back some epochs later. So while
    the loader goes on the bound is that of three pipelines; 25 would be 5 GiB and more.
    """
    shutil.copytree(image_folder, tmp_path / "set")
    manifest = dp.Manifest.scan(tmp_path / "set", progress=False)

    def fail(files):
        """Spoils these files, one in each epoch; what is used after each, and in the end."""
        options = {"on_bad_sample": "substitute", "max_bad_fraction": 1}
        loader, each = build(manifest, name, len(manifest), **options), []
        for bad in files:
            manifest.path(bad).write_bytes(b"gone bad")
            # batches made ahead were read when it was good
            loader.load_state_dict(loader.state_dict())
            (batch,) = loader
            assert len(loader.bad_samples) == bad + 1
            assert sorted(set(batch.ids.tolist())) == list(range(bad + 1, len(manifest)))
            each.append(used())
        loader.close(release=True)
        return each, used()

    few, before = fail(range(11))
    many, after = fail(range(11, 36))
    for place in before:
        assert after[place] - before[place] < MOST, place
        high, higher = (max(now[place] for now in part) for part in (few, many))
        assert higher - high < 1024, place


@pytest.mark.needs_cuda
def test_a_loader_that_is_closed_with_release_leaves_the_gpu_as_it_was(demo):
    """DALI keeps the memory of its pools for the next pipeline otherwise; what libraries allocate
    once stays.
    """
    list(build(demo, "dali_gpu", 10))
    before = used()
    release_unused()
    lowest = used()
    loader = build(demo, "dali_gpu", 10)
    list(loader)
    with_loader = used()
    loader.close(release=True)
    assert (
        used()["device"] <= lowest["device"] + 1 < with_loader["device"]
        and lowest["device"] <= before["device"]
    )
