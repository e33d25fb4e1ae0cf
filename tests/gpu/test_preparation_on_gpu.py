"""What dali-pipes prepare writes, on a GPU: decoded by nvJPEG as by Pillow, and taken by the JPEG
engines where they can be seen.
"""

import numpy as np
import pytest

import dali_pipes as dp
from dali_pipes.system.nvml import Gpu
from dali_pipes.tools.doctor import decode, machine
from dali_pipes.tools.preparation.encode import Encoding, encode

pytestmark = [pytest.mark.needs_cuda, pytest.mark.gpu_pixels]


@pytest.fixture(scope="module")
def prepared(manifest, tmp_path_factory):
    """The images of the tests with a shorter side of at most 200, in one class."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "a").mkdir()
    for sample_id, size in enumerate(manifest.sizes.tolist()):
        content = encode(manifest.path(sample_id), tuple(size), Encoding(200, 90, "keep")).content
        (folder / f"a/{sample_id:03d}.jpg").write_bytes(content)
    return dp.Manifest.scan(folder, progress=False)


def test_the_engines_and_pillow_see_the_same_pixels(prepared):
    transform = dp.EvalTransform(size=128, resize=144, dtype="uint8")
    batches = []
    for loader in (dp.TorchConfig(num_workers=0), dp.DaliConfig(device="gpu", hw_decoder_load=1.0)):
        with dp.build_loader(
            prepared, loader, transform=transform, batch_size=len(prepared)
        ) as images:
            batches.append(next(iter(images)).images.cpu().int())
    assert np.abs((batches[0] - batches[1]).numpy()).mean() < 0.5


@pytest.mark.alone
def test_the_engines_take_a_prepared_jpeg(prepared):
    if decode.jpeg_engines().status != "ok":
        pytest.skip("this GPU has no JPEG engines that can be seen at work")
    at = next(number for number in range(len(prepared)) if number % 9 != 1)  # in color
    pipeline = decode._pipeline(
        prepared.path(at).read_bytes(), decode.BATCH, 0, hw_decoder_load=1.0
    )
    assert decode.highest_use(Gpu(machine.uuid()), pipeline.run, 2) > 0.01
