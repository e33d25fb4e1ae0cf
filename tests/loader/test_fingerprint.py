"""A loader's state is text and numbers, whatever its options were made of: JSON and
`torch.load(weights_only=True)` take it.
"""

import io
import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dali_pipes as dp
from dali_pipes.loader.resume import to_json_value
from dali_pipes.measure.arms import SyntheticConfig

WRAP = st.sampled_from([lambda x: x, np.asarray, lambda x: np.asarray(x)[()], torch.tensor])
SHARE = st.builds(lambda wrap, x: wrap(x), WRAP, st.sampled_from([0.25, 0.5, 1.0]))
COUNT = st.builds(lambda wrap, x: wrap(x), WRAP, st.integers(1, 4))
SIZE = st.builds(lambda wrap, x: wrap(x), WRAP, st.sampled_from([16, 32]))
PAIR = st.one_of(
    st.tuples(SHARE.map(lambda x: x / 8), SHARE),
    st.just(np.array([0.1, 1.0])),
    st.just(torch.tensor([0.1, 1.0])),
)
POLICY = st.one_of(
    st.builds(lambda p: {"name": "RandomErasing", "p": p}, SHARE),
    st.builds(
        lambda bins: {"name": "TrivialAugmentWide", "num_magnitude_bins": bins},
        COUNT.map(lambda x: x + 2),
    ),
)


class Colour(Enum):
    RED = object()


@dataclass
class Own:
    """A batch transform of a user's, with options of all kinds."""

    strength: Any = 1.0
    table: Any = field(default_factory=lambda: np.arange(3))
    weights: Any = field(default_factory=lambda: torch.ones(2, dtype=torch.bfloat16))
    kinds: Any = field(default_factory=lambda: {"b", "a"})
    place: Any = Path("/x")
    colour: Any = Colour.RED
    by_number: Any = field(
        default_factory=lambda: {np.int64(3): [np.float32(0.5), (np.str_("x"), float("inf"))]}
    )
    function: Any = print
    other: Any = field(default_factory=object)
    kind: Any = np.float32

    def __call__(self, batch, draws):
        return batch


def check_state(state):
    assert json.loads(json.dumps(state, allow_nan=False)) == state
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state


@given(
    transform=st.builds(
        dp.TrainTransform,
        size=SIZE,
        flip=SHARE,
        scale=PAIR,
        augment=POLICY.map(lambda each: [each]),
        min_box_size=SHARE,
    ),
    mix=st.one_of(
        st.none(),
        st.builds(dp.MixUp, alpha=SHARE, num_classes=st.just(np.int64(5)), probability=SHARE),
        st.just(Own()),
    ),
    sampling=st.one_of(
        st.none(),
        st.builds(lambda times: dp.Repeated(times=times, spread=np.bool_(True)), COUNT),
        st.builds(
            lambda size: {"name": "weighted", "weights": np.ones(37), "epoch_size": size}, SIZE
        ),
        st.builds(
            lambda since: {
                "name": "schedule",
                "schedule": {0: "balanced", np.int64(3): {"name": "uniform"}},
            },
            COUNT,
        ),
    ),
    batch_size=SIZE.map(lambda x: x // 4),
    seed=st.integers(0, 2**64 - 1).map(np.uint64),
)
def test_a_state_is_text_and_numbers(thumbnails, transform, mix, sampling, batch_size, seed):
    options = {
        "transform": transform,
        "batch_transform": mix,
        "sampling": sampling,
        "batch_size": batch_size,
        "seed": seed,
    }
    with dp.build_loader(thumbnails, SyntheticConfig(), **options) as one:
        next(iter(one))
        state = one.state_dict()
        check_state(state)
        one.load_state_dict(json.loads(json.dumps(state)))


def test_arrays_are_told_apart_by_what_they_hold():
    assert to_json_value(np.arange(3)) == to_json_value(np.arange(3)) != to_json_value(np.arange(4))
    assert (
        to_json_value(Own()) == to_json_value(Own()) != to_json_value(Own(weights=torch.zeros(2)))
    )
    check_state(to_json_value(Own()))


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, 1j, np.array([1, 2]), torch.zeros(()), np.datetime64("2020-01-01")]
)
def test_what_is_no_number_is_described(value):
    check_state({"value": to_json_value(value)})


def test_the_channels_of_images_count(thumbnails):
    def loader(**options):
        transform = dp.EvalTransform(dtype="uint8", **options)
        return dp.build_loader(thumbnails, SyntheticConfig(), transform=transform, batch_size=4)

    with loader() as before, loader() as same, loader(channels=1) as gray:
        same.load_state_dict(before.state_dict())
        with pytest.raises(dp.ConfigError, match=r"channels \(3 → 1\)"):
            gray.load_state_dict(before.state_dict())
        with pytest.raises(dp.ConfigError, match=r"channels \(1 → 3\)"):
            before.load_state_dict(gray.state_dict())
