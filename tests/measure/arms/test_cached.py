import itertools

import pytest
import torch

import dali_pipes as dp
from dali_pipes.backends.dali.backend import DaliBackend
from dali_pipes.measure.arms import CachedConfig
from dali_pipes.measure.arms.cached import CachedBackend
from dali_pipes.plan.plan import Plan

CPU = torch.device("cpu")
DALI = dp.DaliConfig(device="cpu", num_threads=2)
TRANSFORM = dp.TrainTransform(size=32)


@pytest.fixture(scope="module")
def manifest(thumbnails):
    return thumbnails


class Watched(DaliBackend):
    """DALI, and whether it was closed after the last stream."""

    closed = False

    def stream(self, rows):
        made = super().stream(rows)
        self.closed = False
        return made

    def close(self):
        super().close()
        self.closed = True


def cached(manifest, batches, batch_size=8, transform=TRANSFORM):
    backend = CachedBackend(manifest, transform, CachedConfig(batches=batches), batch_size, CPU)
    backend._source = source = Watched(manifest, transform, DALI, batch_size, CPU)
    return backend, source


def planned(manifest, steps, batch_size=8, transform=TRANSFORM):
    plan = Plan(manifest, transform, batch_size, seed=2)
    return list(itertools.islice(plan.iter_from(), steps))


def real(manifest, rows, transform=TRANSFORM):
    """The images of some rows, by DALI."""
    backend = DaliBackend(manifest, transform, DALI, len(rows), CPU)
    images = next(backend.stream(iter([rows])))[1].images.clone()
    backend.close()
    return images


def sorted_images(images):
    return sorted(image.flatten().tolist() for image in images)


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_real_images_that_repeat(manifest, batches):
    """Every batch holds the first batch's images, in one of `batches` orders in turn; ids follow
    the plan.
    """
    backend, source = cached(manifest, batches)
    rows = planned(manifest, 7)
    made = [batch for _, batch in backend.stream(iter(rows))]
    assert torch.equal(made[0].images, real(manifest, rows[0]))
    assert [batch.ids.tolist() for batch in made] == [each.ids.tolist() for each in rows]
    for number, batch in enumerate(made):
        assert torch.equal(batch.images, made[number % batches].images)
        assert sorted_images(batch.images) == sorted_images(made[0].images)
    different = {tuple(batch.images.flatten().tolist()) for batch in made}
    assert len(different) == batches
    assert source.closed


def test_the_source_is_asked_once(manifest):
    backend, source = cached(manifest, 2)
    _, first = next(backend.stream(iter(planned(manifest, 3))))
    source.stream = None
    again = [batch for _, batch in backend.stream(iter(planned(manifest, 4)[1:]))]
    assert torch.equal(again[0].images, first.images) and len(again) == 3


def test_it_starts_with_a_partial_batch(manifest):
    """Its images fill whole batches."""
    backend, source = cached(manifest, 3)
    partial, *whole = planned(manifest, 3)
    partial = partial.take(slice(0, 3))
    made = [batch for _, batch in backend.stream(iter([partial, *whole]))]
    assert [len(batch.images) for batch in made] == [3, 8, 8]
    images = real(manifest, partial)
    assert torch.equal(made[0].images, images)
    assert {tuple(image.flatten().tolist()) for batch in made for image in batch.images} == {
        tuple(image.flatten().tolist()) for image in images
    }
    assert source.closed


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_form_of_the_images(manifest, memory_format):
    transform = dp.TrainTransform(size=24, dtype="fp16", memory_format=memory_format)
    backend, _ = cached(manifest, 2, transform=transform)
    for _, batch in backend.stream(iter(planned(manifest, 3, transform=transform))):
        assert batch.images.dtype == torch.float16 and batch.images.shape == (8, 3, 24, 24)
        expected = (
            torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
        )
        assert batch.images.is_contiguous(memory_format=expected)


def test_close_lets_the_images_go(manifest):
    backend, source = cached(manifest, 2)
    next(backend.stream(iter(planned(manifest, 1))))
    source.closed = False
    backend.close()
    backend.close()
    assert source.closed and not backend._made


@pytest.mark.parametrize("on_bad_sample", ["raise", "substitute"])
def test_a_bad_file_in_the_batch_that_is_kept(scanned, on_bad_sample):
    scanned.path(2).write_bytes(b"")
    options = {
        "transform": TRANSFORM,
        "batch_size": 8,
        "shuffle": False,
        "on_bad_sample": on_bad_sample,
        "max_bad_fraction": 1,
    }
    with dp.build_loader(scanned, CachedConfig(batches=2), **options, device="cpu") as loader:
        if on_bad_sample == "raise":
            with pytest.raises(dp.BadSampleError, match=r"empty file"):
                next(iter(loader))
        else:
            assert next(iter(loader)).ids.tolist() == [0, 1, 3, 3, 4, 5, 6, 7]
        assert [sample for sample, _, _ in loader.bad_samples] == [2]
