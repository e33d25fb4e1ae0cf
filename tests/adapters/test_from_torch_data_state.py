"""By what from_torch recognizes a data set again: its state and its code."""

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from later import later

from dali_pipes.adapters.from_torch.data_state import hash_of

pandas = later("pandas")

SOURCE = """
import os
import math
from functools import lru_cache, partial, wraps

SCALE = {scale}
NAMES = {names}

def helper(value):
    return value * {factor}

def outer(by):
    def inner(value):
        return value + by
    return inner

def logged(function):
    @wraps(function)
    def call(*arguments):
        return function(*arguments)
    return call

class Base:
    {comment}
    def load(self, index):
        return helper(index) {operator} SCALE

class Set(Base):
    kind = {kind}

    def __init__(self):
        self.names = set(NAMES)
        self.closure = outer({closure})
        self.default = lambda value, by={default}: value + by
        self.partial = partial(helper, {argument})
        self.state = {state}

    @logged
    def __getitem__(self, index):
        return self.load(index), self.closure(index), [cached(each) for each in NAMES]

@lru_cache
def cached(value):
    return value + {cached!r}

@staticmethod
def unused():
    return {unused}
"""
PLAIN = {
    "scale": 2,
    "names": ["a", "b", "c"],
    "factor": 3,
    "comment": "",
    "operator": "+",
    "kind": 1,
    "closure": 5,
    "default": 6,
    "argument": 7,
    "state": "[1, 2]",
    "cached": "x",
    "unused": 0,
}


def made(**changes):
    space = {"__name__": "program_of_a_test"}
    exec(SOURCE.format(**PLAIN | changes), space)
    return space["Set"]()


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 3},
        {"names": ["a", "b"]},
        {"factor": 4},
        {"operator": "-"},
        {"kind": 2},
        {"closure": 6},
        {"default": 7},
        {"argument": 8},
        {"state": "[1, 3]"},
        {"cached": "y"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_state_or_code_is_another_data_set(change):
    assert hash_of(made()) is not None
    assert hash_of(made()) == hash_of(made())
    assert hash_of(made(**change)) != hash_of(made())


def test_what_it_does_not_use_changes_nothing():
    assert hash_of(made(comment="# a comment", unused=1)) == hash_of(made())


class Holder:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: torch.ones(3), lambda: torch.tensor([1.0, 1.0, 2.0])),
        (lambda: np.arange(5), lambda: np.arange(6)),
        (lambda: pandas.DataFrame({"a": [1, 2]}), lambda: pandas.DataFrame({"a": [1, 3]})),
        (lambda: {"a": 1}.get, lambda: {"a": 2}.get),
        (lambda: torch.float16, lambda: torch.float32),
        (lambda: random.Random(1), lambda: random.Random(2)),
        (lambda: os.path.join, lambda: os.path.split),
        (lambda: np.ones, lambda: np.zeros),
        (lambda: {"x", "y"}, lambda: {"x", "z"}),
        (lambda: Path("a"), lambda: Path("b")),
    ],
)
def test_values_of_attributes(one, other):
    assert hash_of(Holder(one())) == hash_of(Holder(one())) is not None
    assert hash_of(Holder(one())) != hash_of(Holder(other()))


def test_what_cannot_be_told_has_no_hash(tmp_path):
    with open(tmp_path / "file", "w") as file:
        assert hash_of(Holder(file)) is None
    assert hash_of(Holder(threading.Lock())) is None


def test_a_database_that_was_written_is_another_one(tmp_path):
    file = tmp_path / "labels.h5"
    file.write_bytes(b"1")
    before = hash_of(Holder({"nothing": 1})), hash_of(Holder(str(file))), hash_of(Holder(tmp_path))
    file.write_bytes(b"12")
    after = hash_of(Holder({"nothing": 1})), hash_of(Holder(str(file))), hash_of(Holder(tmp_path))
    assert before[0] == after[0] and before[1] != after[1] and before[2] != after[2]


@pytest.mark.slow
def test_other_processes_have_the_same_hash(tmp_path):
    program = tmp_path / "program.py"
    source = SOURCE.format(**PLAIN)
    program.write_text(
        f"{source}\nfrom dali_pipes.adapters.from_torch.data_state import hash_of\n"
        "print(hash_of(Set(), range(5)))\n"
    )
    hashes = {
        subprocess.run(
            [sys.executable, program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1 and "None" not in hashes.pop()
