"""A transform is one class and one row of a table, and so are a sampling and a policy."""

from dataclasses import dataclass, fields
from importlib import import_module
from inspect import isabstract
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from planned import labelled

import dali_pipes as dp
from dali_pipes.checks import check_int, check_number
from dali_pipes.cli.conf import register
from dali_pipes.measure.workload import from_dict, to_dict
from dali_pipes.options import option
from dali_pipes.plan.geometry import crop_geometry
from dali_pipes.plan.order import Order
from dali_pipes.plan.sampling import SAMPLINGS, Sampling, parse_sampling
from dali_pipes.plan.steps.lists import POLICIES
from dali_pipes.plan.steps.operations import Slot
from dali_pipes.plan.steps.policies import Policy, choose_op
from dali_pipes.plan.transforms import TRANSFORMS, Transform

PACKAGE = Path(dp.__file__).parent
TABLES = {"transforms": TRANSFORMS, "sampling": SAMPLINGS}
ALL_ROWS = [row.__name__ for table in TABLES.values() for row in table.values()]


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


@dataclass(kw_only=True, slots=True)
class RandomInvert(Policy):
    """All values inverted, with probability `p`."""

    name: str = "RandomInvert"
    p: float = option(0.5, check_number, 0, 1)

    slots: ClassVar[tuple[Slot, ...]] = (Slot(("Invert",)),)

    def draw(self, draws, first, shape):
        happens, *_ = draws.uniform(first)
        return choose_op("Invert", np.zeros_like(happens), happens < self.p)


@pytest.fixture
def toys(monkeypatch):
    monkeypatch.setitem(POLICIES, "RandomInvert", RandomInvert)
    monkeypatch.setitem(TRANSFORMS, "corner_crop", CornerCropTransform)
    monkeypatch.setitem(SAMPLINGS, "backwards", Backwards)


def classes_in(folder, base):
    """Those of a folder that can be made, by their names."""
    found = {}
    for file in (PACKAGE / "plan" / folder).glob("*.py"):
        place = f"dali_pipes.plan.{folder}.{file.stem}".replace("/", ".").removesuffix(".__init__")
        found |= {
            name: kind
            for name, kind in vars(import_module(place)).items()
            if isinstance(kind, type) and issubclass(kind, base) and kind.__module__ == place
        }
    return {name: kind for name, kind in found.items() if not isabstract(kind)}


@pytest.mark.parametrize("folder", TABLES)
def test_every_class_has_a_row_and_every_row_a_public_name(folder):
    base = {"transforms": Transform, "sampling": Sampling}[folder]
    rows = {kind.__name__: kind for kind in TABLES[folder].values()}
    # a corner is a part of ten crops, and nobody's transform
    assert rows == {
        name: kind for name, kind in classes_in(folder, base).items() if name != "CornerCrop"
    }
    assert all(getattr(dp, name) is kind for name, kind in rows.items())


def test_every_policy_has_a_row():
    assert classes_in("steps", Policy).items() <= POLICIES.items()
    assert len(classes_in("steps", Policy)) == len(POLICIES) - 3  # Augment, and two that erase
    for name in POLICIES:
        (default,) = (each.default for each in fields(POLICIES[name]) if each.name == "name")
        assert POLICIES[name].__name__ == default == name


@pytest.mark.parametrize("folder", TABLES)
def test_a_row_is_enough_for_a_public_name(toys, folder):
    kind = {"transforms": CornerCropTransform, "sampling": Backwards}[folder]
    assert getattr(dp, kind.__name__) is kind and kind.__name__ in [*dp.__all__, *dir(dp)]
    del vars(dp)[kind.__name__]  # kept there once it was asked for
    assert not any(name in (PACKAGE / "__init__.py").read_text() for name in ALL_ROWS)


def test_a_row_is_enough_for_a_plan(toys):
    sampling = {"name": "backwards", "times": 2}
    assert parse_sampling(sampling) == Backwards(times=2)
    plan = dp.Plan(labelled([0] * 8), CornerCropTransform(size=16, margin=3), 4, sampling=sampling)
    assert plan.order(0).tolist() == [7, 5, 3, 1]
    geometry = plan.batch(0, 0).geometry
    assert geometry.region.tolist() == [[3, 3, 16, 16]] * 4 and not geometry.crop.any()


@pytest.mark.parametrize(
    "config", [dp.TorchConfig(num_workers=0), dp.DaliConfig(device="cpu", num_threads=1)]
)
def test_a_row_is_enough_for_a_policy_on_every_backend(toys, manifest, config):
    def images(augment):
        transform = dp.TrainTransform(size=16, dtype="uint8", augment=augment)
        options = {"transform": transform, "batch_size": 8, "device": "cpu"}
        with dp.build_loader(manifest, config, **options) as loader:
            return next(iter(loader)).images

    assert torch.equal(images([{"name": "RandomInvert", "p": 1}]), 255 - images([]))
    with pytest.raises(dp.ConfigError, match="RandomInvert does not take strength; it takes p"):
        dp.TrainTransform(augment=[{"name": "RandomInvert", "strength": 3}])


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
