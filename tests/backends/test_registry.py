"""What makes a backend: one row, whether it is one of ours or of another package that is
installed.
"""

import json
import os
import re
import shutil
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import test_contract
import torch
from hydra import compose, initialize_config_dir
from later import later
from omegaconf import OmegaConf
from PIL import Image

import dali_pipes as dp
from dali_pipes.backends import registry
from dali_pipes.backends.backend import Backend, Description
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.needs import EVERYTHING
from dali_pipes.backends.pixels.pool import Finisher
from dali_pipes.backends.registry import is_for_training, list_backends, load_backend
from dali_pipes.cli.conf import register
from dali_pipes.data.config import DataConfig
from dali_pipes.measure.arms.synthetic import SyntheticBackend
from dali_pipes.tools.benchmark.config import BenchmarkConfig

tool = later("dali_pipes.tools.benchmark.run")

TOY = Path(__file__).parents[1] / "support/toy_backend.py"
PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """As pip leaves a package: its module, and what it says of itself. Other processes see it
    too.
    """

    def installed(entry_point):
        site = tmp_path / "site"
        about = site / "toy_backend-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[{registry.GROUP}]\ntoy = {entry_point}\n")
        shutil.copy(TOY, site)
        monkeypatch.syspath_prepend(site)
        monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)

    list_backends.cache_clear()
    yield installed
    list_backends.cache_clear()


@pytest.fixture
def toy(install, monkeypatch):
    install("toy_backend:ToyConfig")
    monkeypatch.setitem(test_contract.BACKENDS, "toy", list_backends()["toy"]())


@pytest.mark.parametrize("name", list_backends())
def test_every_row_is_a_backend(name):
    config = list_backends()[name]
    assert config.name == name and issubclass(load_backend(config()), Backend)


@dataclass(kw_only=True, slots=True)
class NoConfig(LoaderConfig):
    """Of nothing."""


@dataclass(kw_only=True, slots=True)
class PrivateConfig(LoaderConfig):
    """Of a backend in somebody's own program."""

    backend = "dali_pipes.measure.arms.synthetic:SyntheticBackend"


def test_a_backend_can_be_known_by_its_config_alone():
    with pytest.raises(
        dp.ConfigError, match="NoConfig is no loader config; use one of AutoConfig, Dali"
    ):
        load_backend(NoConfig())
    assert load_backend(PrivateConfig()) is SyntheticBackend
    assert not is_for_training(PrivateConfig())


@pytest.mark.parametrize("last_batch", ["drop", "partial", "pad"])
def test_another_packages_backend_holds_the_contract(toy, thumbnails, last_batch):
    test_contract.test_delivers_the_rows_of_the_plan(thumbnails, "toy", last_batch)


@pytest.mark.few
@pytest.mark.parametrize("transform", test_contract.ALL)
def test_its_pixels_hold_the_contract(toy, real_manifest, transform):
    test_contract.test_pixels_are_those_of_plain_torchvision_and_pillow(
        real_manifest, "toy", transform
    )


def test_the_threads_of_the_page_make_the_same_pixels(toy, real_manifest, monkeypatch):
    """CONTRIBUTING's own lines in place of the toy's."""
    lines = next(
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "Finisher(" in block
    )

    def my_decoded_regions(batch):
        for at, (top, left, height, width) in enumerate(batch.region):
            with Image.open(BytesIO(batch.images.read(batch.ids[at]))) as image:
                region = image.convert("RGB").crop((left, top, left + width, top + height))
            regions.append(region.size)
            yield torch.from_numpy(np.array(region))

    def epoch(config):
        options = {"transform": dp.TrainTransform(size=32), "batch_size": 8}
        with dp.build_loader(real_manifest, config, **options) as loader:
            return [(batch.ids.tolist(), batch.images) for batch in loader]

    regions = []
    lines = lines.replace("self.config.num_threads", "2")  # the toy has no such option
    own = {"Backend": Backend, "Description": Description, "EVERYTHING": EVERYTHING}
    own |= {"Finisher": Finisher, "my_decoded_regions": lambda batch: [*my_decoded_regions(batch)]}
    exec(lines, own)
    config = list_backends()["toy"]()
    expected = epoch(config)
    backend = load_backend(config)
    for name in ("prepare", "stream", "describe", "close"):
        monkeypatch.setattr(backend, name, vars(own["MyBackend"])[name], raising=False)
    for (ids, images), (expected_ids, others) in zip(epoch(config), expected, strict=True):
        assert ids == expected_ids and len(regions) >= len(ids)
        # PyTorch resizes here, and Pillow in the toy: one step of 255, normalized
        torch.testing.assert_close(images, others, atol=1.01 / 255 / 0.22, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"before": ["RandomPerspective"]}, "does not support before"),
        (
            {"interpolation": "random"},
            "does not support TrainTransform.interpolation='random'|random",
        ),
        ({"antialias": False}, "antialias"),
        ({"augment": [dp.Augment(abs)]}, "does not support functions in augment"),
        ({"augment": ["TimmRandomErasing"]}, "does not support TimmRandomErasing"),
        (
            {"channels": 1, "mean": [0.5], "std": [0.5]},
            r"does not support TrainTransform\(channels=1\)|does not support .*channels=1",
        ),
    ],
)
def test_it_leaves_out_nothing_that_it_does_not_know(
    toy, thumbnails, options, message, monkeypatch
):
    """As a backend that was written before there was such an option."""
    backend = load_backend(list_backends()["toy"]())
    monkeypatch.setattr(backend, "makes", frozenset({"augment"}))
    with pytest.raises(dp.ConfigError, match=message):
        dp.build_loader(
            thumbnails,
            list_backends()["toy"](),
            transform=dp.TrainTransform(size=32, **options),
            batch_size=4,
        )


@pytest.mark.slow
def test_it_takes_part_in_the_benchmark(toy, image_folder, tmp_path, capsys):
    """In processes of their own, where only the entry point says that there is such a backend."""
    loaders = {
        "torch": dp.TorchConfig(num_workers=0),
        "toy": list_backends()["toy"](patience=2),
    }
    few = {
        "pairs": 1,
        "min_seconds": 0.1,
        "min_batches": 2,
        "max_warmup_seconds": 0.2,
        "agreement_images": 8,
        "batch_size": 8,
    }
    config = BenchmarkConfig(
        data=DataConfig(train=str(image_folder)),
        transform=dp.TrainTransform(size=32),
        loaders=loaders,
        arms=list(loaders),
        out=str(tmp_path / "runs"),
        **few,
    )
    tool.benchmark(config)
    result = json.loads(capsys.readouterr().out)
    assert result["arms"]["toy"]["images_per_s"] > 0 and result["arms"]["toy"][
        "decodes"
    ].startswith("Pillow decodes one")
    assert result["agreement"]["same_ids"] and result["agreement"]["arms"]["toy"]["mean"] == 0
    assert result["work"]["loaders"]["toy"] == {"kind": "ToyConfig", "patience": 2}


def test_its_options_have_a_schema(toy, tmp_path):
    register()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/job.yaml").write_text("defaults:\n  - loader: toy\n")
    (tmp_path / "conf/loader").mkdir()
    (tmp_path / "conf/loader/toy.yaml").write_text("defaults:\n  - toy_schema\n")
    with initialize_config_dir(str(tmp_path / "conf"), version_base="1.3"):
        config = OmegaConf.to_object(compose("job", ["loader.patience=3"]).loader)
    assert config == list_backends()["toy"](patience=3)


@pytest.mark.parametrize(
    "entry_point",
    [
        "toy_backend:ToyBackend",
        "dali_pipes.backends.config:LoaderConfig",
        "dali_pipes.backends.torch.config:TorchConfig",
    ],
)
def test_an_entry_point_that_is_no_backend(install, entry_point):
    install(entry_point)
    with pytest.raises(
        dp.ConfigError, match=r"an entry point of dali_pipes\.backends, must be a subclass of Load"
    ):
        list_backends()
