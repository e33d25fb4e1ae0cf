"""from_torch: the same samples, order, pixels and distributions as the DataLoader it takes the
place of, or a refusal by name.
"""

import dataclasses
import random
from itertools import chain

import composes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from planned import labelled
from timm.data.distributed_sampler import RepeatAugSampler
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    Subset,
    WeightedRandomSampler,
)
from torch.utils.data import default_collate as collate
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

import dali_pipes as dp
from dali_pipes.adapters.from_torch.batches import batch_transform_of, read_order
from dali_pipes.adapters.from_torch.check import crops
from dali_pipes.adapters.from_torch.check.draws import distance
from dali_pipes.adapters.from_torch.conversion import Conversion
from dali_pipes.adapters.transforms.reading import NotConvertibleError
from dali_pipes.adapters.transforms.steps import read as read_steps
from dali_pipes.backends.pixels.tensors import to_steps
from dali_pipes.plan.augment.policies import ColorJitter, RandomGrayscale, RandomSolarize
from dali_pipes.plan.philox import Draws

EVAL = composes.torchvision_eval(40, 32)
CPU = {"device": "cpu"}


@pytest.fixture(scope="module")
def dataset(image_folder):
    return datasets.ImageFolder(image_folder, EVAL)


@pytest.fixture(scope="module")
def manifest(dataset):
    """In the order of the data set."""
    return Conversion.of(DataLoader(dataset)).manifest


def read(make):
    """The live transform, and what was read of it."""
    live = make()
    return live, read_steps(live)


def images_of(manifest, transform, config, ids):
    with dp.build_loader(
        manifest.subset(np.array(ids)),
        config,
        transform=transform,
        batch_size=len(ids),
        shuffle=False,
        last_batch="partial",
        device="cpu",
    ) as loader:
        return next(iter(loader)).images


@pytest.mark.few
@pytest.mark.parametrize("name", composes.EVALUATION)
def test_evaluation_has_the_pixels_of_the_old_transform(name, dataset, manifest):
    live, reading = read(composes.EVALUATION[name])
    transform, ids = reading.built(lambda: None), [0, 2, 3, 13]
    pictures = [dataset.loader(dataset.samples[index][0]) for index in ids]
    theirs = torch.stack([live(picture) for picture in pictures])
    pillow = images_of(manifest, transform, dp.TorchConfig(num_workers=0), ids)
    assert pillow.shape == theirs.shape and pillow.dtype == theirs.dtype
    steps = torch.stack(
        [v1.functional.pil_to_tensor(v1.Compose(reading.geometry)(picture)) for picture in pictures]
    )
    bytes_only = type(transform)(
        **{
            each: getattr(transform, each)
            for each in ("size", "resize", "interpolation", "pad_if_needed")
        },
        dtype="uint8",
    )
    assert torch.equal(
        images_of(manifest, bytes_only, dp.TorchConfig(num_workers=0), ids), steps
    ), "as Pillow resizes"
    if "tensors" not in name and name != "nn.Sequential":
        assert (pillow.float() - theirs.float()).abs().max() <= 1e-6
    dali = images_of(manifest, transform, dp.DaliConfig(device="cpu", num_threads=2), ids)
    differences = (to_steps(dali, transform) - to_steps(theirs, transform)).abs()
    assert (differences.mean() <= 0.25 and differences.quantile(0.99) <= 2) or "nearest" in name


def drawn(make, draws):
    """(N, 6) of the live steps and of the plan, for images of several sizes."""
    _, reading = read(make)
    sizes = np.array([(48, 64), (90, 60), (64, 200)] * draws)
    theirs = crops.of_steps(reading.geometry, sizes)
    transform = reading.built(lambda: (64, 64))
    geometry = transform.geometry(sizes, Draws(0, 0, np.arange(len(sizes))))
    return crops.of_geometry(geometry, transform.shape), theirs


def test_every_training_transform_is_read():
    found = {
        name: read(make)[1].built(lambda: (64, 64)) for name, make in composes.TRAINING.items()
    }
    assert all(transform.training for transform in found.values())
    policies = {
        name: [policy.name for policy in transform.augment] for name, transform in found.items()
    }
    assert policies["torchvision reference, ta_wide"] == ["TrivialAugmentWide", "RandomErasing"]
    assert policies["SimCLR"] == ["ColorJitter", "RandomGrayscale", "GaussianBlur"]
    assert found["SimCLR"].augment[0] == ColorJitter(
        brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, p=0.8
    )
    assert found["applied at random"].augment == [
        RandomSolarize(threshold=128, p=0.2),
        RandomGrayscale(p=0.3),
    ]
    # pixels are whole numbers, so those from 127.2 on are those from 128 on
    assert found["BYOL, second view"].augment == [RandomSolarize(threshold=128, p=0.2)]
    assert (
        found["timm, both flips"].vertical_flip == 0.5
        and found["DINO, local"].interpolation == "bicubic"
    )


# one of each kind of geometry
@pytest.mark.parametrize(
    "name",
    [
        *(
            "torchvision reference",
            "transfer learning, centre",
            "squashed and flipped",
            "shorter side, random crop",
            "not square",
        ),
        *(
            "CIFAR, flip first",
            "padded if needed",
            "padded on two sides",
            "padded on one side, v2",
            "MoCo v2",
            "timm",
        ),
    ],
)
def test_training_draws_as_the_old_transform_does(name):
    ours, theirs = drawn(composes.TRAINING[name], 60)
    allowed = np.sqrt(-np.log(1e-6 / 2) / len(ours))
    assert max(map(distance, ours.T, theirs.T)) <= allowed


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "torchvision reference",
        "CIFAR",
        "shorter side, random crop",
        "not square",
        "padded if needed",
        "timm",
    ],
)
def test_training_draws_as_the_old_transform_does_ten_thousand_times(name):
    from scipy.stats import chisquare, ks_2samp

    ours, theirs = drawn(composes.TRAINING[name], 3_334)
    # crops begin at whole pixels: the rounding of both is the same, up to that of floats
    for quantity in range(4):
        assert ks_2samp(ours[:, quantity].round(4), theirs[:, quantity].round(4)).pvalue > 1e-6, (
            crops.QUANTITIES[quantity]
        )
    for flips in (4, 5):
        counts = [each[:, flips].sum() + 0.5 for each in (ours, theirs)]
        assert chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize("name", composes.REFUSED)
def test_refused_by_name(name):
    make, part = composes.REFUSED[name]
    with pytest.raises(NotConvertibleError) as refused:
        read(make)[1].built(lambda: None)
    assert refused.value.part.startswith(part) and str(refused.value).count("; ") >= 1


@pytest.mark.parametrize("name", composes.AS_THEY_ARE)
def test_runs_as_it_is(name):
    make, part = composes.AS_THEY_ARE[name]
    _, reading = read(make)
    found = [step for step in reading.steps if "which runs as it is" in step.by]
    assert any(part in step.text or part in step.by for step in found)
    assert reading.built(lambda: None).augmenter.functions


def test_all_that_is_wrong_is_in_the_table():
    with pytest.raises(NotConvertibleError, match=r"^RandomZoomOut") as refused:
        read_steps(
            v1.Compose(
                [
                    v1.RandomResizedCrop(32),
                    v2.RandomZoomOut(p=1),
                    v1.ToTensor(),
                    v1.FiveCrop(8),
                ]
            )
        )
    assert [step.by.startswith("REFUSED") for step in refused.value.steps] == [
        False,
        True,
        False,
        True,
    ]


@settings(max_examples=150)
@given(
    st.integers(1, 90),
    st.integers(1, 8),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_every_rank_gets_what_its_sampler_gave(
    count, batch, ranks, shuffle, drop, sampler_drops, seed
):
    """In order: the very samples of each batch. Shuffled: as many batches of the same sizes, and
    each sample as often.
    """
    data, lengths, found, epoch = range(count), [], [], []
    for rank in range(ranks):
        sampler = DistributedSampler(
            data, ranks, rank, shuffle=shuffle, seed=seed, drop_last=sampler_drops
        )
        old = DataLoader(data, batch, sampler=sampler, drop_last=drop)
        try:
            order = read_order(old, count)
        except NotConvertibleError as refused:
            assert len(old) == 0 and "they make no batch" in str(refused)
            return
        # the sampler or `indices` may leave some out
        kept = count if order.indices is None else len(order.indices)
        places = order.arranged(kept)
        places = np.arange(kept) if places is None else places
        if len(old) == 0:
            return
        rank = dp.Rank(rank, ranks)
        plan = dp.Plan(
            Numbered(len(places)),
            dp.EvalTransform(),
            batch,
            seed,
            order.sampling,
            rank,
            order.last_batch,
        )
        theirs = [each.tolist() for each in old]
        ours = [
            places[plan.order(0)[plan._places(step) % len(places)]].tolist()
            for step in range(len(plan))
        ]
        assert list(map(len, ours)) == list(map(len, theirs)) and plan.rank_samples == sum(
            map(len, theirs)
        )
        if not shuffle:
            assert ours == theirs
        lengths.append(len(ours))
        epoch += chain.from_iterable(ours)
        found += chain.from_iterable(theirs)
    assert len(set(lengths)) == 1, "no rank waits for another at the end"
    assert sorted(np.unique(epoch, return_counts=True)[1]) == sorted(
        np.unique(found, return_counts=True)[1]
    )


class Numbered:
    """What a plan asks of a manifest."""

    root = "nowhere"

    def __init__(self, count):
        self._count = count

    def __len__(self):
        return self._count


@pytest.mark.slow
def test_lists_as_the_old_loader_yields_them(dataset):
    old = DataLoader(dataset, 8)
    loader = dp.from_torch(old, dp.TorchConfig(num_workers=0), **CPU)
    assert (
        len(loader) == len(old) == 5
        and loader.dataset is dataset
        and loader.batch_size == 8
        and len(loader.sampler) == 37
    )
    for _ in range(2):
        for ours, theirs in zip(loader, old, strict=True):
            assert type(ours) is type(theirs) is list
            assert torch.equal(ours[1], theirs[1]) and (ours[0] - theirs[0]).abs().max() <= 1e-6
    assert "37 images differ by 0.000 of 255 on average" in loader.explain()
    assert "CenterCrop(size=(32, 32))\n    → central crop, size=32" in loader.explain()
    with pytest.raises(
        AttributeError,
        match=r"^num_workers: this loader took a DataLoader's place, but has no num_workers",
    ):
        print(loader.num_workers)


def test_a_tensor_is_not_converted_twice():
    transform = dp.transform_from_torch(
        v1.Compose([v1.CenterCrop(32), v1.PILToTensor(), timm_transforms().MaybeToTensor()])
    )
    assert transform.dtype == "uint8"


def timm_transforms():
    from timm.data import transforms

    return transforms


@pytest.mark.slow
def test_nothing_random_moves_and_nothing_is_changed(dataset):
    training = datasets.ImageFolder(
        dataset.root, composes.tensor_end(v1.RandomResizedCrop(32), v1.RandomHorizontalFlip())
    )
    generator = torch.Generator().manual_seed(3)
    old = DataLoader(training, 8, shuffle=True, generator=generator)

    def states():
        numpy = np.random.get_state()[1].tolist()
        return [
            random.getstate(),
            numpy,
            torch.get_rng_state().tolist(),
            generator.get_state().tolist(),
            repr(training.transform),
        ]

    before = states()
    with_mixing = DataLoader(
        training, 8, shuffle=True, generator=generator, collate_fn=mixing(v2.MixUp(num_classes=5))
    )
    for loader in (old, with_mixing):
        dp.from_torch(loader, dp.TorchConfig(num_workers=0), **CPU).close()
    assert states() == before


@pytest.mark.slow
def test_a_weighted_sampler_becomes_weights(dataset):
    weights = [0.0] * 30 + [1.0, 2, 3, 4, 5, 6, 7]
    old = DataLoader(dataset, 8, sampler=WeightedRandomSampler(weights, 100))
    loader = dp.from_torch(old, dp.TorchConfig(num_workers=0), **CPU)
    assert loader.loader.plan.sampling == dp.Weighted(weights=weights, epoch_size=100)
    assert [len(labels) for _, labels in loader] == [len(labels) for _, labels in old] and len(
        loader
    ) == 13
    loader.close()
    assert "100 draws by weights" in loader.explain()


def test_a_random_sampler_with_replacement_has_equal_weights():
    sampler = torch.utils.data.RandomSampler(range(37), replacement=True, num_samples=100)
    order = read_order(DataLoader(range(37), 8, sampler=sampler), 37)
    assert order.sampling == dp.Weighted(weights=[1.0] * 37, epoch_size=100)
    assert order.text == "100 draws, with replacement"


@pytest.mark.parametrize("ranks", [1, 4])
def test_timms_repeated_augmentation(dataset, ranks):
    """Each image as often, on as many ranks, and as many samples an epoch."""
    samplers = [RepeatAugSampler(dataset, ranks, rank) for rank in range(ranks)]
    orders = [
        read_order(DataLoader(dataset, 4, sampler=each, drop_last=True), 37) for each in samplers
    ]
    assert all(each.sampling == orders[0].sampling for each in orders)
    plans = [
        dp.Plan(labelled([0] * 37), dp.TrainTransform(), 4, rank=each.rank, sampling=each.sampling)
        for each in orders
    ]
    assert [len(plan) for plan in plans] == [len(each) // 4 for each in samplers]
    together = np.stack(
        [np.concatenate([plan.batch(0, step).ids for step in range(len(plan))]) for plan in plans]
    )
    per_step = together.reshape(ranks, -1, 4).swapaxes(0, 1).reshape(-1, ranks * 4)
    for ids in per_step:
        counts = np.bincount(ids)
        assert (
            set(counts[counts > 0].tolist()) <= {1, 2, 3}
            and (counts == 3).sum() >= len(ids) // 3 - 1
        )
    if ranks > 1:
        # spread over the ranks
        assert all(
            len(set(ids.tolist())) == 4 for ids in together.reshape(ranks, -1, 4).reshape(-1, 4)
        )


@pytest.mark.slow
def test_epochs_follow_set_epoch_as_the_samplers_do(dataset):
    sampler = DistributedSampler(dataset, 1, 0, seed=7)
    loader = dp.from_torch(
        DataLoader(dataset, 8, sampler=sampler), dp.TorchConfig(num_workers=0), **CPU
    )

    def epoch():
        return [labels.tolist() for _, labels in loader]

    epochs = [epoch(), epoch()]
    loader.sampler.set_epoch(0)
    assert epoch() == epochs[0]
    assert epoch() == epochs[1] != epochs[0]
    loader.sampler.set_epoch(0)
    next(iter(loader))  # left early
    loader.sampler.set_epoch(0)
    assert epoch() == epochs[0]


@pytest.mark.slow
def test_a_resume_goes_on_also_if_the_epoch_is_set_again(dataset):
    def make():
        return dp.from_torch(
            DataLoader(dataset, 8, sampler=DistributedSampler(dataset, 1, 0)),
            dp.TorchConfig(num_workers=0),
            **CPU,
        )

    whole, first, second = make(), make(), make()
    expected = [labels.tolist() for _ in range(2) for _, labels in whole]
    taken = [labels.tolist() for _, labels in first]
    batches = iter(first)
    taken += [next(batches)[1].tolist() for _ in range(2)]
    second.load_state_dict(first.state_dict())
    second.sampler.set_epoch(1)
    assert taken + [labels.tolist() for _, labels in second] == expected


@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_that_the_sampler_does_not_know(dataset, monkeypatch, shuffle):
    old = DataLoader(dataset, 4, shuffle)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        NotConvertibleError, match=r"among 2 processes .* rank=dp\.Rank\.from_env\(\) to share them"
    ):
        read_order(old, 37)
    sampler = DistributedSampler(dataset, 2, 1, shuffle=shuffle)
    shared = read_order(old, 37, dp.Rank.from_env())
    assert shared == dataclasses.replace(
        read_order(DataLoader(dataset, 4, sampler=sampler), 37), text=shared.text
    )
    assert read_order(old, 37, dp.Rank()).last_batch == "partial"


def test_subsets_and_joined_sets(dataset):
    some, others = Subset(dataset, [5, 1, 30, 30]), Subset(Subset(dataset, range(10, 20)), [3, 0])
    old = DataLoader(ConcatDataset([some, others, dataset]), 4)
    conversion = Conversion.of(old)
    wanted = [5, 1, 30, 30, 13, 10, *range(37)]
    assert [str(conversion.manifest.path(each)) for each in range(len(wanted))] == [
        dataset.samples[each][0] for each in wanted
    ]
    assert conversion.manifest.take_labels(np.arange(len(wanted))).tolist() == [
        dataset.targets[each] for each in wanted
    ]
    other = datasets.ImageFolder(dataset.root, composes.torchvision_eval(40, 24))
    with pytest.raises(
        NotConvertibleError,
        match="ConcatDataset cannot be carried over: its parts have different transforms",
    ):
        Conversion.of(DataLoader(ConcatDataset([dataset, other])))


# timm leaves them open
@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_timms_loader(image_folder):
    from timm.data import ImageDataset, create_loader

    data = ImageDataset(image_folder)
    old = create_loader(
        data,
        (3, 32, 32),
        8,
        num_workers=0,
        interpolation="bicubic",
        device=torch.device("cpu"),
        persistent_workers=False,
    )
    assert type(old).__name__ == "PrefetchLoader"
    loader = dp.from_torch(old, dp.TorchConfig(num_workers=0))
    for (ours, labels), (theirs, targets) in zip(loader, old, strict=True):
        assert torch.equal(labels, targets) and (ours - theirs).abs().max() <= 1e-5
    train = create_loader(
        data,
        32,
        8,
        True,
        re_prob=0.3,
        num_workers=0,
        color_jitter=0.3,
        device=torch.device("cpu"),
        persistent_workers=False,
    )
    transform = Conversion.of(train).transform
    assert [policy.name for policy in transform.augment] == [
        "ColorJitter",
        "RandomErasing",
    ] and transform.augment[1].p == 0.3
    assert transform.mean == pytest.approx((0.485, 0.456, 0.406), abs=1e-7)


def mixing(mix):
    return lambda batch: mix(*collate(batch))


FLAG, WEIGHTS = {"mix": True}, np.ones(3)
MODULE_MIX = v2.CutMix(alpha=0.5, num_classes=3)


def of_the_module(batch):
    return MODULE_MIX(*collate(batch))


def test_mixing_in_the_collate_function():
    choice = v2.RandomChoice([v2.MixUp(num_classes=5, alpha=0.2), v2.CutMix(num_classes=5)])
    expected = dp.RandomChoice([dp.MixUp(alpha=0.2, num_classes=5), dp.CutMix(num_classes=5)])
    assert batch_transform_of(mixing(choice), 6, False)[0] == expected
    assert batch_transform_of(of_the_module, 6, False)[0] == dp.CutMix(alpha=0.5, num_classes=3)
    assert batch_transform_of(collate, 6, False)[0] is None
    # torchvision's v1 has no probabilities, and draws from Python's random numbers
    first = v1.RandomChoice([v2.MixUp(num_classes=5, alpha=0.2), v2.CutMix(num_classes=5)])
    assert batch_transform_of(mixing(first), 6, False)[0] == expected


class MixUp(v2.MixUp):
    """A program's own, which mixes half of the batches."""

    def forward(self, *batch):
        return super().forward(*batch) if torch.rand(1) < 0.5 else batch


def timm_collate(batch):
    from timm.data.loader import fast_collate

    return fast_collate(batch)


def more_than_mixing(batch):
    images, labels = MODULE_MIX(*collate(batch))
    return images.flip(0), labels


@pytest.mark.parametrize(
    "function",
    [
        more_than_mixing,
        lambda batch: collate(batch),
        lambda batch: MODULE_MIX(*collate(batch)) if random.random() < 0.9 else collate(batch),
        lambda batch: MODULE_MIX(*collate(batch)) if len(batch) <= 6 else collate(batch),
        lambda batch: MODULE_MIX(*collate(batch)) if FLAG["mix"] else collate(batch),
        lambda batch: MODULE_MIX(*collate(batch)) if WEIGHTS.all() else collate(batch),
        lambda batch: [each.clamp(0) for each in MODULE_MIX(*collate(batch))],
        mixing(v2.RandomChoice([v2.Identity(), v2.MixUp(num_classes=5)])),
        mixing(v2.RandomChoice([MixUp(num_classes=5), v2.CutMix(num_classes=5)])),
        timm_collate,
        mixing(v2.RandomChoice([v2.MixUp(num_classes=5), v2.CutMix(num_classes=5)], p=[0.9, 0.1])),
    ],
)
def test_another_collate_function_is_refused(function):
    with pytest.raises(
        NotConvertibleError,
        match=r"collate_fn=.*it may do anything|RandomChoice.*probabilities|^Identity|^MixUp",
    ):
        batch_transform_of(function, 6, False)


class Short(datasets.ImageFolder):
    def __len__(self):
        return 10


class Several(datasets.ImageFolder):
    def __getitems__(self, places):
        return [self[0] for _ in places]


class Own(datasets.ImageFolder):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image, label + 1


@pytest.mark.few
@pytest.mark.parametrize(
    ("kind", "labels"), [(Own, [1, 1, 1]), (Short, [0, 0, 0]), (Several, [0, 0, 0])]
)
def test_a_folder_with_methods_of_its_own(image_folder, kind, labels):
    conversion = Conversion.of(DataLoader(kind(image_folder, EVAL)))
    assert conversion.manifest.take_labels(np.arange(3)).tolist() == labels
    assert len(conversion.manifest) == (10 if kind is Short else 37)
    files = {conversion.manifest.path(at) for at in range(10)}
    assert len(files) == (1 if kind is Several else 10)


@pytest.mark.slow
def test_own_loaders_and_target_transforms(image_folder):
    options = {
        "loader": lambda path: Image.open(path).convert("RGB"),
        "target_transform": lambda label: label + 1,
    }
    other = datasets.ImageFolder(image_folder, EVAL, **options)
    with dp.from_torch(DataLoader(other, 8), dp.TorchConfig(num_workers=0), **CPU) as loader:
        for ours, theirs in zip(loader, DataLoader(other, 8), strict=True):
            assert torch.equal(ours[1], theirs[1]) and (ours[0] - theirs[0]).abs().max() <= 1e-6


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


class Stepping(DataLoader):
    def __iter__(self):
        return super().__iter__()


REFUSED_LOADERS = {
    "the loader ImageFolder": lambda folder: datasets.ImageFolder,
    "the loader NoneType": lambda folder: None,
    "2 samples cannot be carried over: they make no batch of 8": lambda folder: DataLoader(
        Subset(datasets.ImageFolder(folder, EVAL), [0, 1]), 8, drop_last=True
    ),
    "the data set FakeData .* it opens no image": lambda folder: DataLoader(
        datasets.FakeData(8, transform=EVAL)
    ),
    "a data set without transform": lambda folder: DataLoader(datasets.ImageFolder(folder)),
    "an IterableDataset": lambda folder: DataLoader(Stream()),
    "the loader Stepping": lambda folder: Stepping(datasets.ImageFolder(folder, EVAL)),
    "the loader list": lambda folder: [],
    "batch_size=None": lambda folder: DataLoader(
        datasets.ImageFolder(folder, EVAL), batch_size=None
    ),
    "WeightedRandomSampler .* without replacement": lambda folder: DataLoader(
        datasets.ImageFolder(folder, EVAL),
        sampler=WeightedRandomSampler([1.0] * 37, 37, replacement=False),
    ),
    "timm's RepeatAugSampler .* does not shuffle": lambda folder: DataLoader(
        datasets.ImageFolder(folder, EVAL), sampler=RepeatAugSampler(range(37), 1, 0, shuffle=False)
    ),
    "timm's RepeatAugSampler .* num_repeats is 1.5": lambda folder: DataLoader(
        datasets.ImageFolder(folder, EVAL),
        sampler=RepeatAugSampler(range(37), 1, 0, num_repeats=1.5),
    ),
    "3 repeats of each image.* whole batches": lambda folder: DataLoader(
        datasets.ImageFolder(folder, EVAL), 8, sampler=RepeatAugSampler(range(37), 1, 0)
    ),
    r"the batch_sampler Odd \(test_from_torch.py:\d+\) .* 1 to 2 samples": lambda folder: (
        DataLoader(datasets.ImageFolder(folder, EVAL), batch_sampler=Odd([0, 1], 1, False))
    ),
    "RandomSampler .* another number of samples": lambda folder: DataLoader(
        datasets.ImageFolder(folder, EVAL),
        sampler=torch.utils.data.RandomSampler(range(37), num_samples=20),
    ),
    "the sampler SequentialSampler .* one of 10 samples, and there are 37": lambda folder: (
        DataLoader(
            datasets.ImageFolder(folder, EVAL),
            sampler=torch.utils.data.SequentialSampler(range(10)),
        )
    ),
}


class Odd(BatchSampler):
    def __iter__(self):
        yield from ([0], [1, 2], [3])


@pytest.mark.parametrize("message", REFUSED_LOADERS)
def test_a_loader_that_does_something_else_is_refused(message, image_folder):
    with pytest.raises(NotConvertibleError, match=f"^{message}"):
        Conversion.of(REFUSED_LOADERS[message](image_folder))


def test_files_that_would_be_left_out_are_named(tmp_path):
    for number in range(3):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.new("RGB", (50, 50)).save(
            tmp_path / "a" / f"{number}.{'gif' if number == 1 else 'png'}"
        )
    loader = DataLoader(
        datasets.DatasetFolder(tmp_path, datasets.folder.default_loader, ("png", "gif"), EVAL)
    )
    with pytest.raises(
        NotConvertibleError, match=r"1 of 3 images cannot be carried over(.|\n)*a/1\.gif: "
    ):
        Conversion.of(loader)


@pytest.mark.slow
def test_tiny_images_and_tiny_crops(tmp_path):
    """Too few pixels to see where a crop was."""
    (tmp_path / "a").mkdir()
    for number, size in enumerate([(1, 1), (64, 48), (300, 2)]):
        Image.new("RGB", size).save(tmp_path / "a" / f"{number}.png")
    tiny = composes.tensor_end(
        v1.RandomResizedCrop(32, scale=(0.0001, 0.01)), v1.RandomHorizontalFlip()
    )
    torch.manual_seed(0)  # 24 draws of the old transform: a rare one looks like another transform
    for steps in (composes.TRAINING["squashed and flipped"](), tiny):
        dp.from_torch(
            DataLoader(datasets.ImageFolder(tmp_path, steps), 3),
            dp.TorchConfig(num_workers=0),
            **CPU,
        ).close()


def test_numbers_of_normalize(dataset):
    for mean, std in (
        (0.5, 0.25),
        ((0.5,), [0.25]),
        (torch.full((3,), 0.5), torch.full((3,), 0.25)),
    ):
        transform = dp.transform_from_torch(
            v1.Compose([v1.CenterCrop(8), v1.ToTensor(), v1.Normalize(mean, std)])
        )
        assert transform.mean == (0.5,) * 3 and transform.std == (0.25,) * 3


@pytest.mark.slow
@pytest.mark.parametrize("label", [True, "cat", -1, np.int64(3)])
def test_labels_that_are_no_class_numbers(dataset, label):
    other = datasets.ImageFolder(dataset.root, EVAL)
    other.samples = [(path, label) for path, _ in other.samples]
    theirs = next(iter(DataLoader(other, 8)))[1]
    with dp.from_torch(DataLoader(other, 8), dp.TorchConfig(num_workers=0), **CPU) as loader:
        ours = next(iter(loader))[1]
    assert type(ours) is type(theirs) and list(ours) == list(theirs)
    assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)


def as_torchvisions(text):
    """A function that seems to be torchvision's own, so that nobody sees that it was replaced."""
    return eval(text, vars(v1.transforms))


def test_the_comparison_looks_at_dtypes(dataset, monkeypatch):
    other = as_torchvisions("lambda self, image: F.pil_to_tensor(image)")
    monkeypatch.setattr(v1.ToTensor, "__call__", other)
    other = datasets.ImageFolder(dataset.root, v1.Compose([v1.CenterCrop(32), v1.ToTensor()]))
    with pytest.raises(
        NotConvertibleError,
        match=r"its images are torch.uint8 of \(3, 32, 32\), and ours torch.float32",
    ):
        dp.from_torch(DataLoader(other), dp.TorchConfig(num_workers=0), **CPU)


@pytest.mark.slow
def test_the_scan_is_kept(dataset, tmp_path, monkeypatch):
    first = Conversion.of(DataLoader(dataset), tmp_path).manifest
    monkeypatch.setattr(dp.Manifest, "from_table", None)
    assert Conversion.of(DataLoader(dataset), tmp_path).manifest.fingerprint == first.fingerprint


@pytest.mark.slow
def test_the_comparison_finds_what_differs(dataset, monkeypatch):
    """A transform that prints itself as torchvision's, and does something else, as a patched one
    would.
    """
    corner = as_torchvisions("lambda self, image: F.crop(image, 0, 0, *self.size)")
    monkeypatch.setattr(v1.CenterCrop, "forward", corner)
    with pytest.raises(NotConvertibleError, match="37 images differ by"):
        dp.from_torch(DataLoader(dataset, 8), dp.TorchConfig(num_workers=0), **CPU)
    training = datasets.ImageFolder(
        dataset.root, composes.tensor_end(v1.RandomResizedCrop(32), v1.RandomHorizontalFlip())
    )
    nothing = as_torchvisions("lambda self, image: image")
    monkeypatch.setattr(v1.RandomHorizontalFlip, "forward", nothing)
    with pytest.raises(NotConvertibleError, match="of left-right flips"):
        dp.from_torch(DataLoader(training, 8, shuffle=True), dp.TorchConfig(num_workers=0), **CPU)
    dp.from_torch(
        DataLoader(training, 8, shuffle=True), dp.TorchConfig(num_workers=0), check=False, **CPU
    ).close()
