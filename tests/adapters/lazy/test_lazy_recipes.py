"""Recipes say where a picture is and what is done to it, and never change."""

import enum
import os
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from dali_pipes.adapters.lazy import recipes
from dali_pipes.adapters.lazy.recipes import Changed, Recipe, Source, frozen
from dali_pipes.adapters.lazy.state import (
    PROCESS,
    eager,
    pictures_wait,
    waiting,
    waits,
)
from dali_pipes.adapters.lazy.steps import step
from dali_pipes.adapters.lazy.steps.step import Step, add

OLD = 1_600_000_000  # seconds


@pytest.fixture(autouse=True)
def fresh():
    PROCESS.failed = None
    yield
    PROCESS.failed = None


@pytest.fixture
def path(tmp_path):
    """An old JPEG."""
    path = tmp_path / "picture.jpg"
    Image.linear_gradient("L").save(path)
    os.utime(path, (OLD, OLD))
    return path


@pytest.fixture
def source(path):
    with open(path, "rb") as file:
        return Source.of_file("pillow", path, file.fileno(), "JPEG", False, None)


@pytest.fixture
def steps():
    """Steps of these tests, which are forgotten after them."""
    before = dict(step.STEPS)
    add(
        Step("sum of", lambda picture, *args, by=1: sum(args) * by),
        Step("dtype", lambda picture: (torch.zeros(1).dtype, torch.is_autocast_enabled("cpu"))),
        Step("waits", lambda picture: (pictures_wait(), waits("tensor"))),
        Step("fails", lambda picture: 1 / 0),
    )
    yield
    step.STEPS.clear()
    step.STEPS.update(before)


# sources


def test_a_file_is_known_by_its_path_and_stamp(path, source):
    assert source.path == str(path) and source.data is None
    assert source.size == path.stat().st_size and source.is_whole
    assert source.open().size == (256, 256)


def test_a_relative_path_is_made_absolute(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with open(path, "rb") as file:
        for name in ("picture.jpg", b"picture.jpg"):
            assert Source.of_file("pillow", name, file.fileno()).path == str(path)


@pytest.mark.parametrize("age", [0.0, 1.5, -100.0])
def test_a_young_file_is_kept_as_bytes(path, age, monkeypatch):
    """Also one that was written later than it is now."""
    monkeypatch.setattr(recipes.time, "time", lambda: OLD + age)
    monkeypatch.setattr(recipes, "_NOW", [OLD - 1000.0])
    with open(path, "rb") as file:
        found = Source.of_file("pillow", path, file.fileno())
    assert found.data == path.read_bytes() and found.path is None


def test_what_has_no_path_is_kept_as_bytes(path):
    with open(path, "rb") as file:
        assert Source.of_file("pillow", 7, file.fileno()).data == path.read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda path: os.utime(path, (OLD + 1, OLD + 1)),
        lambda path: path.replace(path.with_suffix(".old")).rename(path),  # its ctime is another
        lambda path: (path.rename(path.with_suffix(".old")), path.write_bytes(b"")),
    ],
)
def test_every_change_of_a_file_is_seen(path, source, change):
    change(path)
    with pytest.raises(Changed, match=r"picture\.jpg has changed"):
        source.open()


@pytest.mark.parametrize(
    ("cut", "is_whole"), [(slice(None), True), (slice(-1), False), (slice(-40), False)]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_source_knows_whether_it_is_whole(tmp_path, kind, cut, is_whole):
    path = tmp_path / "picture"
    Image.linear_gradient("L").save(path, kind)
    data = path.read_bytes()[cut]
    path.write_bytes(data)
    os.utime(path, (OLD, OLD))
    with open(path, "rb") as file:
        assert Source.of_file("pillow", path, file.fileno()).is_whole == is_whole
    assert Source.of_bytes("pillow", data).is_whole == is_whole


# recipes


def test_a_recipe_does_not_change(source):
    first = Recipe(source, (256, 256), "L")
    one, other = first.then("crop", (1, 2, 3, 4)), first.then("crop", (5, 6, 7, 8))
    assert first.notes == () and len(one.notes) == len(other.notes) == 1
    assert one.make().size == (2, 2)
    with pytest.raises(AttributeError):
        one.mode = "RGB"


def test_arguments_are_frozen(source):
    box, noise, options = [1, 2], np.zeros(3), {"by": [torch.zeros(2)]}
    recipe = Recipe(source, (256, 256), "L").then("sum of", box, noise, **options)
    box.append(3)
    noise += 1
    options["by"][0] += 1
    ((_, (kept_box, kept_noise), kept),) = recipe.notes
    assert kept_box == (1, 2) and not kept_noise.any() and not kept["by"][0].any()


class Color(enum.IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        ("a", "a"),
        ([1, [2, 3]], (1, (2, 3))),
        ((1, None, 2.5), (1, None, 2.5)),
        (Color.RED, 3),
        ([Color.RED, True], (3, True)),
        ({}, {}),
        ({"a": [1]}, {"a": (1,)}),
        (bytearray(b"ab"), bytearray(b"ab")),
        (torch.float32, torch.float32),
        (np.float32(2), np.float32(2)),
    ],
)
def test_frozen(value, expected):
    found = frozen(value)
    assert found == expected and type(found) is type(expected)
    if isinstance(value, int):
        assert type(found) in (int, bool)


def test_an_error_is_kept_whatever_the_program_does_with_it(source, steps):
    recipe = Recipe(source, (256, 256), "L").then("fails")
    with pytest.raises(ZeroDivisionError):
        recipe.make()
    assert isinstance(PROCESS.failed, ZeroDivisionError)


def test_steps_run_without_waiting_and_in_pytorchs_usual_modes(source, steps):
    first = Recipe(source, (256, 256), "L")
    torch.set_default_dtype(torch.float64)
    try:
        with waiting(True), torch.autocast("cpu"):
            assert first.then("dtype").make() == (torch.float32, False)
            assert first.then("waits").make() == (False, False)
            assert torch.is_autocast_enabled("cpu") and pictures_wait()
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_recipe_is_sent_in_few_bytes(source):
    recipe = Recipe(source, (256, 256), "L").then("crop", (1, 2, 3, 4)).then("transpose", 0)
    data = pickle.dumps(recipe, 5)
    assert pickle.loads(data) == recipe
    assert len(data) < 400 + len(source.path)


# whether things wait


def test_nothing_waits_unless_somebody_says_so(monkeypatch):
    assert not waits("picture") and not waits("tensor") and not waits("array")
    monkeypatch.setattr(PROCESS, "waits", True)
    assert waits("picture") and waits("tensor") and waits("array")
    with eager():
        assert not waits("picture") and not waits("array")
        with waiting(True):
            assert waits("picture")
    assert waits("picture")


def test_kinds_are_switched_off(monkeypatch):
    monkeypatch.setattr(PROCESS, "off", {"array"})
    with waiting(True):
        assert waits("picture") and waits("tensor") and not waits("array")
    monkeypatch.setattr(PROCESS, "off", {"picture"})
    with waiting(True):
        assert not waits("picture") and not pictures_wait() and waits("array")


def test_tensors_do_not_wait_in_other_modes():
    with waiting(True):
        with torch.autocast("cpu"):
            assert not waits("tensor") and not waits("array") and waits("picture")
        torch.set_default_dtype(torch.float64)
        try:
            assert not waits("tensor")
        finally:
            torch.set_default_dtype(torch.float32)
        assert waits("tensor")
