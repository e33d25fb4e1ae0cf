import numpy as np
import pytest

import dali_pipes as dp
from dali_pipes.loader.fingerprint import to_json_value
from dali_pipes.plan.geometry import Geometry

REFUSED = {
    "channels": ({"channels": 2}, "channels is 2; it takes 1 or 3"),
    "interpolation": ({"interpolation": "area"}, "interpolation is 'area'"),
    "three means": ({"channels": 1, "mean": [0, 0, 0]}, "channels is 1, so mean and std are"),
    "two means": ({"mean": [0, 0]}, "it takes a number, or three for red, green and blue"),
    "std": ({"std": 0}, "std is 0"),
    "uint8": ({"dtype": "uint8", "scale": 2}, "dtype is uint8, which leaves values as they are"),
    "fill": ({"dtype": "uint8", "fill": 256}, "dtype is uint8, and fill is 256; it takes 0 to 255"),
    "factor": ({"size_factor": 17}, "size_factor is 17; it takes whole numbers from 1 to 16"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_cannot_work_are_refused(case):
    options, why = REFUSED[case]
    with pytest.raises(dp.ConfigError, match=why):
        dp.TargetImage(**options)
    with pytest.raises(dp.ConfigError, match=f"EvalTransform.target_images: depth: .*{why}"):
        dp.EvalTransform(target_images={"depth": options})


def test_names_of_options_are_checked():
    with pytest.raises(dp.ConfigError, match="unexpected keyword argument 'chanels'; did you"):
        dp.EvalTransform(target_images={"depth": {"chanels": 1}})
    with pytest.raises(dp.ConfigError, match="depth is 'nearest'; it takes a TargetImage"):
        dp.EvalTransform(target_images={"depth": "nearest"})
    with pytest.raises(dp.ConfigError, match="target_images is 'depth'; it takes options by the"):
        dp.EvalTransform(target_images="depth")
    with pytest.raises(dp.ConfigError, match="depth has interpolation bicubic, and antialias is F"):
        dp.EvalTransform(antialias=False, target_images={"depth": {"interpolation": "bicubic"}})


def test_a_mapping_is_a_target_image():
    made = dp.EvalTransform(target_images={"depth": {"channels": 1}}).target_images["depth"]
    assert made == dp.TargetImage(channels=1)


def test_fingerprints_without_further_images_are_those_of_before():
    assert "target_images" not in to_json_value(dp.TrainTransform())
    assert "target_images" in to_json_value(dp.TrainTransform(target_images={"depth": {}}))


def test_a_larger_target_is_placed_by_whole_pixels():
    numbers = np.array([[30, 40], [5, 7], [20, 10], [-3, 4]])
    source, start, size, crop = numbers
    no = np.False_
    geometry = Geometry(source, np.concatenate([start, size]), size, crop, no, no)
    place = dp.TargetImage(size_factor=2).place(geometry, (90, 120))
    assert place.source.tolist() == [90, 120] and place.region.tolist() == [15, 21, 60, 30]
    assert place.resize.tolist() == [40, 20] and place.crop.tolist() == [-6, 8]
