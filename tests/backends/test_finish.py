"""The threads that finish windows on the CPU."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import dali_pipes as dp
from dali_pipes.backends.pixels.finish import DecodedTensor, View
from dali_pipes.backends.pixels.pool import Finisher
from dali_pipes.backends.pixels.tensors import TORCH_DTYPES

TRANSFORM = dp.RandomCropTransform(size=(20, 14), resize=18, padding=(0, 8), vertical_flip=0.5)


def planned_and_windows(manifest, count):
    plan = dp.Plan(manifest, TRANSFORM, 6, last_batch="pad")
    for _, planned in zip(range(count), plan.iter_from(), strict=False):
        generator = torch.Generator().manual_seed(planned.step)
        shapes = planned.geometry.region[:, 2:].tolist()
        yield (
            planned,
            [
                torch.randint(0, 256, (*shape, 3), generator=generator, dtype=torch.uint8)
                for shape in shapes
            ],
        )


def finished(manifest, threads=2, count=5):
    finisher = Finisher(TRANSFORM, 6, threads, pinned=False)
    try:
        return [
            (batch.images.clone(), batch.planned.ids.tolist())
            for batch in finisher(planned_and_windows(manifest, count))
        ]
    finally:
        finisher.close()


@pytest.mark.parametrize("threads", [1, 3, 20])
def test_the_number_of_threads_changes_nothing(manifest, threads):
    for (images, ids), (others, same) in zip(
        finished(manifest), finished(manifest, threads), strict=True
    ):
        assert torch.equal(images, others) and ids == same


class Operators(TorchDispatchMode):
    """Remembers which operators of PyTorch are called in this thread."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.add(str(function))
        return function(*args, **kwargs or {})


@pytest.mark.parametrize(
    "transform",
    [
        TRANSFORM,
        dp.TrainTransform(size=24, vertical_flip=0.5, augment=["TrivialAugmentWide"]),
        dp.TrainTransform(size=24, interpolation="random", augment=["RandAugment"], dtype="fp16"),
        dp.TrainTransform(size=24, antialias=False, augment=["RandomErasing"], dtype="uint8"),
        dp.TrainTransform(
            size=48,
            augment=[{"name": "ColorJitter", "hue": 0.1}, "GaussianBlur", "RandomErasing"],
            memory_format="channels_last",
        ),
    ],
    ids=["crop", "trivial", "rand", "erasing", "color"],
)
def test_every_operator_has_run_before_the_threads_start(manifest, transform):
    """A fork during an operator's first call in another thread leaves its lock to the child."""
    view = View(transform)
    with Operators() as first:
        view.run_every_operator()

    plan = dp.Plan(manifest, transform, 6, last_batch="pad")
    with Operators() as later:
        for _, planned in zip(range(8), plan.iter_from(), strict=False):
            (drawn,) = planned.views
            for at, (height, width) in enumerate(planned.source.tolist()):
                pixels = DecodedTensor(torch.zeros(height, width, 3, dtype=torch.uint8), 3)
                out = torch.empty(1, 3, *drawn.shape, dtype=TORCH_DTYPES[transform.dtype])
                view.write(view.resize(pixels, drawn, at), drawn, at, out)
    made_by_this_test = {"aten.zeros.default", "aten.empty.memory_format"}
    assert later.seen - first.seen <= made_by_this_test


def test_other_threads_keep_their_cores(manifest):
    """A training program's own operations, and the threads that autograd starts."""
    torch.set_num_threads(2)
    finished(manifest, threads=3)
    counts = [torch.get_num_threads()]
    thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert counts == [2, 2]


def test_finishers_that_start_at_once_leave_the_cores_to_others(manifest):
    torch.set_num_threads(2)
    for _ in range(20):
        together, made = threading.Barrier(2), []

        def start(together=together, made=made):
            together.wait()
            made.append(Finisher(TRANSFORM, 6, 8, pinned=False))

        starting = [threading.Thread(target=start) for _ in range(2)]
        for thread in starting:
            thread.start()
        for thread in starting:
            thread.join()
        counts = []
        later = threading.Thread(
            target=lambda counts=counts: counts.append(torch.get_num_threads())
        )
        later.start()
        later.join()
        for each in made:
            each.close()
        assert counts == [2]


def test_pytorchs_default_dtype_changes_no_pixel(manifest):
    expected = finished(manifest)
    for dtype in (torch.float16, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            found = finished(manifest)
        finally:
            torch.set_default_dtype(torch.float32)
        assert all(torch.equal(one[0], two[0]) for one, two in zip(expected, found, strict=True))


def test_its_threads_take_one_core_each(manifest):
    finisher = Finisher(TRANSFORM, 6, 3, pinned=False)
    try:
        assert {finisher._threads.submit(torch.get_num_threads).result() for _ in range(20)} == {1}
    finally:
        finisher.close()


def test_what_was_decoded_before_an_error_is_delivered_before_it(manifest):
    def broken():
        yield from planned_and_windows(manifest, 3)
        raise RuntimeError("decoding failed")

    finisher, delivered = Finisher(TRANSFORM, 6, 2, pinned=False), []
    with pytest.raises(RuntimeError, match="decoding failed"):
        delivered.extend(finisher(broken()))  # extend keeps what came before
    finisher.close()
    assert len(delivered) == 3


def test_an_error_in_a_thread_ends_the_batch(manifest):
    finisher = Finisher(TRANSFORM, 6, 2, pinned=False)
    with pytest.raises(RuntimeError):
        list(
            finisher(
                (planned, [*windows[:-1], windows[-1].to(torch.complex64)])
                for planned, windows in planned_and_windows(manifest, 1)
            )
        )
    finisher.close()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_child_that_is_forked_while_threads_finish_images_does_not_hang():
    program = [sys.executable, str(Path(__file__).parents[1] / "support/forks_while_finishing.py")]
    done = subprocess.run(
        program,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
