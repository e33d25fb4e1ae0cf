"""from_torch(every_epoch=True) of a DataLoader over an IterableDataset: its order and its samples,
with pixels of a backend; and what cannot be carried over, by name.
"""

import io
import itertools
import logging
import multiprocessing
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from every_epoch_programs import CROP, EVAL, read
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

import dali_pipes as dp
from dali_pipes.adapters.from_torch.reading import NotConvertibleError

PLAIN = dp.TorchConfig(num_workers=0)
CPU = dp.DaliConfig(device="cpu", num_threads=1)
MORE = (PLAIN, 0.6), (CPU, 0)  # loaders, and how much of a bad file there is


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("iterable"), np.random.default_rng(4)
    paths = [root / f"{number:02d}.jpg" for number in range(26)]
    for path in paths:
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
        coarse.resize((64, 48)).save(path, quality=95)
    return [str(path) for path in paths]


def share(samples):
    """Those of this worker."""
    info = get_worker_info()
    return itertools.islice(samples, info.id, None, info.num_workers) if info else samples


class Iterated(IterableDataset):
    """Runs a generator of a test."""

    def __init__(self, paths, generate):
        self.paths, self.generate, self.epoch = paths, generate, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return self.generate(self)


def convert(files, generate, config=PLAIN, workers=2, batch_size=4, **options):
    of_torch = ("drop_last", "worker_init_fn", "persistent_workers", "collate_fn")
    given = {name: options.pop(name) for name in of_torch if name in options}
    kind = generate if isinstance(generate, IterableDataset) else Iterated(files, generate)
    old = DataLoader(kind, batch_size, num_workers=workers, **given)
    options = {"seed": 3, "device": "cpu", "check": False, **options}
    return dp.from_torch(old, config, every_epoch=True, **options)


def in_order(self):
    for number, path in share(enumerate(self.paths)):
        # the file stays open while the sample is in use
        with Image.open(path) as image:
            yield EVAL(image.convert("RGB")), number


def captions(self):
    order = list(enumerate(self.paths))
    random.Random(self.epoch).shuffle(order)
    for number, path in share(order):
        text = random.choice(["a", "bb", "ccc"])
        yield {"image": CROP(read(path)), "text": text, "number": number, "noise": torch.rand(2)}


def pairs(self):
    for number in itertools.count():
        yield CROP(read(random.choice(self.paths))), CROP(read(random.choice(self.paths))), number


def assert_equal(one, other, mean=0.15):
    assert one.keys() == other.keys()
    assert one["text"] == other["text"]
    assert torch.equal(one["number"], other["number"])
    assert torch.equal(one["noise"], other["noise"])
    assert (one["image"] - other["image"]).abs().mean() <= mean / 255


@pytest.mark.parametrize(
    ("config", "workers"), [pytest.param(PLAIN, 0, marks=pytest.mark.slow), (CPU, 2)]
)
def test_an_evaluation_is_the_old_loaders(files, config, workers):
    old = DataLoader(Iterated(files, in_order), 4, num_workers=workers)
    with convert(files, in_order, config, workers, check=True) as loader:
        assert "images differ by 0." in loader.explain()
        assert "of its own __iter__" in loader.explain()
        for _ in range(2):
            for (images, numbers), (expected, theirs) in zip(loader, old, strict=True):
                assert torch.equal(numbers, theirs)
                assert (images - expected).abs().mean() < 0.15 / 255
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_training_is_the_same_on_both_backends_and_after_a_resume(files):
    with convert(files, captions, check=True) as loader:
        first = list(loader)
        second = list(loader)
    assert sorted(torch.cat([each["number"] for each in first]).tolist()) == list(range(26))
    assert {text for each in first for text in each["text"]} == {"a", "bb", "ccc"}
    # crops are others in each epoch
    with pytest.raises(AssertionError):
        assert_equal(first[0], {**second[0], "text": first[0]["text"], "noise": first[0]["noise"]})

    with convert(files, captions, CPU) as loader:
        for one, other in zip(loader, first, strict=True):
            assert_equal(one, other)
        epoch = iter(loader)
        for other in second[:3]:
            assert_equal(next(epoch), other)
        state = loader.state_dict()
    with convert(files, captions) as loader:
        loader.load_state_dict(state)
        for one, other in zip(loader, second[3:], strict=True):
            assert_equal(one, other, mean=0)
        assert loader.loader.epoch == 2


@pytest.mark.slow
def test_set_epoch_of_the_data_set_reaches_the_workers(files):
    dataset = Iterated(files, captions)
    with convert(files, dataset) as loader:
        orders = []
        for epoch in (0, 1, 0):
            dataset.set_epoch(epoch)
            orders.append(torch.cat([each["number"] for each in loader]).tolist())
    assert orders[0] == orders[2] != orders[1]


@pytest.mark.slow
def test_persistent_workers_and_an_epoch_that_is_left(files):
    with convert(files, captions, persistent_workers=True) as loader:
        next(iter(loader))
        for _ in range(2):
            numbers = torch.cat([each["number"] for each in loader]).tolist()
            assert sorted(numbers) == list(range(26))
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_an_iterator_without_end(files):
    """Two pictures of random files; ranks have other crops of what they yield."""
    ranks = []
    for rank in range(2):
        with convert(files, pairs, workers=1, rank=dp.Rank(rank, 2)) as loader:
            ranks.append(list(itertools.islice(loader, 30))[-1])
            with pytest.raises(TypeError):
                len(loader)
            with pytest.raises(dp.ConfigError, match="diagnose does not know where"):
                dp.diagnose(loader, lambda batch: None)
    assert torch.equal(ranks[0][2], ranks[1][2])
    assert ranks[0][2].tolist() == [116, 117, 118, 119]
    assert not torch.equal(ranks[0][0], ranks[1][0])
    # the two pictures of a sample are two places
    assert not torch.equal(ranks[0][0], ranks[0][1])


@pytest.mark.slow
def test_encoded_bytes_in_a_buffer(files, tmp_path):
    """A tar, shuffled before it is decoded; all members are equally long, so their sizes say
    nothing.
    """
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        for number, path in enumerate(files):
            read(path).save(tmp_path / f"{number:02d}.bmp")
            tar.add(tmp_path / f"{number:02d}.bmp", f"{number:02d}.bmp")

    def buffered(samples):
        held = []
        for each in samples:
            held.append(each)
            if len(held) > 5:
                yield held.pop(random.randrange(len(held)))
        yield from held

    def members(self):
        with tarfile.open(archive) as tar:
            for number, member in share(enumerate(tar)):
                yield tar.extractfile(member).read(), number

    def single(self):
        for number, path in share(enumerate(self.paths)):
            yield Path(path).with_suffix(".bmp").read_bytes(), number

    for source, paths in (
        (members, files),
        (single, [tmp_path / Path(each).name for each in files]),
    ):

        def decoded(self, source=source):
            for data, number in buffered(source(self)):
                yield EVAL(Image.open(io.BytesIO(data)).convert("RGB")), number

        with convert(paths, decoded, CPU) as loader:
            found = list(loader)
        numbers = torch.cat([each[1] for each in found]).tolist()
        assert sorted(numbers) == list(range(26)) != numbers
        for image, number in zip(torch.cat([each[0] for each in found]), numbers, strict=True):
            assert (image - EVAL(read(files[number]))).abs().mean() < 0.2 / 255


@pytest.mark.slow
def test_worker_init_fn_shares_the_samples(files):
    def from_start(self):
        first, step = getattr(self, "share", (0, 1))
        for number in range(first, len(self.paths), step):
            yield EVAL(read(self.paths[number])), number

    def begin(worker):
        info = get_worker_info()
        info.dataset.share = worker, info.num_workers

    with convert(files, from_start, worker_init_fn=begin, check=True) as loader:
        numbers = torch.cat([each[1] for each in loader]).tolist()
    assert sorted(numbers) == list(range(26))


@pytest.mark.slow
@pytest.mark.filterwarnings(
    # its iterators do not close the shards that they have open when they are left
    "ignore:unclosed file:ResourceWarning",
    "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning",
)
def test_webdataset(files, tmp_path):
    wds = pytest.importorskip("webdataset")
    for shard in range(4):
        with wds.TarWriter(str(tmp_path / f"{shard}.tar")) as tar:
            for number in range(shard, 26, 4):
                data = Path(files[number]).read_bytes()
                tar.write({"__key__": f"{number:04d}", "jpg": data, "cls": number})
    urls = [str(tmp_path / f"{shard}.tar") for shard in range(4)]
    shards = wds.WebDataset(urls, shardshuffle=False).shuffle(6, rng=random.Random(0))
    dataset = shards.decode("pil").to_tuple("jpg", "cls").map_tuple(EVAL)
    with convert(files, dataset, CPU, check=True) as loader:
        found = list(loader)
    numbers = torch.cat([each[1] for each in found]).tolist()
    assert sorted(numbers) == list(range(26)) != numbers
    for image, number in zip(torch.cat([each[0] for each in found]), numbers, strict=True):
        assert (image - EVAL(read(files[number]))).abs().mean() < 0.2 / 255


# what cannot be carried over


def unshared(self):
    for number, path in enumerate(self.paths):
        yield EVAL(read(path)), number


def ahead(self):
    before = None
    for number, path in share(enumerate(self.paths)):
        sample = EVAL(read(path)), number
        if before:
            yield before
        before = sample
    yield before


def own_pixels(self):
    for number, path in share(enumerate(self.paths)):
        yield EVAL(Image.fromarray(255 - np.array(read(path)))), number


def no_file(self):
    for number in range(20):
        yield torch.rand(3, 16, 16), number


def empty(self):
    return iter(())


def structures(self):
    for number, path in share(enumerate(self.paths)):
        yield (EVAL(read(path)), number) if number % 3 else {"image": EVAL(read(path))}


def unseeded(self):
    order = list(self.paths)
    random.Random().shuffle(order)
    for path in share(order):
        yield EVAL(read(path)), path


def failing(self):
    raise ValueError("no shard")
    yield


REFUSED = {
    unshared: "all of its workers yield the same samples.*get_worker_info",
    ahead: "decodes pictures before it yields their samples",
    own_pixels: "is not the decoded file",
    no_file: "it opens no image",
    empty: "its iterator yields no sample",
    structures: "sample 1 has tuple at the sample itself, and the first one had dict",
    unseeded: "which files it opens differs although.*draw the order from random",
    failing: "its iterator fails .ValueError: no shard",
}


@pytest.mark.few(4)
@pytest.mark.parametrize("generate", REFUSED, ids=lambda each: each.__name__)
def test_it_is_refused_by_name(files, generate):
    with pytest.raises(NotConvertibleError, match=f"Iterated.*{REFUSED[generate]}"):
        convert(files, generate, check=True)


def test_other_loaders_are_refused_by_name(files):
    with pytest.raises(NotConvertibleError, match="pass every_epoch=True"):
        dp.from_torch(DataLoader(Iterated(files, in_order), 4), PLAIN, device="cpu")
    with pytest.raises(NotConvertibleError, match="batches of its own"):
        convert(files, in_order, batch_size=None)
    with pytest.raises(NotConvertibleError, match="which sample comes next"):
        convert(files, in_order, on_bad_sample="substitute")
    with pytest.raises(NotConvertibleError, match="data pipe"):
        convert(files, IterableWrapper(files))


def test_state_without_workers_is_refused(files):
    def counting(self):
        self.epoch += 1
        return captions(self)

    with pytest.raises(NotConvertibleError, match=r"iterating changes what it holds \(epoch"):
        convert(files, counting, workers=0)


@pytest.mark.slow
def test_the_data_set_stays_as_it_was(files):
    def counting(self):
        self.epoch += 1
        return captions(self)

    dataset = Iterated(files, counting)
    state = random.getstate(), torch.get_rng_state()
    with convert(files, dataset, check=True) as loader:
        list(loader)
    assert dataset.epoch == 0
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])


@pytest.mark.slow
def test_a_sample_of_two_workers_is_named(files, caplog):
    """Each worker shuffles all files in its own way: nothing shares them."""

    def shuffled(self):
        order = list(self.paths)
        random.shuffle(order)
        for path in order:
            yield EVAL(read(path)), path

    with caplog.at_level(logging.WARNING), convert(files, shuffled) as loader:
        assert sum(len(each[1]) for _ in range(2) for each in loader) == 2 * 52
    (text,) = (each.getMessage() for each in caplog.records)
    assert "workers 0 and 1 both yield a sample of" in text or "workers 1 and 0" in text


@pytest.mark.slow
def test_workers_that_yield_the_same_are_refused_in_the_epoch(files):
    with (
        convert(files, unshared) as loader,
        pytest.raises(NotConvertibleError, match="same samples"),
    ):
        list(loader)


@pytest.mark.slow
def test_an_old_picture_is_not_taken_for_a_new_one(files):
    """A picture that was kept, and changed, so that only its values can tell whose it is."""

    def replayed(self):
        kept = None
        for number in range(60):
            image = CROP(read(self.paths[number % 26])) * 2
            kept = image if number == 20 else kept
            yield kept if number == 40 else image, number

    with convert(files, replayed, workers=0) as loader:
        epoch = iter(loader)
        with pytest.raises(NotConvertibleError, match="sample 40 of worker 0 is made in another"):
            list(epoch)


@pytest.mark.slow
def test_an_iterator_that_leaves_out_large_pictures_is_refused(files, tmp_path):
    """One is larger than all that are tried before."""
    large = tmp_path / "large.png"
    Image.new("RGB", (4300, 60)).save(large)

    def smaller(self):
        for number, path in share(enumerate([*self.paths[:20], str(large), *self.paths[20:]])):
            image = read(path)
            if image.width < 4200:
                yield CROP(image), number

    with convert(files, smaller) as loader:
        epoch = iter(loader)
        with pytest.raises(NotConvertibleError, match="leaves out pictures of some sizes"):
            list(epoch)


@pytest.mark.slow
@pytest.mark.parametrize("is_late", [False, True])
def test_errors_are_not_lost_in_a_batch_that_is_dropped(files, is_late):
    """The last batch of a worker has one sample only, or an error."""

    def failing_late(self):
        for number, path in share(enumerate(self.paths)):
            if number == 25 and not is_late:
                raise ValueError("the end")
            yield (CROP if number < 25 else EVAL)(read(path)), number

    expected = (NotConvertibleError, "is made in another") if is_late else (ValueError, "the end")
    loader = convert(files, failing_late, drop_last=True)
    with loader, pytest.raises(expected[0], match=expected[1]):
        list(loader)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("config", "kept"),
    [(PLAIN, 0), (CPU, 0.6), *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE)],
)
def test_a_bad_file_is_named(files, tmp_path, config, kept):
    whole = Path(files[0]).read_bytes()
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(whole[: int(len(whole) * kept)])
    paths = [*files[:20], str(bad), *files[20:]]
    with convert(paths, in_order, config) as loader:
        for epoch in range(2):
            assert loader.loader.epoch == max(0, epoch - 1)
            with pytest.raises(
                dp.BadSampleError, match=r"(?s)bad\.jpg.*leave them out in the data set's"
            ):
                list(loader)
        assert loader.loader.bad_samples[0][:2] == (10, str(bad))
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_resume_with_other_samples_is_refused(files):
    dataset = Iterated(files, in_order)
    with convert(files, dataset) as loader:
        epoch = iter(loader)
        next(epoch), next(epoch)
        state = loader.state_dict()
    with convert(files[1:], in_order) as loader:
        loader.load_state_dict(state)
        with pytest.raises(
            dp.ConfigError, match="the first 2 batches of epoch 0 have other samples"
        ):
            list(loader)
        # the next epoch is a new one
        assert sum(len(each[1]) for each in loader) == 25
    with convert(files, in_order, batch_size=5, workers=1) as loader:
        with pytest.raises(dp.ConfigError, match="these have changed: batch size, workers"):
            loader.load_state_dict(state)
        with pytest.raises(dp.ConfigError, match="not the state of a loader of an Iterable"):
            loader.load_state_dict({"epoch": 0})


@pytest.mark.slow
def test_a_length_is_that_of_the_data_set(files):
    class Sized(Iterated):
        def __len__(self):
            return len(self.paths)

    with convert(files, Sized(files, in_order)) as loader:
        assert len(loader) == 7
