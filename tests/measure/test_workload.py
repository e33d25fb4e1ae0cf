"""Options go to other processes as JSON, and come back as they were."""

import json
from operator import itemgetter

import pytest

import dali_pipes as dp
from dali_pipes.errors import ConfigError
from dali_pipes.measure.workload import from_dict, to_dict
from dali_pipes.plan.steps.functions import Augment


def invert(image, numbers=None):
    return 255 - image


def there_and_back(transform):
    return from_dict(json.loads(json.dumps(to_dict(transform))))


@pytest.mark.parametrize(
    "transform",
    [
        dp.TrainTransform(size=32, scale=(0.5, 1), augment=["RandAugment"]),
        dp.TrainTransform(augment=["GaussianBlur", Augment(invert)]),
        dp.TrainTransform(augment=[Augment(invert, where="normalized", draws=2)]),
        dp.ViewsTransform(views={"a": {"count": 2, "augment": ["RandomGrayscale"]}, "b": {}}),
        dp.LetterboxTransform(size=64),
        dp.TorchConfig(num_workers=2),
        dp.DaliConfig(device="cpu"),
    ],
)
def test_options_come_back_as_they_were(transform):
    assert there_and_back(transform) == transform


@pytest.mark.parametrize(
    ("function", "title"), [(lambda image: image, "<lambda>"), (itemgetter(0), "itemgetter")]
)
def test_a_function_that_cannot_be_imported_is_named(function, title):
    with pytest.raises(ConfigError, match=rf"{title} is a step of your own that lives in your"):
        to_dict(dp.TrainTransform(augment=[Augment(function)]))
