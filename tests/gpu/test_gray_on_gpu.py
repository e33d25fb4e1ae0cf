"""Gray JPEGs with every sampling factor, beside others: the JPEG engine writes nothing of some of
them (graph.py).

What the decoder writes is looked at, before any kernel of DALI; so the simulated GPU, whose engine
does the same, shows it too.
"""

import numpy as np
import pytest
from nvidia.dali import fn, pipeline_def, types
from PIL import Image

import dali_pipes as dp
from dali_pipes.backends.dali.graph import PlanInputs, decoder_options, region_graph
from dali_pipes.data.demo import draw_image

pytestmark = pytest.mark.needs_cuda
HEIGHT, WIDTH = 120, 160
SAMPLING = ("4:4:4", "4:2:2", "4:2:0")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three gray ones and three in color."""
    folder = tmp_path_factory.mktemp("gray")
    image = Image.fromarray(draw_image("rings", np.random.default_rng(0))).resize((WIDTH, HEIGHT))
    found = [
        (mode, sampling, folder / f"{mode}_{number}.jpg")
        for mode in ("L", "RGB")
        for number, sampling in enumerate(SAMPLING)
    ]
    for mode, sampling, file in found:
        image.convert(mode).save(file, quality=95, subsampling=sampling)
    return [file for _, _, file in found]


@pytest.mark.parametrize("load", [1.0, 0.5, 0.0])
def test_all_of_them_are_decoded(files, load):
    options = decoder_options(
        dp.DaliConfig(device="gpu", hw_decoder_load=load), np.array([[HEIGHT, WIDTH]]), "gpu"
    )

    @pipeline_def(batch_size=len(files), num_threads=2, device_id=0, enable_conditionals=True)
    def regions():
        encoded, _ = fn.readers.file(files=[str(file) for file in files])
        source = types.Constant(np.array([HEIGHT, WIDTH, 0], np.int32))
        whole = [types.Constant(np.array(each, np.float32)) for each in ([0, 0], [1, 1])]
        inputs = PlanInputs(source=source, anchor=whole[0], shape=whole[1], encoded=encoded)
        return region_graph(inputs, dp.TrainTransform(), options, region=True)

    pipeline = regions()
    pipeline.build()
    for _ in range(3):  # memory that held an image before would look like one
        (decoded,) = pipeline.run()
        for at, file in enumerate(files):
            with Image.open(file) as image:
                expected = np.asarray(image.convert("RGB")).astype(int)
            apart = np.abs(np.asarray(decoded[at].as_cpu()).astype(int) - expected)
            assert apart.mean() < 2, f"{file.name}: {apart.mean():.1f} of 255"
