"""The code of the torchvision_gpu backend on the CPU; tests/backends/test_contract.py runs it on a
GPU.
"""

import functools
import re
import threading

import numpy as np
import pytest
import torch
from later import later
from PIL import Image
from reference import Reference, read_batch

import dali_pipes as dp
from dali_pipes.backends.common.pixels import TORCH_DTYPES
from dali_pipes.backends.config import PLAIN_UPSAMPLING
from dali_pipes.plan.plan import Plan

module = later("dali_pipes.backends.torchvision_gpu.backend")

CPU = torch.device("cpu")
TRANSFORMS = {
    "train": dp.TrainTransform(dtype="uint8"),
    "eval": dp.EvalTransform(dtype="uint8"),
    "always flipped": dp.TrainTransform(dtype="uint8", flip=1),
    "never flipped": dp.TrainTransform(dtype="uint8", flip=0),
    "bicubic, flipped vertically": dp.TrainTransform(
        size=(96, 128), interpolation="bicubic", vertical_flip=1, dtype="uint8"
    ),
    "nearest neighbours": dp.EvalTransform(
        size=(96, 90), resize=96, interpolation="nearest-exact", dtype="uint8"
    ),
    "as stored": dp.RandomCropTransform(
        size=(96, 120), padding=(0, 10, 20, 30), pad_if_needed=True, dtype="uint8"
    ),
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, manifest):
    """Every third image as PNG, WebP or BMP, half of them named .jpg."""
    root = tmp_path_factory.mktemp("mixed")
    for number in range(len(manifest)):
        folder = root / manifest.classes[manifest.labels[number]]
        folder.mkdir(exist_ok=True)
        form = ("PNG", "WEBP", "BMP")[number // 3 % 3] if number % 3 == 0 else "JPEG"
        with Image.open(manifest.path(number)) as image:
            image.save(folder / f"{number:03d}.{'jpg' if number % 2 else form.lower()}", form)
    return dp.Manifest.scan(root, progress=False)


def planned(manifest, transform, batch_size=10):
    plan = Plan(manifest, transform, batch_size, seed=3, last_batch="partial")
    return [plan.batch(epoch, step) for epoch in range(2) for step in range(len(plan))]


def backend(manifest, transform, **options):
    return module.TorchvisionGpuBackend(
        manifest, transform, dp.TorchvisionGpuConfig(**{"num_threads": 2} | options), 8, CPU
    )


@pytest.mark.few
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("kind", ["real_manifest", "mixed"])
def test_the_rows_of_the_plan_with_the_pixels_of_pillow(request, name, kind):
    """Promise 1: mean |difference| at most 0.25 of 255, 99th percentile at most 2."""
    manifest, transform = request.getfixturevalue(kind), TRANSFORMS[name]
    rows = planned(manifest, transform)
    batches = [batch for _, batch in backend(manifest, transform).stream(iter(rows))]
    assert [batch.ids.tolist() for batch in batches] == [each.ids.tolist() for each in rows]
    reference = Reference(transform, dtype="uint8")
    expected = torch.cat([reference(each, read_batch(manifest, each))[0] for each in rows])
    difference = reference.steps(torch.cat([batch.images for batch in batches]), expected)
    assert difference.mean() <= 0.25 and np.percentile(difference, 99) <= 2


def test_it_says_that_a_gpu_upsamples_plainly(manifest, monkeypatch):
    """torchvision makes its nvJPEG decoder with default flags, and nvJPEG's default is plain
    upsampling.
    """
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    options = dp.TrainTransform(size=32), dp.TorchvisionGpuConfig(num_threads=1), 8
    on_gpu = module.TorchvisionGpuBackend(manifest, *options, torch.device("cuda:0"))
    assert "plain chroma upsampling" in on_gpu.explain() and "plain upsampling" in on_gpu.engine_mix
    # libjpeg-turbo's is fancy
    assert "plain" not in backend(manifest, dp.TrainTransform(size=32)).explain()


@pytest.mark.slow
def test_plain_upsampling_is_within_its_bound(real_manifest, monkeypatch):
    """By TensorFlow, which can do both; of what nvJPEG makes on a GPU
    tests/backends/test_contract.py holds the same.
    """
    tensorflow = pytest.importorskip("tensorflow")
    fancy = tensorflow.io.decode_and_crop_jpeg

    @functools.wraps(fancy)
    def plain(*arguments, fancy_upscaling, **options):
        return fancy(*arguments, fancy_upscaling=False, **options)

    def pixels(config, transform):
        options = {
            "transform": transform,
            "batch_size": 10,
            "shuffle": False,
            "last_batch": "partial",
            "device": "cpu",
        }
        with dp.build_loader(real_manifest, config, **options) as loader:
            return torch.cat([batch.images for batch in loader]).int()

    monkeypatch.setattr(tensorflow.io, "decode_and_crop_jpeg", plain)
    for transform in (
        dp.TrainTransform(dtype="uint8"),
        dp.EvalTransform(dtype="uint8"),
        TRANSFORMS["as stored"],
    ):
        difference = (
            (
                pixels(dp.TfDataConfig(), transform)
                - pixels(dp.TorchConfig(num_workers=0), transform)
            )
            .abs()
            .numpy()
        )
        assert (
            difference.mean() <= PLAIN_UPSAMPLING.mean
            and np.percentile(difference, 99) <= PLAIN_UPSAMPLING.p99
        )
        assert difference.mean() > 0.25, "nothing was upsampled in another way; nothing can be said"


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_form_of_the_images(mixed, dtype, memory_format):
    transform = dp.TrainTransform(size=(24, 20), dtype=dtype, memory_format=memory_format)
    for _, batch in backend(mixed, transform).stream(iter(planned(mixed, transform))):
        assert batch.images.shape == (len(batch), 3, 24, 20)
        assert batch.images.dtype == TORCH_DTYPES[dtype]
        expected = (
            torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
        )
        assert batch.images.is_contiguous(memory_format=expected)


def test_threads_and_prefetching_change_nothing(mixed):
    transform = dp.TrainTransform(size=48)
    rows = planned(mixed, transform, 7)
    one, two = (
        list(backend(mixed, transform, num_threads=threads, prefetch=prefetch).stream(iter(rows)))
        for threads, prefetch in ((1, 1), (3, 20))
    )
    for (_, a), (_, b) in zip(one, two, strict=True):
        assert torch.equal(a.images, b.images) and torch.equal(a.ids, b.ids)


@pytest.mark.usefixtures("torchvision_gpu_anywhere")
def test_a_missing_file_is_named_after_the_batches_before_it(tmp_path):
    (tmp_path / "a").mkdir()
    for number in range(6):
        Image.new("RGB", (40, 30)).save(tmp_path / f"a/{number}.jpg")
    scanned = dp.Manifest.scan(tmp_path, progress=False)
    scanned.path(5).unlink()
    with dp.build_loader(
        scanned, dp.TorchvisionGpuConfig(), transform=dp.EvalTransform(size=32), batch_size=2
    ) as loader:
        batches = iter(loader)
        assert [next(batches).ids.tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(dp.BadSampleError, match=r"5\.jpg: no such file"):
            next(batches)


def test_an_abandoned_stream_reads_no_further(manifest, monkeypatch):
    original, reads, gate = np.fromfile, [], threading.Event()

    def gated(path, *dtype):
        reads.append(path)
        if len(reads) > 10:
            gate.wait()
        return original(path, *dtype)

    monkeypatch.setattr(np, "fromfile", gated)
    transform = dp.EvalTransform(size=32)
    each = backend(manifest, transform, num_threads=2, prefetch=3)
    stream = each.stream(iter(planned(manifest, transform)))
    next(stream)
    del stream
    gate.set()
    assert len(list(each.stream(iter(planned(manifest, transform)[:1])))) == 1
    each.close()
    assert len(reads) <= 10 + 2 + 10  # delivered, begun, delivered anew


def test_close_ends_the_threads(manifest):
    before = threading.active_count()
    transform = dp.EvalTransform(size=32)
    each = backend(manifest, transform, num_threads=3)
    next(each.stream(iter(planned(manifest, transform))))
    assert threading.active_count() > before
    each.close()
    each.close()
    assert threading.active_count() == before


def test_orientation_is_refused(manifest):
    message = (
        "TorchvisionGpuConfig takes pixels as stored; EvalTransform(exif='apply') needs DaliConfig "
        "or TorchConfig"
    )
    with pytest.raises(dp.ConfigError, match=re.escape(message)):
        backend(manifest, dp.EvalTransform(exif="apply"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize(
    ("device", "expected_text"),
    [
        (
            "auto",
            (
                "TorchvisionGpuConfig, but PyTorch sees no GPU here; use DaliConfig(device='cpu') "
                "or TorchConfig()"
            ),
        ),
        (
            "cuda",
            (
                "TorchvisionGpuConfig, but PyTorch sees no GPU here; use DaliConfig(device='cpu') "
                "or TorchConfig()"
            ),
        ),
        (
            "cpu",
            (
                "TorchvisionGpuConfig makes batches on a GPU, but device=cpu wants them elsewhere; "
                "leave device at auto"
            ),
        ),
    ],
)
def test_without_a_gpu_it_is_refused_in_one_line(manifest, device, expected_text):
    with pytest.raises(dp.ConfigError) as caught:
        dp.build_loader(
            manifest,
            dp.TorchvisionGpuConfig(),
            transform=dp.EvalTransform(),
            batch_size=4,
            device=device,
        )
    assert expected_text in str(caught.value) and "\n" not in str(caught.value)
