"""What made the pixels, in the state of a loader: a resume where something else makes them warns,
since last bits may differ.
"""

import logging

import pytest

import dali_pipes as dp
from dali_pipes.backends.backend import Description
from dali_pipes.backends.dali.backend import describe_pixels
from dali_pipes.backends.dali.decoding import Decoding
from dali_pipes.backends.dali.routes import EnginePart, Routes
from dali_pipes.loader.loader import Loader
from dali_pipes.loader.resume import OTHER_PIXELS

TRANSFORM = dp.TrainTransform(size=32)
ENGINE, EXACT = "nvJPEG 12.4.0, hw_decoder_load=0.65 of 8", "nvJPEG 12.4.0, exact"


class Backend:
    """Makes nothing, and says what would make it."""

    learned = None

    def __init__(self, mix):
        self._mix = mix

    def describe(self):
        return Description("nothing is decoded", self._mix)

    def close(self):
        pass


def loader(manifest, mix):
    return Loader(
        dp.Plan(manifest, TRANSFORM, 8), TRANSFORM, lambda transform, _: Backend(mix), "raise", 0.01
    )


def warnings_of(manifest, caplog, state, mix):
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        loader(manifest, mix).load_state_dict(state)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("before", "after"),
    [(ENGINE, ENGINE.replace("8", "16")), (ENGINE, EXACT), (None, ENGINE), (EXACT, None)],
)
def test_another_mix_warns_and_says_which(manifest, caplog, before, after):
    state = loader(manifest, before).state_dict()
    (message,) = warnings_of(manifest, caplog, state, after)
    assert (
        message.startswith(f"{OTHER_PIXELS}: {before or 'no GPU'} before, now {after or 'no GPU'}")
        and "exact=True" in message
    )


@pytest.mark.parametrize("mix", [None, ENGINE, EXACT])
def test_the_same_mix_does_not(manifest, caplog, mix):
    state = loader(manifest, mix).state_dict()
    assert state["pixels"] == mix
    assert warnings_of(manifest, caplog, state, mix) == []


ROUTES = Routes((EnginePart(b"4:2:0", 0, (1,)),), engine_share=1.0)


def test_only_the_exact_mix_is_the_same_whatever_the_batch():
    shared, exact, regions = dp.DaliConfig(), dp.DaliConfig(exact=True), Decoding(True, "")
    assert (
        describe_pixels(shared, regions, ROUTES, 256)
        != describe_pixels(shared, regions, ROUTES, 128)
        != describe_pixels(exact, regions, Routes(), 128)
    )
    of_exact = describe_pixels(exact, regions, Routes(), 256)
    without = dp.DaliConfig(hw_decoder_load=0.0)
    assert of_exact == describe_pixels(exact, regions, Routes(), 128)
    assert of_exact == describe_pixels(without, regions, Routes(), 8)


def test_the_mix_says_all_that_the_pixels_depend_on():
    exact = dp.DaliConfig(exact=True)
    plain = dp.DaliConfig(exact=True, jpeg_fancy_upsampling=False)
    mixes = {
        describe_pixels(config, Decoding(region, ""), routes, 8)
        for config in (exact, plain)
        for region in (True, False)
        for routes in (Routes(), Routes(cpu_below=5), ROUTES)
    }
    assert len(mixes) == 12


def test_regions_that_differ_between_runs_are_not_called_exact():
    """decode=force_region with a decoder whose pixels at an image's edge are others each time
    (decoding.py).
    """
    config = dp.DaliConfig(decode="force_region", hw_decoder_load=0.0)
    assert describe_pixels(config, Decoding(True, "forced"), Routes(), 8).endswith("exact")
    mix = describe_pixels(config, Decoding(True, "forced", repeats=False), Routes(), 8)
    assert mix.endswith("batches of 8")
