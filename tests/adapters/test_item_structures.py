"""Items of any containers, and what is compared of their structure."""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from item_programs import Files, Sides
from PIL import Image

import dali_pipes as dp
from dali_pipes.adapters.items.skeletons import find_difference, form_of, rebuild


@dataclass(frozen=True)
class Checked:
    """An item whose __post_init__ checks its picture's type."""

    picture: Any
    label: int
    name: str = field(default="x", init=False)

    def __post_init__(self):
        if not isinstance(self.picture, dp.Encoded):
            raise TypeError("picture is no Encoded")


class Row(list):
    """A list that takes two arguments."""

    def __init__(self, name, values):
        super().__init__(values)
        self.name = name


class Structures(Files):
    def __getitem__(self, index):
        encoded = dp.Encoded(self.paths[index])
        counts = defaultdict(int, picture=encoded, index=index)
        return counts, Checked(encoded, index), Row("row", [encoded, index])


@pytest.mark.parametrize("workers", [0, 1])
def test_containers_with_arguments_of_their_own(tmp_path, workers):
    paths = [tmp_path / f"{number}.png" for number in range(2)]
    for path in paths:
        Image.new("RGB", (8, 8)).save(path)
    with dp.load(
        Structures(paths, range(2)),
        dp.TorchConfig(num_workers=0),
        transform=dp.EvalTransform(resize=8, size=8),
        batch_size=2,
        num_workers=workers,
        device="cpu",
    ) as loader:
        ((counts, checked, row),) = list(loader)
    assert type(counts) is defaultdict
    assert type(row) is Row
    assert row.name == "row"
    assert checked.name == ["x", "x"]
    for picture, index in (
        (counts["picture"], counts["index"]),
        (checked.picture, checked.label),
        row,
    ):
        assert picture.shape == (2, 3, 8, 8)
        assert index.tolist() == [0, 1]


def test_an_item_that_cannot_be_copied_is_named():
    class Fixed(dict):
        def __copy__(self):
            raise TypeError("this is never copied")

    class Items(Files):
        def __getitem__(self, index):
            return Fixed(picture=dp.Encoded(self.paths[index]))

    with pytest.raises(TypeError, match="never copied") as raised:
        dp.load(Items(["x.jpg"], [0]), transform=dp.TrainTransform(), batch_size=1)
    assert raised.value.__notes__ == ["in item 0 of Items"]


def test_a_copy_has_the_same_containers():
    value = {"a": [1, (2, Sides(3, 4))], "b": OrderedDict(c=Checked(dp.Encoded("x.jpg"), 5))}
    kinds = []
    copied = rebuild(lambda leaf: kinds.append(type(leaf).__name__) or leaf, value)
    assert copied == value
    assert copied["a"] is not value["a"]
    assert kinds == ["int", "int", "int", "int", "Encoded", "int", "str"]


DIFFERENT = {
    "a key less": ({"a": 1, "b": 2}, {"a": 1}, ("['b']", "int", "nothing")),
    "a key more": ([{"a": 1}], [{"a": 1, "b": "x"}], ("[0]['b']", "nothing", "str")),
    "int and float": ((1, 2), (1, 2.0), ("[1]", "int", "float")),
    "bool and int": ({"a": True}, {"a": 1}, ("['a']", "bool", "int")),
    "dtypes": (
        {"a": torch.zeros(2)},
        {"a": torch.zeros(2, dtype=torch.float64)},
        ("['a']", "Tensor of float32", "Tensor of float64"),
    ),
    "arrays": ([np.zeros(2)], [torch.zeros(2)], ("[0]", "ndarray of float64", "Tensor of float32")),
    "lengths": ([1, 2], [1, 2, 3], ("[2]", "nothing", "int")),
    "containers": ([1, 2], (1, 2), ("", "list", "tuple")),
    "classes": (Sides(1, 2), (1, 2), ("", "Sides", "tuple")),
    "fields": (
        Checked(dp.Encoded("x.jpg"), 1),
        Checked(dp.Encoded("x.jpg"), None),
        (".label", "int", "NoneType"),
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_structures_differ(name):
    one, other, expected = DIFFERENT[name]
    assert find_difference(form_of(one), form_of(other)) == expected


def test_structures_are_the_same():
    """The order of keys, shapes, and NumPy's int64 for an int make no difference to a batch."""
    one = {"a": 1, "b": np.zeros(3), "c": 0.5}
    other = {"c": np.float64(1), "b": np.ones(4), "a": np.int64(1)}
    assert find_difference(form_of(one), form_of(other)) is None


def test_values_of_other_shapes_are_refused(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")

    class Ragged(Files):
        def __getitem__(self, index):
            return dp.Encoded(self.paths[0]), torch.zeros(index)

    with (
        dp.load(
            Ragged([tmp_path / "x.png"] * 4, range(4)),
            dp.TorchConfig(num_workers=0),
            transform=dp.EvalTransform(),
            batch_size=2,
            device="cpu",
        ) as loader,
        pytest.raises(dp.ConfigError, match="items 0, 1, …: PyTorch's default_collate cannot join"),
    ):
        list(loader)
