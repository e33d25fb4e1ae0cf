"""timm for real: its data configs, its Mixup, and a loop like its own that is killed and goes
on.
"""

import itertools
import os
import runpy
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from in_child import Child
from later import later
from PIL import Image

import dali_pipes as dp

timm = later("timm")
timm_data = later("timm.data")
EXAMPLE = Path(__file__).parents[2] / "examples/timm/train.py"
CPU, DALI = dp.TorchConfig(num_workers=0), dp.DaliConfig(device="cpu", num_threads=1)
CONFIG = {"input_size": (3, 64, 64), "interpolation": "bicubic"}
CONFIG |= {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}


@pytest.mark.parametrize(
    "more",
    [
        {"crop_pct": 0.875, "crop_mode": "center", "interpolation": "bilinear"},
        {"crop_pct": 1.0, "crop_mode": None},
        {"crop_pct": 0.9, "crop_mode": "squash"},
        {"crop_pct": 1.0, "crop_mode": "squash", "input_size": (3, 48, 96)},
    ],
    ids=str,
)
def test_evaluation_sees_what_timms_transform_makes(photographs, more):
    """To the pixel where Pillow resizes, as in timm; DALI's pixels differ from Pillow's as always
    (docs/pixels.md).
    """
    config, images = CONFIG | more, photographs.subset(np.arange(0, 37, 3))
    timms = timm_data.create_transform(**config)
    expected = torch.stack(
        [timms(Image.open(images.path(number)).convert("RGB")) for number in range(len(images))]
    )
    for backend, largest, mean in ((CPU, 1e-4, 1e-4), (DALI, 20, 0.5)):
        options = {"transform": dp.transform_from_torch(timms), "batch_size": len(images)}
        with dp.build_loader(images, backend, **options) as loader:
            (batch,) = loader
        steps = (batch.images - expected).abs() * torch.tensor(config["std"])[:, None, None] * 255
        assert steps.max() <= largest and steps.mean((1, 2, 3)).max() <= mean


@pytest.mark.slow
def test_the_transforms_of_timms_pretrained_models():
    """9 of 1826 models of timm 1.0.31 have an evaluation that is refused, by the name of what is in
    the way; training at timm's defaults, and with the policies of its recipes, is read.
    """
    recipe = {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25, "re_mode": "pixel"}
    names, refused, read_ones = timm.list_models(pretrained=True), [], set()
    for name in names:
        pretrained = timm.get_pretrained_cfg(name).to_dict()
        config = timm_data.resolve_data_config(pretrained_cfg=pretrained)
        try:
            made = dp.transform_from_torch(timm_data.create_transform(**config))
            assert made.shape == config["input_size"][1:]
        except dp.ConfigError as error:
            refused.append(str(error))
        config = {key: config[key] for key in CONFIG}
        for more in ({}, recipe):
            if (key := repr((config, more))) not in read_ones:
                made = timm_data.create_transform(is_training=True, **config, **more)
                assert dp.transform_from_torch(made).training
                read_ones.add(key)
    # crop_mode border; crop_pct 1.15
    named = ("ResizeKeepRatio", "the transform cannot be carried over: EvalTransform.resize is ")
    assert len(refused) <= 9 and all(error.startswith(named) for error in refused)
    assert len(names) > 1800 and len(read_ones) > 100


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"crop_pct": 0.95, "input_size": (3, 48, 96)}, "ResizeKeepRatio"),
        ({"interpolation": "lanczos"}, "Resize .*: interpolation=lanczos; choose bilinear"),
        ({"crop_border_pixels": 4}, "TrimBorder"),
    ],
)
def test_what_cannot_be_carried_over_is_named(changed, named):
    with pytest.raises(dp.ConfigError, match=named):
        dp.transform_from_torch(timm_data.create_transform(**CONFIG | changed))


def mixed(loader, batches, mixup, state=None):
    """The images and targets of some batches, mixed by timm, and NumPy's random state after
    them.
    """
    np.random.set_state(state or np.random.RandomState(0).get_state())
    pairs = [mixup(*batch) for _, batch in zip(range(batches), loader, strict=False)]
    return pairs, np.random.get_state()


@pytest.mark.parametrize("config", [CPU, DALI], ids=lambda config: type(config).__name__)
def test_timms_mixup_is_exact_with_numpys_state_alone(thumbnails, config):
    """It draws from NumPy's global numbers and writes into the images that it is given."""
    mixup = timm_data.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=5)
    options = {"transform": dp.TrainTransform(size=16), "batch_size": 6}
    with (
        dp.build_loader(thumbnails, config, **options) as whole,
        dp.build_loader(thumbnails, config, **options) as parts,
    ):
        expected, _ = mixed(whole, 5, mixup)
        _, state = mixed(parts, 2, mixup)
        saved = parts.state_dict()
        for numbers, same in ((state, True), (None, False)):
            parts.load_state_dict(saved)
            rest, _ = mixed(parts, 3, mixup, numbers)
            pairs = zip(sum(expected[2:], ()), sum(rest, ()), strict=True)
            assert same == all(torch.equal(one, other) for one, other in pairs)
    assert rest[0][1].shape == (6, 5)


def train(images, last):
    example = runpy.run_path(str(EXAMPLE))["train"]
    example(images, images, last, arch="test_vit", epochs=2, batch_size=4, every=3, threads=1)


def train_until_killed(images, last, batches):
    take, delivered = dp.Loader.__iter__, itertools.count()

    def take_and_die(loader):
        for batch in take(loader):
            if loader.plan.sampling == dp.Uniform() and next(delivered) == batches:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    dp.Loader.__iter__ = take_and_die
    train(images, last)


@pytest.fixture(scope="module")
def sixteen(thumbnails, tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("timm") / "m.arrow"
    thumbnails.subset(np.arange(16)).save(file)
    return str(file)


@pytest.fixture(scope="module")
def whole_run(sixteen, tmp_path_factory):
    """The checkpoint of a run that nobody stopped."""
    last = str(tmp_path_factory.mktemp("timm") / "last.pt")
    train(sixteen, last)
    return torch.load(last)


def test_the_example_runs(whole_run):
    assert whole_run["loader"]["epoch"] == 2
    # two epochs of four batches
    assert {each["step"].item() for each in whole_run["optimizer"]["state"].values()} == {8}


@pytest.mark.slow
def test_killed_within_an_epoch_and_started_again(whole_run, sixteen, tmp_path):
    """Weights and momenta are bit for bit those of the run that nobody stopped, mixed by dp.MixUp
    and dp.CutMix.
    """
    child, last = Child(), str(tmp_path / "last.pt")
    with pytest.raises(AssertionError, match="ended with status -9"):
        child(train_until_killed, sixteen, last, 7)
    assert torch.load(last)["loader"]["samples"] == 8  # in the second epoch
    train(sixteen, last)
    found = torch.load(last)
    assert found["loader"] == whole_run["loader"]
    for name in ("model", "optimizer"):
        torch.testing.assert_close(found[name], whole_run[name], rtol=0, atol=0)
