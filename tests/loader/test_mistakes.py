"""The first mistakes of a program in Python: one line that names what was given, and what to write
instead.
"""

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from later import later
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import dali_pipes as dp
from dali_pipes.measure.arms import SyntheticConfig
from dali_pipes.plan.steps import policies

v2 = later("torchvision.transforms.v2")
DATASET = TensorDataset(torch.zeros(3))


def loader(manifest, config=None, **options):
    config = SyntheticConfig() if config is None else config
    return dp.build_loader(
        manifest, config, **{"transform": dp.TrainTransform(size=8), "batch_size": 4} | options
    )


def resumed(manifest, **others):
    with loader(manifest) as each:
        each.load_state_dict(each.state_dict() | others)


MISTAKES = {
    "path as text": (
        lambda m: loader("/images"),
        r"manifest is '/images'; open it first: Manifest.open\('/images'\)",
    ),
    "path": (
        lambda m: loader(Path("/images")),
        r"manifest is the path '/images'; open it first: Manifest.open\('/images'\)",
    ),
    "dataset": (
        lambda m: loader(DATASET),
        r"manifest is a torch TensorDataset; from_torch\(dataloader\)",
    ),
    "dataloader": (
        lambda m: loader(DataLoader(DATASET)),
        r"manifest is a torch DataLoader; from_torch\(dataloader\)",
    ),
    "no manifest": (lambda m: loader(None), "manifest is None; it takes a Manifest"),
    "manifest's class": (lambda m: loader(dp.Manifest), "manifest is the class Manifest"),
    "swapped": (
        lambda m: loader(dp.TorchConfig(), m),
        r"manifest is a dali_pipes TorchConfig; .*\(manifest, config, transform",
    ),
    "config's class": (
        lambda m: loader(m, dp.DaliConfig),
        r"config is the class DaliConfig; write DaliConfig\(\)",
    ),
    "config's name": (
        lambda m: loader(m, "torch"),
        r"config is 'torch'; it takes a config, such as DaliConfig\(\) or TorchConfig\(",
    ),
    "options": (
        lambda m: loader(m, {"num_threads": 2}),
        r"config is \{.*such as DaliConfig\(\*\*options\)",
    ),
    "transform as config": (
        lambda m: loader(m, dp.TrainTransform()),
        "config is a dali_pipes TrainTransform; it takes a config",
    ),
    "transform's class": (
        lambda m: loader(m, transform=dp.TrainTransform),
        r"the class TrainTransform; write TrainTransform\(…\)",
    ),
    "torchvision's": (
        lambda m: loader(m, transform=v2.Compose([v2.CenterCrop(8)])),
        "torchvision Compose; .*transform_from_torch",
    ),
    "torchvision's list": (
        lambda m: loader(m, transform=[v2.CenterCrop(8)]),
        "transform_from_torch",
    ),
    "function": (
        lambda m: loader(m, transform=lambda image: image),
        "the function <lambda>; .*transform_from_torch",
    ),
    "no transform": (
        lambda m: loader(m, transform=None),
        r"transform is None; it takes TrainTransform\(…\)",
    ),
    "rank": (lambda m: loader(m, rank=(0, 2)), r"rank is \(0, 2\); it takes Rank\(index, count\)"),
    "sampler": (
        lambda m: loader(m, sampling=DistributedSampler(DATASET, 2, 0)),
        r"rank=Rank.from_env\(\)",
    ),
    "weights": (
        lambda m: loader(m, sampling=WeightedRandomSampler([1.0], 1)),
        r"it takes Weighted\(weights=…\)",
    ),
    "sampling's class": (
        lambda m: loader(m, sampling=dp.Balanced),
        r"the class Balanced; write Balanced\(…\)",
    ),
    "sampler's class": (
        lambda m: loader(m, sampling=DistributedSampler),
        "the class DistributedSampler; it takes a sampling of dali_pipes",
    ),
    "config as transform": (
        lambda m: loader(m, transform=dp.TorchConfig()),
        r"a dali_pipes TorchConfig; it takes TrainTransform\(…\), .* of dali_pipes$",
    ),
    "torchvision's class": (
        lambda m: loader(m, transform=v2.CenterCrop),
        r"the class CenterCrop; it takes TrainTransform\(…\)",
    ),
    "mix's class": (
        lambda m: loader(m, batch_transform=dp.MixUp),
        "batch_transform is the class MixUp",
    ),
    "mix's name": (lambda m: loader(m, batch_transform="mixup"), "batch_transform is 'mixup'"),
    "torchvision's mix": (
        lambda m: loader(m, batch_transform=v2.MixUp(num_classes=3)),
        r"a torchvision MixUp; its draws are in no plan; use dali_pipes\.MixUp",
    ),
    "last batch": (
        lambda m: loader(m, last_batch=True),
        "last_batch is True; choose one of partial",
    ),
    "no device": (
        lambda m: loader(m, device=None),
        "device is None; choose auto, cpu, cuda or cuda:N",
    ),
    "other device": (lambda m: loader(m, device="mps"), "device is 'mps'; choose auto"),
    "scan of a data set": (
        lambda m: dp.Manifest.scan(DATASET),
        r"source is a torch TensorDataset; it takes one path.*from_torch",
    ),
    "scan of several": (
        lambda m: dp.Manifest.scan(["/a", "/b"]),
        r"source is \['/a', '/b'\]; it takes one path",
    ),
    "open of a manifest": (
        lambda m: dp.Manifest.open(m),
        "source is a dali_pipes Manifest; it takes one path",
    ),
    "load of bytes": (lambda m: dp.Manifest.load(b"/x"), r"file is b'/x'; it takes one path"),
    "from_torch of a data set": (
        lambda m: dp.from_torch(DATASET),
        "TensorDataset; pass on the DataLoader of it",
    ),
    "augmentation of torchvision": (
        lambda m: dp.TrainTransform(augment=[v2.RandAugment()]),
        "RandAugment is torchvision's; transform_f",
    ),
    "choice of one": (
        lambda m: dp.RandomChoice(dp.MixUp(num_classes=5)),
        r"is given MixUp.*; it takes a list: RandomChoice\(\[",
    ),
    "choice of names": (lambda m: dp.RandomChoice(["mixup"]), "is given 'mixup'; it takes a list"),
    "choice of classes": (
        lambda m: dp.RandomChoice([dp.MixUp]),
        "is given <class .*MixUp'>; it takes a list",
    ),
    "concat of one": (
        lambda m: dp.Manifest.concat(m),
        r"concat is given Manifest\(.*Manifest.concat\(\[one, other\]\)",
    ),
    "concat of paths": (
        lambda m: dp.Manifest.concat([m, "/a"]),
        "concat is given '/a'; it takes a list of manifests",
    ),
    "filter by a function": (
        lambda m: m.filter(len),
        "it takes an expression as text, such as 'width >= 224'",
    ),
    "subset of a number": (lambda m: m.subset(np.int64(3)), "subset takes a list of sample ids"),
    "transform of ours": (
        lambda m: dp.transform_from_torch(dp.TrainTransform()),
        "of dali_pipes already; pass it on to build_loader",
    ),
    "class of torchvision": (
        lambda m: dp.transform_from_torch(v2.CenterCrop),
        r"the class CenterCrop; write CenterCrop\(…\)",
    ),
    "no step": (
        lambda m: dp.diagnose(DataLoader(DATASET), None),
        "step is None; it takes the function that trains on a batch",
    ),
    "state of half an epoch": (
        lambda m: loader(m).load_state_dict({"epoch": 0.5, "samples": 0, "fingerprint": {}}),
        "not the state",
    ),
    "state of an epoch too far": (
        lambda m: resumed(m, epoch=2**32),
        "epoch 4294967296 with .* is no state of this loader",
    ),
    "from_torch of a path": (
        lambda m: dp.from_torch("/images"),
        "pass on the DataLoader inside of it",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_in_one_line(thumbnails, name):
    build, message = MISTAKES[name]
    with pytest.raises(dp.ConfigError, match=message) as raised:
        build(thumbnails)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 300


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:3", 0, torch.device("cuda", 1), np.int64(0)])
def test_a_gpu_where_there_is_none(thumbnails, device):
    with pytest.raises(dp.ConfigError, match=r"device=.*but PyTorch sees no GPU here"):
        loader(thumbnails, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("auto", "but PyTorch sees no GPU here; use DaliConfig(device='cpu') or TorchConfig()"),
        ("cuda", "but PyTorch sees no GPU here; use DaliConfig(device='cpu') or TorchConfig()"),
        ("cpu", "makes batches on a GPU, but device=cpu wants them elsewhere; leave device at"),
    ],
)
def test_a_loader_that_needs_a_gpu_is_refused_in_one_line(thumbnails, device, message):
    with pytest.raises(dp.ConfigError, match=r"^DaliConfig\(device='gpu'\),? ") as raised:
        loader(thumbnails, dp.DaliConfig(device="gpu"), device=device)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_repr(thumbnails):
    with loader(thumbnails, dp.TorchConfig(num_workers=0)) as each:
        device = each._work.backend_at(0).job.device
        assert repr(each) == (
            f"Loader({str(thumbnails.root)!r}: 37 images, 9 batches of 4 an epoch, "
            f"TorchConfig on {device}; "
            "next is step 0 of epoch 0)"
        )
        next(iter(each))
        assert "next is step 1 of epoch 0" in repr(each)
        each.set_epoch(3)
        assert "next is step 0 of epoch 3" in repr(each)
    assert repr(each).endswith("closed)")
    with loader(thumbnails, rank=dp.Rank(1, 3)) as each:
        assert "of rank 1 of 3" in repr(each)


@pytest.mark.slow
def test_from_torch_is_a_context(thumbnails):
    from torchvision.datasets import ImageFolder

    transform = v2.Compose(
        [v2.Resize((16, 16)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    )
    old = DataLoader(ImageFolder(str(thumbnails.root), transform), batch_size=8)
    with dp.from_torch(
        old, dp.DaliConfig(device="cpu", num_threads=1), check=False, device="cpu"
    ) as each:
        assert len(next(iter(each))) == 2
    with pytest.raises(RuntimeError, match="closed"):
        iter(each).__next__()


@pytest.mark.slow
def test_the_programs_random_numbers_go_on_as_before(thumbnails):
    """In a process of its own: some libraries draw when they are imported."""
    code = f"""
import random, numpy as np, torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
steps = [v2.RandomResizedCrop(16), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
transform = v2.Compose(steps)
old = DataLoader(ImageFolder({str(thumbnails.root)!r}, transform), batch_size=8, shuffle=True)
random.seed(1), np.random.seed(1), torch.manual_seed(1)
def states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
before = states()
import dali_pipes as dp
with dp.from_torch(old, dp.DaliConfig(device="cpu", num_threads=1), seed=0, device="cpu") as loader:
    list(loader)
assert states() == before, "from_torch"
from dali_pipes.measure.arms import SyntheticConfig
manifest = dp.Manifest.scan({str(thumbnails.root)!r})
for config in (dp.TorchConfig(num_workers=1), SyntheticConfig()):
    options = {{"transform": dp.TrainTransform(size=8), "batch_size": 8, "device": "cpu"}}
    with dp.build_loader(manifest, config, **options) as loader:
        list(loader)
    assert states() == before, config
[getattr(dp, name) for name in dp.__all__]
assert states() == before, "imports"
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("call", "proposed"),
    [
        (lambda: dp.build_loader(batchsize=8), "did you mean batch_size?"),
        (lambda: dp.build_loader(Shuffle=False), "did you mean shuffle?"),
        (
            lambda: dp.build_loader(num_workers=8),
            r"write TorchConfig\(num_workers=…\) or DaliConfig",
        ),
        (
            lambda: dp.build_loader(drop_last=True),
            "write last_batch='drop' or last_batch='partial'",
        ),
        (lambda: dp.build_loader(world_size=2), r"Rank.from_env\(\) under torchrun"),
        (lambda: dp.build_loader(shard=0), r"write rank=Rank\(index, count\)"),
        (lambda: dp.TorchConfig(num_worker=2), "did you mean num_workers?"),
        (lambda: dp.TrainTransform(sise=224), "did you mean size?"),
        (lambda: dp.TrainTransform(224), "takes its options by name, such as size=224"),
        (lambda: dp.TorchConfig(4), "takes its options by name"),
        (lambda: dp.Weighted(weight=[1]), "did you mean weights?"),
        (lambda: policies.RandAugment(magnitudes=9), "did you mean magnitude?"),
    ],
)
def test_an_unknown_option_is_answered_with_a_near_one(call, proposed):
    with pytest.raises(TypeError, match=proposed) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_an_unknown_name_is_answered_with_a_near_one():
    with pytest.raises(AttributeError, match="did you mean build_loader"):
        dp.build_loder  # noqa: B018


@pytest.mark.parametrize(
    ("batch_transform", "what"),
    [
        (lambda batch: batch, "a function of two arguments, a batch and its draws"),
        (lambda batch, draws: None, "returned None; it must return a Batch"),
        (
            lambda batch, draws: (batch.images, batch.labels),
            "returned a tuple; it must return a Batch",
        ),
    ],
)
def test_a_batch_transform_that_makes_no_batch(thumbnails, batch_transform, what):
    """None ended the epoch without a word."""
    with (
        pytest.raises(dp.ConfigError, match=what),
        loader(thumbnails, batch_transform=batch_transform) as each,
    ):
        list(each)


def test_what_is_set_after_a_loader_was_built_changes_nothing(thumbnails):
    transform, config = (
        dp.TrainTransform(size=16, augment=[policies.RandomRotation(degrees=9)]),
        dp.TorchConfig(num_workers=0),
    )
    with loader(thumbnails, config, transform=transform) as each:
        before = each.state_dict()
        transform.size, config.num_workers, transform.augment[0].degrees = 24, 3, 60
        transform.augment.append(policies.RandomGrayscale(p=1))
        assert next(iter(each)).images.shape[2:] == (16, 16)
        each.set_epoch(0)
        assert each.state_dict() == before
    config.num_workers = -3
    with pytest.raises(dp.ConfigError, match=r"TorchConfig.num_workers is -3"):
        loader(thumbnails, config)


@pytest.mark.parametrize(
    ("option", "values", "what"),
    [
        ("mean", [123.675, 116.28, 103.53], "divide those of values from 0 to 255 by 255"),
        ("std", [1e-320] * 3, "it takes 0.0001 to 10000"),
        ("mean", [10**400] * 3, "three finite numbers"),
        ("std", [True] * 3, "three finite numbers"),
        ("flip", "0.5", "it takes numbers from 0 to 1"),
    ],
)
def test_numbers_with_which_no_pixel_would_be_right(option, values, what):
    with pytest.raises(dp.ConfigError, match=what):
        dp.TrainTransform(size=16, **{option: values})


def test_decimals_are_numbers():
    assert dp.TrainTransform(size=16, flip=Decimal("0.5")).flip == 0.5


def test_a_batch_of_no_such_dtype(thumbnails):
    with (
        loader(thumbnails) as each,
        pytest.raises(dp.ConfigError, match="dtype is 'float16'; it takes one of PyTorch's"),
    ):
        next(iter(each)).to(dtype="float16")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("num_workers", r"give build_loader TorchConfig\(num_workers=…\)"),
        ("batch_size", "give build_loader all options"),
        ("plan", "give build_loader all options"),
        ("mixup_enabled", "give build_loader all options"),
        ("epoch", r"give .* set_epoch\(\) the epoch"),
    ],
)
def test_what_is_set_on_a_loader_is_refused(thumbnails, name, instead):
    """It would be an attribute without effect."""
    with (
        loader(thumbnails) as each,
        pytest.raises(
            AttributeError, match=f"{name} cannot be set on a loader.*; {instead}"
        ) as raised,
    ):
        setattr(each, name, 4)
    assert "\n" not in str(raised.value)


def test_a_loader_has_no_items(thumbnails):
    """So a DataLoader of a loader fails at once."""
    with loader(thumbnails) as each, pytest.raises(TypeError, match=r"'Loader' .*subscript"):
        next(iter(DataLoader(each)))
