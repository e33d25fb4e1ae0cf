"""Several views of each image: each as if it were the only one, on every backend, and each with the
pixels of plain torchvision.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from gpu_backends import needs_cuda
from reference import Reference, read_batch

import dali_pipes as dp
from dali_pipes.backends.backend import Job
from dali_pipes.backends.registry import load_backend
from dali_pipes.plan.plan import Plan
from dali_pipes.plan.transforms import views_of

CPU = torch.device("cpu")
BACKENDS = {
    "torch": dp.TorchConfig(num_workers=2),
    "torch_torchvision": dp.TorchConfig(
        num_workers=0, decoder="torchvision", normalize_on="device"
    ),
    "dali_cpu": dp.DaliConfig(device="cpu"),
    "dali_cpu_graph": dp.DaliConfig(device="cpu", resize="dali"),
    "dali_gpu": dp.DaliConfig(device="gpu"),
}
# no library's normalization, so that a default in its place is seen
NORMALIZED = {"mean": (0.4, 0.5, 0.3), "std": (0.2, 0.3, 0.25)}
FORMS = {
    "DINO": {
        "views": {
            "global": {"count": 2, "size": 48, "scale": [0.4, 1]},
            "local": {"count": 3, "size": 16, "scale": [0.05, 0.4]},
        },
        "interpolation": "bicubic",
        **NORMALIZED,
    },
    "MoCo v3": {
        "views": {
            "pair": [
                {"augment": [{"name": "GaussianBlur", "kernel_size": 5}]},
                {
                    "augment": [
                        {"name": "GaussianBlur", "kernel_size": 5, "p": 0.1},
                        "RandomSolarize",
                    ],
                    "vertical_flip": 0.5,
                },
            ]
        },
        "size": (24, 32),
        "memory_format": "channels_last",
        "dtype": "fp16",
    },
    "erased": {
        "views": {
            "one": {"augment": [{"name": "RandomErasing", "p": 1}]},
            "other": {"count": 2, "size": 20},
        },
        "dtype": "bf16",
        "exif": "apply",
    },
    "bytes": {
        "views": {"only": {"count": 2}},
        "size": 20,
        "dtype": "uint8",
        "augment": ["TrivialAugmentWide"],
    },
}
everywhere = pytest.mark.parametrize(
    "name", [*(each for each in BACKENDS if each != "dali_gpu"), *needs_cuda("dali_gpu")]
)
in_every_form = pytest.mark.parametrize("form", FORMS)


def reference_of(form):
    return Reference.of(dp.ViewsTransform, **{"size": 40} | FORMS[form])


def transform_of(form):
    return reference_of(form).transform


def made_by(manifest, name, transform, rows):
    config = BACKENDS[name]
    device = torch.device("cuda", 0) if name == "dali_gpu" else CPU
    job = Job(transform, manifest, len(rows), device)
    backend = load_backend(config)(job, config.on_cores())
    try:
        return [group.clone() for group in next(backend.stream(iter([rows]))).groups]
    finally:
        backend.close()


@pytest.mark.few
@pytest.mark.compares_pixels
@everywhere
@in_every_form
def test_each_view_is_what_it_would_be_alone(manifest, name, form):
    """Although an image is decoded once for all of them."""
    transform = transform_of(form)
    rows = Plan(manifest, transform, 8, seed=4).batch(1, 0)
    together = [
        view for group in made_by(manifest, name, transform, rows) for view in group.split(8)
    ]
    for view, planned, alone in zip(together, rows.views, views_of(transform), strict=True):
        (expected,) = made_by(manifest, name, alone, replace(rows, groups=((planned,),)))
        assert view.dtype == expected.dtype and view.stride() == expected.stride()
        assert torch.equal(view, expected)


@pytest.mark.few
@pytest.mark.compares_pixels
@everywhere
@in_every_form
def test_views_are_those_of_plain_torchvision(manifest, name, form):
    reference = reference_of(form)
    rows = Plan(manifest, reference.transform, 16, seed=4).batch(1, 0)
    expected = reference(rows, read_batch(manifest, rows, upright=form == "erased"))
    # bf16 and fp16 are rounded; in images this small DALI's outermost pixels are a large part, and
    # nvJPEG adds its own: docs/pixels.md
    bounds = {"torch": (0.1, 0.47), "dali_cpu_graph": (0.6, 10), "dali_gpu": (1.4, 12)}
    mean, p99 = bounds.get(name, (0.25, 2))
    made = made_by(manifest, name, reference.transform, rows)
    for images, those in zip(made, expected, strict=True):
        difference = reference.steps(images, those)
        assert difference.mean() <= mean and np.percentile(difference, 99) <= p99


@pytest.mark.compares_pixels
@everywhere
def test_views_have_names_and_places_in_the_batch(manifest, name):
    transform, options = transform_of("DINO"), {"batch_size": 8, "seed": 4}
    with dp.build_loader(manifest, BACKENDS[name], transform=transform, **options) as loader:
        batch, groups = (
            next(iter(loader)),
            made_by(manifest, name, transform, loader.plan.batch(0, 0)),
        )
    assert {key: tuple(views.shape) for key, views in batch.views.items()} == {
        "global": (8, 2, 3, 48, 48),
        "local": (8, 3, 3, 16, 16),
    }
    assert batch.images.shape == (8, 3, 48, 48) and torch.equal(
        batch.images, batch.views["global"][:, 0]
    )
    for views, group in zip(batch.views.values(), groups, strict=True):
        for number in range(views.shape[1]):
            assert torch.equal(views[:, number], group[8 * number : 8 * (number + 1)])
    in_memory = batch.views["local"].transpose(0, 1)
    assert in_memory.is_contiguous() and in_memory.flatten(0, 1).data_ptr() == in_memory.data_ptr()
    there = batch.to("cpu")
    assert there.views.keys() == batch.views.keys() and len(batch) == 8


def test_every_view_has_draws_of_its_own_and_the_first_those_of_a_single_one(manifest):
    transform = transform_of("bytes")
    rows = Plan(manifest, transform, 16, seed=4).batch(2, 1)
    single = Plan(manifest, views_of(transform)[0], 16, seed=4).batch(2, 1)
    first, second = rows.views
    assert np.array_equal(single.geometry.region, first.geometry.region)
    assert np.array_equal(single.augmentation.ops, first.augmentation.ops)
    assert (first.geometry.region != second.geometry.region).any(axis=1).all()
    region = rows.region
    for view in rows.views:
        inside = view.geometry.region[:, :2] - region[:, :2]
        assert (inside >= 0).all() and (inside + view.geometry.region[:, 2:] <= region[:, 2:]).all()


def test_a_list_of_views_is_what_a_mapping_is():
    """In YAML and on the command line."""
    blur = [{"name": "GaussianBlur", "kernel_size": 5}]
    listed = [
        {"name": "pair", "size": 24, "augment": blur},
        {"name": "local", "count": 2, "size": 16},
        {"name": "pair", "size": 24},
    ]
    mapped = {
        "pair": [{"size": 24, "augment": blur}, {"size": 24}],
        "local": {"count": 2, "size": 16},
    }
    assert dp.ViewsTransform(views=listed) == dp.ViewsTransform(views=mapped)


@pytest.mark.parametrize("ranks", [1, 3])
def test_resuming_on_other_ranks(scanned, ranks):
    options = {"transform": transform_of("bytes"), "last_batch": "pad"}

    def loaders(count):
        each = [dp.Rank(index, count) for index in range(count)]
        return [
            dp.build_loader(
                scanned, BACKENDS["dali_cpu"], batch_size=12 // count, rank=one, **options
            )
            for one in each
        ]

    (first,), ranks = loaders(1), loaders(ranks)
    with first:
        stream = iter(first)
        next(stream)
        state, expected = json.loads(json.dumps(first.state_dict())), next(stream).views["only"]
    for rank in ranks:
        rank.load_state_dict(state)
    assert torch.equal(torch.cat([next(iter(rank)).views["only"] for rank in ranks]), expected)
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("name", ["torch", "dali_cpu", "dali_cpu_graph"])
def test_all_views_of_a_bad_file_are_substituted_together(scanned, name):
    scanned.path(3).write_bytes(scanned.path(3).read_bytes()[:200])
    options = {
        "transform": transform_of("DINO"),
        "shuffle": False,
        "on_bad_sample": "substitute",
        "max_bad_fraction": 0.5,
    }
    with dp.build_loader(scanned, BACKENDS[name], batch_size=8, **options) as loader:
        batch = next(iter(loader))
        assert [sample_id for sample_id, _, _ in loader.bad_samples] == [3] and batch.ids[3] == 4
    for views in batch.views.values():
        assert torch.equal(views[3], views[4]) and not torch.equal(views[2], views[4])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "names no view; it takes names and options"),
        ({"views": [{"count": 2}]}, r"\{'count': 2\} has no name; it takes views such as"),
        ({"views": {"a": 3}}, "a is 3; it takes options such as count and size, or a list of them"),
        ({"views": {"a": []}}, r"a is \[\]"),
        ({"views": {"a": {"count": 0}}}, "count of a is 0"),
        (
            {"views": {"a": {"dtype": "fp16"}}},
            "a has dtype; a view takes size, .*; the rest stands beside views",
        ),
        (
            {"views": {"a": [{"size": 8}, {"size": 9}]}},
            "a has views of 8, 9 pixels; give those of each size a name of their own",
        ),
        ({"views": {"a": {"scale": [2, 1]}}}, "scale"),
        ({"views": {"a": {"augment": ["Twist"]}}}, "'Twist' is none of"),
        ({"views": {"a": {}}, "sizes": {0: 32}}, "views have sizes of their own"),
    ],
)
def test_views_that_make_no_sense(options, message):
    with pytest.raises(dp.ConfigError, match=message):
        dp.ViewsTransform(**options)
