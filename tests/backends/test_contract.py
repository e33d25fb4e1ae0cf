"""What every backend must do alike: the same samples, in the same order, with the same pixels, in
the same form.
"""

from functools import cache
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from gpu_backends import GPU_BACKENDS, needs_cuda, same_bits
from later import later
from make_shards import tar_shards
from PIL import Image

import dali_pipes as dp
from dali_pipes.backends.common.pixels import to_steps
from dali_pipes.backends.config import NVJPEG, PLAIN_UPSAMPLING, PixelBound
from dali_pipes.measure.arms import CachedConfig, SyntheticConfig

v2 = later("torchvision.transforms.v2")

TORCH_PIL = dp.TorchConfig(num_workers=2)
BACKENDS = {
    "torch_pil": TORCH_PIL,
    "torch_torchvision": dp.TorchConfig(decoder="torchvision", num_workers=2),
    "torch_no_workers": dp.TorchConfig(num_workers=0, normalize_on="device"),
    "dali_cpu": dp.DaliConfig(device="cpu"),
    "dali_cpu_graph": dp.DaliConfig(device="cpu", decode="whole", resize="dali"),
    "tfdata": dp.TfDataConfig(),
    "synthetic": SyntheticConfig(),
    "cached": CachedConfig(),
}
if find_spec("torchcodec"):  # with the lock dev-newest
    BACKENDS["torch_torchcodec"] = dp.TorchConfig(decoder="torchcodec", num_workers=2)
ON_GPU = ("dali_gpu", "dali_gpu_regions", "torchvision_on_gpu", "torch_to_gpu")
DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "uint8": torch.uint8,
}
TRANSFORMS = {
    "train": dp.TrainTransform(),
    "eval": dp.EvalTransform(),
    "padded": dp.RandomCropTransform(size=96, resize=(96, 96), padding=12),
}
# what the three above leave out; each of its options at least once
OTHERS = {
    "bicubic, flipped vertically": dp.TrainTransform(
        size=(96, 128), interpolation="bicubic", vertical_flip=0.5
    ),
    "nearest neighbours": dp.TrainTransform(size=(128, 96), interpolation="nearest-exact"),
    "cropped as stored": dp.RandomCropTransform(size=(20, 14), vertical_flip=0.5),
    "padded as stored": dp.RandomCropTransform(
        size=(96, 120), padding=(0, 10, 20, 30), pad_if_needed=True, dtype="uint8"
    ),
    "cropped from the shorter side": dp.RandomCropTransform(
        size=(110, 70), resize=100, padding=(0, 8), memory_format="channels_last"
    ),
    "cropped in the centre": dp.CenterCropTransform(size=(90, 110), resize=120, vertical_flip=0.5),
    "squeezed": dp.RandomCropTransform(size=(96, 128), resize=(96, 128), interpolation="bicubic"),
}
ALL = TRANSFORMS | OTHERS
EVALUATIONS = {
    "resized and cropped": (
        dp.EvalTransform(dtype="uint8"),
        lambda: [v2.Resize(256), v2.CenterCrop(224)],
    ),
    "bicubic": (
        dp.EvalTransform(size=(96, 180), resize=(120, 170), interpolation="bicubic", dtype="uint8"),
        lambda: [v2.Resize((120, 170), v2.InterpolationMode.BICUBIC), v2.CenterCrop((96, 180))],
    ),
    "as stored": (
        dp.EvalTransform(size=(115, 150), resize=None, dtype="uint8"),
        lambda: [v2.CenterCrop((115, 150))],
    ),
    "nearest neighbours": (  # powers of two, whose positions are exact: docs/pixels.md
        dp.EvalTransform(
            size=(64, 128), resize=(64, 128), interpolation="nearest-exact", dtype="uint8"
        ),
        lambda: [v2.Resize((64, 128), v2.InterpolationMode.NEAREST_EXACT)],
    ),
}

everywhere = pytest.mark.parametrize(
    "name", [*BACKENDS, *needs_cuda(*ON_GPU, "cached_on_gpu", "synthetic_on_gpu")]
)
with_pixels = pytest.mark.parametrize(
    "name",
    [*(name for name in BACKENDS if name not in ("synthetic", "cached")), *needs_cuda(*ON_GPU)],
)


def loader(manifest, name, transform=None, batch_size=10, **options):
    config = {**BACKENDS, **GPU_BACKENDS}[name]
    return dp.build_loader(
        manifest,
        config,
        transform=transform or dp.TrainTransform(size=32),
        batch_size=batch_size,
        **options,
    )


def pixels(batches, transform):
    return torch.cat([to_steps(batch.images.cpu(), transform) for batch in batches]).numpy()


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("last_batch", ["drop", "partial", "pad"])
def test_delivers_the_rows_of_the_plan(thumbnails, name, last_batch):
    with loader(thumbnails, name, last_batch=last_batch, seed=5) as each:
        for epoch in range(3):
            batches = list(each)
            assert len(batches) == len(each)
            for step, batch in enumerate(batches):
                planned = each.plan.batch(epoch, step)
                assert batch.ids.tolist() == planned.ids.tolist()
                assert batch.labels.tolist() == thumbnails.labels[planned.ids].tolist()
                assert len(batch.images) == len(planned)
                assert batch.ids.dtype == batch.labels.dtype == torch.int64
                assert (
                    batch.images.is_cuda
                    == batch.labels.is_cuda
                    == batch.ids.is_cuda
                    == torch.cuda.is_available()
                )


@pytest.mark.parametrize(
    "name", ["synthetic", "torch_no_workers", *needs_cuda("dali_gpu", "torch_to_gpu")]
)
@pytest.mark.parametrize("label", ["several", "number", "numbers"])
def test_the_loader_joins_other_labels_and_columns(thumbnails, tmp_path, name, label):
    rng, count = np.random.default_rng(3), len(thumbnails)
    several = [
        sorted(rng.choice(7, size=number % 4, replace=False).tolist()) for number in range(count)
    ]
    vectors = pa.FixedSizeListArray.from_arrays(
        pa.array(rng.normal(size=2 * count).astype(np.float32)), 2
    )
    labels = {
        "several": several,
        "number": rng.normal(size=count).astype(np.float32),
        "numbers": vectors,
    }
    paths = [str(thumbnails.path(number)) for number in range(count)]
    table = {
        "path": paths,
        "label": labels[label],
        "place": np.arange(count) + 100,
        "vector": vectors,
        "name": paths,
    }
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    with loader(
        dp.Manifest.open(tmp_path / "t.parquet", progress=False), name, last_batch="partial"
    ) as each:
        for batch in [*each, *each]:
            ids, found = batch.ids.cpu(), batch.labels.cpu()
            assert (
                batch.labels.dtype == torch.float32 and batch.labels.device == batch.images.device
            )
            if label == "several":
                assert found.shape == (len(batch), 7)
                assert [row.nonzero().flatten().tolist() for row in found] == [
                    several[number] for number in ids
                ]
            else:
                assert np.array_equal(found, each.plan.manifest.labels[ids]) and found.ndim == (
                    1 if label == "number" else 2
                )
            assert list(batch.targets) == ["place", "vector"]
            assert torch.equal(batch.targets["place"].cpu(), ids + 100)
            assert batch.targets["vector"].device == batch.images.device
            assert np.array_equal(
                batch.targets["vector"].cpu(), each.plan.manifest.columns["vector"][ids]
            )


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("kind", [dp.TrainTransform, dp.EvalTransform, dp.RandomCropTransform])
def test_form_of_the_images(thumbnails, name, dtype, memory_format, kind):
    transform = kind(size=(24, 20), dtype=dtype, memory_format=memory_format)
    with loader(thumbnails.subset(np.arange(13)), name, transform, last_batch="partial") as each:
        for batch in each:
            assert batch.images.shape == (len(batch), 3, 24, 20)
            assert batch.images.dtype == DTYPES[dtype]
            expected = (
                torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
            )
            assert batch.images.is_contiguous(memory_format=expected)


@cache
def by_pillow(manifest, transform):
    with loader(manifest, "torch_pil", ALL[transform], last_batch="partial") as one:
        return pixels(one, ALL[transform])


def bound_of(name):
    """Mean |difference| at most 0.25 of 255, 99th percentile at most 2; more where nvJPEG decodes,
    or with plain upsampling.
    """
    config = {**BACKENDS, **GPU_BACKENDS}[name]
    if not config.fancy_upsampling:
        return PLAIN_UPSAMPLING
    return NVJPEG if config.decodes_on == "gpu" else PixelBound(0.25, 2)


@pytest.mark.few
@pytest.mark.compares_pixels
@with_pixels
@pytest.mark.parametrize("transform", ALL)
def test_pixels_agree_with_pillow(real_manifest, name, transform):
    """Promise 1."""
    with loader(real_manifest, name, ALL[transform], last_batch="partial") as other:
        difference = np.abs(pixels(other, ALL[transform]) - by_pillow(real_manifest, transform))
    assert difference.mean() <= bound_of(name).mean
    # the normalization is undone in float32
    assert np.percentile(difference, 99) <= bound_of(name).p99 + 0.001


@cache
def by_torchvision(manifest, evaluation):
    plain = v2.Compose([*EVALUATIONS[evaluation][1](), v2.PILToTensor()])
    images = []
    for number in range(len(manifest)):
        with Image.open(manifest.path(number)) as image:
            images.append(plain(image.convert("RGB")))
    return torch.stack(images).float().numpy()


@pytest.mark.few
@pytest.mark.compares_pixels
@with_pixels
@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_evaluation_agrees_with_plain_torchvision(real_manifest, name, evaluation):
    transform, _ = EVALUATIONS[evaluation]
    with loader(real_manifest, name, transform) as each:
        difference = np.abs(pixels(each, transform) - by_torchvision(real_manifest, evaluation))
    assert (
        difference.mean() <= bound_of(name).mean
        and np.percentile(difference, 99) <= bound_of(name).p99
    )


@pytest.mark.few
@pytest.mark.compares_pixels
@with_pixels
@pytest.mark.parametrize("dtype", ["fp16", "uint8"])
def test_dtypes_hold_the_same_pixels(thumbnails, name, dtype):
    exact, other = dp.TrainTransform(size=64), dp.TrainTransform(size=64, dtype=dtype)
    with loader(thumbnails, name, exact) as one, loader(thumbnails, name, other) as two:
        assert np.abs(pixels(one, exact) - pixels(two, other)).max() < 0.25


@pytest.mark.few
@pytest.mark.compares_pixels
@with_pixels
def test_bf16_is_fp32_rounded_once(thumbnails, name):
    """It has 8 bits: the largest normalized values lie between 2 and 4, where two neighbours are
    2**-6 apart.
    """
    form = {"size": 64, "memory_format": "channels_last"}
    exact, rounded = dp.TrainTransform(**form), dp.TrainTransform(**form, dtype="bf16")
    furthest = 2**-7 * 255 * max(exact.std)  # 0.46
    with loader(thumbnails, name, exact) as one, loader(thumbnails, name, rounded) as two:
        for a, b in zip(one, two, strict=True):
            assert (
                torch.equal(a.images.bfloat16(), b.images)
                and a.images.stride() == b.images.stride()
            )
            difference = np.abs(pixels([a], exact) - pixels([b], rounded)).max()
            assert difference <= furthest + 0.001  # the normalization is undone in float32


@pytest.mark.few
@pytest.mark.compares_pixels
@with_pixels
def test_flips_are_carried_out(manifest, name):
    never, always = (
        dp.EvalTransform(size=32, resize=32),
        dp.TrainTransform(size=32, scale=(1, 1), ratio=(1, 1), flip=1),
    )
    square = [number for number, (height, width) in enumerate(manifest.sizes) if height == width]
    part = manifest.subset(np.array(square)) if square else manifest
    unflipped = dp.TrainTransform(size=32, scale=(1, 1), ratio=(1, 1), flip=0)
    with (
        loader(part, name, unflipped, 1, shuffle=False) as one,
        loader(part, name, always, 1, shuffle=False) as two,
    ):
        assert np.abs(pixels(one, never)[..., ::-1] - pixels(two, always)).max() <= 1


SETTINGS = [
    (dp.TorchConfig(num_workers=0), dp.TorchConfig(num_workers=3, prefetch_factor=1)),
    (
        dp.TorchConfig(num_workers=1, normalize_on="worker"),
        dp.TorchConfig(num_workers=2, prefetch_factor=4, normalize_on="device"),
    ),
    (
        dp.DaliConfig(device="cpu", num_threads=1, prefetch_queue_depth=1),
        dp.DaliConfig(device="cpu", num_threads=3, prefetch_queue_depth=4),
    ),
    (
        dp.DaliConfig(device="cpu", num_threads=2, decode="region"),
        dp.DaliConfig(device="cpu", num_threads=2, decode="whole"),
    ),
    (
        dp.DaliConfig(device="cpu", resize="dali", num_threads=1),
        dp.DaliConfig(device="cpu", resize="dali", num_threads=3),
    ),
    pytest.param(dp.TfDataConfig(num_threads=1), dp.TfDataConfig(num_threads=4), id="tfdata"),
    pytest.param(
        dp.DaliConfig(device="gpu", num_threads=1, prefetch_queue_depth=1),
        dp.DaliConfig(device="gpu", num_threads=3, prefetch_queue_depth=4),
        marks=pytest.mark.needs_cuda,
    ),
    pytest.param(
        dp.TorchvisionGpuConfig(num_threads=1, prefetch=1),
        dp.TorchvisionGpuConfig(num_threads=3, prefetch=4),
        marks=pytest.mark.needs_cuda,
    ),
]


@pytest.mark.few
@pytest.mark.compares_pixels
@pytest.mark.parametrize(("one", "two"), SETTINGS)
def test_threads_workers_and_queues_change_nothing(thumbnails, one, two):
    transform, runs = dp.TrainTransform(size=48), []
    for config in (one, two):
        with dp.build_loader(thumbnails, config, transform=transform, batch_size=7) as each:
            runs.append([batch for _ in range(2) for batch in each])
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a.images, b.images) and torch.equal(a.ids, b.ids)


@everywhere
def test_batches_that_are_kept_are_not_overwritten(thumbnails, name):
    with loader(thumbnails, name, batch_size=5) as each:
        kept, copies = [], []
        for _ in range(4):
            for batch in each:
                kept.append(batch)
                copies.append((batch.images.clone(), batch.ids.clone()))
        for batch, (images, ids) in zip(kept, copies, strict=True):
            assert same_bits(batch.images, images) and same_bits(batch.ids, ids)


@pytest.mark.compares_pixels
@everywhere
def test_batches_are_made_in_inference_mode_too(thumbnails, name):
    """Validation loops iterate in it; its tensors may be written by no thread outside of it."""
    with loader(thumbnails, name) as each:
        plain = [batch.images.clone() for batch in each]
    with torch.inference_mode(), loader(thumbnails, name) as each:
        inside = [batch.images.clone() for batch in each]
    assert all(torch.equal(one, two) for one, two in zip(plain, inside, strict=True))


@pytest.mark.few
@everywhere
def test_two_loaders_live_side_by_side(thumbnails, name):
    with loader(thumbnails, name, seed=1) as one, loader(thumbnails, name, seed=2) as two:
        pairs = [(a.ids.tolist(), b.ids.tolist()) for a, b in zip(one, two, strict=True)]
    assert pairs == [
        (one.plan.batch(0, s).ids.tolist(), two.plan.batch(0, s).ids.tolist()) for s in range(3)
    ]


@pytest.mark.few
@with_pixels
@pytest.mark.parametrize(("width", "height"), [(30, 40), (80, 60), (20, 15)])
def test_a_file_that_changed_its_size_is_not_cropped_in_the_wrong_place(
    tmp_path, name, width, height
):
    (tmp_path / "a").mkdir()
    for number in range(3):
        Image.new("RGB", (40, 30)).save(tmp_path / f"a/{number}.jpg")
    scanned = dp.Manifest.scan(tmp_path, progress=False)
    Image.new("RGB", (width, height)).save(tmp_path / "a/1.jpg")
    with (
        pytest.raises(
            dp.BadSampleError,
            match=rf"1\.jpg: {width} × {height} pixels, but 40 × 30 when it was scanned",
        ),
        loader(scanned, name, batch_size=3) as each,
    ):
        list(each)


@pytest.mark.few
@pytest.mark.compares_pixels
@with_pixels
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_shards_give_what_the_folder_gives_bit_for_bit(real_manifest, tmp_path, name, transform):
    shards = dp.Manifest.open(
        tar_shards(real_manifest, tmp_path / "shards"), cache_dir=tmp_path / "cache", progress=False
    )
    transform = TRANSFORMS[transform]
    with loader(real_manifest, name, transform) as one, loader(shards, name, transform) as two:
        for a, b in zip([*one, *one], [*two, *two], strict=True):
            assert (
                torch.equal(a.ids, b.ids)
                and torch.equal(a.labels, b.labels)
                and torch.equal(a.images, b.images)
            )
