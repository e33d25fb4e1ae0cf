"""The JPEG decoders of loader=torch side by side: CPU time and pixels.

    python decoders.py FOLDER [ROUNDS] > decoders.json

One thread. Each round does all images with each decoder, in another order; CPU time of the process
is little disturbed by other programs. "decode" is the decoder alone, "view" what the loader does for
a random crop of 224 pixels: decode, cut, resize, flip.
"""

import json
import random
import sys
import time
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch
from dali_pipes.backends.common import jpeg_decode, pillow

import dali_pipes as dp
from dali_pipes.data.image_files.decoders import _pillow
from dali_pipes.data.image_files.jpeg import decoder_of
from dali_pipes.data.reader import Reader

torch.set_num_threads(1)
manifest = dp.Manifest.scan(sys.argv[1], progress=False)
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 12
transform = dp.TrainTransform(size=224)
plan = dp.Plan(manifest, transform, len(manifest))
view = plan.batch(0, 0).views[0]
reader = Reader()
files = [reader.read(manifest.extent(each)) for each in plan.batch(0, 0).ids]


def view_by(read):
    def make(encoded, at):
        request = transform, view.geometry.take(at), view.shape
        (image,) = read(encoded, "image", [request])
        return image

    return make


def alone_by(name):
    decode = decoder_of(name)
    return lambda encoded, at: decode(torch.from_numpy(encoded)).permute(1, 2, 0).numpy()


work = {"pil": (lambda encoded, at: _pillow(encoded.tobytes()), view_by(pillow.read))}
for name in ("torchvision", "torchcodec"):
    try:
        alone = alone_by(name)
    except dp.ConfigError:
        continue

    def read(*arguments, name=name):
        return jpeg_decode.read(name, *arguments)

    work[name] = alone, view_by(read)

reference = {
    kind: [work["pil"][kind](each, at) for at, each in enumerate(files)] for kind in (0, 1)
}
result = {
    "images": len(files),
    "rounds": rounds,
    "versions": {},
    "cpu_ms_per_image": {},
    "relative_to_pil": {},
    "wall_images_per_s": {},
    "pixels": {},
}
for package in ("torch", "torchvision", "torchcodec", "pillow", "numpy"):
    try:
        result["versions"][package] = version(package)
    except PackageNotFoundError:
        result["versions"][package] = None

for name, kinds in work.items():
    for kind, what in enumerate(("decode", "view")):
        differences = np.concatenate(
            [
                np.abs(kinds[kind](each, at).astype(int) - reference[kind][at]).ravel()
                for at, each in enumerate(files)
            ]
        )
        result["pixels"][f"{what}/{name}"] = {
            "mean": float(differences.mean()),
            "p99": float(np.percentile(differences, 99)),
            "max": int(differences.max()),
        }

times = {f"{what}/{name}": [] for what in ("decode", "view") for name in work}
walls = {key: [] for key in times}
for _ in range(rounds):
    for key in random.sample(list(times), len(times)):
        what, name = key.split("/")
        make = work[name][what == "view"]
        start, wall = time.process_time(), time.perf_counter()
        for at, each in enumerate(files):
            make(each, at)
        times[key].append((time.process_time() - start) / len(files) * 1000)
        walls[key].append(len(files) / (time.perf_counter() - wall))


def interval(values):
    """The mean, and a 95 % interval of it, by the bootstrap."""
    rng, values = np.random.default_rng(0), np.array(values)
    means = rng.choice(values, (4000, len(values))).mean(axis=1)
    return [round(float(each), 3) for each in (values.mean(), *np.percentile(means, [2.5, 97.5]))]


for key, values in times.items():
    what = key.split("/")[0]
    result["cpu_ms_per_image"][key] = interval(values)
    result["relative_to_pil"][key] = interval(np.array(times[f"{what}/pil"]) / np.array(values))
    result["wall_images_per_s"][key] = interval(walls[key])
print(json.dumps(result, indent=1))
