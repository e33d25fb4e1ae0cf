"""from_torch(every_epoch=True): samples that are random, or of several files, are the same on every
backend, with any number of ranks and workers, and after a resume; and distributed as they were.
"""

import multiprocessing
import random
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_epoch_programs import (
    CROP,
    EVAL,
    PROGRAMS,
    Clip,
    LabelNoise,
    Triplet,
    UnalignedPair,
    read,
)
from item_programs import CAPTIONS, Files
from killed_run import compare_killed
from PIL import Image
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler
from torchvision import transforms as v1

import dali_pipes as dp
from dali_pipes.adapters.from_torch.reading import NotConvertibleError
from dali_pipes.measure.arms import SyntheticConfig

PLAIN = dp.TorchConfig(num_workers=0)
CPU = dp.DaliConfig(device="cpu", num_threads=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """15 files of one size in 3 classes, as (paths, labels)."""
    root, rng = tmp_path_factory.mktemp("every_epoch"), np.random.default_rng(4)
    paths = [root / f"{number:02d}.jpg" for number in range(15)]
    for path in paths:
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
        coarse.resize((64, 48)).save(path, quality=95)
    return paths, [number % 3 for number in range(15)]


def old(dataset, batch_size=4, workers=0, **options):
    options = {"shuffle": True, "drop_last": True, **options}
    return DataLoader(dataset, batch_size, num_workers=workers, **options)


def convert(loader, config=PLAIN, **options):
    options = {"seed": 3, "device": "cpu", "check": False, **options}
    return dp.from_torch(loader, config, every_epoch=True, **options)


def batches(each, epochs=1):
    with each:
        return [batch for _ in range(epochs) for batch in each]


def assert_equal(one, other, mean=0.0):
    """Equal values in equal structures; pixels are equal, or differ by `mean` of 255."""
    (ours, form), (theirs, expected) = tree_flatten(one), tree_flatten(other)
    assert form == expected
    for left, right in zip(ours, theirs, strict=True):
        assert type(left) is type(right)
        if isinstance(left, torch.Tensor) and left.ndim > 2 and mean:
            assert left.shape == right.shape
            assert (left - right).abs().mean() <= mean / 255
        elif isinstance(left, torch.Tensor):
            assert torch.equal(left, right)
        else:
            assert left == right


@pytest.mark.few(2)
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.release)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_the_same_on_both_backends_with_workers(files, program, workers):
    dataset = PROGRAMS[program](*files)
    expected = batches(convert(old(dataset), check=True), epochs=2)
    assert len(expected) == 2 * (len(dataset) // 4)
    found = batches(convert(old(dataset, workers=workers), CPU), epochs=2)
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other, mean=0.1)

    # the second epoch is another one
    with pytest.raises(AssertionError):
        assert_equal(expected[0], expected[len(expected) // 2])


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_batch_has_the_old_structure(files, program):
    dataset = PROGRAMS[program](*files)
    theirs, ours = next(iter(old(dataset))), batches(convert(old(dataset)))[0]
    (one, form), (other, expected) = tree_flatten(ours), tree_flatten(theirs)
    assert form == expected
    for left, right in zip(one, other, strict=True):
        assert type(left) is type(right) or isinstance(right, torch.Tensor)
        if isinstance(left, torch.Tensor):
            assert (left.dtype, left.shape) == (right.dtype, right.shape)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.release)])
def test_ranks_share_what_one_process_loads(files, ranks):
    dataset, options = Triplet(*files), {"drop_last": False}
    whole = batches(convert(old(dataset, 6, **options), rank=dp.Rank()), epochs=2)
    parts = [
        batches(
            convert(old(dataset, 6 // ranks, 1, **options), CPU, rank=dp.Rank(rank, ranks)),
            epochs=2,
        )
        for rank in range(ranks)
    ]
    # 15 samples: the last batch has fewer, and a sampler of several ranks repeats some
    for expected, *found in list(zip(whole, *parts, strict=True))[:2]:
        assert torch.equal(torch.cat([each[1] for each in found]), expected[1])
        for place, pictures in enumerate(expected[0]):
            joined = torch.cat([each[0][place] for each in found])
            assert (joined - pictures).abs().mean() < 0.1 / 255


@pytest.mark.slow
def test_a_resume_goes_on_anywhere(files):
    dataset = Triplet(*files)
    whole = batches(convert(old(dataset)), epochs=3)
    with convert(old(dataset)) as first:
        list(first)
        next(iter(first))
        state = first.state_dict()
    with convert(old(dataset, workers=2), CPU) as second:
        second.load_state_dict(state)
        rest = [*second, *second]
    assert len(rest) == 5
    for one, other in zip(rest, whole[4:], strict=True):
        assert_equal(one, other, mean=0.1)


@pytest.mark.release
def test_killed_and_resumed_on_another_backend(files, tmp_path):
    program = Path(__file__).with_name("every_epoch_run.py")
    compare_killed(program, files[0][0].parent, tmp_path, white=1)


# distributions


@pytest.mark.release
def test_partners_and_values_are_distributed_as_they_were(files):
    """What is drawn in 300 epochs of the old and of the new loader, by the test of χ²."""

    class Drawn(LabelNoise):
        def __getitem__(self, index):
            item = super().__getitem__(index)
            return {**item, "partner": random.choice("abcdefgh"), "index": index}

    def count(each, epochs):
        found = Counter()
        for _ in range(epochs):
            for batch in each:
                found.update(zip(batch["label"].tolist(), batch["partner"], strict=True))
        return found

    dataset = Drawn(*files)
    with convert(old(dataset, 15)) as each:
        ours = count(each, 300)
    theirs = count(old(dataset, 15), 300)
    keys = sorted({*ours, *theirs})
    a, b = (np.array([each[key] for key in keys], float) for each in (ours, theirs))
    # 39 degrees of freedom, at 0.0001
    assert len(keys) == 40
    assert ((a - b) ** 2 / (a + b)).sum() < 86


@pytest.mark.slow
def test_evaluations_are_equal(files):
    """Steps that draw nothing: with the same random numbers all values and pixels are equal."""

    class Pairs(Files):
        def __getitem__(self, index):
            other = random.randrange(len(self))
            return EVAL(read(self.paths[index])), EVAL(read(self.paths[other])), other

    dataset = Pairs(*files)
    with convert(old(dataset, shuffle=False), check=True) as each:
        assert "images differ by 0." in each.explain()
        for images, others, numbers in each:
            expected = torch.stack([EVAL(read(dataset.paths[number])) for number in numbers])
            assert (others - expected).abs().mean() < 0.2 / 255
            assert images.shape == others.shape


@pytest.mark.slow
def test_a_program_with_one_picture_is_what_from_torch_makes(files):
    """The same crops and pixels as without every_epoch, for the same seed."""

    class Plain(Files):
        def __getitem__(self, index):
            return CROP(read(self.paths[index])), self.labels[index]

    loader = old(Plain(*files))
    with dp.from_torch(loader, PLAIN, seed=3, device="cpu", check=False) as each:
        expected = list(each)
    for one, other in zip(batches(convert(loader)), expected, strict=True):
        assert_equal(one, other)


@pytest.mark.release
@pytest.mark.slow
def test_frames_have_one_crop(files):
    """A clip of one frame eight times is eight equal pictures."""

    class Still(Clip):
        def __getitem__(self, index):
            paths, self.paths = self.paths, [self.paths[index]] * len(self.paths)
            item = super().__getitem__(index)
            self.paths = paths
            return item

    for clips, _ in batches(convert(old(Still(*files)))):
        assert clips.shape == (4, 8, 3, 16, 16)
        assert (clips == clips[:, :1]).all()
    for clips, _ in batches(convert(old(Clip(*files)))):
        assert not (clips == clips[:, :1]).all()


# the program's own


@pytest.mark.slow
def test_the_programs_own_random_states_stay(files):
    dataset = PROGRAMS["captions"](*files)

    def state():
        return random.random(), np.random.rand(), float(torch.rand(())), dataset.rng.random()

    def seed():
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)
        dataset.rng = np.random.default_rng(4)

    seed()
    expected = state()
    seed()
    batches(convert(old(dataset), check=True))
    assert state() == expected


@pytest.mark.slow
def test_a_collate_function_of_its_own(files):
    def collate(samples):
        pictures, numbers = zip(*samples, strict=True)
        return {
            "anchor": torch.stack([each[0] for each in pictures]) * 2,
            "numbers": torch.stack(numbers),
            "drawn": random.random(),
        }

    dataset = Triplet(*files)
    expected = batches(convert(old(dataset)))
    found = batches(convert(old(dataset, workers=1, collate_fn=collate), CPU))
    again = batches(convert(old(dataset, collate_fn=collate), CPU))
    for one, two, (pictures, numbers) in zip(found, again, expected, strict=True):
        assert torch.equal(one["numbers"], numbers)
        assert (one["anchor"] - pictures[0] * 2).abs().mean() < 0.2 / 255
        assert one["drawn"] == two["drawn"]


@pytest.mark.slow
def test_a_weighted_sampler_and_a_subset(files):
    dataset = UnalignedPair(*files)
    weights = [1.0, 0, 0, 0, 0, 0, 2.0]
    sampler = WeightedRandomSampler(weights, 40)
    found = batches(convert(old(dataset, shuffle=None, sampler=sampler)))
    names = Counter(name for batch in found for name in batch["A_paths"])
    assert set(names) == {dataset.paths[0], dataset.paths[6]}

    part = torch.utils.data.Subset(dataset, [2, 3, 5, 6])
    (batch,) = batches(convert(old(part, shuffle=False)))
    assert batch["A_paths"] == [dataset.paths[at] for at in (2, 3, 5, 6)]


@pytest.mark.release
@pytest.mark.slow
def test_repeated_samples_differ(files):
    """A sampler with replacement: each time the sample has random numbers of its own."""

    class Drawn(Files):
        def __getitem__(self, index):
            return CROP(read(self.paths[index])), random.randrange(10**6)

    sampler = WeightedRandomSampler([1.0] + [0.0] * 14, 40)
    for config in (PLAIN, CPU):
        found = batches(convert(old(Drawn(*files), shuffle=None, sampler=sampler), config))
        images = torch.cat([each[0] for each in found]).flatten(1)
        assert len(images.unique(dim=0)) == 40
        assert len(torch.cat([each[1] for each in found]).unique()) == 40


@pytest.mark.slow
def test_many_tensors_a_sample_need_no_descriptors(files):
    class Small(Files):
        def __len__(self):
            return 600

        def __getitem__(self, index):
            image = CROP(read(random.choice(self.paths)))
            return image, torch.tensor(index), torch.rand(3), torch.rand(2, dtype=torch.bfloat16)

    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    try:
        (batch,) = batches(convert(old(Small(*files), 600, workers=1)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert batch[1].sort().values.tolist() == list(range(600))


@dataclass
class Later:
    """A sample whose __init__ does something."""

    picture: Any
    label: int

    def __post_init__(self):
        self.label += 1


@pytest.mark.slow
def test_containers_are_not_made_anew(files):
    class Contained(Files):
        def __getitem__(self, index):
            made = defaultdict(list, index=index)
            return Later(CROP(read(random.choice(self.paths))), index), made

    def collate(samples):
        return [(each.label, made["index"], made["missing"]) for each, made in samples]

    found = batches(convert(old(Contained(*files), shuffle=False, collate_fn=collate)))
    assert [row for batch in found for row in batch] == [(at + 1, at, []) for at in range(12)]


@pytest.mark.slow
def test_caches_of_tables_stay(files):
    """Only caches of pictures are emptied; this one would be read anew for each sample."""
    calls = []

    @lru_cache
    def table():
        calls.append(1)
        return list(range(100))

    class Looking(Files):
        def __getitem__(self, index):
            return CROP(read(random.choice(self.paths))), table()[index]

    dataset = Looking(*files)
    batches(convert(old(dataset)), epochs=2)
    # some of the visits with true pictures empty them
    assert len(calls) < 60


@pytest.mark.slow
def test_the_programs_data_set_stays_as_it_was(files):
    """What a data set keeps from sample to sample would come from noise."""
    dataset = Remembering(*files)
    batches(convert(old(dataset), allow_state=True), epochs=3)
    assert dataset.sizes == {}


@pytest.mark.release
@pytest.mark.slow
def test_two_loaders_in_two_threads(files):
    """Both run their items in this process, and nothing stays patched."""
    code, found = Image.open.__code__, []

    expected = batches(convert(old(Triplet(*files))), epochs=3)
    loaders = [convert(old(Triplet(*files))) for _ in range(2)]
    threads = [
        threading.Thread(target=lambda each=each: found.append(batches(each, 3)))
        for each in loaders
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert Image.open.__code__ is code
    assert len(found) == 2
    for each in found:
        for one, other in zip(each, expected, strict=True):
            assert_equal(one, other)


@pytest.mark.slow
def test_the_workers_know_the_data_set(files):
    class Asking(Files):
        def __getitem__(self, index):
            info = torch.utils.data.get_worker_info()
            paths = info.dataset.paths if info else self.paths
            return CROP(read(random.choice(paths))), index

    assert len(batches(convert(old(Asking(*files), workers=1)))) == 3


@pytest.mark.slow
def test_the_check_leaves_the_collate_function_as_it_was(files):
    class Collate:
        calls = 0

        def __call__(self, samples):
            self.calls += 1
            return torch.stack([each[0] for each in samples])

    collate = Collate()

    class Plain(Files):
        def __getitem__(self, index):
            return EVAL(read(random.choice(self.paths))), index

    convert(old(Plain(*files), collate_fn=collate), check=True).close()
    assert collate.calls == 0


@pytest.mark.slow
def test_gray_pictures(files):
    class Gray(Files):
        def __getitem__(self, index):
            with Image.open(random.choice(self.paths)) as image:
                return CROP(image.convert("L")), index

    for images, _ in batches(convert(old(Gray(*files)), check=True)):
        assert images.shape == (4, 1, 16, 16)


@pytest.mark.slow
def test_pictures_as_bytes_in_memory(files):
    """Encoded bytes that are in no file of their own go to the backend as they are."""

    class InMemory(Dataset):
        def __init__(self, paths):
            self.data = [Path(path).read_bytes() for path in paths]

        def __len__(self):
            return len(self.data)

        def __getitem__(self, index):
            from io import BytesIO

            other = random.randrange(len(self.data))
            with Image.open(BytesIO(self.data[other])) as image:
                return EVAL(image.convert("RGB")), other

    dataset = InMemory(files[0])
    expected = torch.stack([EVAL(read(path)) for path in files[0]])
    for config, workers in ((PLAIN, 0), (CPU, 2)):
        for images, numbers in batches(convert(old(dataset, workers=workers), config)):
            assert (images - expected[numbers]).abs().mean() < 0.2 / 255


# what is refused


class Counting(Files):
    """Samples that depend on how many there were."""

    count = 0

    def __getitem__(self, index):
        self.count += 1
        return CROP(read(self.paths[(index + self.count) % len(self)])), self.labels[index]


class Remembering(Files):
    """A cache that no sample depends on."""

    def __init__(self, paths, labels):
        super().__init__(paths, labels)
        self.sizes = {}

    def __getitem__(self, index):
        path = random.choice(self.paths)
        self.sizes.setdefault(path, len(path))
        return CROP(read(path)), path


class Unseeded(Files):
    def __getitem__(self, index):
        other = int(np.random.default_rng().integers(len(self)))
        return CROP(read(self.paths[other])), other


class ByPixels(Files):
    def __getitem__(self, index):
        image = read(random.choice(self.paths))
        return CROP(image), float(np.asarray(image).mean())


class BySize(Files):
    def __getitem__(self, index):
        image = read(random.choice(self.paths))
        return CROP(image), image.width


class Reseeding(Files):
    def __getitem__(self, index):
        random.seed(index)
        torch.manual_seed(index)
        return CROP(read(random.choice(self.paths))), index


class OtherSteps(Files):
    def __getitem__(self, index):
        steps = CROP if random.random() < 0.5 else EVAL
        return steps(read(random.choice(self.paths))), index


class OwnPixels(Files):
    def __getitem__(self, index):
        image = CROP(read(random.choice(self.paths)))
        return image.flip(-1) * 2 if random.random() < 0.5 else image, index


class HalfShared(Files):
    def __getitem__(self, index):
        seed, out = random.randrange(2**31), []
        for at in (index, random.randrange(len(self))):
            image = read(self.paths[at])
            torch.manual_seed(seed)
            image = v1.RandomCrop(16)(image)
            torch.manual_seed(seed + 1 + at)
            out.append(v1.Compose([v1.ColorJitter(0.4), v1.ToTensor()])(image))
        return out


class ByLargeFiles(Files):
    """Code that one large file alone shows, which is none of those that are tried."""

    def __init__(self, paths, labels):
        super().__init__(paths, labels)
        self.paths = [*self.paths[:13] * 100, str(Path(paths[0]).with_name("large.png"))]
        if not Path(self.paths[-1]).exists():
            Image.new("RGB", (2100, 60)).save(self.paths[-1])

    def __getitem__(self, index):
        image = read(self.paths[-1 if index == 773 else index])
        if image.width > 2048:
            image = image.crop((0, 0, 900, 60))
        return CROP(image), random.random()


class InBatch(Files):
    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        return [(CROP(read(self.paths[at])), random.choice(indices)) for at in indices]


class OtherStep(Files):
    """What the crop of one picture draws, the flip of the other draws, too."""

    def __getitem__(self, index):
        seed, out = random.randrange(2**31), []
        for steps in (CROP, v1.Compose([*EVAL.transforms[:2], *CROP.transforms[1:]])):
            torch.manual_seed(seed)
            out.append(steps(read(self.paths[random.randrange(len(self))])))
        return out


class SometimesShared(Files):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        seed, out = random.randrange(2**31), []
        for _ in range(2):
            if index == 773:
                torch.manual_seed(seed)
            out.append(CROP(read(random.choice(self.paths))))
        return out


class Curriculum(Files):
    def __init__(self, paths, labels):
        super().__init__(paths, labels)
        self.stage = multiprocessing.Value("i", 0)

    def __getitem__(self, index):
        return CROP(read(random.choice(self.paths))), self.stage.value


class SizesOfNoise(Files):
    def __init__(self, paths, labels):
        super().__init__(paths, labels)
        self.sizes = {}

    def __getitem__(self, index):
        image = read(self.paths[index])
        self.sizes.setdefault(index, image.size)
        return CROP(image), torch.tensor(self.sizes[index]), random.random()


class Masks(Files):
    def __getitem__(self, index):
        path = random.choice(self.paths)
        with Image.open(path) as image:
            return CROP(image.convert("RGB")), torch.from_numpy(np.array(image.convert("L")))


REFUSED = {
    Counting: "differs although the random numbers are the same",
    Remembering: "allow_state=True",
    Unseeded: "differs although the random numbers are the same",
    ByPixels: "depends on (the )?pixels",
    BySize: "size of the picture|depends on pixels",
    Reseeding: "its code seeds the random numbers that transforms draw",
    OtherSteps: "is something else than to the first sample",
    OwnPixels: "code of its own changes it|is something else than to the first sample",
    HalfShared: "share the random numbers of some steps",
    InBatch: "__getitems__",
    OtherStep: "share the random numbers of some steps",
    Curriculum: "a value that processes share",
    Masks: "depends on pixels|differs|depends on the pixels",
}


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_cannot_be_exact_is_refused_by_name(files, kind):
    with pytest.raises(NotConvertibleError, match=REFUSED[kind]):
        convert(old(kind(*files)))


def test_state_that_comes_from_pictures_is_refused(files):
    with pytest.raises(NotConvertibleError, match="depends on the pixels, or on the size"):
        convert(old(SizesOfNoise(*files)), allow_state=True)


LATER = {
    ByLargeFiles: "is not the decoded file",
    SometimesShared: "sample 773 seeds PyTorch's random numbers",
}


@pytest.mark.release
@pytest.mark.parametrize("kind", LATER, ids=lambda kind: kind.__name__)
def test_what_few_samples_show_is_seen(files, kind):
    """When it is converted, if these are among those that are tried, or in the epoch."""
    with pytest.raises(NotConvertibleError, match=f"{LATER[kind]}|made in another way"):
        batches(convert(old(kind(*files))))


def test_state_on_which_nothing_depends_is_allowed(files):
    dataset = Remembering(*files)
    for images, paths in batches(convert(old(dataset), allow_state=True)):
        assert images.shape == (4, 3, 16, 16)
        assert set(paths) <= set(dataset.paths)


@pytest.mark.slow
def test_a_sample_that_does_something_else_stops_the_epoch(files):
    class Rare(Files):
        def __len__(self):
            return 1000

        def __getitem__(self, index):
            steps = EVAL if index == 773 else CROP
            return steps(read(random.choice(self.paths))), index

    loader = convert(old(Rare(*files), 50, shuffle=False))
    with loader, pytest.raises(NotConvertibleError, match="sample 773 is made in another way"):
        list(loader)


def test_a_bad_file_is_named_or_its_sample_replaced(files, tmp_path):
    class Broken(Files):
        def __getitem__(self, index):
            return EVAL(read(self.paths[index])), random.randrange(100), index

    paths = [*files[0], tmp_path / "broken.jpg"]
    (tmp_path / "broken.jpg").write_bytes(files[0][0].read_bytes()[:500])
    options = {"shuffle": False, "batch_size": 4}
    dataset = Broken(paths, [0] * 16)
    # the broken one is not among those that are tried
    dataset = torch.utils.data.Subset(dataset, [*range(7), 15, *range(7, 15)])
    with convert(old(dataset, **options)) as each, pytest.raises(dp.BadSampleError, match="broken"):
        list(each)


def test_options_that_do_not_go_together(files):
    loader = old(Triplet(*files))
    with pytest.raises(dp.ConfigError, match="leave cache_dir out"):
        convert(loader, cache_dir="/tmp/x")
    with pytest.raises(dp.ConfigError, match="every_epoch=True"):
        dp.from_torch(loader, PLAIN, allow_state=True)
    with pytest.raises(
        dp.ConfigError, match="SyntheticConfig does not support images that are in no manifest"
    ):
        convert(loader, SyntheticConfig())


@pytest.mark.parametrize("program", ["unaligned pair", "triplet", "captions", "label noise"])
def test_it_is_proposed_where_samples_are_random(files, program):
    with pytest.raises(NotConvertibleError, match="every_epoch=True"):
        dp.from_torch(old(PROGRAMS[program](*files)), PLAIN, device="cpu")


@pytest.mark.release
@pytest.mark.slow
def test_captions_are_all_drawn(files):
    dataset = PROGRAMS["captions"](*files)
    seen = {text for batch in batches(convert(old(dataset)), epochs=20) for text in batch[1]}
    # each without one of its words
    assert len(seen) == sum(len(each.split()) for each in CAPTIONS)
