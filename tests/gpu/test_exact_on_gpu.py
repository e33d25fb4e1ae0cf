"""loader.exact=true: the same bits whatever the batch, so that a resume may be on another number of
ranks.
"""

import logging

import pytest
import torch

import dali_pipes as dp
from dali_pipes.loader.resume import OTHER_PIXELS

EXACT = dp.DaliConfig(device="gpu", exact=True)
CONFIGS = [
    pytest.param(dp.DaliConfig(device="cpu"), id="dali_cpu"),
    pytest.param(EXACT, id="dali_gpu", marks=pytest.mark.needs_cuda),
    pytest.param(
        dp.DaliConfig(device="gpu", exact=True, decode="region", jpeg_fancy_upsampling=False),
        id="dali_gpu_regions",
        marks=pytest.mark.needs_cuda,
    ),
]
TRANSFORM = dp.TrainTransform(size=64, dtype="uint8")
GLOBAL_BATCH, STEPS_BEFORE = 12, 1


def ranks(manifest, config, count):
    """A loader for each of so many ranks."""
    return [
        dp.build_loader(
            manifest,
            config,
            transform=TRANSFORM,
            batch_size=GLOBAL_BATCH // count,
            rank=dp.Rank(rank, count),
        )
        for rank in range(count)
    ]


def state_after(manifest, config, steps):
    (loader,) = ranks(manifest, config, 1)
    with loader:
        stream = iter(loader)
        for _ in range(steps):
            next(stream)
        return loader.state_dict()


def rest_of_epoch(manifest, config, count, state=None):
    """Ids and pixels of the global batches."""
    batches = []
    for loader in ranks(manifest, config, count):
        with loader:
            if state:
                loader.load_state_dict(state)
            batches.append([(batch.ids.cpu(), batch.images.cpu()) for batch in loader])
    return [
        tuple(torch.cat(parts) for parts in zip(*step, strict=True))
        for step in zip(*batches, strict=True)
    ]


@pytest.mark.compares_pixels
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("count", [2, 3, 12])
def test_a_resume_on_another_number_of_ranks_goes_on_bit_for_bit(
    real_manifest, caplog, config, count
):
    manifest = real_manifest.subset(torch.arange(min(len(real_manifest), 4 * GLOBAL_BATCH)).numpy())
    uninterrupted = rest_of_epoch(manifest, config, 1)
    with caplog.at_level(logging.WARNING):
        resumed = rest_of_epoch(
            manifest, config, count, state_after(manifest, config, STEPS_BEFORE)
        )
    assert len(resumed) == len(uninterrupted) - STEPS_BEFORE > 0
    for (ids, images), (expected_ids, expected) in zip(
        resumed, uninterrupted[STEPS_BEFORE:], strict=True
    ):
        assert torch.equal(ids, expected_ids) and torch.equal(images, expected)
    assert OTHER_PIXELS not in caplog.text


def pixels_by_id(manifest, config, batch_size):
    options = {"transform": TRANSFORM, "batch_size": batch_size, "shuffle": False}
    with dp.build_loader(manifest, config, **options, last_batch="partial", seed=0) as loader:
        batches = [(batch.ids.tolist(), batch.images.cpu()) for batch in loader]
    return {
        number: image for ids, images in batches for number, image in zip(ids, images, strict=True)
    }


@pytest.mark.needs_cuda
@pytest.mark.gpu_pixels
@pytest.mark.parametrize("engine_decoders", [1, 2])
def test_the_engine_makes_the_same_bits_in_any_batch(real_manifest, engine_decoders):
    """An image's decoder depends on the image alone (routes.py). Once this has passed on a GPU,
    exact=true can keep the JPEG engine, and a state need not name its batch size.
    """
    config = dp.DaliConfig(device="gpu", hw_decoder_load=1.0, engine_decoders=engine_decoders)
    (first, *others) = (pixels_by_id(real_manifest, config, size) for size in (16, 16, 5))
    for other in others:
        assert other.keys() == first.keys()
        differ = [number for number in first if not torch.equal(first[number], other[number])]
        assert not differ, f"{len(differ)} of {len(first)} images have other bits: {differ[:10]}"


@pytest.mark.needs_cuda
@pytest.mark.parametrize(
    ("config", "count"),
    [(dp.DaliConfig(device="gpu"), 2), (EXACT, 1), (dp.DaliConfig(device="cpu"), 1)],
)
def test_where_the_bits_may_differ_a_resume_warns(real_manifest, caplog, config, count):
    """After steps of which the JPEG engines had their share: another batch size, another share, no
    GPU.
    """
    state = state_after(real_manifest, dp.DaliConfig(device="gpu"), STEPS_BEFORE)
    first = ranks(real_manifest, config, count)[0]
    with first, caplog.at_level(logging.WARNING):
        first.load_state_dict(state)
    assert f"{OTHER_PIXELS}: " in caplog.text and f"batches of {GLOBAL_BATCH} before" in caplog.text
