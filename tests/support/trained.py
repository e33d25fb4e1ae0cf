"""Trains the demo's network for an epoch on images that are drawn here, with each loader, in a
process of its own: `python trained.py FOLDER` prints what was learned.

`train_pinned` starts it so that other CPUs should compute the same bits: on the CPU in one thread,
without oneDNN (which chooses its blocks by the sizes of caches), and with the kernels of PyTorch,
MKL and glibc that all CPUs have. All images are PNGs, which every decoder gives exactly.
"""

import contextlib
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

CONF = Path(__file__).parents[2] / "conf"
PINNED = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "MKL_NUM_THREADS": "1",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-AVX,-FMA,-FMA4",
}
LOADERS = {
    "torch": ("loader=torch", "loader.num_workers=0"),
    "dali_cpu": ("loader=dali_cpu", "loader.num_threads=1"),
}
# the experiment as it is, with less to compute: four steps of small images; at a rate at which a
# difference of the last bit stays one
SMALLER = (
    *("experiment=demo_resnet18", "data=folder", "epochs=1", "warmup_epochs=0.25"),
    *("batch_size=4", "transform.size=32", "eval_transform.resize=36", "optimizer.lr=0.002"),
)
CLASSES, IMAGES = ("bright", "dark", "left", "right"), {"train": 16, "val": 4}


def train_pinned(folder: Path, **environment: str) -> dict:
    """Returns what was learned, by loader.

    Args:
        environment: further variables, or other values of those that pin the kernels.
    """
    ended = subprocess.run(
        [sys.executable, __file__, str(folder)],
        env=os.environ | PINNED | environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


def draw_images(folder: Path, count: int) -> None:
    from PIL import Image

    rng = np.random.default_rng(count)
    for number in range(count):
        name = CLASSES[number % len(CLASSES)]
        pixels = rng.integers(0, 128, (40, 48 + number % 3, 3), dtype=np.uint8)
        pixels += np.uint8(100) * (name == "bright")
        pixels[:, :20] += np.uint8(100) * (name == "left")
        pixels[:, 28:] += np.uint8(100) * (name == "right")
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name / f"{number:02d}.png")


def main(folder: Path) -> None:
    # before PyTorch counts them
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import torch
    from command import composed
    from hydra import initialize_config_dir

    from dali_pipes.cli.conf import register
    from dali_pipes.training.run import train

    torch.backends.mkldnn.set_flags(False)
    register()
    for split, count in IMAGES.items():
        draw_images(folder / split, count)

    found = {}
    places = [f"data.{split}={folder / split}" for split in IMAGES]
    for name, words in LOADERS.items():
        out = folder / name
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = composed("train", [*SMALLER, *words, *places, f"out={out}"])
        with contextlib.redirect_stdout(io.StringIO()):
            train(config)
        found[name] = learned(out)
    print(json.dumps(found))


def learned(out: Path) -> dict:
    import torch

    weights = torch.load(out / "last.pt", weights_only=True)["model"]
    with (out / "steps.csv").open(newline="") as text:
        steps = list(csv.DictReader(text))
    arrays = {name: value.double().numpy() for name, value in weights.items()}
    content = b"".join(value.numpy().tobytes() for value in weights.values())
    return {
        "sha256": hashlib.sha256(content).hexdigest(),
        "learning rates": [f"{float(step['lr']):.6f}" for step in steps],
        "losses": [f"{float(step['loss']):.3f}" for step in steps],
        # coarse, to see what differs
        "mean sizes": {name: f"{np.abs(value).mean():.4g}" for name, value in arrays.items()},
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
