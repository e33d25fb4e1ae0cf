"""Runs a prediction from start to end, in one of any number of processes.

    the model, tried on a blank image → `claim` the folder → this rank's missing parts
    for each part: batches → outputs → one Parquet file

Ranks exchange nothing: part i belongs to rank i modulo their number. The last rank that ends finds
all files there, and reports that the prediction is complete.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dali_pipes.backends.registry import is_for_training
from dali_pipes.data.images import open_images
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import BadSampleError, ConfigError
from dali_pipes.loader.build import build_loader
from dali_pipes.loader.fingerprint import to_json_value
from dali_pipes.loader.loader import Loader
from dali_pipes.plan.plan import Rank
from dali_pipes.plan.transforms import views_of
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.progress import track
from dali_pipes.system.provenance import provenance
from dali_pipes.system.stdout import print_json
from dali_pipes.tools.predict.config import PredictConfig
from dali_pipes.tools.predict.model import Model, load_model
from dali_pipes.tools.predict.parts import Parts, claim


def predict(config: PredictConfig) -> None:
    """Writes the parts of `config.out` that belong to this rank and are not there yet.

    Raises:
        DaliPipesError: a user's mistake, or too many bad images; finished parts are kept.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO")  # see training.launch
    rank, device = Rank.from_env(), _device()

    if config.transform.training or (config.transform.dtype == "uint8" and not config.function):
        raise ConfigError(
            "the transform is random, or not normalized (uint8), and the outputs would "
            "mean nothing; use transform=eval"
        )
    if len(views_of(config.transform)) > 1:
        raise ConfigError(
            "the transform makes several views of each image, and this takes one; use "
            "transform=eval, or a loop of your own over batch.views"
        )
    if not is_for_training(config.loader):
        raise ConfigError(
            "this loader is for benchmarks only, and does not say which image is which; use "
            "loader=dali or torch"
        )

    checks: dict[str, Any] = {"max_bad_fraction": config.max_bad_fraction, "strict": config.strict}
    manifest = open_images(config.data, config.split, with_labels=False, **checks)
    model = load_model(config, device)
    if model.note and not rank.index:
        print(f"Note: {model.note}", file=sys.stderr)
    parts = Parts(Path(str(config.out)), manifest, config.batch_size * config.part_batches)

    # the ranks of a machine share its cores
    cores = max(1, available_cpus() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    dtype = torch.uint8 if config.transform.dtype == "uint8" else torch.float32

    form = 1, config.transform.channels, *config.transform.shape
    blank = torch.zeros(form, device=device, dtype=dtype)
    model.outputs(blank)  # what the model cannot do is known before anything is written

    known = {"root": str(manifest.root), "classes": model.classes}
    # the last bits depend on the number of threads, so later processes take the first one's
    torch.set_num_threads(
        claim(parts.out, _facts(config, manifest, model, device), {"threads": cores}, known)[
            "threads"
        ]
    )

    mine = [part for part in parts.missing() if part % rank.count == rank.index]

    start = time.perf_counter()
    try:
        if mine:
            _write_parts(config, parts, mine, model, blank, cores, show=not rank.index)
    except KeyboardInterrupt:
        there = len(parts) - len(parts.missing())
        print(
            (f"{there:,} of {len(parts):,} files are written; the same command goes on from there"),
            file=sys.stderr,
        )
        raise

    _report(parts, rank, sum(len(parts.ids(part)) for part in mine), time.perf_counter() - start)


def _device() -> torch.device:
    """The device of this rank; ranks may share a GPU."""
    if not (gpus := torch.cuda.device_count()):
        return torch.device("cpu")
    torch.cuda.set_device(
        int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0) % gpus
    )
    return torch.device("cuda", torch.cuda.current_device())


def _facts(
    config: PredictConfig, manifest: Manifest, model: Model, device: torch.device
) -> dict[str, Any]:
    """Returns what decides the outputs bit for bit, on one kind of machine."""
    loader = to_json_value(config.loader)
    # the loader's threads do not change the pixels
    loader.pop(config.loader.cores_option, None)
    options = ("precision", "batch_size", "part_batches", "threads")

    facts = {
        **{name: value for name in options if (value := getattr(config, name)) is not None},
        "output": f"top-{config.k}" if config.output == "topk" else config.output,
        "images": [manifest.fingerprint, len(manifest.problems)],
        "model": {**to_json_value(config.model), "name": model.name, "sha256": model.files},
        "transform": to_json_value(config.transform),
        "loader": loader,
        "device": device.type,
        "versions": provenance({}, [])["versions"],
    }
    # as `claim` reads them back: tuples become lists
    return json.loads(json.dumps(facts))


def _write_parts(
    config: PredictConfig,
    parts: Parts,
    mine: list[int],
    model: Model,
    blank: Tensor,
    cores: int,
    show: bool,
) -> None:
    ids = np.concatenate([parts.ids(part) for part in mine])

    # the part of images without an id is the last one
    if not len(parts.ids(mine[-1])):
        parts.write(mine[-1], _on_host([model.outputs(blank)]), {})
    if not len(ids):
        return

    with build_loader(
        parts.manifest.subset(ids),
        config.loader.on_cores(cores),
        transform=config.transform,
        batch_size=config.batch_size,
        on_bad_sample="substitute",
        rank=Rank(),  # this rank has files of its own, and its loader all of their images
        max_bad_fraction=min(1.0, config.max_bad_fraction * len(parts.manifest) / len(ids)),
        device=blank.device,
    ) as loader:
        done: list[dict[str, Tensor]] = []

        for step, images in enumerate(
            track(_batches(loader, blank), "predicting", len(loader), show)
        ):
            done.append(model.outputs(images))
            # only the last part of all may be shorter, so no batch is of two parts
            if (step + 1) % config.part_batches == 0 or step + 1 == len(loader):
                problems = {int(ids[place]): why for place, _, why in loader.bad_samples}
                parts.write(mine[step // config.part_batches], _on_host(done), problems)
                done.clear()


def _on_host(outputs: list[dict[str, Tensor]]) -> dict[str, Any]:
    return {
        name: torch.cat([output[name] for output in outputs]).cpu().numpy() for name in outputs[0]
    }


def _batches(loader: Loader, blank: Tensor) -> Iterator[Tensor]:
    """Yields the images (N, C, H, W) of every batch of one epoch, blank ones if all are bad."""
    start, total, size = 0, len(loader.plan.manifest), loader.plan.batch_size

    while start < total:
        try:
            for batch in loader:
                start += len(batch)
                yield batch.images
        except BadSampleError as error:
            if error.bad_samples:
                raise  # more than max_bad_fraction

            # a batch without a good image, which has nothing to substitute the bad ones with
            bad = min(size, total - start)
            start += bad
            yield blank.expand(bad, -1, -1, -1)
            if start < total:
                loader.load_state_dict(loader.state_dict() | {"samples": start})


def _report(parts: Parts, rank: Rank, images: int, seconds: float) -> None:
    """Prints what this rank has done and, if all parts are there, what the folder holds."""
    who = f"rank {rank.index} of {rank.count}: " if rank.count > 1 else ""
    said = f"{who}{images:,} images now, {images / seconds:,.1f} images/s with start-up"

    if left := len(parts.missing()):
        print(f"{said}; {left:,} files of other ranks are still to come", file=sys.stderr)
        return

    counts = {
        "images": len(parts.manifest) + len(parts.manifest.problems),
        "problems": parts.finish(),
        "files": len(parts),
    }
    print(
        (
            f"{said}; {parts.out}: "
            f"{', '.join(f'{name} {count:,}' for name, count in counts.items())}"
        ),
        file=sys.stderr,
    )

    own = {
        "rank": rank.index,
        "ranks": rank.count,
        "images_now": images,
        "seconds": seconds,
        "images_per_s": images / seconds,
    }
    print_json({"out": str(parts.out), **counts, **own})
