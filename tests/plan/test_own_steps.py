"""A transform is one file and one row of a table, and so is a sampling."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from planned import labelled

import dali_pipes as dp
from dali_pipes.checks import check_int
from dali_pipes.cli.conf import register
from dali_pipes.measure.workload import from_dict, to_dict
from dali_pipes.options import option
from dali_pipes.plan.geometry import crop_geometry
from dali_pipes.plan.order import Order
from dali_pipes.plan.sampling import SAMPLINGS, Sampling, parse_sampling
from dali_pipes.plan.transforms import TRANSFORMS, Transform

PACKAGE = Path(dp.__file__).parent
TABLES = {"transforms": TRANSFORMS, "sampling": SAMPLINGS}
SHARED = {"__init__", "base", "choice"}  # files of what all transforms or all samplings share


@dataclass(kw_only=True, slots=True)
class CornerCropTransform(Transform):
    """The top left corner, `margin` pixels from the edges."""

    margin: int = option(0, check_int, 0)

    def geometry(self, source, draws):
        crop = np.full_like(source, self.margin)
        flips = np.zeros((2, len(source)), bool)
        return crop_geometry(source, None, crop, self.shape, flips)


@dataclass(kw_only=True, slots=True)
class Backwards(Sampling):
    """Every `times` images one, the last ones first."""

    times: int = option(1, check_int, 1)

    def order(self, manifest, seed, global_batch_size):
        n = len(manifest)
        return Order(n // self.times, lambda places: n - 1 - places * self.times % n)


@pytest.fixture
def toys(monkeypatch):
    monkeypatch.setitem(TRANSFORMS, "corner_crop", CornerCropTransform)
    monkeypatch.setitem(SAMPLINGS, "backwards", Backwards)


@pytest.mark.parametrize("folder", TABLES)
def test_every_file_has_a_row_and_every_row_a_file_and_a_public_name(folder):
    files = {file.stem for file in (PACKAGE / "plan" / folder).glob("*.py")} - SHARED
    assert files == set(TABLES[folder])
    for name, kind in TABLES[folder].items():
        assert kind.__module__ == f"dali_pipes.plan.{folder}.{name}"
        assert getattr(dp, kind.__name__) is kind


def test_a_row_is_enough_for_a_plan(toys):
    sampling = {"name": "backwards", "times": 2}
    assert parse_sampling(sampling) == Backwards(times=2)
    plan = dp.Plan(labelled([0] * 8), CornerCropTransform(size=16, margin=3), 4, sampling=sampling)
    assert plan.order(0).tolist() == [7, 5, 3, 1]
    geometry = plan.batch(0, 0).geometry
    assert geometry.region.tolist() == [[3, 3, 16, 16]] * 4 and not geometry.crop.any()


def test_a_row_is_enough_for_results(toys):
    transform = CornerCropTransform(size=16, margin=3)
    assert from_dict(to_dict(transform)) == transform


def test_a_row_is_enough_for_a_schema(toys, tmp_path):
    register()
    for group, name in (("transform", "corner_crop"), ("sampling", "backwards")):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(f"defaults:\n  - {name}_schema\n")
    (tmp_path / "job.yaml").write_text("defaults:\n  - transform: mine\n  - sampling: mine\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        config = compose("job", ["transform.margin=3", "sampling.times=2"])
    assert OmegaConf.to_object(config.transform) == CornerCropTransform(margin=3)
    assert OmegaConf.to_object(config.sampling) == Backwards(times=2)
