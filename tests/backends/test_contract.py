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
from reference import Reference, read, read_batch

import dali_pipes as dp
from dali_pipes.measure.agreement import NVJPEG, PLAIN_UPSAMPLING, PixelBound
from dali_pipes.measure.arms import SyntheticConfig

v2 = later("torchvision.transforms.v2")

TORCH_PIL = dp.TorchConfig(num_workers=2)
BACKENDS = {
    "torch_pil": TORCH_PIL,
    "torch_torchvision": dp.TorchConfig(decoder="torchvision", num_workers=2),
    "torch_no_workers": dp.TorchConfig(num_workers=0, normalize_on="device"),
    "dali_cpu": dp.DaliConfig(device="cpu"),
    "dali_cpu_graph": dp.DaliConfig(device="cpu", decode="whole", resize="dali"),
    "synthetic": SyntheticConfig(),
}
if find_spec("torchcodec"):  # with the lock dev-newest
    BACKENDS["torch_torchcodec"] = dp.TorchConfig(decoder="torchcodec", num_workers=2)
ON_GPU = ("dali_gpu", "dali_gpu_regions", "torch_to_gpu")
DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "uint8": torch.uint8,
}
# no library's, so that a default in their place is seen
NORMALIZED = {"mean": (0.4, 0.5, 0.3), "std": (0.2, 0.3, 0.25)}
TRANSFORMS = {
    "train": Reference.of(dp.TrainTransform),
    "eval": Reference.of(dp.EvalTransform),
    "padded": Reference.of(
        dp.RandomCropTransform, size=96, resize=(96, 96), padding=12, **NORMALIZED
    ),
}
# what the three above leave out; each of its options, each dtype and each layout at least once
OTHERS = {
    "bicubic, flipped vertically": Reference.of(
        dp.TrainTransform,
        size=(96, 128),
        interpolation="bicubic",
        vertical_flip=0.5,
        dtype="bf16",
        **NORMALIZED,
    ),
    "nearest neighbours": Reference.of(
        dp.TrainTransform,
        size=(128, 96),
        interpolation="nearest-exact",
        dtype="fp16",
        memory_format="channels_last",
    ),
    "cropped as stored": Reference.of(
        dp.RandomCropTransform, size=(20, 14), vertical_flip=0.5, dtype="fp16", **NORMALIZED
    ),
    "padded as stored": Reference.of(
        dp.RandomCropTransform,
        size=(96, 120),
        padding=(0, 10, 20, 30),
        pad_if_needed=True,
        dtype="uint8",
    ),
    "cropped from the shorter side": Reference.of(
        dp.RandomCropTransform,
        size=(110, 70),
        resize=100,
        padding=(0, 8),
        memory_format="channels_last",
        **NORMALIZED,
    ),
    "cropped in the centre": Reference.of(
        dp.CenterCropTransform,
        size=(90, 110),
        resize=120,
        vertical_flip=0.5,
        dtype="bf16",
        memory_format="channels_last",
    ),
    "squeezed": Reference.of(
        dp.RandomCropTransform,
        size=(96, 128),
        resize=(96, 128),
        interpolation="bicubic",
        dtype="uint8",
        memory_format="channels_last",
    ),
}
ALL = TRANSFORMS | OTHERS
EVALUATIONS = {
    "resized and cropped": (
        Reference.of(dp.EvalTransform, **NORMALIZED),
        lambda: [v2.Resize(256), v2.CenterCrop(224)],
    ),
    "bicubic": (
        Reference.of(
            dp.EvalTransform,
            size=(96, 180),
            resize=(120, 170),
            pad_if_needed=True,
            interpolation="bicubic",
            **NORMALIZED,
        ),
        lambda: [v2.Resize((120, 170), v2.InterpolationMode.BICUBIC), v2.CenterCrop((96, 180))],
    ),
    "as stored": (
        Reference.of(dp.EvalTransform, size=(115, 150), resize=None, dtype="uint8"),
        lambda: [v2.CenterCrop((115, 150))],
    ),
    "nearest neighbours": (  # powers of two, whose positions are exact: docs/pixels.md
        Reference.of(
            dp.EvalTransform,
            size=(64, 128),
            resize=(64, 128),
            interpolation="nearest-exact",
            dtype="uint8",
        ),
        lambda: [v2.Resize((64, 128), v2.InterpolationMode.NEAREST_EXACT)],
    ),
}

everywhere = pytest.mark.parametrize("name", [*BACKENDS, *needs_cuda(*ON_GPU, "synthetic_on_gpu")])
with_pixels = pytest.mark.parametrize(
    "name",
    [*(name for name in BACKENDS if name != "synthetic"), *needs_cuda(*ON_GPU)],
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
def test_form_of_the_images(thumbnails, name, dtype, memory_format):
    transform = dp.TrainTransform(size=(24, 20), dtype=dtype, memory_format=memory_format)
    with loader(thumbnails.subset(np.arange(13)), name, transform, last_batch="partial") as each:
        for batch in each:
            assert batch.images.shape == (len(batch), 3, 24, 20)
            assert batch.images.dtype == DTYPES[dtype]
            expected = (
                torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
            )
            assert batch.images.is_contiguous(memory_format=expected)


def bound_of(name):
    """How far a loader may be from the reference: docs/pixels.md. On the CPU a mean |difference| of
    0.25 of 255 and a 99th percentile of 2; more where nvJPEG decodes, or with plain upsampling.
    """
    config = {**BACKENDS, **GPU_BACKENDS}[name]
    if isinstance(config, dp.TorchConfig) and config.decoder == "pil":
        return PixelBound(0.001, 0)  # the reference's own library
    if not config.fancy_upsampling:
        return PLAIN_UPSAMPLING
    return NVJPEG if config.decodes_on == "gpu" else PixelBound(0.25, 2)


# what rounding to a dtype adds, of 255, to the mean and to a pixel: docs/pixels.md
ROUNDED = {"fp32": (0, 0), "fp16": (0.01, 0.06), "bf16": (0.08, 0.46), "uint8": (0, 0)}


def hold(difference, name, dtype):
    """Holds differences from the reference, in steps of 255, to the contract of a loader."""
    mean, furthest = ROUNDED[dtype]
    assert difference.mean() <= bound_of(name).mean + mean
    # float32 has no whole steps
    assert np.percentile(difference, 99) <= bound_of(name).p99 + furthest + 0.001


@cache
def by_reference(manifest, transform):
    """The images of an epoch, and the plan's ids."""
    reference = ALL[transform]
    with loader(manifest, "synthetic", reference.transform, last_batch="partial") as each:
        planned = [each.plan.batch(0, step) for step in range(len(each))]
    made = [reference(one, read_batch(manifest, one))[0] for one in planned]
    return torch.cat(made), np.concatenate([one.ids for one in planned]).tolist()


@pytest.mark.few
@pytest.mark.compares_pixels
@with_pixels
@pytest.mark.parametrize("transform", ALL)
def test_pixels_are_those_of_plain_torchvision_and_pillow(real_manifest, name, transform):
    """Promise 1, in each dtype and layout."""
    reference = ALL[transform]
    expected, ids = by_reference(real_manifest, transform)
    with loader(real_manifest, name, reference.transform, last_batch="partial") as each:
        batches = [batch.to("cpu") for batch in each]
    assert [sample for batch in batches for sample in batch.ids.tolist()] == ids
    images = torch.cat([batch.images for batch in batches])
    assert images.dtype == DTYPES[reference.dtype]
    hold(reference.steps(images, expected), name, reference.dtype)


SMALL = {
    "as stored": Reference.of(
        dp.RandomCropTransform, size=(20, 14), vertical_flip=0.5, dtype="fp16", **NORMALIZED
    ),
    "resized": Reference.of(dp.TrainTransform, size=48, vertical_flip=0.5, **NORMALIZED),
}


@pytest.mark.compares_pixels
@with_pixels
@pytest.mark.parametrize("transform", SMALL)
def test_no_loader_takes_another_place_color_or_side(thumbnails, name, transform):
    """Cheap enough for the fast tier to run each loader with each: in thumbnails of noise a pixel's
    shift, a flip, other channels or another normalization are off by more than 20 on average.
    """
    reference = SMALL[transform]
    with loader(thumbnails, name, reference.transform) as each:
        batch, planned = next(iter(each)), each.plan.batch(0, 0)
    for flips in (planned.geometry.flip, planned.geometry.vertical_flip):
        assert set(flips.tolist()) == {False, True}
    (expected,) = reference(planned, read_batch(thumbnails, planned))
    # resizes differ most at the edges of so small an image, and in noise so does chroma that is
    # upsampled by repetition
    limit = 16 if bound_of(name) is PLAIN_UPSAMPLING else 8
    assert reference.steps(batch.images, expected).mean() < limit


@cache
def by_torchvision(manifest, evaluation):
    reference, steps = EVALUATIONS[evaluation]
    form = [v2.PILToTensor()]
    if reference.dtype != "uint8":
        form += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(**NORMALIZED)]
    plain = v2.Compose([*steps(), *form])
    return torch.stack([plain(read(manifest.path(at))) for at in range(len(manifest))])


@pytest.mark.few
@pytest.mark.compares_pixels
@with_pixels
@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_evaluation_agrees_with_plain_torchvision(real_manifest, name, evaluation):
    """Which knows nothing of a plan."""
    reference, _ = EVALUATIONS[evaluation]
    with loader(real_manifest, name, reference.transform) as each:
        images = torch.cat([batch.images.cpu() for batch in each])
    difference = reference.steps(images, by_torchvision(real_manifest, evaluation))
    hold(difference, name, reference.dtype)


@pytest.mark.few
@pytest.mark.compares_pixels
@with_pixels
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_half_precision_is_fp32_rounded_once(thumbnails, name, dtype):
    form = {"size": 64, "memory_format": "channels_last"}
    exact, rounded = dp.TrainTransform(**form), dp.TrainTransform(**form, dtype=dtype)
    with loader(thumbnails, name, exact) as one, loader(thumbnails, name, rounded) as two:
        for a, b in zip(one, two, strict=True):
            assert torch.equal(a.images.to(DTYPES[dtype]), b.images)
            assert a.images.stride() == b.images.stride()


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
    pytest.param(
        dp.DaliConfig(device="gpu", num_threads=1, prefetch_queue_depth=1),
        dp.DaliConfig(device="gpu", num_threads=3, prefetch_queue_depth=4),
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
@pytest.mark.parametrize(
    "transform",
    [
        dp.TrainTransform(size=32),
        dp.EvalTransform(size=32, resize=40),
        dp.RandomCropTransform(size=40, padding=12, pad_if_needed=True),
    ],
    ids=["train", "eval", "padded"],
)
def test_shards_give_what_the_folder_gives_bit_for_bit(thumbnails, tmp_path, name, transform):
    shards = dp.Manifest.open(
        tar_shards(thumbnails, tmp_path / "shards"), cache_dir=tmp_path / "cache", progress=False
    )
    with loader(thumbnails, name, transform) as one, loader(shards, name, transform) as two:
        for a, b in zip([*one, *one], [*two, *two], strict=True):
            assert (
                torch.equal(a.ids, b.ids)
                and torch.equal(a.labels, b.labels)
                and torch.equal(a.images, b.images)
            )
