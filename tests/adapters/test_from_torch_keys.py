"""What from_torch takes for the same transform: `StepKeys` and `freeze`."""

from functools import partial

import pytest
from torchvision import transforms

from dali_pipes.adapters.from_torch.recording.keys import StepKeys, freeze


def scaled(value, by=1):
    return value * by


def lambda_with_default(by):
    return lambda value, by=by: value * by


def lambda_with_closure(by):
    return lambda value: value if by is None else value * by


class Preset:
    def double(self, value):
        return 2 * value

    def half(self, value):
        return value / 2


@pytest.mark.parametrize(
    "make",
    [lambda_with_default, lambda_with_closure, lambda by: partial(scaled, by=by)],
    ids=["defaults", "closures", "partials"],
)
def test_functions_are_equal_only_with_equal_values(make):
    assert freeze(make(2)) == freeze(make(2))
    assert freeze(make(2)) != freeze(make(3))
    assert freeze(make(None)) != freeze(make(3))


def test_methods_of_an_object_differ():
    preset = Preset()
    assert freeze(preset.double) == freeze(preset.double)
    assert freeze(preset.double) != freeze(preset.half)
    assert freeze(preset.double) != freeze(Preset().double)


def test_a_value_that_is_changed_in_place_is_seen():
    keys = StepKeys()
    crop = transforms.RandomResizedCrop(8, scale=[0.1, 1.0])
    first = keys.of(crop, is_cheap=True)
    assert keys.of(crop, is_cheap=True) == first

    crop.scale[0] = 0.5
    assert keys.of(crop, is_cheap=True) != first
    crop.scale = [0.1, 1.0]
    assert keys.of(crop, is_cheap=True) == first


@pytest.mark.parametrize(
    "change",
    [
        lambda step: setattr(step, "mean", step.std),
        lambda step: step.mean.__setitem__(0, 0.25),
        lambda step: step.mean.append(0.5),
        lambda step: setattr(step, "more", 1),
        lambda step: step._forward_hooks.__setitem__(0, print),
        lambda step: setattr(step, "__dict__", {**vars(step), "mean": step.std}),
        lambda step: setattr(
            step, "__dict__", dict(zip(vars(step), reversed(vars(step).values()), strict=True))
        ),
    ],
    ids=["attribute", "value", "length", "new", "hook", "dict", "names"],
)
def test_a_list_of_steps_is_compared_each_time(change):
    keys, step = StepKeys(), transforms.Normalize([0.5, 0.4, 0.3], [0.2, 0.2, 0.2])
    steps = [transforms.ToTensor(), step]
    first = keys.of_all(steps)
    assert keys.of_all(steps) is first

    change(step)
    assert keys.of_all(steps) != first
