import itertools
import json
import pickle
import threading
from copy import deepcopy

import numpy as np
import pytest
import torch
from gpu_backends import makes_pixels, needs_cuda_configs

import dali_pipes as dp
from dali_pipes.data.table import samples
from dali_pipes.measure.arms import SyntheticConfig

TRANSFORM = dp.TrainTransform(size=32)
CONFIGS = [
    dp.DaliConfig(device="cpu"),
    dp.TorchConfig(num_workers=1),
    SyntheticConfig(),
]
ON_GPU = needs_cuda_configs("dali_gpu", "torch_to_gpu")
every_config = pytest.mark.parametrize(
    "config", [*CONFIGS, *ON_GPU], ids=lambda config: type(config).__name__
)
same_images_again = pytest.mark.parametrize(
    "config",
    [
        *CONFIGS,
        *ON_GPU,
        *needs_cuda_configs("dali_gpu_regions", "dali_cpu_to_gpu"),
    ],
    ids=lambda config: type(config).__name__,
)


def build(manifest, config, batch_size=8, transform=TRANSFORM, **options):
    return dp.build_loader(manifest, config, transform=transform, batch_size=batch_size, **options)


def ids(batches):
    return [batch.ids.tolist() for batch in batches]


@every_config
def test_each_iter_is_the_next_epoch(manifest, config):
    with build(manifest, config) as loader:
        for epoch in range(3):
            assert loader.epoch == epoch
            assert ids(loader) == [loader.plan.batch(epoch, step).ids.tolist() for step in range(4)]


@every_config
def test_leaving_early_abandons_the_epoch(manifest, config):
    with build(manifest, config) as loader:
        assert ids(itertools.islice(loader, 2)) == [
            loader.plan.batch(0, step).ids.tolist() for step in (0, 1)
        ]
        assert ids(loader)[0] == loader.plan.batch(1, 0).ids.tolist()
        assert ids(loader)[3] == loader.plan.batch(2, 3).ids.tolist()


@every_config
def test_the_random_numbers_of_the_model_are_left_alone(manifest, config):
    before = torch.get_rng_state()
    with build(manifest, config) as loader:
        for _ in range(2):
            next(iter(loader))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_abandoned_iterator_says_so(manifest):
    with build(manifest, SyntheticConfig()) as loader:
        old = iter(loader)
        next(old)
        next(iter(loader))
        with pytest.raises(RuntimeError, match="abandoned"):
            next(old)


@pytest.mark.few
@same_images_again
def test_a_resumed_stream_is_the_uninterrupted_one(manifest, config):
    whole = []
    with build(manifest, config) as loader:
        states = [loader.state_dict()]
        for batch in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), 12):
            whole.append(batch)
            states.append(loader.state_dict())
    for delivered in (0, 1, 3, 4, 5):
        with build(manifest, config) as loader:
            loader.load_state_dict(states[delivered])
            rest = list(
                itertools.islice(
                    itertools.chain.from_iterable(itertools.repeat(loader)), 12 - delivered
                )
            )
        for one, two in zip(whole[delivered:], rest, strict=True):
            assert torch.equal(one.ids, two.ids)
            if makes_pixels(config):
                assert torch.equal(one.images, two.images)


def test_a_state_of_another_run_is_refused_by_name(manifest):
    with build(manifest, SyntheticConfig()) as loader:
        state = loader.state_dict()
    changes = {
        "seed": {"seed": 1},
        "global_batch_size": {"batch_size": 4},
        "transform": {"transform": dp.TrainTransform(size=16)},
        "last_batch": {"last_batch": "pad"},
    }
    for name, options in changes.items():
        with (
            build(manifest, SyntheticConfig(), **options) as loader,
            pytest.raises(dp.ConfigError, match=f"have changed: {name}"),
        ):
            loader.load_state_dict(state)


def test_defaults_follow_the_transform(manifest):
    with (
        build(manifest, SyntheticConfig()) as train,
        build(manifest, SyntheticConfig(), transform=dp.EvalTransform(size=32)) as evaluation,
    ):
        assert (train.plan.sampling, train.plan.last_batch, len(train)) == (dp.Uniform(), "drop", 4)
        assert (evaluation.plan.sampling, evaluation.plan.last_batch, len(evaluation)) == (
            dp.Sequential(),
            "partial",
            5,
        )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (dp.DaliConfig(device="gpu"), {}, r"DaliConfig\(device='gpu'\), but PyTorch sees no GPU"),
        (dp.TorchConfig(), {"device": "cuda"}, "device=cuda, but PyTorch sees no GPU"),
        (dp.TorchConfig(), {"device": "gpu"}, "device is 'gpu'; choose auto, cpu, cuda"),
        (dp.DaliConfig(device="gpu"), {"device": "cpu"}, "leave device at auto"),
    ],
)
def test_a_gpu_that_is_not_there(manifest, config, options, message):
    with pytest.raises(dp.ConfigError, match=message):
        build(manifest, config, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_bad_sample": "skip"}, "on_bad_sample is 'skip'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"last_batch": "keep"}, "last_batch is 'keep'"),
    ],
)
def test_options_that_cannot_work(manifest, options, message):
    with pytest.raises(dp.ConfigError, match=message):
        build(manifest, SyntheticConfig(), **options)


def test_not_a_config(manifest):
    with pytest.raises(dp.ConfigError, match=r"config is 'dali'; it takes a config, such as Dali"):
        build(manifest, "dali")


@every_config
def test_nothing_is_left_after_the_block(manifest, config):
    import psutil

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with build(manifest, config) as loader:
        next(iter(loader))
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


@pytest.mark.few
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (dp.TorchConfig(num_workers=1), dp.DaliConfig(device="cpu")),
        (dp.DaliConfig(device="cpu"), dp.TorchConfig(num_workers=1)),
        pytest.param(
            dp.DaliConfig(device="cpu"), dp.DaliConfig(device="gpu"), marks=pytest.mark.needs_cuda
        ),
        pytest.param(
            dp.DaliConfig(device="gpu"), dp.DaliConfig(device="cpu"), marks=pytest.mark.needs_cuda
        ),
        pytest.param(
            dp.DaliConfig(device="gpu"), dp.TorchConfig(num_workers=1), marks=pytest.mark.needs_cuda
        ),
        pytest.param(
            dp.TorchConfig(num_workers=1), dp.DaliConfig(device="gpu"), marks=pytest.mark.needs_cuda
        ),
    ],
)
def test_resume_on_another_backend(manifest, before, after):
    """Same ids in the same order; pixels within the contract's tolerance, here in units of the
    normalized image.
    """
    transform = dp.TrainTransform()
    with build(manifest, before, transform=transform) as loader:
        whole = [batch for _ in range(2) for batch in loader]
    with build(manifest, before, transform=transform) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with build(manifest, after, transform=transform) as loader:
        loader.load_state_dict(state)
        rest = [*loader, *loader]
    assert ids(rest) == ids(whole)[1:]
    if makes_pixels(before, after):
        for one, two in zip(whole[1:], rest, strict=True):
            assert (one.images - two.images).abs().mean() < 0.5 / 255 / 0.225


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 6), (6, 1)])
def test_resume_with_another_number_of_shards(manifest, before, after):
    def ranks(count):
        options = [
            {"rank": dp.Rank(index, count), "batch_size": 12 // count} for index in range(count)
        ]
        return [build(manifest, SyntheticConfig(), **each) for each in options]

    def global_batches(loaders, count):
        streams = [itertools.chain.from_iterable(itertools.repeat(loader)) for loader in loaders]
        return [
            [sample for stream in streams for sample in next(stream).ids.tolist()]
            for _ in range(count)
        ]

    whole = global_batches(ranks(1), 9)
    first = ranks(before)
    start = global_batches(first, 4)
    states = [loader.state_dict() for loader in first]
    assert all(state == states[0] for state in states)
    second = ranks(after)
    for loader in second:
        loader.load_state_dict(states[0])
    assert start + global_batches(second, 5) == whole


def test_a_state_passes_through_json_and_torch_save(manifest, tmp_path):
    with build(manifest, SyntheticConfig()) as loader:
        next(iter(loader))
        state = loader.state_dict()
    torch.save(state, tmp_path / "s.pt")
    for copy in (json.loads(json.dumps(state)), torch.load(tmp_path / "s.pt", weights_only=True)):
        with build(manifest, SyntheticConfig()) as loader:
            loader.load_state_dict(copy)
            assert ids(loader)[0] == loader.plan.batch(0, 1).ids.tolist()


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.needs_cuda)])
def test_prefetched_batches_do_not_count(manifest, device):
    with build(manifest, dp.DaliConfig(device=device, prefetch_queue_depth=4)) as loader:
        next(iter(loader))
        assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (0, 8)


def test_images_smaller_than_a_random_crop_are_named_before_the_first_batch(
    thumbnails, monkeypatch
):
    """On the manifest's sizes, some at a time."""
    monkeypatch.setattr(samples, "_BLOCK", 10)
    too_small = (thumbnails.sizes < [40, 36]).any(axis=1)
    images, count = thumbnails.subset(np.argsort(too_small, kind="stable")), int(too_small.sum())
    assert 1 < count < 27  # the first of them is not among the first ten that are looked at
    crop = dp.RandomCropTransform(size=(44, 36), padding=(0, 0, 0, 4), sizes={3: (20, 30)})
    with pytest.raises(dp.ConfigError) as error:
        build(images, SyntheticConfig(), transform=crop)
    first = (
        f"height of 40 and a width of 36 pixels; the first is {images.name(37 - count)}. Set "
        "pad_if_needed"
    )
    text = f"RandomCropTransform.size: {count} of 37 images are smaller"
    assert str(error.value).startswith(text) and first in str(error.value)
    fits = [
        {"size": 32},
        {"size": 40, "padding": 4},
        {"resize": 64},
        {"resize": (64, 64)},
        {"pad_if_needed": True},
    ]
    for options in fits:
        build(
            thumbnails,
            SyntheticConfig(),
            transform=dp.RandomCropTransform(**{"size": 64} | options),
        ).close()
    good = thumbnails.filter("height >= 40 and width >= 36")
    build(good, SyntheticConfig(), batch_size=2, transform=crop).close()
    turned = dp.RandomCropTransform(size=(64, 65), exif="apply")
    with pytest.raises(dp.ConfigError, match="37 of 37 images"):
        build(thumbnails, SyntheticConfig(), transform=turned)


def test_progressive_sizes_of_a_random_crop_are_all_checked(thumbnails):
    with pytest.raises(dp.ConfigError, match="height of 32 and a width of 65 pixels"):
        build(
            thumbnails,
            SyntheticConfig(),
            transform=dp.RandomCropTransform(size=16, sizes={0: (32, 8), 5: (8, 65)}),
        )


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"epoch": 0},
        {"epoch": 0, "samples": 3},
        {"epoch": -1, "samples": 0},
        {"epoch": 0, "samples": 800},
    ],
)
def test_a_damaged_state_is_refused(manifest, state):
    with build(manifest, SyntheticConfig()) as loader:
        state = {**state, **({"fingerprint": loader.state_dict()["fingerprint"]} if state else {})}
        with pytest.raises(dp.ConfigError, match="state"):
            loader.load_state_dict(state)


@pytest.mark.few
@every_config
@pytest.mark.parametrize(
    ("batch_size", "last_batch"),
    [(1, "drop"), (5, "partial"), (37, "drop"), (40, "pad"), (40, "partial")],
)
@pytest.mark.parametrize("count", [1, 2])
def test_each_sample_once_over_all_shards(manifest, config, batch_size, last_batch, count):
    loaders = [
        build(
            manifest,
            config,
            batch_size // count or 1,
            last_batch=last_batch,
            rank=dp.Rank(index, count),
        )
        for index in range(count)
    ]
    epochs = [[ids(loader) for loader in loaders] for _ in range(2)]
    for loader in loaders:
        loader.close()
    for epoch in epochs:
        assert [len(batches) for batches in epoch] == [len(loader) for loader in loaders]
        samples = [sample for batches in epoch for batch in batches for sample in batch]
        assert all(batch for batches in epoch for batch in batches)
        if last_batch == "pad":
            assert set(samples) == set(range(37))
        else:
            assert len(samples) == len(set(samples)) == loaders[0].plan.epoch_samples
    assert epochs[0] != epochs[1]


def test_a_shard_without_a_part_of_the_last_batch_goes_on_with_the_others(manifest):
    """37 = 3 × 12 + 1: the last sample is one rank's alone. Resumed before it, the other rank has
    an epoch without batches.
    """
    options = {"batch_size": 6, "last_batch": "partial"}
    ranks = [
        build(manifest, SyntheticConfig(), rank=dp.Rank(index, 2), **options) for index in range(2)
    ]
    assert [len(loader) for loader in ranks] == [3, 4]
    state = {**ranks[0].state_dict(), "samples": 36}
    for loader in ranks:
        loader.load_state_dict(state)
    batches = [iter(loader) for loader in ranks]
    assert next(batches[1]).ids.tolist() == ranks[1].plan.batch(0, 3).ids.tolist()
    assert [len(list(each)) for each in batches] == [0, 0]
    assert [loader.epoch for loader in ranks] == [1, 1]
    tiny = manifest.subset(torch.arange(1).numpy())
    with build(tiny, SyntheticConfig(), rank=dp.Rank(0, 2), **options) as loader:
        assert [len(list(loader)) for _ in range(3)] == [0, 0, 0] and loader.epoch == 3


def test_the_state_is_the_same_on_all_shards_after_each_step(manifest):
    """Also where the last global batch, of one sample, leaves a rank without a part of it."""
    ranks = [
        build(manifest, SyntheticConfig(), 6, rank=dp.Rank(index, 2), last_batch="partial")
        for index in range(2)
    ]
    for epoch in range(2):
        streams = [iter(loader) for loader in ranks]
        for _ in range(3):
            assert all(next(stream) for stream in streams)
            assert ranks[0].state_dict() == ranks[1].state_dict()
        assert (ranks[0].state_dict()["epoch"], ranks[0].state_dict()["samples"]) == (epoch, 36)
        assert [len(list(stream)) for stream in streams] == [0, 1]
        assert ranks[0].state_dict() == ranks[1].state_dict()


def test_a_finished_shard_goes_on_although_its_last_iterator_was_not_used_up(manifest):
    with build(manifest, SyntheticConfig(), 6, rank=dp.Rank(0, 2), last_batch="partial") as loader:
        for epoch in range(3):
            assert ids(itertools.islice(loader, 3)) == [
                loader.plan.batch(epoch, step).ids.tolist() for step in range(3)
            ]


@every_config
def test_a_closed_loader_says_so(manifest, config):
    with build(manifest, config) as loader:
        next(iter(loader))
    with pytest.raises(RuntimeError, match="closed"):
        iter(loader)


@every_config
def test_a_table_with_absolute_paths(manifest, config, tmp_path):
    lines = [
        f"{manifest.path(number)},{manifest.classes[manifest.labels[number]]}"
        for number in range(20)
    ]
    (tmp_path / "t.csv").write_text("path,label\n" + "\n".join(lines) + "\n")
    listed = dp.Manifest.open(tmp_path / "t.csv", progress=False)
    with build(listed, config, transform=dp.EvalTransform(size=32)) as loader:
        assert ids(loader) == [list(range(8)), list(range(8, 16)), list(range(16, 20))]


def test_a_loader_that_was_interrupted_goes_on(manifest, monkeypatch):
    """Ctrl-C ends the generator that it strikes."""
    with dp.build_loader(
        manifest,
        dp.TorchConfig(num_workers=0),
        transform=dp.TrainTransform(size=16),
        batch_size=8,
        device="cpu",
    ) as loader:
        stream = loader._work.backend_at(0).stream

        def interrupted(planned):
            next(stream(planned))
            raise KeyboardInterrupt
            yield

        monkeypatch.setattr(loader._work.backend_at(0), "stream", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(loader)
        monkeypatch.undo()
        assert [len(list(loader)) for _ in range(2)] == [len(loader)] * 2


def test_a_manifest_that_a_loader_has_used_goes_to_other_processes(manifest):
    with build(manifest, dp.TorchConfig(num_workers=0)) as loader:
        next(iter(loader))
    assert (
        pickle.loads(pickle.dumps(manifest)).fingerprint
        == deepcopy(manifest).fingerprint
        == manifest.fingerprint
    )


def test_a_state_at_the_start_of_an_epoch_goes_on_with_another_batch_size(manifest):
    options = {"transform": dp.TrainTransform(size=16), "device": "cpu"}
    config = dp.TorchConfig(num_workers=0)
    with dp.build_loader(manifest, config, batch_size=8, **options) as loader:
        list(loader)
        between = loader.state_dict()
        next(iter(loader))
        inside = loader.state_dict()
    with dp.build_loader(manifest, config, batch_size=4, **options) as loader:
        with pytest.raises(
            dp.ConfigError,
            match=r"global_batch_size \(8 → 4\); restore them, or go on with .* by set_epoch\(1\)",
        ):
            loader.load_state_dict(between)
        with pytest.raises(dp.ConfigError, match=r"restore them, or start a new run"):
            loader.load_state_dict(inside)
        loader.set_epoch(1)
        assert (
            loader.epoch == 1
            and next(iter(loader)).ids.tolist() == loader.plan.batch(1, 0).ids.tolist()
        )


def test_it_answers_what_a_dataloader_is_asked(manifest):
    with dp.build_loader(
        manifest, dp.TorchConfig(num_workers=0), transform=dp.TrainTransform(size=16), batch_size=8
    ) as loader:
        assert len(loader.dataset) == len(manifest) and loader.batch_size == 8


@pytest.mark.parametrize(
    "ask", [dp.Loader.state_dict, dp.Loader.explain, repr], ids=["state_dict", "explain", "repr"]
)
def test_what_is_asked_beside_next_leaves_its_backend_alone(manifest, monkeypatch, ask):
    """While another thread makes the backend in next(), and after close()."""
    with build(manifest, dp.TorchConfig(num_workers=0)) as loader:
        loader._work.end_backend()
        build_one, built, is_building, goes_on = (
            loader._work._build_backend,
            [],
            threading.Event(),
            threading.Event(),
        )

        def build_slowly(*args):
            built.append(threading.current_thread())
            is_building.set()
            goes_on.wait(20)
            return build_one(*args)

        monkeypatch.setattr(loader._work, "_build_backend", build_slowly)
        found = []
        asking = threading.Thread(target=lambda: found.append(next(iter(loader)).ids.tolist()))
        asking.start()
        assert is_building.wait(20)
        threading.Timer(0.2, goes_on.set).start()
        ask(loader)
        asking.join()
        assert built == [asking] and found == [loader.plan.batch(0, 0).ids.tolist()]
        loader.close()
        ask(loader)
        assert built == [asking]
