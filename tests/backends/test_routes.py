"""Who decodes an image on a GPU depends on the image alone; the engine gets only what suits it."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import labelled

import dali_pipes as dp
from dali_pipes.backends.dali import routes as module
from dali_pipes.backends.dali.routes import CPU, CUDA, choose_routes
from dali_pipes.data.image_files.headers import Header
from dali_pipes.data.loose_images import LooseImages

UNSUITED = ["", "gray 2x1", "gray 2x2", "CMYK", "4:1:1", "other", "4:2:0 progressive"]
SUITED = ["4:2:0", "4:4:4", "4:2:2", "gray"]


def loose(jpegs, sizes=None):
    """Images of these codings, in the form in which a manifest's can be asked too."""
    rng = np.random.default_rng(len(jpegs))
    sizes = rng.integers(20, 2000, (len(jpegs), 2)) if sizes is None else sizes
    headers = [
        Header(0, 0, height=int(height), width=int(width), jpeg=jpeg)
        for jpeg, (height, width) in zip(jpegs, sizes, strict=True)
    ]
    return LooseImages.of([""] * len(jpegs), [None] * len(jpegs), headers)


class Known:
    """Images that a scan has read, without a manifest around them."""

    def __init__(self, images, lengths):
        self._images, self._lengths = images, lengths
        self.some_ids = np.arange(len(images))
        self.take_sizes, self.take_jpegs = images.take_sizes, images.take_jpegs

    def take_bytes(self, ids):
        return self._lengths[ids]

    def __len__(self):
        return len(self._images)


def known(jpegs, sizes=None, lengths=None):
    drawn = np.random.default_rng(len(jpegs)).integers(1000, 10**6, len(jpegs))
    return Known(loose(jpegs, sizes), drawn if lengths is None else lengths)


def chosen(images, **options):
    """The rule, and the route of each image."""
    routes = choose_routes(images, dp.DaliConfig(device="gpu", **options))
    return routes, routes.choose(images, np.arange(len(images)))


def who(routes):
    """Routes without which of the engine's decoders it is, which changes no pixel."""
    return np.clip(routes, CPU, 1)


codings = st.lists(st.sampled_from(SUITED + UNSUITED), min_size=1, max_size=60)
options = st.fixed_dictionaries(
    {
        "num_threads": st.integers(1, 32),
        "hw_decoder_load": st.none() | st.floats(0, 1),
        "cpu_share": st.floats(0, 1),
        "engine_decoders": st.none() | st.integers(1, 4),
    }
)


@given(jpegs=codings, chosen_options=options, data=st.data())
def test_a_route_depends_on_the_image_alone(jpegs, chosen_options, data):
    images = known(jpegs)
    routes, every = chosen(images, **chosen_options)
    ids = np.array(data.draw(st.lists(st.integers(0, len(jpegs) - 1), max_size=40)), np.int64)
    assert np.array_equal(who(routes.choose(images, ids)), who(every)[ids])


@given(jpegs=codings, chosen_options=options)
def test_the_engine_gets_what_suits_it_of_one_coding_a_decoder_and_no_more_than_its_share(
    jpegs, chosen_options
):
    images = known(jpegs)
    routes, found = chosen(images, **chosen_options)
    for number in range(1, 1 + found.max()):
        assert len({each for each, route in zip(jpegs, found, strict=True) if route == number}) <= 1
    of_engine = [each for each, route in zip(jpegs, found, strict=True) if route > 0]
    assert set(of_engine) <= set(SUITED)
    # what is left to round, and images of equal size, which are on the same side
    most = 1 if chosen_options["hw_decoder_load"] is None else chosen_options["hw_decoder_load"]
    assert len(of_engine) <= most * len(jpegs) + 1
    on_cpu = np.count_nonzero(found == CPU)
    assert abs(on_cpu - chosen_options["cpu_share"] * len(jpegs)) <= 1
    assert found.max() <= routes.decoder_count


def test_the_engine_has_the_largest_and_the_cpu_the_smallest():
    sizes = np.array([(100 + n, 100) for n in range(100)])
    _, found = chosen(known(["4:2:0"] * 100, sizes=sizes), hw_decoder_load=0.6, cpu_share=0.1)
    assert (found[:10] == CPU).all() and (found[10:40] == CUDA).all() and (found[40:] == 1).all()


def test_images_of_equal_size_are_parted_by_their_bytes():
    """Most photos of ImageNet have 500 × 375 pixels."""
    lengths = np.random.default_rng(0).permutation(100) + 1000
    images = known(["4:2:0"] * 100, sizes=np.full((100, 2), 375), lengths=lengths)
    _, found = chosen(images, hw_decoder_load=0.5)
    assert Counter(found.tolist()) == {1: 50, CUDA: 50}
    assert lengths[found == 1].min() > lengths[found == CUDA].max()


@pytest.mark.parametrize(
    ("jpegs", "threads", "parts"),
    [
        # one coding has both decoders; two that are about as frequent have one each
        (["4:2:0"] * 100, 8, {"4:2:0": 2}),
        (["4:2:0"] * 50 + ["4:4:4"] * 50, 8, {"4:2:0": 1, "4:4:4": 1}),
        (["4:2:0"] * 90 + ["4:4:4"] * 10, 8, {"4:2:0": 2}),
        # few cores: one decoder, of the most frequent
        (["4:2:0"] * 70 + ["4:4:4"] * 30, 4, {"4:2:0": 1}),
        (["gray"] * 80 + ["gray 2x2"] * 20, 8, {"gray": 2}),
        (["4:2:0 progressive"] * 100, 8, {}),
    ],
)
def test_which_coding_each_decoder_of_the_engine_has(jpegs, threads, parts):
    sizes = np.full((len(jpegs), 2), 400)
    routes, _ = chosen(known(jpegs, sizes=sizes), num_threads=threads, hw_decoder_load=0.6)
    assert {part.coded.decode(): len(part.decoders) for part in routes.engine} == parts


@pytest.mark.parametrize(
    ("jpeg", "options", "said"),
    [
        ("4:2:0", {}, "the CUDA decoder 40% of the images, the JPEG engine 60% (decoders: 4:2:0)"),
        ("4:2:0", {"num_threads": 8}, "the JPEG engine 60% (decoders: 4:2:0 × 2)"),
        ("4:2:0", {"cpu_share": 0.2}, "engine 60% (decoders: 4:2:0), the CPU 20%"),
        ("4:2:0", {"exact": True}, "100% of the images, the JPEG engine none (exact)"),
        ("4:2:0", {"hw_decoder_load": 0}, "the JPEG engine none (hw_decoder_load=0)"),
        ("", {}, "the JPEG engine none (no image is left for it that it decodes)"),
    ],
)
def test_it_says_who_decodes_what_share(jpeg, options, said):
    options = {"hw_decoder_load": 0.6} | options
    assert str(chosen(known([jpeg] * 10), **options)[0]).endswith(said)


@pytest.mark.parametrize(
    ("threads", "decoders", "share"),
    # a thread of the CUDA decoder takes 7 times as long as the engine: 0.65 against 0.35 × 7 / 4
    [(4, 1, 0.65), (8, 2, 0.65), (16, 2, 0.45), (16, 4, 0.65), (1, 1, 0.9)],
)
def test_left_open_the_share_is_such_that_the_decoders_are_ready_at_the_same_time(
    threads, decoders, share
):
    images = known(["4:2:0"] * 1000, sizes=np.full((1000, 2), 400))
    routes, _ = chosen(images, num_threads=threads, engine_decoders=decoders)
    assert routes.engine_share == pytest.approx(share, abs=0.001)


def test_a_gpu_without_an_engine(monkeypatch):
    monkeypatch.setattr(module, "has_jpeg_engine", lambda device_id: False)
    routes, found = chosen(known(["4:2:0"] * 10))
    assert not found.any() and "none (this GPU has none)" in str(routes)


def test_images_that_come_one_after_the_other():
    routes, found = chosen(loose(["4:2:0", "4:4:4", "", "gray"] * 5), num_threads=8)
    assert str(routes).startswith("the JPEG engine decodes every such JPEG: 4:2:0 × 2;")
    assert found.tolist() == [1, 0, 0, 0, 2, 0, 0, 0] * 2 + [1, 0, 0, 0]
    with pytest.raises(dp.ConfigError, match=r"takes cpu_share only for images .* leave it at 0"):
        chosen(loose(["4:2:0"]), cpu_share=0.1)


def test_a_manifest_without_images_and_one_of_very_many():
    many = labelled(np.zeros(250_000, int))
    none = many.subset(np.zeros(0, np.int64))
    assert len(choose_routes(none, dp.DaliConfig()).choose(none, np.zeros(0, np.int64))) == 0

    # 0 to 6 rows of pixels more than 300, equally frequent
    _, found = chosen(many, hw_decoder_load=0.5)
    assert found.tolist() == [int(number % 7 >= 3) for number in range(250_000)]
