"""CuPy's kernels against PyTorch on the CPU, bit for bit, and both timed on the GPU (message, never
asserted).
"""

import itertools
import json
import os
import re
from pathlib import Path

import pytest
import torch
from gpu_backends import simulated
from simulated_gpu.device import parameter_bytes

import dali_pipes as dp
from dali_pipes.backends.pixels.tensors import MEMORY_FORMATS, TORCH_DTYPES
from dali_pipes.loader import mixing_kernels
from dali_pipes.loader.mixing_kernels import blend_with_previous, paste_previous

pytestmark = pytest.mark.needs_cuda
FORMS = [*itertools.product(TORCH_DTYPES.values(), MEMORY_FORMATS.values())]
DOCS = Path(__file__).parents[2] / "docs/augmentation.md"


def images_of(count, size, dtype, memory_format):
    pixels = torch.randint(
        0,
        256,
        (count, 3, size, size),
        generator=torch.Generator().manual_seed(size),
        dtype=torch.uint8,
    )
    images = pixels if dtype == torch.uint8 else (pixels.float() / 57 - 2).to(dtype)
    return images.contiguous(memory_format=memory_format)


def box_of(size):
    return size // 3, 0, size, size // 2


@pytest.mark.parametrize(("dtype", "memory_format"), FORMS, ids=str)
@pytest.mark.parametrize("size", [9, 32, 224])
@pytest.mark.parametrize("count", [1, 2, 8, 19])
def test_the_kernels_make_what_pytorch_makes(dtype, memory_format, size, count):
    images = images_of(count, size, dtype, memory_format)
    on_gpu = images.cuda()
    for made, expected in (
        (blend_with_previous(on_gpu, 0.123456789), blend_with_previous(images, 0.123456789)),
        (paste_previous(on_gpu, box_of(size)), paste_previous(images, box_of(size))),
    ):
        assert (
            made.dtype == dtype
            and made.device == on_gpu.device
            and made.stride() == expected.stride()
        )
        assert torch.equal(made.cpu(), expected)
    assert torch.equal(on_gpu.cpu(), images)


def test_arguments_have_the_sizes_of_the_kernels_parameters(monkeypatch):
    """Of the machine code; CuPy and the driver take whatever they are given."""
    if not simulated():
        pytest.skip("only the simulated GPU tells the sizes of a kernel's parameters")
    compiled, sizes = mixing_kernels._compiled, []

    def instance(name, device):
        def launch(blocks, threads, arguments):
            compiled(name, device)(blocks, threads, arguments)
            sizes.append(([each.nbytes for each in arguments], parameter_bytes()))

        return launch

    monkeypatch.setattr(mixing_kernels, "_compiled", instance)
    for dtype in TORCH_DTYPES.values():
        for size in (9, 32):
            images = images_of(2, size, dtype, torch.contiguous_format).cuda()
            blend_with_previous(images, 0.5), paste_previous(images, box_of(size))
    assert len(sizes) == 4 * len(TORCH_DTYPES)
    assert all(arguments == parameters for arguments, parameters in sizes)


def test_parts_of_a_batch_and_odd_strides():
    whole = images_of(9, 9, torch.float16, torch.contiguous_format)
    for part in (slice(1, None), slice(None, None, 2)):
        assert torch.equal(
            blend_with_previous(whole.cuda()[part], 0.25).cpu(),
            blend_with_previous(whole[part], 0.25),
        )
    assert torch.equal(
        blend_with_previous(whole.cuda().transpose(2, 3), 0.25).cpu(),
        blend_with_previous(whole.transpose(2, 3), 0.25),
    )


def test_it_works_on_the_current_stream_and_outlives_its_inputs():
    """The images are made late on a stream of their own, and dropped and overwritten as soon as the
    kernel has been queued.
    """
    images = images_of(16, 224, torch.float32, torch.contiguous_format)
    expected, stream = blend_with_previous(images, 0.3), torch.cuda.Stream()
    source = images.cuda()
    torch.cuda.synchronize()
    for _ in range(5):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            late = source.clone()
            made = blend_with_previous(late, 0.3)
            del late
            torch.full_like(source, float("nan"))  # takes the memory that has just been given back
        other = torch.full_like(source, float("nan"))  # on another stream
        stream.synchronize()
        assert torch.equal(made.cpu(), expected)
        del other


def test_images_of_another_stream_are_not_given_away_before_they_are_read():
    images = images_of(16, 224, torch.float32, torch.contiguous_format)
    expected, other = blend_with_previous(images, 0.3), torch.cuda.Stream()
    with torch.cuda.stream(other):
        source = images.cuda()
    other.synchronize()
    torch.cuda._sleep(100_000_000)
    made = blend_with_previous(source, 0.3)
    del source
    with torch.cuda.stream(other):
        overwritten = [torch.full(images.shape, float("nan"), device="cuda") for _ in range(4)]
    other.synchronize()
    assert torch.equal(made.cpu(), expected) and len(overwritten) == 4


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_a_gpu_that_is_not_the_current_one():
    images = images_of(4, 32, torch.float32, torch.contiguous_format)
    assert torch.equal(
        blend_with_previous(images.to("cuda:1"), 0.3).cpu(), blend_with_previous(images, 0.3)
    )
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("kind", [dp.MixUp, dp.CutMix])
def test_mixing_never_waits_for_the_gpu(kind):
    mix, images = kind(num_classes=10), images_of(16, 64, torch.float16, torch.channels_last).cuda()
    batch = dp.Batch(images, *torch.arange(16, device="cuda").repeat(2, 1).remainder(10))
    mix(batch, dp.BatchDraws(0, 0, 0))  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        mixed = [mix(batch, dp.BatchDraws(0, 0, place)) for place in range(5)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    on_cpu = dp.Batch(images.cpu(), batch.labels.cpu(), batch.ids.cpu())
    for place, each in enumerate(mixed):
        expected = mix(on_cpu, dp.BatchDraws(0, 0, place))
        assert torch.equal(each.images.cpu(), expected.images) and torch.allclose(
            each.labels.cpu(), expected.labels
        )


@pytest.mark.compares_pixels
@pytest.mark.parametrize(
    "config", [dp.DaliConfig(device="gpu"), dp.TorchConfig(num_workers=2)], ids=["dali", "torch"]
)
@pytest.mark.parametrize(
    ("dtype", "memory_format"), [*itertools.product(TORCH_DTYPES, MEMORY_FORMATS)]
)
def test_in_a_loader(manifest, config, dtype, memory_format):
    mix = dp.RandomChoice([dp.CutMix(num_classes=5), dp.MixUp(num_classes=5)])
    expected = []

    def mix_on_both(batch, draws):
        expected.append(
            mix(dp.Batch(batch.images.cpu(), batch.labels.cpu(), batch.ids.cpu()), draws)
        )
        return mix(batch, draws)

    transform = dp.TrainTransform(size=64, dtype=dtype, memory_format=memory_format)
    with dp.build_loader(
        manifest, config, transform=transform, batch_size=8, batch_transform=mix_on_both
    ) as loader:
        mixed = [*loader, *loader]
    for ours, on_cpu in zip(mixed, expected, strict=True):
        assert torch.equal(ours.images.cpu(), on_cpu.images) and torch.allclose(
            ours.labels.cpu(), on_cpu.labels
        )
        assert ours.images.stride() == on_cpu.images.stride()


@pytest.mark.gpu_pixels
def test_the_example_of_the_documentation(manifest):
    names = {"manifest": manifest}
    exec(re.search(r"```python\n(import cupy\n.*?)```", DOCS.read_text(), re.DOTALL)[1], names)
    options = {"transform": dp.TrainTransform(), "batch_size": 32}
    with names["loader"] as loader, dp.build_loader(manifest, dp.DaliConfig(), **options) as plain:
        for mixed, clean in zip(loader, plain, strict=True):
            gain = mixed.images.flatten(1).norm(dim=1) / clean.images.flatten(1).norm(dim=1)
            assert ((gain > 0.8) & (gain < 1.2)).all() and gain.std() > 0.01


def in_pytorch(images, own):
    """MixUp in PyTorch's own operators, as torchvision has it; it cannot mix uint8."""
    if images.dtype == torch.uint8:
        return in_pytorch(images.float(), own).round_().to(torch.uint8)
    return images.roll(1, 0).mul_(1.0 - own).add_(images.mul(own))


def cut_in_pytorch(images, box):
    left, top, right, bottom = box
    mixed, rolled = images.clone(), images.roll(1, 0)
    mixed[..., top:bottom, left:right] = rolled[..., top:bottom, left:right]
    return mixed


def milliseconds(work, *arguments, repeats=50):
    """The best of three."""
    took = []
    for _ in range(3):
        for _ in range(5):
            work(*arguments)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            work(*arguments)
        end.record()
        end.synchronize()
        took.append(start.elapsed_time(end) / repeats)
    return min(took)


PROGRAMS = {
    "mixup": (blend_with_previous, in_pytorch, 0.3),
    "cutmix": (paste_previous, cut_in_pytorch, box_of(224)),
}


@pytest.mark.alone
@pytest.mark.gpu_pixels
def test_the_time_of_both_is_reported():
    """With OUT=FOLDER also as mixing.json there: milliseconds for 256 images of 224 pixels, and
    GB/s of one read and one write.
    """
    rows = []
    for (dtype, memory_format), (name, (cupy, pytorch, argument)) in itertools.product(
        FORMS, PROGRAMS.items()
    ):
        images = images_of(256, 224, dtype, memory_format).cuda()
        row = {"kernel": name, "dtype": str(dtype), "memory_format": str(memory_format)}
        row["cupy_ms"], row["pytorch_ms"] = (
            milliseconds(cupy, images, argument),
            milliseconds(pytorch, images, argument),
        )
        row["clone_ms"] = milliseconds(images.clone)
        row["gb_per_s"] = 2 * images.nbytes / row["cupy_ms"] / 1e6
        print(row)
        rows.append(row)
    assert len(rows) == len(FORMS) * len(PROGRAMS) and all(row["cupy_ms"] > 0 for row in rows)
    if os.environ.get("OUT"):
        message = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "images": 256,
            "size": 224,
            "rows": rows,
        }
        Path(os.environ["OUT"], "mixing.json").write_text(json.dumps(message, indent=1))
