"""Bad pictures of items, and what load() refuses by name."""

import logging
import multiprocessing
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from item_programs import Captions, Clip, Files, Triplet, UnalignedPair
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset

import dali_pipes as dp
from dali_pipes.measure.arms import SyntheticConfig

TRANSFORM = dp.TrainTransform(size=16, dtype="uint8")
TORCH = dp.TorchConfig(num_workers=0)
DALI = dp.DaliConfig(device="cpu", num_threads=1)
both = pytest.mark.parametrize("config", [TORCH, DALI], ids=["torch", "dali_cpu"])


@pytest.fixture
def paths(tmp_path):
    """12 files."""
    rng = np.random.default_rng(5)
    files = [tmp_path / f"{number}.jpg" for number in range(12)]
    for file in files:
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(file)
    return list(map(str, files))


class Pairs(Files):
    """Each image and the one three after it."""

    def __getitem__(self, index):
        other = (index + 3) % len(self)
        return dp.Encoded(self.paths[index]), dp.Encoded(self.paths[other]), index, torch.rand(1)


def load(dataset, config=TORCH, **options):
    options = {"transform": TRANSFORM, "batch_size": 4, "device": "cpu", **options}
    return dp.load(dataset, config, **options)


def spoil(path, how):
    if how == "missing":
        Path(path).unlink()
    elif how == "no image":
        Path(path).write_bytes(b"this is no image")
    else:  # the header is whole, and most of the pixels are missing
        os.truncate(path, 900)


@both
@pytest.mark.parametrize("how", ["missing", "no image", "truncated"])
def test_a_bad_picture_is_named(paths, config, how):
    spoil(paths[5], how)
    with (
        load(Pairs(paths, range(12)), config) as loader,
        pytest.raises(dp.BadSampleError, match=re.escape(paths[5])) as raised,
    ):
        for _ in range(2):
            list(loader)
    assert "on_bad_sample='substitute'" in str(raised.value)
    # both items that have it may be in the batch; the file is named once
    assert [path for _, path, _ in raised.value.bad_samples] == [paths[5]]


@pytest.mark.parametrize("how", ["missing", "truncated"])
def test_a_bad_picture_is_named_in_every_epoch(paths, how):
    spoil(paths[5], how)
    with load(Pairs(paths, range(12))) as loader:
        for _ in range(2):
            with pytest.raises(dp.BadSampleError, match=re.escape(paths[5])):
                list(loader)
        loader.set_epoch(0)
        with pytest.raises(dp.BadSampleError, match=re.escape(paths[5])):
            list(loader)
        assert [path for _, path, _ in loader.bad_samples] == [paths[5]]


def test_a_bad_picture_belongs_to_the_item_that_has_it(paths):
    """And not to the item that it is to replace."""
    spoil(paths[3], "missing")
    spoil(paths[4], "truncated")
    options = {"on_bad_sample": "substitute", "max_bad_fraction": 0.2, "shuffle": False}
    with load(Captions(paths, range(12)), **options) as loader:
        (batch, *_) = list(loader)
        found = [(number, path) for number, path, _ in loader.bad_samples]
    assert found == [(3, paths[3]), (4, paths[4])]
    assert batch[2]["index"].tolist() == [0, 1, 2, 5]


@both
@pytest.mark.parametrize("how", ["missing", "truncated"])
def test_an_item_is_replaced_as_a_whole(paths, config, how, caplog):
    spoil(paths[5], how)
    options = {"on_bad_sample": "substitute", "max_bad_fraction": 0.2, "shuffle": False}
    with load(Pairs(paths, range(12)), config, **options) as loader:
        with caplog.at_level(logging.WARNING, "dali_pipes"):
            epochs = [list(loader) for _ in range(2)]
        assert [path for _, path, _ in loader.bad_samples] == [paths[5]]
    assert caplog.text.count(f"{paths[5]}: ") == 1

    # items 5 and 2 have the file: each is the next one, with all of its pictures and values
    indices = [index for batch in epochs[0] for index in batch[2].tolist()]
    assert indices == [0, 1, 3, 3, 4, 6, 6, 7, 8, 9, 10, 11]
    assert [batch[2].tolist() for batch in epochs[1]] == [batch[2].tolist() for batch in epochs[0]]
    whole = Pairs(paths, range(12))
    whole.paths[5] = paths[4]
    with load(whole, config, shuffle=False) as loader:
        expected = list(loader)
    # the item that took another's place draws other numbers than at its own
    drawn, own = epochs[0][0][3], expected[0][3]
    assert torch.equal(drawn[[0, 1, 3]], own[[0, 1, 3]])
    assert len({*drawn.flatten().tolist(), *own.flatten().tolist()}) == 5
    for batch, other in zip(epochs[0], expected, strict=True):
        same = batch[2] == other[2]
        assert torch.equal(batch[0][same][:1], other[0][same][:1])


@pytest.mark.parametrize("how", ["missing", "truncated"])
def test_an_item_may_have_chosen_a_bad_picture(paths, how):
    """Whatever its number: the item that replaces it must not make the same choice."""
    spoil(paths[9], how)
    dataset = UnalignedPair(paths, range(12))
    options = {"on_bad_sample": "substitute", "max_bad_fraction": 0.2, "batch_size": 6}
    runs = []
    for config, workers in ((TORCH, 1), (DALI, 0)):
        with load(dataset, config, num_workers=workers, **options) as loader:
            runs.append([batch["B_paths"] for _ in range(6) for batch in loader])
            assert [path for _, path, _ in loader.bad_samples] == [paths[9]]
    partners = [path for names in runs[0] for path in names]
    assert runs[0] == runs[1]
    assert len(partners) == 36
    assert paths[9] not in partners


@pytest.mark.slow
def test_replacements_do_not_depend_on_ranks_and_workers(paths):
    spoil(paths[5], "truncated")
    options = {"on_bad_sample": "substitute", "max_bad_fraction": 0.2}
    with load(Pairs(paths, range(12)), **options) as loader:
        whole = torch.cat([batch[0] for batch in loader])
    parts = []
    for rank in range(2):
        with load(
            Pairs(paths, range(12)),
            DALI,
            **options | {"batch_size": 2, "rank": dp.Rank(rank, 2), "num_workers": 1},
        ) as loader:
            parts.append(list(loader))
    found = torch.cat([batch[0] for both in zip(*parts, strict=True) for batch in both])
    assert (found.float() - whole.float()).abs().mean() < 0.1


def test_too_many_bad_pictures_end_it(paths):
    for path in paths[2:6]:
        spoil(path, "no image")
    with (
        load(Pairs(paths, range(12)), on_bad_sample="substitute", max_bad_fraction=0.2) as loader,
        pytest.raises(dp.BadSampleError, match="of 12 items are bad so far"),
    ):
        for _ in range(2):
            list(loader)


def test_a_data_set_of_bad_pictures_only(paths):
    for path in paths:
        spoil(path, "no image")
    options = {"on_bad_sample": "substitute", "max_bad_fraction": 1.0}
    with load(Captions(paths, range(12)), **options) as loader:
        for _ in range(2):
            with pytest.raises(
                dp.ConfigError, match=r"12 of 12 items .* cannot be used, such as .*jpg"
            ):
                list(loader)
        assert sorted(path for _, path, _ in loader.bad_samples) == sorted(paths)


class Counted(Captions):
    run = 0

    def __getitem__(self, index):
        self.run += 1
        return super().__getitem__(index)


def test_many_neighbours_may_be_bad(paths):
    every = [*paths[:5], *(f"{paths[0]}.{number}" for number in range(70)), *paths[5:]]
    options = {"on_bad_sample": "substitute", "shuffle": False}
    with load(Captions(every, range(82)), max_bad_fraction=0.9, **options) as loader:
        epoch = list(loader)
        assert [number for number, _, _ in loader.bad_samples] == list(range(5, 75))
    indices = [index for batch in epoch for index in batch[2]["index"].tolist()]
    assert indices[:8] == [0, 1, 2, 3, 4, 75, 75, 75]

    # with too many for max_bad_fraction, the rest is not tried
    dataset = Counted(every, range(82))
    with (
        load(dataset, max_bad_fraction=0.1, **options) as loader,
        pytest.raises(dp.BadSampleError, match="9 of 82 items are bad so far"),
    ):
        list(loader)
    assert dataset.run < 20


def test_a_file_that_changes_is_read_anew(paths):
    class First(Files):
        def __getitem__(self, index):
            return dp.Encoded(self.paths[0])

    eval_transform = dp.EvalTransform(resize=None, size=8, dtype="uint8")
    with load(First(paths, range(12)), transform=eval_transform) as loader:
        list(loader)
        Image.new("RGB", (60, 50), (255, 0, 0)).save(paths[0], quality=95)
        (later, *_) = list(loader)
    assert later[:, 0].min() > 240
    assert later[:, 1:].max() < 15


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_data_set_says_in_which_item(paths, workers):
    class Broken(Captions):
        def __getitem__(self, index):
            if index == 7:
                raise KeyError("no such caption")
            return super().__getitem__(index)

    with (
        load(Broken(paths, range(12)), num_workers=workers, shuffle=False) as loader,
        pytest.raises(KeyError, match="no such caption") as raised,
    ):
        list(loader)
    assert "in item 7 of Broken" in str(raised.value) + "".join(
        getattr(raised.value, "__notes__", [])
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stop_iteration_does_not_end_the_epoch(paths, workers):
    class Ended(Captions):
        def __getitem__(self, index):
            return next(iter(())) if index == 7 else super().__getitem__(index)

    with (
        load(Ended(paths, range(12)), num_workers=workers, shuffle=False) as loader,
        pytest.raises(RuntimeError, match="item 7 of Ended raised StopIteration"),
    ):
        list(loader)


class Odd(Files):
    """Item 3 is not as the others are."""

    def odd(self):
        return None

    def __getitem__(self, index):
        item = {"picture": dp.Encoded(self.paths[index]), "label": index}
        return item | self.odd() if index == 3 else item


def odd(**changes):
    return type("Odd", (Odd,), {"odd": lambda self: changes})


ODD_ITEMS = {
    "a picture less": ({"picture": 0}, "has 0 Encoded, and the first item had 1"),
    "a picture more": ({"more": dp.Encoded("x.jpg")}, "has 2 Encoded, and the first item had 1"),
    "a picture elsewhere": (
        {"picture": 0, "label": dp.Encoded("x.jpg")},
        r"item 3 of Odd has int at \['picture'\], and the first item had picture 1",
    ),
    "another transform": (
        {"picture": dp.Encoded("x.jpg", dp.EvalTransform())},
        "has another transform or other draws than in the first item",
    ),
    "other draws": (
        {"picture": dp.Encoded("x.jpg", draws="x")},
        "has another transform or other draws than in the first item",
    ),
    "a value of another kind": (
        {"label": torch.zeros(2)},
        r"has Tensor of float32 at \['label'\], and the first item had int",
    ),
    # default_collate lets the first item of a batch decide
    "a float for an int": ({"label": 3.0}, r"has float at \['label'\], and the first item had int"),
    "a key more": ({"more": 1}, r"has int at \['more'\], and the first item had nothing"),
}


@pytest.mark.parametrize("name", ODD_ITEMS)
@both
def test_items_of_other_structure_are_refused(paths, name, config):
    changes, message = ODD_ITEMS[name]
    if "elsewhere" in name:
        # missing files are no matter: the structure is looked at first
        changes = changes | {"label": dp.Encoded(paths[0])}
    dataset = odd(**changes)(paths, range(12))
    with (
        load(dataset, config, shuffle=False, on_bad_sample="substitute") as loader,
        pytest.raises(dp.ConfigError, match=message),
    ):
        list(loader)


def test_pictures_with_the_same_draws_have_equal_sizes(paths):
    Image.new("RGB", (50, 30)).save(paths[4])
    with (
        load(Clip(paths, range(12))) as loader,
        pytest.raises(
            dp.ConfigError,
            match=r"draws='clip' must have equal sizes.*4\.jpg has 50 × 30|4\.jpg 50",
        ),
    ):
        list(loader)


class NoPicture(Files):
    def __getitem__(self, index):
        return index


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


class NoLength:
    def __getitem__(self, index):
        return index


class OwnTransform(Files):
    def __getitem__(self, index):
        return dp.Encoded(self.paths[index], TRANSFORM)


class Pixels(Files):
    def __getitem__(self, index):
        return dp.Encoded(np.zeros((4, 4, 3)))


CAPTIONS = Captions(["x.jpg"], [0])
REFUSED = {
    "no Encoded": (NoPicture(["x"], [0]), {}, "item 0 of NoPicture has no Encoded"),
    "a stream": (Stream(), {}, "Stream has no items by number"),
    "no length": (NoLength(), {}, "NoLength has no length"),
    "no items": (Captions([], []), {}, "Captions has no items"),
    "a class": (Captions, {}, r"write Captions\(…\)"),
    "a DataLoader": (DataLoader(CAPTIONS), {}, r"pass on its \.dataset"),
    "no transform": (CAPTIONS, {"transform": None}, r"the picture at \[0\] has no transform"),
    "two transforms": (OwnTransform(["x.jpg"], [0]), {}, "transform is given twice"),
    "pixels": (Pixels(["x"], [0]), {}, "an encoded image as bytes, and not array"),
    "another transform": (CAPTIONS, {"transform": torch.nn.Identity()}, "another of dali_pipes"),
    "sizes": (
        CAPTIONS,
        {"transform": dp.TrainTransform(sizes={1: 32})},
        "sizes changes the size of the images from an epoch on",
    ),
    "boxes": (
        CAPTIONS,
        {"transform": dp.IoUCropTransform()},
        "IoUCropTransform crops around boxes, and an item has none",
    ),
    "padding": (
        CAPTIONS,
        {"transform": dp.ShortestSizeTransform()},
        "pads images to the largest of a batch",
    ),
    "an arm": (CAPTIONS, {"config": SyntheticConfig()}, "SyntheticConfig does not support images"),
    "a rank of 0": (CAPTIONS, {"rank": 0}, r"rank is 0; it takes Rank\(index, count\)"),
    "a rank of 1": (CAPTIONS, {"rank": 1}, r"rank is 1; it takes Rank\(index, count\)"),
    "no config": (CAPTIONS, {"config": "torch"}, "config is 'torch'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    dataset, options, message = REFUSED[name]
    with pytest.raises(dp.ConfigError, match=message):
        load(dataset, **options)


@pytest.mark.parametrize("option", ["collate_fn", "sampler", "worker_init_fn", "batch_transform"])
def test_options_that_it_does_not_have(option):
    with pytest.raises(TypeError, match=f"'{option}'; write "):
        dp.load(CAPTIONS, TORCH, transform=TRANSFORM, batch_size=1, **{option: None})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("s3://bucket/x.jpg",), "it takes a file on this machine"),
        (("x.jpg", "train"), r"Encoded\.transform is 'train'"),
        (("x.jpg", None, 3), r"Encoded\.draws is 3"),
        ((7,), "an encoded image as bytes, and not 7"),
    ],
    ids=["URL", "transform", "draws", "number"],
)
def test_an_encoded_of_other_kinds(arguments, message):
    with pytest.raises(dp.ConfigError, match=message):
        dp.Encoded(*arguments)


def test_transforms_that_no_worker_can_send_are_refused(paths):
    class Lambda(Files):
        transform = dp.TrainTransform(size=8, augment=[dp.Augment(lambda images, draws: images)])

        def __getitem__(self, index):
            return dp.Encoded(self.paths[index], self.transform)

    with pytest.raises(dp.ConfigError, match="cannot be sent between processes"):
        load(Lambda(paths, range(12)), transform=None, num_workers=1)


def test_a_crop_that_is_larger_than_an_image(paths):
    Image.new("RGB", (30, 60)).save(paths[4])
    crop = dp.RandomCropTransform(size=36, resize=None, padding=0)
    with load(Captions(paths, range(12)), transform=crop, shuffle=False) as loader:
        epoch = iter(loader)
        assert next(epoch)[0].shape == (4, 3, 36, 36)
        with pytest.raises(dp.ConfigError, match=r"smaller than the random crop.* 4\.jpg|4\.jpg"):
            next(epoch)


def test_the_loader_ends_its_workers(paths):
    before = set(multiprocessing.active_children())
    with load(Triplet(paths, [number % 3 for number in range(12)]), num_workers=2) as loader:
        next(iter(loader))
        assert len(set(multiprocessing.active_children()) - before) == 2
    assert not set(multiprocessing.active_children()) - before
