"""What `from_torch` makes of the transforms in tests/support/composes.py, on real images: converted
or refused, and how equal.

PYTHONPATH=tests/support python measure.py IMAGES --out result.json

An evaluation transform: are the bytes of `loader=torch` those of the old transform, how far are the
normalized values, and how far is dali_cpu, over 64 images. A training transform: over 10,080 draws
Kolmogorov's and Smirnov's distance and p of area, aspect ratio and positions, and p of the numbers
of flips by χ².
"""

import argparse
import json
from pathlib import Path
from typing import Any

import composes
import numpy as np
import torch
from dali_pipes.adapters.from_torch import check
from dali_pipes.adapters.from_torch.convert import Conversion
from dali_pipes.adapters.from_torch.reading import NotConvertibleError
from dali_pipes.adapters.from_torch.steps import read
from dali_pipes.backends.common.pixels import to_steps
from dali_pipes.plan.philox import Draws
from scipy.stats import chi2_contingency, kstwo
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision import transforms as v1

import dali_pipes as dp
from dali_pipes.system.progress import track

IMAGES, DRAWS = 64, 10_080


def images_of(manifest: dp.Manifest, transform: Any, config: Any) -> torch.Tensor:
    options = {
        "transform": transform,
        "batch_size": len(manifest),
        "shuffle": False,
        "last_batch": "partial",
        "device": "cpu",
    }
    with dp.build_loader(manifest, config, **options) as loader:
        return next(iter(loader)).images


def evaluation(make: Any, manifest: dp.Manifest, pictures: list[Any]) -> dict[str, Any]:
    live = make()
    reading = read(live)
    transform = reading.built(lambda: None)
    theirs = torch.stack([live(picture) for picture in pictures])
    steps = torch.stack(
        [v1.functional.pil_to_tensor(v1.Compose(reading.geometry)(picture)) for picture in pictures]
    )
    plain = type(transform)(
        **{name: getattr(transform, name) for name in ("size", "resize", "interpolation")},
        dtype="uint8",
    )
    pillow = images_of(manifest, transform, dp.TorchConfig(num_workers=2))
    dali = to_steps(
        images_of(manifest, transform, dp.DaliConfig(device="cpu")), transform
    ) - to_steps(theirs, transform)
    return {
        "becomes": str(transform),
        "bytes_equal": bool(
            torch.equal(images_of(manifest, plain, dp.TorchConfig(num_workers=2)), steps)
        ),
        "normalized_max": float((pillow.float() - theirs.float()).abs().max()),
        "dali_cpu_mean": float(dali.abs().mean()),
        "dali_cpu_p99": float(np.percentile(dali.abs().numpy(), 99)),
    }


def training(make: Any, sizes: np.ndarray) -> dict[str, Any]:
    reading = read(make())
    transform = reading.built(lambda: (64, 64))
    theirs = check.of_steps(reading.geometry, sizes)
    geometry = transform.geometry(sizes, Draws(0, 0, np.arange(len(sizes))))
    ours = check.of_geometry(geometry, transform.shape)
    found: dict[str, Any] = {"becomes": str(transform)}
    for name, one, other in zip(check._QUANTITIES[:4], ours.T, theirs.T, strict=False):
        distance = check.distance(one, other)
        found[name] = {"distance": distance, "p": float(kstwo.sf(distance, len(sizes) // 2))}
    for name, one, other in zip(check._QUANTITIES[4:], ours.T[4:], theirs.T[4:], strict=True):
        counts = np.array([[one.sum(), (1 - one).sum()], [other.sum(), (1 - other).sum()]])
        found[name] = {
            "p": float(chi2_contingency(counts).pvalue) if counts.sum(0).all() else 1.0,
            "flipped": counts[:, 0].tolist(),
        }
    return found


def refused(make: Any) -> dict[str, Any]:
    try:
        read(make()).built(lambda: None)
    except NotConvertibleError as error:
        return {"refused": str(error)}
    raise AssertionError("not refused")


def table(found: dict[str, Any]) -> str:
    """All transforms in Markdown."""
    lines = [
        (
            "| evaluation | bytes equal | normalized, largest difference | dali_cpu, mean / p99 of "
            "255 |"
        ),
        "|---|---|---|---|",
    ]
    for name, one in found["evaluation"].items():
        equal, largest = "yes" if one["bytes_equal"] else "no", one["normalized_max"]
        lines.append(
            f"| {name} | {equal} | {largest:.1e} | {one['dali_cpu_mean']:.3f} / "
            f"{one['dali_cpu_p99']:.0f} |"
        )
    lines += [
        "",
        (
            "| training | largest distance | smallest p of Kolmogorov and Smirnov | smallest p "
            "of flips, χ² |"
        ),
        "|---|---|---|---|",
    ]
    for name, one in found["training"].items():
        moved, flips = (
            [one[quantity] for quantity in part]
            for part in (check._QUANTITIES[:4], check._QUANTITIES[4:])
        )
        largest, smallest = (
            max(each["distance"] for each in moved),
            min(each["p"] for each in moved),
        )
        lines.append(
            f"| {name} | {largest:.4f} | {smallest:.3f} | {min(each['p'] for each in flips):.3f} |"
        )
    lines += ["", "| refused | with the words |", "|---|---|"]
    lines += [f"| {name} | {one['refused']} |" for name, one in found["refused"].items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    dataset = datasets.ImageFolder(args.images, composes.torchvision_eval())
    manifest = Conversion.of(DataLoader(dataset)).manifest
    manifest = manifest.subset(check.some_samples(len(manifest)))
    pictures = [dataset.loader(manifest.path(sample_id)) for sample_id in range(len(manifest))]
    sizes = manifest.sizes[np.arange(DRAWS) % len(manifest)]
    small = np.tile([(44, 44), (48, 64), (64, 48)], (DRAWS // 3, 1))
    found: dict[str, Any] = {
        "command": "PYTHONPATH=tests/support python measure.py IMAGES --out result.json"
    }
    found["evaluation"] = {
        name: evaluation(make, manifest, pictures)
        for name, make in track(composes.EVALUATION.items(), "evaluation", len(composes.EVALUATION))
    }
    cifar = ("CIFAR", "padded on")
    found["training"] = {
        name: training(make, small if name.startswith(cifar) else sizes)
        for name, make in track(composes.TRAINING.items(), "training", len(composes.TRAINING))
    }
    found["refused"] = {name: refused(make) for name, (make, _) in composes.REFUSED.items()}
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    args.out.with_name("table.md").write_text(table(found))


if __name__ == "__main__":
    main()
