"""load(): `__getitem__` runs for every item of every epoch, and an epoch is the same on every
backend, with any number of ranks and workers, and after a resume.
"""

import pickle
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from gpu_backends import GPU_BACKENDS, makes_pixels, needs_cuda
from item_programs import PROGRAMS, Files, Noisy, Sides, Triplet, UnalignedPair
from killed_run import compare_killed
from PIL import Image
from torch.utils._pytree import tree_flatten, tree_map

import dali_pipes as dp
from dali_pipes.adapters.items.run import ItemReader, ItemRunner, ItemTask, describe_item
from dali_pipes.adapters.items.transform import ItemPicture
from dali_pipes.measure.agreement import NVJPEG, PLAIN_UPSAMPLING

TRANSFORM = dp.TrainTransform(size=24, dtype="uint8")
PLAIN = dp.TorchConfig(num_workers=0)
# config of the pictures, and workers of the items
LOADERS = {
    "torch, no workers": (PLAIN, 0),
    "torch, workers": (dp.TorchConfig(num_workers=1), 2),
    "dali_cpu, no workers": (dp.DaliConfig(device="cpu", num_threads=1), 0),
    "dali_cpu, workers": (dp.DaliConfig(device="cpu", num_threads=1), 2),
    "dali_cpu_graph": (
        dp.DaliConfig(device="cpu", decode="whole", resize="dali", num_threads=1),
        1,
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """15 files of one size in 3 classes, as (paths, labels)."""
    root, rng = tmp_path_factory.mktemp("items"), np.random.default_rng(4)
    paths = [root / f"{number}.jpg" for number in range(15)]
    for path in paths:
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
        coarse.resize((64, 48)).save(path, quality=95)
    return paths, [number % 3 for number in range(15)]


def loader(dataset, config=PLAIN, workers=0, batch_size=6, **options):
    options = {"transform": TRANSFORM, "seed": 3, "device": "cpu", **options}
    return dp.load(dataset, config, batch_size=batch_size, num_workers=workers, **options)


def run(dataset, seed, pictures):
    """The runner of a data set, as load() makes it."""
    form = describe_item(dataset, seed, ItemTask(0, np.zeros(1, np.int64))).form
    return ItemRunner(dataset, len(dataset), seed, pictures, form, TRANSFORM, None, ItemReader())


def batches(each, epochs=1):
    with each:
        return [batch for _ in range(epochs) for batch in each]


def assert_equal(one, other, mean=0.0):
    """Equal values in equal structures; pixels are equal too, or differ by `mean` of 255."""
    (ours, form), (theirs, expected) = tree_flatten(one), tree_flatten(other)
    # dataclasses are leaves of these trees
    assert form == expected
    for left, right in zip(ours, theirs, strict=True):
        assert type(left) is type(right)
        if isinstance(left, Noisy):
            assert_equal([left.picture, left.label], [right.picture, right.label], mean)
        elif isinstance(left, torch.Tensor) and left.dtype == torch.uint8:
            assert left.shape == right.shape
            assert (left.float() - right.float()).abs().mean() <= mean
        elif isinstance(left, torch.Tensor):
            assert torch.equal(left, right)
        else:
            assert left == right


@pytest.mark.few
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_the_same_on_both_backends_with_and_without_workers(files, program):
    dataset = PROGRAMS[program](*files)
    expected = batches(loader(dataset, batch_size=4), epochs=2)
    found = batches(loader(dataset, *LOADERS["dali_cpu, workers"], batch_size=4), epochs=2)
    assert len(found) == len(expected) == 2 * (len(dataset) // 4)
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other, mean=0.1)

    # the second epoch is another one
    half = len(expected) // 2
    with pytest.raises(AssertionError):
        assert_equal(expected[0], expected[half])


@pytest.mark.parametrize("name", list(LOADERS)[1:])
def test_a_resume_goes_on_anywhere(files, name):
    dataset = Triplet(*files)
    whole = batches(loader(dataset), epochs=3)
    with loader(dataset) as first:
        list(first)
        # the second of two batches is still to come
        next(iter(first))
        state = first.state_dict()

    config, workers = LOADERS[name]
    with loader(dataset, config, workers) as second:
        second.load_state_dict(state)
        rest = [*second, *second]
    assert len(rest) == 3
    # DALI's own resize differs more from torchvision's (docs/pixels.md)
    mean = 0.3 if name == "dali_cpu_graph" else 0.1
    for one, other in zip(rest, whole[3:], strict=True):
        assert_equal(one, other, mean)


@pytest.mark.parametrize("name", needs_cuda("dali_gpu", "dali_cpu_to_gpu", "torch_to_gpu"))
def test_items_arrive_on_the_gpu(files, name):
    """Pictures and values; the values are those of the CPU."""
    dataset = Triplet(*files)
    expected = batches(loader(dataset), epochs=2)
    found = batches(loader(dataset, GPU_BACKENDS[name], 1, device="auto"), epochs=2)
    bound = NVJPEG.mean + PLAIN_UPSAMPLING.mean if makes_pixels(name) else 255
    for one, other in zip(found, expected, strict=True):
        assert all(leaf.is_cuda for leaf in tree_flatten(one)[0])
        on_cpu = tree_map(torch.Tensor.cpu, one)
        assert_equal(on_cpu, other, mean=bound)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", ["torch, no workers", "dali_cpu, no workers"])
def test_ranks_share_what_one_process_loads(files, ranks, name):
    dataset, (config, workers) = Triplet(*files), LOADERS[name]
    options = {"last_batch": "partial"}
    whole = batches(loader(dataset, config, workers, **options), epochs=2)
    parts = [
        batches(
            loader(dataset, config, workers, 6 // ranks, rank=dp.Rank(rank, ranks), **options),
            epochs=2,
        )
        for rank in range(ranks)
    ]
    assert len(whole) == 6
    for expected, *found in zip(whole, *parts, strict=True):
        for place, pictures in enumerate(expected[0]):
            assert torch.equal(torch.cat([each[0][place] for each in found]), pictures)
        assert torch.equal(torch.cat([each[1] for each in found]), expected[1])


@pytest.mark.parametrize("name", ["torch, no workers", "dali_cpu, no workers"])
def test_an_item_of_one_picture_is_what_build_loader_makes(thumbnails, name):
    """The same order, crops and pixels for the same seed."""
    paths = [thumbnails.path(number) for number in range(len(thumbnails))]

    class Pictures(Files):
        def __getitem__(self, index):
            return dp.Encoded(self.paths[index]), self.labels[index]

    config, _ = LOADERS[name]
    with dp.build_loader(
        thumbnails, config, transform=TRANSFORM, batch_size=6, seed=3, device="cpu"
    ) as each:
        expected = list(each)
    found = batches(loader(Pictures(paths, thumbnails.labels), config))
    for (images, labels), batch in zip(found, expected, strict=True):
        assert torch.equal(images, batch.images)
        assert torch.equal(labels, batch.labels)


def test_pictures_with_the_same_draws_have_the_same_crop(files):
    paths, labels = files

    class Pairs(Files):
        def __getitem__(self, index):
            path = self.paths[index]
            alike = Sides(dp.Encoded(path, draws="x"), dp.Encoded(path, draws="x"))
            return alike, dp.Encoded(path)

    for (before, after), alone in batches(loader(Pairs(paths, labels))):
        assert torch.equal(before, after)
        assert not torch.equal(before, alone)


def test_each_picture_may_have_its_own_transform(files):
    views = dp.ViewsTransform(views={"big": {"count": 2, "size": 24}}, dtype="uint8")

    class Mixed(Files):
        def __getitem__(self, index):
            gray = {"channels": 1, "mean": [0.5], "std": [0.5]}
            path, plain = self.paths[index], dp.EvalTransform(resize=32, size=16, **gray)
            return dp.Encoded(path, plain), dp.Encoded(path, views), index

    for config, workers in (LOADERS["torch, no workers"], LOADERS["dali_cpu, no workers"]):
        images, several, index = batches(loader(Mixed(*files), config, workers, transform=None))[0]
        assert images.shape == (6, 1, 16, 16)
        assert images.dtype == torch.float32
        assert several["big"].shape == (6, 2, 3, 24, 24)
        assert index.shape == (6,)


def test_bytes_are_pictures_too(files):
    class InMemory(Files):
        def __getitem__(self, index):
            with open(self.paths[index], "rb") as file:
                return dp.Encoded(file.read()), index

    class OnDisk(Files):
        def __getitem__(self, index):
            return dp.Encoded(self.paths[index]), index

    for config, workers in (LOADERS["torch, workers"], LOADERS["dali_cpu, no workers"]):
        found = batches(loader(InMemory(*files), config, workers))
        expected = batches(loader(OnDisk(*files), config, 0))
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)


def test_pictures_are_turned_by_their_exif_tag(tmp_path):
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (20, 40, 3), np.uint8))
    tag = Image.Exif()
    tag[0x0112] = 6  # turned by a quarter: 40 high and 20 wide
    picture.save(tmp_path / "turned.png", exif=tag)

    class Turned(Files):
        def __getitem__(self, index):
            return dp.Encoded(self.paths[index])

    transform = dp.EvalTransform(resize=None, size=(40, 20), exif="apply", dtype="uint8")
    expected = torch.from_numpy(np.rot90(np.asarray(picture), 3).copy()).permute(2, 0, 1)
    for config in (PLAIN, dp.DaliConfig(device="cpu", num_threads=1)):
        dataset = Turned([tmp_path / "turned.png"] * 2, [0, 0])
        (images,) = batches(loader(dataset, config, transform=transform, batch_size=2))
        assert torch.equal(images[0], expected)


def test_random_numbers_are_distributed_as_the_data_sets_own(files):
    """Every partner comes equally often, with every item."""
    dataset = UnalignedPair(*files)
    pictures = [ItemPicture(f"['{name}']", TRANSFORM, None) for name in "AB"]
    runner = run(dataset, 5, pictures)
    partners = Counter()
    for epoch in range(400):
        batch = runner[ItemTask(epoch, np.arange(len(dataset)))]
        partners.update(batch.values["B_paths"])
    counts = np.array(list(partners.values()))
    assert len(counts) == len(dataset.paths) - len(dataset)
    # chi-square of 7 degrees of freedom, at 0.001
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 24.3


def test_workers_hand_over_paths_and_numbers(files):
    """No pixels: a batch of items is small."""
    pictures = [ItemPicture(f"[0][{place}]", TRANSFORM, None) for place in range(3)]
    batch = run(Triplet(*files), 0, pictures)[ItemTask(0, np.arange(15))]
    assert batch.images.sizes.tolist() == [[48, 64]] * 45
    assert len(pickle.dumps(batch)) < 15 * 3 * 200


def test_the_programs_own_random_states_stay(files):
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    expected = random.random(), np.random.rand(), float(torch.rand(()))
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    batches(loader(Triplet(*files)))
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected


def test_it_is_a_loader(files):
    dataset = Triplet(*files)
    with loader(dataset) as each:
        assert len(each) == 2
        assert each.dataset is dataset
        assert each.batch_size == 6
        assert "15 items, 2 batches of 6" in repr(each)
        assert "Triplet is run for every item of every epoch, in this process" in each.explain()
        each.set_epoch(2)
        later = next(iter(each))
    assert_equal(later, batches(loader(dataset), epochs=3)[4])


def test_it_can_be_diagnosed(files):
    calls = []
    with loader(Triplet(*files)) as each:
        found = dp.diagnose(
            each, calls.append, seconds=0, rounds=1, cold=False, limit=1, show=False
        )
    assert calls
    assert found.verdict


def test_a_state_of_other_pictures_or_of_another_data_set_is_refused(files):
    with loader(Triplet(*files)) as each:
        state = each.state_dict()
    with (
        loader(UnalignedPair(*files)) as each,
        pytest.raises(dp.ConfigError, match="these have changed: manifest"),
    ):
        each.load_state_dict(state)
    with (
        loader(Triplet(*files), transform=dp.TrainTransform(size=16)) as each,
        pytest.raises(dp.ConfigError, match="these have changed: transform"),
    ):
        each.load_state_dict(state)


@pytest.mark.slow
def test_killed_and_resumed_on_another_backend(files, tmp_path):
    program = Path(__file__).with_name("item_run.py")
    compare_killed(program, files[0][0].parent, tmp_path, white=255)
