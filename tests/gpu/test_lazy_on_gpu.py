"""The executor of lazy pictures where batches arrive on a GPU."""

import numpy as np
import pytest
import torch
from lazy_works import steps_apart, values_of, waits_for, work_of
from PIL import Image, ImageEnhance
from torchvision import transforms as T

import dali_pipes as dp
from dali_pipes.adapters.lazy.compiler.executor import Executor
from dali_pipes.adapters.lazy.patching import patched

pytestmark = pytest.mark.needs_cuda
BATCH = 6
BACKENDS = {
    "dali_gpu": dp.DaliConfig(num_threads=2),
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=2),
    "torch": dp.TorchConfig(num_workers=0),
}
SIZE = (40, 48)


@pytest.fixture(autouse=True)
def libraries_know_what_waits():
    with patched():
        yield


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    found = [str(folder / f"{at}.jpg") for at in range(4 * BATCH)]
    for path in found:
        coarse = Image.fromarray(rng.integers(0, 256, (7, 9, 3), np.uint8))
        coarse.resize((121, 97), Image.Resampling.BICUBIC).save(path, quality=92)
    return found


def opened(path):
    picture = Image.open(path)
    picture.load()
    return picture.convert("RGB")


def steps(*each):
    return lambda path: T.Compose([*each, T.ToTensor()])(opened(path))


PROGRAMS = {
    "resized": steps(T.Resize(SIZE), T.RandomHorizontalFlip(1), T.RandomCrop(32)),
    "colors": steps(T.Resize(SIZE), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomRotation(9)),
    # with steps on whole images, which the CPU does
    "a warp before a resize": steps(T.RandomRotation((5, 9)), T.Resize(SIZE)),
    # of which no backend has the last step: made as noted
    "noted in the end": steps(
        T.Resize(30),
        T.Lambda(lambda image: ImageEnhance.Contrast(image).enhance(2)),
        T.Resize(SIZE),
    ),
    "gray": steps(T.Resize(SIZE), T.Grayscale()),
}


def run(backend, program, paths, ahead=2):
    """Each batch as one tensor, or as arrays."""
    device = torch.device("cuda", torch.cuda.current_device())
    executor = Executor(BACKENDS[backend], device, BATCH, ahead=ahead)
    batches = [paths[at : at + BATCH] for at in range(0, len(paths), BATCH)]
    try:
        torch.manual_seed(0)
        found = [waits_for(program, [batch]) for batch in batches]
        made = [values_of(work)[0] for work in executor.run(map(work_of, found))]
    finally:
        executor.close()
    return made, executor


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_batches_arrive_on_the_gpu(backend, name, paths):
    stacked = lambda batch: torch.stack(list(map(PROGRAMS[name], batch)))  # noqa: E731
    made, executor = run(backend, stacked, paths)
    torch.manual_seed(0)
    for batch, at in zip(made, range(0, len(paths), BATCH), strict=True):
        true = stacked(paths[at : at + BATCH])
        assert batch.is_cuda and batch.shape == true.shape and batch.dtype == true.dtype
        if backend != "dali_gpu":
            assert steps_apart(batch.cpu(), true, 1 / 255).mean() <= 0.25
    assert executor.count == (0 if name == "noted in the end" else len(paths))


@pytest.mark.gpu_pixels
@pytest.mark.parametrize("name", PROGRAMS)
def test_pixels_are_those_of_the_program(name, paths):
    stacked = lambda batch: torch.stack(list(map(PROGRAMS[name], batch)))  # noqa: E731
    made, _ = run("dali_gpu", stacked, paths)
    torch.manual_seed(0)
    for batch, at in zip(made, range(0, len(paths), BATCH), strict=True):
        apart = steps_apart(batch.cpu(), stacked(paths[at : at + BATCH]), 1 / 255)
        # as docs/pixels.md has it for a GPU, and colors may double it
        assert apart.mean() <= (1.5 if name == "colors" else 0.75)


@pytest.mark.parametrize("backend", BACKENDS)
def test_arrays_stay_on_the_cpu(backend, paths):
    resized = lambda batch: [np.array(opened(path).resize(SIZE)) for path in batch]  # noqa: E731
    made, executor = run(backend, resized, paths)
    assert all(isinstance(each, np.ndarray) for batch in made for each in batch)
    assert executor.count == len(paths)


def test_what_the_gpu_decodes_wrongly_is_made_as_noted(paths, tmp_path):
    stored = [str(tmp_path / f"{at}.jpg") for at in range(BATCH)]
    for path, old in zip(stored, paths, strict=False):
        opened(old).save(path, keep_rgb=True)
    program = lambda batch: torch.stack([PROGRAMS["resized"](path) for path in batch])  # noqa: E731
    made, executor = run("dali_gpu", program, stored)
    torch.manual_seed(0)
    assert torch.equal(made[0].cpu(), program(stored)) and made[0].is_cuda
    assert executor.count == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_stream_goes_on_from_epoch_to_epoch(backend, paths):
    device = torch.device("cuda", torch.cuda.current_device())
    executor = Executor(BACKENDS[backend], device, BATCH)
    program = lambda batch: torch.stack([PROGRAMS["resized"](path) for path in batch])  # noqa: E731
    batches = [paths[at : at + BATCH] for at in range(0, len(paths), BATCH)]
    try:
        for epoch in range(3):
            works = executor.run(work_of(waits_for(program, [batch])) for batch in batches)
            for count, work in enumerate(works, 1):
                assert values_of(work)[0].is_cuda
                if epoch == 1 and count == 2:
                    works.close()
                    break
            assert count == (2 if epoch == 1 else len(batches))
        assert len(executor.describe()) == 1
    finally:
        executor.close()
