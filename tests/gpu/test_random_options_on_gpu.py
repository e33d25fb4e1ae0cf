"""Any options that the schema allows build a pipeline on a GPU and deliver the plan's batches; they
are drawn at random.

What it proves is the host's half: the graph, the types of its operators, ids, resuming and bad
files. Pixels are compared in tests/backends/test_contract.py and test_parity_on_gpu.py.
"""

import os
import shutil
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dali_pipes as dp

pytestmark = pytest.mark.needs_cuda
EXAMPLES = int(os.environ.get("EXAMPLES", 15))
BATCH = 8
DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "uint8": torch.uint8,
}
FIXED = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}

sizes = st.sampled_from([32, (40, 24), (17, 31)])
interpolations = st.sampled_from(["bilinear", "bicubic", "nearest-exact"])
policies = st.sampled_from(
    [
        [],
        ["TrivialAugmentWide"],
        [{"name": "TrivialAugmentWide", "interpolation": "bilinear"}],
        [{"name": "RandAugment", "num_ops": 3}],
        ["AutoAugment"],
        [
            {
                "name": "ColorJitter",
                "brightness": 0.4,
                "contrast": 0.4,
                "saturation": 0.4,
                "hue": 0.1,
                "p": 0.8,
            },
            "RandomGrayscale",
        ],
        [{"name": "GaussianBlur", "kernel_size": 5}, {"name": "RandomSolarize", "p": 0.5}],
        ["RandomRotation"],
        ["RandomErasing"],
        [{"name": "RandomRotation", "interpolation": "bilinear"}, "RandomErasing"],
    ]
)


@st.composite
def transforms(draw):
    """Of every kind, dtype and layout."""
    kind = draw(st.sampled_from(["train", "crop", "centre", "eval"]))
    common = {
        "size": draw(sizes),
        "interpolation": draw(interpolations),
        "dtype": draw(st.sampled_from(list(DTYPES))),
        "memory_format": draw(st.sampled_from(["contiguous", "channels_last"])),
        "exif": draw(st.sampled_from(["ignore", "apply"])),
    }
    resize = draw(st.sampled_from([None, 48, (48, 56)]))
    if kind == "eval":
        return dp.EvalTransform(resize=resize, **common)
    common |= {
        "flip": draw(st.sampled_from([0, 0.5, 1])),
        "vertical_flip": draw(st.sampled_from([0, 0.5])),
    }
    common["augment"] = draw(policies)
    if kind == "train":
        return dp.TrainTransform(scale=draw(st.sampled_from([(0.08, 1.0), (1.0, 1.0)])), **common)
    if kind == "centre":
        return dp.CenterCropTransform(resize=resize, **common)
    return dp.RandomCropTransform(
        resize=resize,
        padding=draw(st.sampled_from([0, 4, (1, 2, 3, 4)])),
        pad_if_needed=True,
        **common,
    )


# refused by name with fancy upsampling and nvJPEG < 13.2, the latter where it is to be exact
FORCED = ("region", "force_region")
configs = st.builds(
    dp.DaliConfig,
    device=st.just("gpu"),
    num_threads=st.sampled_from([1, 2, 3, 8]),
    prefetch_queue_depth=st.integers(1, 3),
    hw_decoder_load=st.sampled_from([None, None, 0.0, 0.3, 1.0]),
    engine_decoders=st.none() | st.integers(1, 3),
    cpu_share=st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    exact=st.booleans(),
    decode=st.sampled_from(["auto", "region", "whole", "force_region"]),
    jpeg_fancy_upsampling=st.booleans(),
    hybrid_huffman_threshold=st.sampled_from([0, 1000, 1_000_000]),
    preallocate_width_hint=st.sampled_from([None, 64]),
    preallocate_height_hint=st.sampled_from([None, 4000]),
    device_memory_padding=st.sampled_from([0, 2**20]),
    resize=st.sampled_from(["torch", "dali"]),
    read_threads=st.integers(1, 2),
).filter(
    lambda config: (
        not (
            config.jpeg_fancy_upsampling
            and config.decode in FORCED
            and (config.exact or config.decode == "region")
        )
    )
)


@pytest.fixture
def built(thumbnails):
    """A loader of these options; what the options make it warn of is not what is tested here."""

    def build(config, transform, manifest=thumbnails, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dp.build_loader(
                manifest, config, transform=transform, batch_size=BATCH, seed=3, **options
            )

    return build


def ids_of(batches):
    return [batch.ids.tolist() for batch in batches]


def planned_ids(loader, epoch):
    return [loader.plan.batch(epoch, step).ids.tolist() for step in range(len(loader))]


@settings(max_examples=EXAMPLES, **FIXED)
@given(config=configs, transform=transforms(), stop=st.integers(1, 3))
def test_two_epochs_and_a_resume_have_the_plans_samples(built, config, transform, stop):
    height, width = (transform.size,) * 2 if isinstance(transform.size, int) else transform.size
    with built(config, transform) as loader:
        batches = list(loader)
        assert ids_of(batches) == planned_ids(loader, 0)
        for batch in batches:
            assert (
                batch.images.shape == (len(batch), 3, height, width)
                and batch.images.dtype == DTYPES[transform.dtype]
            )
            assert batch.images.device.type == "cuda" and batch.labels.device.type == "cuda"
        epoch = iter(loader)
        begun = ids_of(next(epoch) for _ in range(stop))
        state, expected = loader.state_dict(), planned_ids(loader, 1)
    with built(config, transform) as resumed:
        resumed.load_state_dict(state)
        assert begun + ids_of(resumed) == expected


@settings(max_examples=EXAMPLES, **FIXED)
@given(config=configs, transform=transforms(), bad=st.integers(0, 36))
def test_a_file_that_is_no_image_any_more_is_named(built, thumbnails, config, transform, bad):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(Path(thumbnails.root), folder, dirs_exist_ok=True)
        manifest = dp.Manifest.scan(folder, progress=False)
        manifest.path(bad).write_bytes(b"no image any more")
        options = {"on_bad_sample": "substitute", "max_bad_fraction": 0.2, "last_batch": "partial"}
        with built(config, transform, manifest, **options) as loader:
            delivered, planned = ids_of(loader), planned_ids(loader, 0)
            (found,) = loader.bad_samples
    assert found[:2] == (bad, str(manifest.path(bad))) and found[2]
    pairs = [
        pair
        for ids, names in zip(delivered, planned, strict=True)
        for pair in zip(ids, names, strict=True)
    ]
    assert all(one == two or (two == bad and one != bad) for one, two in pairs)
