"""Tests whether DALI decodes on this GPU, and correctly, with one set of options after the other.

Each set runs in a process that may crash.
"""

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.data.manifest import Manifest
from dali_pipes.measure.workload import to_dict
from dali_pipes.system.child import ChildError
from dali_pipes.tools.doctor.decoding_check import IMAGES, ComparedDecoding, check_decoding
from dali_pipes.tools.doctor.images import make_images

LEAST = 5.0  # seconds that must be left for another set
LONGEST = 40.0  # seconds for one set
Row = dict[str, Any]  # loader (plain), batch_size; ComparedDecoding, faults and doubts, or error


def tried(batch_size: int) -> Iterator[tuple[DaliConfig, int]]:
    """Yields sets of options with their batch sizes, the most important first.

    First the default options, and whether their pixels depend on the batch size; then regions and
    whole images with every decoder. The time may not suffice for all, so the JPEG engine alone and
    the CUDA decoder alone come before their mix, the default, which other parts test too.
    """
    yield DaliConfig(), batch_size
    yield DaliConfig(exact=True), batch_size
    yield DaliConfig(exact=True), max(1, batch_size // 4)
    for load, fancy, decode in itertools.product(
        (1.0, 0.0, 0.65), (True, False), ("force_region", "whole")
    ):
        yield (
            DaliConfig(decode=decode, jpeg_fancy_upsampling=fancy, hw_decoder_load=load),
            batch_size,
        )


def probed(
    images: Manifest,
    batch_size: int,
    folder: Path,
    seconds: float,
    device: torch.device,
    at_most: int | None = None,
) -> list[Row]:
    """Tests as many of the sets in `tried` as fit into the time.

    Args:
        images: real images; generated ones are added.
        folder: receives all images, and probe.jsonl, a line for each set when it is done.
        seconds: for all sets.
        at_most: the maximum number of sets.
    """
    end, found = time.monotonic() + seconds, list[Row]()
    folder.mkdir(exist_ok=True)
    manifest = together(images, folder / "probe_images")

    with open(folder / "probe.jsonl", "w") as lines:
        for config, size in itertools.islice(tried(batch_size), at_most):
            limit = min(LONGEST, end - time.monotonic())
            if limit < LEAST:
                break

            found.append(
                {"loader": to_dict(config), "batch_size": size}
                | _answer(manifest, config, size, device, limit)
            )
            print(json.dumps(found[-1]), file=lines, flush=True)
    return found


def regions_are_right(parts: dict[str, Any]) -> list[bool]:
    """The values of jpeg_fancy_upsampling with which all trials of regions were correct."""
    rows = [
        row
        for row in parts.get("probe", {}).get("result") or []
        if row["loader"]["decode"] == "force_region"
    ]

    outcomes = {
        fancy: [_went_well(row) for row in rows if row["loader"]["jpeg_fancy_upsampling"] == fancy]
        for fancy in (True, False)
    }

    return [fancy for fancy, each in outcomes.items() if each and all(each)]


def together(images: Manifest, folder: Path) -> Manifest:
    """Writes generated and real images, at most `IMAGES`, into one folder, and scans it."""
    make_images(folder)

    left = IMAGES - sum(1 for _ in folder.rglob("*.jpg"))
    (folder / "real").mkdir()
    # spread over all real images
    for sample_id in np.unique(np.linspace(0, len(images) - 1, left).astype(np.int64)).tolist():
        images.read(sample_id).tofile(
            folder / f"real/{sample_id:06d}{Path(images.name(sample_id)).suffix}"
        )

    return Manifest.scan(folder, progress=False)


def _answer(
    manifest: Manifest, config: DaliConfig, batch_size: int, device: torch.device, limit: float
) -> dict[str, Any]:
    try:
        found: ComparedDecoding = check_decoding(
            manifest, "ignore", config, batch_size, device, limit
        )
    except ChildError as error:
        return {"error": str(error)}
    return {**asdict(found), "faults": found.faults(), "doubts": found.doubts()}


def _went_well(row: Row) -> bool:
    return "error" not in row and not row["faults"]
