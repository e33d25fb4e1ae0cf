"""What transforms of items are compared by, and that load() takes copies of them."""

from functools import partial

import pytest
import torch
from item_programs import Files
from PIL import Image
from torchvision.transforms import v2

import dali_pipes as dp
from dali_pipes.adapters.items.transform import are_alike


@pytest.fixture
def paths(tmp_path):
    """Four files."""
    files = [tmp_path / f"{number}.png" for number in range(4)]
    for number, file in enumerate(files):
        Image.new("RGB", (20, 20), (60 * number, 0, 90)).save(file)
    return files


class Own(Files):
    """Each picture has the transform of `make`, which is called for each item."""

    def __init__(self, paths, make):
        super().__init__(paths, range(len(paths)))
        self.make = make

    def __getitem__(self, index):
        return dp.Encoded(self.paths[index], self.make(index))


def load(dataset, **options):
    options = {"batch_size": 2, "device": "cpu", "shuffle": False, **options}
    return dp.load(dataset, dp.TorchConfig(num_workers=0), **options)


def train(function):
    return dp.TrainTransform(size=8, dtype="uint8", augment=[dp.Augment(function)])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_module_in_a_transform_is_compared_by_value(paths, workers):
    blur = train(v2.GaussianBlur(3))
    with load(Own(paths, lambda index: blur), num_workers=workers) as loader:
        assert [len(batch) for batch in loader] == [2, 2]

    made = [train(v2.GaussianBlur(size)) for size in (3, 3, 5, 3)]
    with (
        load(Own(paths, made.__getitem__), num_workers=workers) as loader,
        pytest.raises(dp.ConfigError, match="of item 2 of Own has another transform"),
    ):
        list(loader)


def test_a_lambda_needs_no_pickle_in_this_process(paths):
    invert = train(lambda images: 255 - images)
    with load(Own(paths, lambda index: invert)) as loader:
        first = next(iter(loader))
    assert first[:, 2].unique().tolist() == [165]


def scale(images, by):
    return images * by


def closure(by):
    return lambda images: images * by


ALIKE = [
    lambda by: partial(scale, by=by),
    closure,
    lambda by: v2.Compose([v2.GaussianBlur(2 * by + 1)]),
    lambda by: v2.Normalize([by], [1]),
    lambda by: torch.nn.Sequential(torch.nn.Threshold(by, 0)),
]


@pytest.mark.parametrize("make", ALIKE, ids=["partial", "closure", "Compose", "list", "modules"])
def test_functions_are_alike_by_what_they_hold(make):
    assert are_alike(train(make(1)), train(make(1)))
    assert not are_alike(train(make(1)), train(make(2)))
    assert not are_alike(train(make(1)), train(scale))


def test_later_changes_of_a_transform_change_no_pixels(paths):
    transform = dp.TrainTransform(size=8)
    own = load(Own(paths, lambda index: transform))
    given = load(Own(paths, lambda index: None), transform=transform)
    transform.size = 16
    with given:
        assert next(iter(given)).shape[-1] == 8
    # the data set returns another one now
    with own, pytest.raises(dp.ConfigError, match="of item 0 of Own has another transform"):
        next(iter(own))

    transform.size = "large"
    for make, default in ((lambda index: transform, None), (lambda index: None, transform)):
        with pytest.raises(dp.ConfigError, match="size"):
            load(Own(paths, make), transform=default)
