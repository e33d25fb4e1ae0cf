"""Writes rows as those of pixels.jsonl: how far each loader is from the DataLoader with Pillow, and
whether it repeats itself.

    python docs/benchmarks/gpu_h100_2026-11-25/pixels.py OUT.jsonl FOLDER… [--device cpu]

A row has the mean and the 99th percentile of |difference| over all images, in steps of 1/255;
`far`, the images that are more than 1 of 255 away in the mean; and `differs`, the ids whose bits
are others than in the first run: in a second one, and in batches of 5. A loader that cannot decode
an image has a row that says so and no figures: with another image in its place, other samples would
be compared.
"""

import argparse
import json
from pathlib import Path

import torch
from dali_pipes.backends.common.pixels import to_steps

import dali_pipes as dp
from dali_pipes.measure.agreement import difference

TRANSFORM = dp.TrainTransform(size=64, dtype="uint8")
BATCH_SIZE, OTHER_BATCH_SIZE = 16, 5


def loaders(device):
    configs = {
        "default": dp.DaliConfig(device=device),
        "exact": dp.DaliConfig(device=device, exact=True),
        "engine": dp.DaliConfig(device=device, hw_decoder_load=1.0),
        # refused with exact=True, by what this row showed
        "region_exact": dp.DaliConfig(device=device, decode="force_region", hw_decoder_load=0.0),
        "region_exact_plain": dp.DaliConfig(
            device=device, decode="region", exact=True, jpeg_fancy_upsampling=False
        ),
    }
    return configs | ({"torchvision_gpu": dp.TorchvisionGpuConfig()} if device == "gpu" else {})


def images_by_id(manifest, config, batch_size=BATCH_SIZE):
    """One epoch of the same plan, whatever the loader and the batch size; raises BadSampleError of
    what cannot be decoded.
    """
    options = {
        "transform": TRANSFORM,
        "batch_size": batch_size,
        "shuffle": True,
        "on_bad_sample": "raise",
        "last_batch": "partial",
    }
    with dp.build_loader(manifest, config, **options) as loader:
        batches = [(batch.ids.cpu(), batch.images.cpu()) for batch in loader]
    ids, images = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return images[ids.argsort()]


def row(manifest, config, reference):
    try:
        first, again, other = (
            images_by_id(manifest, config, size)
            for size in (BATCH_SIZE, BATCH_SIZE, OTHER_BATCH_SIZE)
        )
    except dp.BadSampleError as error:
        return {"refused": str(error)}
    pixels = to_steps(first, TRANSFORM)
    apart = {
        Path(manifest.name(number)).name: difference(pixels[number], reference[number])["mean"]
        for number in range(len(manifest))
    }
    return {
        **{
            figure: round(value, 4)
            for figure, value in difference(pixels, reference).items()
            if figure != "max"
        },
        "far": {name: round(mean, 2) for name, mean in apart.items() if mean > 1},
        "differs": [
            [number for number, image in enumerate(run) if not image.equal(first[number])]
            for run in (again, other)
        ],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    options = parser.parse_args()
    with options.out.open("a") as out:
        for folder in options.folders:
            manifest = dp.Manifest.scan(folder, progress=False)
            reference = to_steps(images_by_id(manifest, dp.TorchConfig(num_workers=0)), TRANSFORM)
            for name, config in loaders(options.device).items():
                line = json.dumps(
                    {"source": folder.name, "config": name, **row(manifest, config, reference)}
                )
                print(line)
                print(line, file=out, flush=True)


if __name__ == "__main__":
    main()
