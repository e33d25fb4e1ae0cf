"""Every image comes out at its place, whichever decoder of the graph it goes to: baseline and
progressive JPEGs, gray ones with every sampling factor, PNGs. The JPEG engine writes nothing of
some gray ones and reports success (routes.py).

What the decoders write is looked at, before any kernel of DALI; so the simulated GPU, whose engine
does the same, shows it too.
"""

import numpy as np
import pytest
from gpu_backends import simulated
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.pipeline import OperatorConcurrency
from PIL import Image
from simulated_gpu.device import count

import dali_pipes as dp
from dali_pipes.backends.dali.backend import shut_down
from dali_pipes.backends.dali.graph import (
    PlanInputs,
    decoder_options,
    region_graph,
    routed_decoders,
)
from dali_pipes.backends.dali.routes import CPU, choose_routes
from dali_pipes.data.demo import draw_image

pytestmark = pytest.mark.needs_cuda
COUNT = 40
KINDS = [
    {"subsampling": 0},
    {"subsampling": 1},
    {"subsampling": 2},
    {"subsampling": 2, "progressive": True},
]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A manifest of files of all kinds and many sizes."""
    folder, rng = tmp_path_factory.mktemp("routes"), np.random.default_rng(0)
    (folder / "a").mkdir()
    for number in range(COUNT):
        size = (int(rng.integers(20, 200)), int(rng.integers(20, 200)))
        image = Image.fromarray(draw_image("rings", rng)).resize(size)
        file, options = folder / "a" / f"{number:02}.jpg", KINDS[number % len(KINDS)]
        if number % 10 == 9:
            image.save(file, "PNG")
        else:
            image.convert("L" if number % 5 == 0 else "RGB").save(file, quality=95, **options)
    return dp.Manifest.scan(folder, progress=False)


def decode_all(images, batches, decoders):
    """The ids and the decoded images of each batch, of which `batches` has ids and routes."""
    options = decoder_options(dp.DaliConfig(device="gpu"), images.sizes, "gpu")
    first = batches[0][1]
    counts = [int((first == 1 + number).sum()) for number in range(decoders)]
    turn = iter(batches)

    def feed():
        ids, routes = next(turn)
        flags = [routes == number for number in range(1, 1 + decoders)]
        source = np.pad(images.take_sizes(ids), ((0, 0), (0, 1))).astype(np.int32)
        encoded = [np.fromfile(images.path(each), np.uint8) for each in ids.tolist()]
        return encoded, source, *flags, routes == CPU

    @pipeline_def(
        batch_size=COUNT,
        num_threads=3,
        device_id=0,
        enable_conditionals=True,
        concurrency=OperatorConcurrency.FULL,
        prefetch_queue_depth=1,
    )
    def regions():
        encoded, source, *flags, on_cpu = fn.external_source(
            feed,
            num_outputs=3 + decoders,
            batch=True,
            dtype=[types.UINT8, types.INT32, *[types.BOOL] * (1 + decoders)],
            ndim=[1, 1, *[0] * (1 + decoders)],
        )
        anchor, shape = (types.Constant(np.array(each, np.float32)) for each in ([0, 0], [1, 1]))
        inputs = PlanInputs(
            source=source,
            anchor=anchor,
            shape=shape,
            engines=flags,
            on_cpu=on_cpu,
            encoded=encoded,
        )
        made = routed_decoders(options, COUNT, counts)
        return region_graph(inputs, dp.TrainTransform(), made, region=True)

    pipeline = regions()
    pipeline.build()
    try:
        for ids, _ in batches:
            (decoded,) = pipeline.run()
            yield ids, [np.asarray(decoded[at].as_cpu()) for at in range(len(ids))]
    finally:
        shut_down(pipeline)


def assert_decoded(images, ids, decoded):
    for sample, pixels in zip(ids.tolist(), decoded, strict=True):
        with Image.open(images.path(sample)) as image:
            expected = np.asarray(image.convert("RGB")).astype(int)
        apart = np.abs(pixels.astype(int) - expected)
        assert apart.mean() < 2, f"{images.path(sample).name}: {apart.mean():.1f} of 255"


@pytest.mark.parametrize("engine_decoders", [1, 2, 3])
@pytest.mark.parametrize(("load", "cpu_share"), [(1.0, 0.0), (0.5, 0.3), (0.0, 0.2), (0.3, 0.7)])
def test_by_the_routes_that_are_chosen_for_it(images, engine_decoders, load, cpu_share):
    config = dp.DaliConfig(
        device="gpu", hw_decoder_load=load, cpu_share=cpu_share, engine_decoders=engine_decoders
    )
    routes, rng = choose_routes(images, config), np.random.default_rng(0)
    orders = [rng.permutation(COUNT) for _ in range(3)]
    batches = [(ids, routes.choose(images, ids)) for ids in orders]
    for ids, decoded in decode_all(images, batches, routes.decoder_count):
        assert_decoded(images, ids, decoded)


@pytest.mark.parametrize("engine_decoders", [1, 2])
def test_by_any_routes_and_where_a_branch_is_empty(images, engine_decoders):
    """In turn: drawn ones, none for the engine, all for one decoder, all for the CPU."""
    rng, suited = np.random.default_rng(1), np.isin(images.take_jpegs(images.some_ids), [b"4:2:0"])
    ids = images.some_ids
    drawn = rng.integers(CPU, 1 + engine_decoders, COUNT)
    every = [drawn, np.zeros(COUNT, int), np.ones(COUNT, int), np.full(COUNT, CPU), drawn[::-1]]
    batches = [(ids, np.where(suited | (routes <= 0), routes, 0)) for routes in every]
    for ids, decoded in decode_all(images, batches, engine_decoders):
        assert_decoded(images, ids, decoded)


@pytest.mark.skipif(not simulated(), reason="only the simulated GPU counts an engine's images")
@pytest.mark.parametrize("first", [3, 5, 0])
def test_the_engine_takes_what_it_is_given_whatever_the_first_batch_was(images, first):
    """nvImageCodec keeps the number of the first batch for as long as the decoder lives."""
    (suited,) = np.nonzero(images.take_jpegs(images.some_ids) == b"4:2:0")
    sizes, before, taken = [first, len(suited), 3, len(suited)], count("jpeg_engine"), []
    batches = [(suited, np.where(np.arange(len(suited)) < size, 1, 0)) for size in sizes]
    for ids, decoded in decode_all(images, batches, 1):
        assert_decoded(images, ids, decoded)
        taken.append(count("jpeg_engine") - before)
        before += taken[-1]
    assert taken == sizes
