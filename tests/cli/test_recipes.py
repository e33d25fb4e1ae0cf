"""The recipes of conf/experiment that others have published, option by option: what the source has,
what docs/recipes.md says of it, and what the file in conf/ composes to.
"""

import re
from dataclasses import asdict
from pathlib import Path

import command
import numpy as np
import pytest
import torch
import yaml
from hydra import initialize_config_dir
from torch.optim import lr_scheduler
from torchvision.models import ResNet50_Weights, ViT_B_16_Weights

from dali_pipes.cli.conf import register
from dali_pipes.training.optimizing.recipe import peak_lr
from dali_pipes.training.optimizing.schedule import lr_at

REPO = Path(__file__).parents[2]
MISSING = "missing"
NOT_GIVEN = "not given"

# what each source gives, or leaves at a default that matters, in its own spelling
SOURCES = {
    # pytorch/vision: the command of its issue 3995, and defaults of its train.py
    "imagenet_resnet50_v2": {
        "--model": "resnet50",
        "--batch-size": "128",
        "--opt": "sgd",
        "--lr": "0.5",
        "--momentum": "0.9",
        "--lr-scheduler": "cosineannealinglr",
        "--lr-warmup-epochs": "5",
        "--lr-warmup-method": "linear",
        "--lr-warmup-decay": "0.01",
        "--auto-augment": "ta_wide",
        "--epochs": "600",
        "--random-erase": "0.1",
        "--weight-decay": "0.00002",
        "--norm-weight-decay": "0.0",
        "--label-smoothing": "0.1",
        "--mixup-alpha": "0.2",
        "--cutmix-alpha": "1.0",
        "--train-crop-size": "176",
        "--val-resize-size": "232",
        "--val-crop-size": "224",
        "--interpolation": "bilinear",
        "--model-ema-decay": "0.99998",
        "--model-ema-steps": "32",
        "--ra-reps": "4",
        "--amp": NOT_GIVEN,
    },
    # pytorch/vision: references/classification/README.md, and defaults of its train.py
    "imagenet_vit_b_16": {
        "--model": "vit_b_16",
        "--batch-size": "512",
        "--opt": "adamw",
        "--lr": "0.003",
        "--lr-scheduler": "cosineannealinglr",
        "--lr-warmup-epochs": "30",
        "--lr-warmup-method": "linear",
        "--lr-warmup-decay": "0.033",
        "--auto-augment": "ra",
        "--epochs": "300",
        "--weight-decay": "0.3",
        "--norm-weight-decay": NOT_GIVEN,
        "--label-smoothing": "0.11",
        "--mixup-alpha": "0.2",
        "--cutmix-alpha": "1.0",
        "--clip-grad-norm": "1",
        "--train-crop-size": "224",
        "--val-resize-size": "256",
        "--val-crop-size": "224",
        "--interpolation": "bilinear",
        "--model-ema-decay": "0.99998",
        "--model-ema-steps": "32",
        "--ra-reps": "3",
        "--amp": "given",
    },
    # facebookresearch/deit: the command of README_deit.md, and defaults of main.py
    "imagenet_deit_small": {
        "--model": "deit_small_patch16_224",
        "--batch-size": "256",
        "--epochs": "300",
        "--drop-path": "0.1",
        "--model-ema-decay": "0.99996",
        "--opt": "adamw",
        "--weight-decay": "0.05",
        "--sched": "cosine",
        "--lr": "5e-4",
        "--warmup-lr": "1e-6",
        "--min-lr": "1e-5",
        "--warmup-epochs": "5",
        "--aa": "rand-m9-mstd0.5-inc1",
        "--color-jitter": "0.3",
        "--smoothing": "0.1",
        "--train-interpolation": "bicubic",
        "--repeated-aug": "given",
        "--reprob": "0.25",
        "--remode": "pixel",
        "--recount": "1",
        "--mixup": "0.8",
        "--cutmix": "1.0",
        "--mixup-prob": "1.0",
        "--mixup-switch-prob": "0.5",
        "--input-size": "224",
        "--eval-crop-ratio": "0.875",
    },
    # libffcv/ffcv-imagenet: rn50_configs/rn50_88_epochs.yaml, and defaults of train_imagenet.py
    "progressive": {
        "model.arch": "resnet50",
        "dist.world_size": "8",
        "lr.lr": "1.7",
        "lr.lr_schedule_type": "cyclic",
        "lr.lr_peak_epoch": "2",
        "resolution.min_res": "160",
        "resolution.max_res": "192",
        "resolution.start_ramp": "65",
        "resolution.end_ramp": "76",
        "training.batch_size": "512",
        "training.bn_wd": "0",
        "training.epochs": "88",
        "training.label_smoothing": "0.1",
        "training.momentum": "0.9",
        "training.optimizer": "sgd",
        "training.weight_decay": "0.0001",
        "training.use_blurpool": "1",
        "validation.lr_tta": "true",
        "validation.resolution": "256",
    },
}


def rsb(**changed):
    # Wightman, Touvron and Jégou, ResNet strikes back (2021), as A1 has it in ports
    return {
        "network": "resnet50",
        "epochs": "600",
        "size in training": "224",
        "global batch": "2048",
        "optimizer": "LAMB",
        "max_grad_norm": "1.0",
        "learning rate": "5e-3",
        "weight decay": "0.01",
        "schedule": "cosine to 1e-6",
        "warm-up": "5",
        "loss": "binary cross-entropy",
        "bce-target-thresh": "0.2",
        "label smoothing": "0.1",
        "stochastic depth": "0.05",
        "repeated augmentation": "3",
        "RandAugment": "rand-m7-mstd0.5-inc1",
        "MixUp": "0.2",
        "CutMix": "1.0",
        "interpolation": "bicubic",
        "evaluation": "236 → 224",
        "amp": "given",
    } | {name.replace("_", " "): value for name, value in changed.items()}


_LATER = {"label smoothing": "none", "weight decay": "0.02", "MixUp": "0.1"}
RSB = {
    "imagenet_resnet50_a1": rsb(),
    "imagenet_resnet50_a2": rsb(epochs="300", **_LATER),
    "imagenet_resnet50_a3": rsb(
        epochs="100",
        **_LATER,
        **{
            "size in training": "160",
            "learning rate": "8e-3",
            "stochastic depth": "none",
            "repeated augmentation": "none",
            "RandAugment": "rand-m6-mstd0.5-inc1",
        },
    ),
}
SOURCES |= RSB


def of_torchvision(source):
    """What options of torchvision's train.py are here, by its option; on 8 GPUs."""
    lr, batch = float(source["--lr"]), 8 * int(source["--batch-size"])
    # train.py updates the average every `--model-ema-steps`, and adjusts the decay to the number
    # of updates in the run
    every = int(source["--model-ema-steps"])
    taken = (1 - float(source["--model-ema-decay"])) * batch * every / int(source["--epochs"])
    policy = {
        "ta_wide": {"TrivialAugmentWide.interpolation": source["--interpolation"]},
        "ra": {
            "RandAugment.num_ops": 2,
            "RandAugment.magnitude": 9,
            "RandAugment.interpolation": source["--interpolation"],
        },
    }
    ours = {
        "--model": {"model.name": source["--model"]},
        "--batch-size": {
            "batch_size": int(source["--batch-size"]),
            "optimizer.lr_batch_size": batch,
        },
        "--opt": {"optimizer.name": source["--opt"]},
        "--lr": {"optimizer.lr": lr},
        "--lr-scheduler": {
            "schedule.name": "cosine",
            "schedule.unit": "epoch",
            "schedule.min_lr": 0.0,
            "schedule.warmup_prefix": True,
        },
        "--lr-warmup-epochs": {"warmup_epochs": float(source["--lr-warmup-epochs"])},
        "--lr-warmup-method": {},
        "--lr-warmup-decay": {"schedule.warmup_lr": float(source["--lr-warmup-decay"]) * lr},
        "--auto-augment": policy[source["--auto-augment"]],
        "--epochs": {"epochs": int(source["--epochs"])},
        "--weight-decay": {"optimizer.weight_decay": float(source["--weight-decay"])},
        "--norm-weight-decay": {
            "optimizer.decay_norm_and_bias": source["--norm-weight-decay"] == NOT_GIVEN
        },
        "--label-smoothing": {"label_smoothing": float(source["--label-smoothing"])},
        "--mixup-alpha": {"mixing.mixup_alpha": float(source["--mixup-alpha"])},
        "--cutmix-alpha": {"mixing.cutmix_alpha": float(source["--cutmix-alpha"])},
        "--train-crop-size": {"transform.size": int(source["--train-crop-size"])},
        "--val-resize-size": {"eval_transform.resize": int(source["--val-resize-size"])},
        "--val-crop-size": {"eval_transform.size": int(source["--val-crop-size"])},
        "--interpolation": {
            "transform.interpolation": source["--interpolation"],
            "eval_transform.interpolation": source["--interpolation"],
        },
        "--model-ema-decay": {"ema_decay": (1 - taken) ** (1 / every)},
        "--model-ema-steps": {},
        "--ra-reps": {"sampling.times": int(source["--ra-reps"]), "sampling.spread": True},
        "--amp": {"precision": "fp32" if source["--amp"] == NOT_GIVEN else "fp16"},
    }
    if "--clip-grad-norm" in source:
        ours["--clip-grad-norm"] = {"optimizer.clip_grad_norm": float(source["--clip-grad-norm"])}
    if "--random-erase" in source:
        ours["--random-erase"] = {"RandomErasing.p": float(source["--random-erase"])}
    if "--momentum" in source:
        ours["--momentum"] = {"optimizer.momentum": float(source["--momentum"])}
    return {name: ours[name] for name in source}


def of_deit(source):
    size = int(source["--input-size"])
    ours = {
        "--model": {"model.name": source["--model"]},
        "--batch-size": {"batch_size": int(source["--batch-size"])},
        "--epochs": {"epochs": int(source["--epochs"])},
        "--drop-path": {"model.options.drop_path_rate": float(source["--drop-path"])},
        # main.py evaluates the network itself
        "--model-ema-decay": {"ema_decay": None},
        "--opt": {"optimizer.name": source["--opt"]},
        "--weight-decay": {
            "optimizer.weight_decay": float(source["--weight-decay"]),
            "optimizer.decay_norm_and_bias": False,
        },
        "--sched": {
            "schedule.name": "cosine",
            "schedule.unit": "epoch",
            "schedule.warmup_prefix": False,
        },
        # main.py scales it from batches of 512
        "--lr": {"optimizer.lr": float(source["--lr"]), "optimizer.lr_batch_size": 512},
        "--warmup-lr": {"schedule.warmup_lr": float(source["--warmup-lr"])},
        "--min-lr": {"schedule.min_lr": float(source["--min-lr"])},
        "--warmup-epochs": {"warmup_epochs": float(source["--warmup-epochs"])},
        "--aa": {
            "TimmRandAugment.config": source["--aa"],
            "TimmRandAugment.interpolation": source["--train-interpolation"],
            # timm takes the mean of ImageNet
            "TimmRandAugment.fill": [round(255 * mean) for mean in (0.485, 0.456, 0.406)],
        },
        "--color-jitter": {},  # timm ignores it beside --aa
        "--smoothing": {"label_smoothing": float(source["--smoothing"])},
        "--train-interpolation": {
            "transform.interpolation": source["--train-interpolation"],
            "eval_transform.interpolation": "bicubic",
        },
        "--repeated-aug": {"sampling.times": 3, "sampling.spread": True},
        "--reprob": {"TimmRandomErasing.p": float(source["--reprob"])},
        "--remode": {"TimmRandomErasing.mode": source["--remode"]},
        "--recount": {"TimmRandomErasing.max_count": int(source["--recount"])},
        "--mixup": {"mixing.mixup_alpha": float(source["--mixup"])},
        "--cutmix": {"mixing.cutmix_alpha": float(source["--cutmix"])},
        "--mixup-prob": {"mixing.probability": float(source["--mixup-prob"])},
        "--mixup-switch-prob": {},
        "--input-size": {"transform.size": size, "eval_transform.size": size},
        "--eval-crop-ratio": {
            "eval_transform.resize": int(size / float(source["--eval-crop-ratio"]))
        },
    }
    # autocast is always on in engine.py
    return {name: ours[name] for name in source} | {"autocast": {"precision": "fp16"}}


def of_ffcv(source):
    lr, size = float(source["lr.lr"]), int(source["validation.resolution"])
    low, high, start, end = (
        int(source[f"resolution.{name}"])
        for name in ("min_res", "max_res", "start_ramp", "end_ramp")
    )

    # train_imagenet.py: linear between the ramp's ends, rounded to a multiple of 32
    def resolution(epoch):
        return int(np.round(np.interp(epoch, [start, end], [low, high]) / 32)) * 32

    sizes = {}
    for epoch in range(1, int(source["training.epochs"])):
        if resolution(epoch) != resolution(epoch - 1):
            sizes[epoch] = resolution(epoch)

    batch = int(source["training.batch_size"])
    ours = {
        "model.arch": {"model.name": source["model.arch"]},
        "dist.world_size": {"optimizer.lr_batch_size": int(source["dist.world_size"]) * batch},
        "lr.lr": {"optimizer.lr": lr},
        "lr.lr_schedule_type": {
            "schedule.name": "linear",
            "schedule.unit": "step",
            "schedule.min_lr": 0.0,
            "schedule.warmup_lr": 1e-4 * lr,
        },
        "lr.lr_peak_epoch": {"warmup_epochs": float(source["lr.lr_peak_epoch"])},
        "resolution.min_res": {"transform.size": resolution(0)},
        "resolution.max_res": {"transform.sizes": sizes},
        "resolution.start_ramp": {},
        "resolution.end_ramp": {},
        "training.batch_size": {"batch_size": batch},
        "training.bn_wd": {"optimizer.decay_norm_and_bias": False},
        "training.epochs": {"epochs": int(source["training.epochs"])},
        "training.label_smoothing": {"label_smoothing": float(source["training.label_smoothing"])},
        "training.momentum": {"optimizer.momentum": float(source["training.momentum"])},
        "training.optimizer": {"optimizer.name": source["training.optimizer"]},
        "training.weight_decay": {"optimizer.weight_decay": float(source["training.weight_decay"])},
        "training.use_blurpool": MISSING,
        "validation.lr_tta": MISSING,
        # DEFAULT_CROP_RATIO is 224/256
        "validation.resolution": {
            "eval_transform.size": size,
            "eval_transform.resize": round(size * 256 / 224),
        },
    }
    return {name: ours[name] for name in source} | {
        "autocast": {"precision": "fp16"},
        "NormalizeImage": {"transform.dtype": "fp16"},
        "channels_last": {"transform.memory_format": "channels_last", "model.channels_last": True},
    }


def of_rsb(source):
    low, high = (int(size) for size in source["evaluation"].split(" → "))
    smoothing = source["label smoothing"]
    repeats = source["repeated augmentation"]
    drop_path = source["stochastic depth"]
    ours = {
        "network": {"model.name": f"timm/{source['network']}"},
        "epochs": {"epochs": int(source["epochs"])},
        "size in training": {"transform.size": int(source["size in training"])},
        "global batch": {"batch_size": 256, "optimizer.lr_batch_size": None},
        "optimizer": {"optimizer.name": source["optimizer"].lower()},
        "max_grad_norm": {"optimizer.clip_grad_norm": float(source["max_grad_norm"])},
        "learning rate": {"optimizer.lr": float(source["learning rate"])},
        "weight decay": {
            "optimizer.weight_decay": float(source["weight decay"]),
            "optimizer.decay_norm_and_bias": False,
        },
        "schedule": {
            "schedule.name": "cosine",
            "schedule.unit": "epoch",
            "schedule.min_lr": 1e-6,
            "schedule.warmup_prefix": True,
        },
        "warm-up": {
            "warmup_epochs": float(source["warm-up"]),
            "schedule.warmup_lr": 1e-4 * float(source["learning rate"]),
        },
        "loss": {"task.loss": "bce"},
        "bce-target-thresh": {"task.target_threshold": float(source["bce-target-thresh"])},
        "label smoothing": {"label_smoothing": 0.0 if smoothing == "none" else float(smoothing)},
        "stochastic depth": (
            {} if drop_path == "none" else {"model.options.drop_path_rate": float(drop_path)}
        ),
        "repeated augmentation": (
            {} if repeats == "none" else {"sampling.times": int(repeats), "sampling.spread": True}
        ),
        "RandAugment": {
            "TimmRandAugment.config": source["RandAugment"],
            "TimmRandAugment.interpolation": source["interpolation"],
            "TimmRandAugment.fill": [round(255 * mean) for mean in (0.485, 0.456, 0.406)],
        },
        "MixUp": {"mixing.mixup_alpha": float(source["MixUp"])},
        "CutMix": {"mixing.cutmix_alpha": float(source["CutMix"])},
        "interpolation": {
            "transform.interpolation": source["interpolation"],
            "eval_transform.interpolation": source["interpolation"],
        },
        "evaluation": {"eval_transform.resize": low, "eval_transform.size": high},
        "amp": {"precision": "fp16"},
    }
    return {name: ours[name] for name in source}


CONVERT = {
    "imagenet_resnet50_v2": of_torchvision,
    "imagenet_vit_b_16": of_torchvision,
    "imagenet_deit_small": of_deit,
    "progressive": of_ffcv,
    **dict.fromkeys(RSB, of_rsb),
}
CONVERTED = {name: CONVERT[name](source) for name, source in SOURCES.items()}


@pytest.fixture(scope="module", autouse=True)
def hydra():
    register()
    with initialize_config_dir(str(REPO / "conf"), version_base="1.3"):
        yield


def composed(recipe):
    return command.composed("train", [f"experiment={recipe}", "data.root=DIR"])


def flat(options, prefix=""):
    """Options by their dotted names; those of a policy by its name."""
    found = {}
    for name, value in options.items():
        if name == "augment":
            for policy in value:
                found |= flat(policy, f"{policy['name']}.")
        elif isinstance(value, dict) and name != "sizes":
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return found


def same(value, expected):
    if isinstance(expected, float) and not isinstance(value, bool) and value is not None:
        return value == pytest.approx(expected, rel=1e-8)
    return value == expected and type(value) is type(expected)


def table(recipe):
    """The rows of docs/recipes.md: (option, its value, ours), each text."""
    page = (REPO / "docs/recipes.md").read_text()
    section = page.partition(f"\n## `{recipe}`")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    return {row[0].strip("`"): (row[1].strip("`"), row[3]) for row in cells}


@pytest.mark.parametrize("recipe", SOURCES)
def test_the_file_in_conf_has_what_its_source_has(recipe):
    options = flat(asdict(composed(recipe)))
    for name, ours in CONVERTED[recipe].items():
        for option, expected in {} if ours == MISSING else ours.items():
            found = options[option]
            assert same(found, expected), f"{name}: {option} is {found}, and {expected} there"


@pytest.mark.parametrize("recipe", SOURCES)
def test_every_option_of_the_file_has_a_source(recipe):
    text = (REPO / f"conf/experiment/{recipe}.yaml").read_text()
    file = yaml.safe_load(text)
    file.pop("defaults")
    of_source = {
        option for ours in CONVERTED[recipe].values() if ours != MISSING for option in ours
    }
    assert {name for name in flat(file) if not name.endswith(".name")} - of_source == set()


@pytest.mark.parametrize("recipe", SOURCES)
def test_the_page_says_the_same(recipe):
    rows, source = table(recipe), SOURCES[recipe]
    assert set(rows) == set(CONVERTED[recipe])
    for name, ours in CONVERTED[recipe].items():
        value, said = rows[name]
        assert value == source.get(name, value), name
        if ours == MISSING:
            assert said.startswith("**missing**"), name
            continue
        given = dict(each.split("=", 1) for each in re.findall(r"`([\w.]+=[^`]*)`", said))
        assert set(given) == set(ours), name
        for option, expected in ours.items():
            read = yaml.safe_load(given[option])
            read = float(read) if isinstance(expected, float) else read
            assert same(read, expected), f"{name}: {option}"


def test_the_file_names_what_it_lacks():
    for recipe, converted in CONVERTED.items():
        lacks = [name for name, ours in converted.items() if ours == MISSING]
        comment = (REPO / f"conf/experiment/{recipe}.yaml").read_text().partition("defaults:")[0]
        assert ("without" in comment or "missing" in comment) == bool(lacks)


@pytest.mark.parametrize(
    ("recipe", "weights"),
    [
        ("imagenet_resnet50_v2", ResNet50_Weights.IMAGENET1K_V2),
        ("imagenet_vit_b_16", ViT_B_16_Weights.IMAGENET1K_V1),
    ],
)
def test_evaluation_is_that_of_torchvision_s_weights(recipe, weights):
    ours, theirs = composed(recipe).eval_transform, weights.transforms()
    assert (ours.size, ours.resize) == (theirs.crop_size[0], theirs.resize_size[0])
    assert (list(ours.mean), list(ours.std)) == (theirs.mean, theirs.std)
    assert ours.interpolation == theirs.interpolation.value


STEPS = 3  # in an epoch


def rates(recipe, ranks):
    config = composed(recipe)
    peak = peak_lr(config.optimizer, config.batch_size * ranks)
    return [lr_at(config, step, STEPS, peak) for step in range(config.epochs * STEPS)]


def near(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("recipe", ["imagenet_resnet50_v2", "imagenet_vit_b_16"])
def test_rates_are_those_of_torchvision_s_program(recipe):
    source = SOURCES[recipe]
    epochs, warmup = int(source["--epochs"]), int(source["--lr-warmup-epochs"])
    trained = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=float(source["--lr"]))
    theirs = lr_scheduler.SequentialLR(
        trained,
        [
            lr_scheduler.LinearLR(trained, float(source["--lr-warmup-decay"]), total_iters=warmup),
            lr_scheduler.CosineAnnealingLR(trained, T_max=epochs - warmup),
        ],
        milestones=[warmup],
    )
    expected = []
    for _ in range(epochs):
        expected += [trained.param_groups[0]["lr"]] * STEPS
        trained.step()
        theirs.step()
    assert rates(recipe, ranks=8) == near(expected)


def test_rates_are_those_of_timm_s_scheduler_with_deit_s_options():
    cosine_lr = pytest.importorskip("timm.scheduler.cosine_lr")
    trained = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=5e-4 * 256 * 4 / 512)
    theirs = cosine_lr.CosineLRScheduler(
        trained, t_initial=300, lr_min=1e-5, warmup_t=5, warmup_lr_init=1e-6
    )
    expected = []
    for epoch in range(300):
        theirs.step(epoch)
        expected += [trained.param_groups[0]["lr"]] * STEPS
    assert rates("imagenet_deit_small", ranks=4) == near(expected)


def test_rates_are_those_of_ffcv_s_program():
    at = np.arange(88 * STEPS) / STEPS
    expected = np.interp(at, [0, 2, 88], [1.7e-4, 1.7, 0])
    assert rates("progressive", ranks=8) == near(expected.tolist())
