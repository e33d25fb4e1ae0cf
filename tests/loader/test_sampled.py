"""Samplings in a loader: resume, what a changed one says, bad images, mixing."""

import itertools
import json

import numpy as np
import pytest
import torch
from faults import FAULTS
from make_shards import tar_shards

import dali_pipes as dp

CONFIG = dp.TorchConfig(num_workers=0)
SAMPLINGS = {
    "uniform": {"name": "uniform", "epoch_size": 50},
    "sequential": {"name": "sequential", "epoch_size": 50},
    "weighted": dp.Weighted(weights=np.arange(37) % 4),
    "balanced": "balanced",
    "per_class": {"name": "per_class", "classes": 2, "samples": 6},
    "repeated": {"name": "repeated", "times": 3, "spread": True},
    "mixture": "mixture",
    "schedule": {"name": "schedule", "schedule": {0: "uniform", 1: "balanced"}},
}
every_sampling = pytest.mark.parametrize("name", SAMPLINGS)


def build(scanned, name, batch_size=12, rank=None, **options):
    if name == "mixture":
        scanned = dp.Manifest.mix(
            {
                "some": (scanned.subset(range(20)), 0.7),
                "others": (scanned.subset(range(20, 37)), 0.3),
            }
        )
    options = {
        "transform": dp.TrainTransform(size=16),
        "sampling": SAMPLINGS.get(name),
        "last_batch": "pad",
        **options,
    }
    return dp.build_loader(
        scanned, CONFIG, batch_size=batch_size, rank=rank, device="cpu", **options
    )


def of_all(loaders, steps):
    """What all ranks together deliver, step by step, whatever the epoch."""
    delivered = []
    streams = [itertools.chain.from_iterable(itertools.repeat(loader)) for loader in loaders]
    for _ in range(steps):
        batches = [next(stream) for stream in streams]
        delivered.append(
            (
                torch.cat([each.ids for each in batches]),
                torch.cat([each.images for each in batches]),
            )
        )
    return delivered


@every_sampling
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_resumed_epoch_is_the_uninterrupted_one_on_any_number_of_ranks(scanned, name, ranks):
    with build(scanned, name) as whole, build(scanned, name) as first:
        expected = of_all([whole], 8)[5:]
        of_all([first], 5)
        state = json.loads(json.dumps(first.state_dict()))
    ranks = [build(scanned, name, 12 // ranks, dp.Rank(index, ranks)) for index in range(ranks)]
    for rank in ranks:
        rank.load_state_dict(state)
    for (ids, images), (now, pixels) in zip(expected, of_all(ranks, 3), strict=True):
        assert torch.equal(ids, now) and torch.equal(images, pixels)
    for rank in ranks:
        rank.close()


def test_windows_go_on_with_other_ranks_that_fit_their_lanes(scanned, tmp_path):
    """From two ranks to one and to four; three are refused."""
    packed = dp.Manifest.scan(tar_shards(scanned, tmp_path / "shards", 4), progress=False)
    window = 2.1e-9 * packed.shards.bytes.max()
    options = {
        "sampling": {"name": "windows", "lanes": 2, "window_gb": float(window)},
        "last_batch": "drop",
    }

    def ranks(count):
        return [
            build(packed, "", 12 // count, dp.Rank(index, count), **options)
            for index in range(count)
        ]

    def ids(loaders, steps):
        return [each.tolist() for each, _ in of_all(loaders, steps)]

    expected, before = ids(ranks(2), 8), ranks(2)
    assert ids(before, 5) == expected[:5] and len(set(itertools.chain(*expected[:3]))) == 36
    state = json.loads(json.dumps(before[0].state_dict()))
    for count in (1, 4):
        after = ranks(count)
        for each in after:
            each.load_state_dict(state)
        assert ids(after, 3) == expected[5:]
    with pytest.raises(
        dp.ConfigError, match=r"lanes=2 cannot be shared by 3 ranks; 1, 2 ranks would do"
    ):
        ranks(3)
    with (
        build(packed, "", **options | {"sampling": options["sampling"] | {"lanes": 4}}) as other,
        pytest.raises(dp.ConfigError, match=r"sampling\.lanes \(2 → 4\)"),
    ):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            dp.Weighted(weights=[1.0] * 37),
            dp.Weighted(weights=[2.0] + [1.0] * 36),
            r"sampling\.weights \(",
        ),
        (None, "balanced", r"sampling\.kind \(Uniform → Balanced\)"),
        (
            {"name": "uniform", "epoch_size": 24},
            {"name": "uniform", "epoch_size": 36},
            r"sampling\.epoch_size \(24 → 36\)",
        ),
        ("balanced", SAMPLINGS["schedule"], r"sampling\.kind \(Balanced → Schedule\)"),
        (
            SAMPLINGS["schedule"],
            {"name": "schedule", "schedule": {0: "uniform", 3: "balanced"}},
            r"sampling\.1 .*sampling\.3",
        ),
    ],
)
def test_a_changed_sampling_is_refused_by_name(scanned, before, after, message):
    with build(scanned, "", sampling=before) as old, build(scanned, "", sampling=after) as new:
        state = json.loads(json.dumps(old.state_dict()))
        with pytest.raises(
            dp.ConfigError, match=f"cannot resume, since these have changed: .*{message}"
        ):
            new.load_state_dict(state)


def test_a_changed_share_is_refused_with_the_sources_name(scanned):
    parts = scanned.subset(range(20)), scanned.subset(range(20, 37))
    old, new = (
        build(
            dp.Manifest.mix({"mine": (parts[0], share), "theirs": (parts[1], 3)}), "", sampling=None
        )
        for share in (1, 2)
    )
    with old, new, pytest.raises(dp.ConfigError, match=r"sampling\.shares\.mine \(0\.25 → 0\.4\)"):
        new.load_state_dict(old.state_dict())


@pytest.mark.parametrize("name", ["per_class", "mixture", "balanced"])
def test_bad_images_are_replaced_by_others_of_their_group_with_other_crops(scanned, name):
    for victim in (1, 12, 25):
        FAULTS["zero bytes"](scanned.path(victim))
    with build(scanned, name, on_bad_sample="substitute", max_bad_fraction=1) as loader:
        manifest = loader.plan.manifest
        group = manifest.columns["source"] if manifest.facts.mixture else manifest.labels
        for epoch in range(3):
            for step, batch in enumerate(loader):
                ids, planned = batch.ids.numpy(), loader.plan.batch(epoch, step).ids
                assert (
                    np.array_equal(group[ids], group[planned])
                    and not np.isin(ids, (1, 12, 25)).any()
                )
                assert np.array_equal(ids == planned, ~np.isin(planned, (1, 12, 25)))
        assert sorted(each[0] for each in loader.bad_samples) == [1, 12, 25]


def test_repeats_are_mixed_as_all_images_are(scanned):
    """With the image before them, as in torchvision, also if that is the same one."""
    # one class an image, and every other sample is image 0
    own_class = dp.Manifest.from_rows(
        scanned.root,
        [str(each) for each in range(37)],
        scanned.table.set_column(1, "label", [list(range(37))]),
    )
    options = {"sampling": dp.Weighted(weights=[36.0] + [1.0] * 36)}
    with (
        build(own_class, "", batch_transform=dp.MixUp(num_classes=37), **options) as loader,
        build(own_class, "", **options) as plain,
    ):
        mixed, before = next(iter(loader)), next(iter(plain))

    same = before.ids == before.ids.roll(1, 0)
    assert same.any()
    own = mixed.labels[torch.arange(12), before.labels][~same][0]
    for made, images in (
        (mixed.labels, torch.nn.functional.one_hot(before.labels, 37)),
        (mixed.images, before.images),
    ):
        expected = own * images + (1 - own) * images.roll(1, 0)
        assert torch.allclose(made, expected, atol=1e-5)
