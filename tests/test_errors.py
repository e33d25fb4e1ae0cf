"""Mistakes of users, as they reach other processes."""

import pickle
from copy import copy

import pytest

import dali_pipes as dp
from dali_pipes.errors import (
    ChoiceError,
    DaliPipesError,
    Mention,
    NoGpuError,
    OptionError,
    RankError,
    SmallDataError,
    Spelling,
    WorkerError,
)

ERRORS = [
    dp.DaliPipesError("give ", Spelling("task='regression'", "data.task=regression")),
    dp.ConfigError("batch_size is 0"),
    OptionError(dp.TorchConfig, "num_workers is -1; write ", Mention(dp.TorchConfig, "decoder")),
    ChoiceError(dp.TorchConfig, "does not fit"),
    NoGpuError("there is no GPU", of_loader=True, reason="no driver"),
    RankError(1, dp.OmissionError("/images: left out")),
    SmallDataError("/images", images=3, batch=4, ranks=2),
    dp.ManifestError("/images: no such folder"),
    dp.OmissionError("/images: left out"),
    WorkerError("a worker was killed"),
    dp.BadSampleError("3 images failed", [(3, "cat/3.jpg", "truncated")]),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("passed_on", [lambda error: pickle.loads(pickle.dumps(error)), copy])
def test_an_error_is_the_same_in_another_process(error, passed_on):
    other = passed_on(error)
    assert type(other) is type(error) and str(other) == str(error)
    assert content(other) == content(error) and other.summary == error.summary


def content(error):
    """The attributes of an error, and of one inside it: exceptions are equal by identity alone."""
    return {
        name: (type(value), content(value)) if isinstance(value, Exception) else value
        for name, value in vars(error).items()
    }


def test_every_error_with_arguments_of_its_own_is_tried():
    def below(kind):
        return {kind}.union(*map(below, kind.__subclasses__()))

    own = {kind for kind in below(DaliPipesError) if "__init__" in vars(kind)}
    public = {kind for kind in own if kind.__module__ == "dali_pipes.errors"}
    assert public <= {type(error) for error in ERRORS} | {OptionError}
