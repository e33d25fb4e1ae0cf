"""Preparation from start to end."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from dali_pipes.data.images import open_images
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError, PreparationError
from dali_pipes.measure.protocol import trained_model
from dali_pipes.system.provenance import provenance
from dali_pipes.tools.preparation.cifar import check_archive, read_archive, write_pngs
from dali_pipes.tools.preparation.config import QUALITY, PrepareConfig
from dali_pipes.tools.preparation.encode import Encoding
from dali_pipes.tools.preparation.folder import check_order, to_folder
from dali_pipes.tools.preparation.measure import folder_difference, measure, shards_difference
from dali_pipes.tools.preparation.record import Record, recorded
from dali_pipes.tools.preparation.report import Outcome, print_measured, print_outcome
from dali_pipes.tools.preparation.shards import to_shards, write_here

MIB = 2**20

console = Console(soft_wrap=True)


def prepare(config: PrepareConfig) -> None:
    """Writes `config.out`, and reports counts, sizes and differences of the images. A killed run continues where it stopped.

    Raises:
        ConfigError, ManifestError, PreparationError: a user's mistake; existing files are unchanged.
    """
    out = Path(os.path.abspath(str(config.out)))
    if config.source == "images":
        _images(config, out)
    else:
        _cifar(config, Path(str(config.archive)), out)


def _cifar(config: PrepareConfig, archive: Path, out: Path) -> None:
    sha256 = check_archive(archive, config.source, config.sha256)
    classes, splits = read_archive(archive, config.source)
    with recorded(out, {"source": config.source, "sha256": sha256}) as record:
        for split, images in splits.items():
            record.begin(split, {"images": len(images.labels)})
            count, kept = write_pngs(record, split, classes, images)
            record.finish(split, {"images": count})
            from_earlier = f", {kept:,} of them kept from an earlier run" if kept else ""
            _say(f"{split}: {count:,} images of {len(classes)} classes{from_earlier}")
    _say(f"Use them with data.root={out}")


def _images(config: PrepareConfig, out: Path) -> None:
    if config.measure:
        trained_model(config)  # refuses an unknown one before the work begins
    data = config.data
    splits = [split for split in ("train", "val") if data.root or getattr(data, split)] or ["train"]
    sources = {split: open_images(data, split) for split in splits}
    for split, source in sources.items():
        _check(source, Path(data.source(split)), out)
    made = {}
    with recorded(out, _options(config), config.work) as record:
        for split, source in sources.items():
            facts = {"fingerprint": source.fingerprint, "images": len(source), "bytes": source.bytes_in_all}
            record.begin(split, facts)
            if config.to == "shards":
                _pack(config, record, split, source)
            else:
                made[split] = _shrink(config, record, split, source)
    if config.work and not config.work.merges:
        _say("When all parts have ended: the same command with part=merge")
        return
    _say(f"Use them with data.root={out}" if len(splits) == 2 else f"Use them with data.{splits[0]}={out / splits[0]}")
    if config.measure:
        print_measured(console, measure(config, sources[splits[0]], *made[splits[0]]))


def _shrink(config: PrepareConfig, record: Record, split: str, source: Manifest) -> tuple[list[int], Manifest]:
    """The source's id of each written image, and the written images."""
    outcome, ids = to_folder(record, split, source, _encoding(config), config.work)
    if config.work and not config.work.merges:
        _finish(config, record, split, source, outcome)
        return ids, source
    _check_any(source, outcome)
    written = Manifest.open(record.out / split, cache_dir=config.data.cache_dir)
    check_order(written, source, ids)
    _finish(config, record, split, source, outcome, lambda: folder_difference(config, source, ids, written))
    return ids, written


def _pack(config: PrepareConfig, record: Record, split: str, source: Manifest) -> None:
    encoding = _encoding(config) if config.encodes else None
    if config.engine == "ray":
        from dali_pipes.tools.preparation.on_ray import write_all  # Ray is an extra, and takes a second
    else:
        write_all = write_here
    outcome = to_shards(record, split, source, encoding, config.shard_mib * MIB, write_all, config.work)
    if config.work and not config.work.merges:
        _finish(config, record, split, source, outcome)
        return
    _check_any(source, outcome)
    Manifest.scan(record.out / split, progress=False).save_index()
    _finish(config, record, split, source, outcome, lambda: shards_difference(config, source, record.out / split))


def _finish(
    config: PrepareConfig,
    record: Record,
    split: str,
    source: Manifest,
    outcome: Outcome,
    compare: Callable[[], dict[str, Any]] | None = None,
) -> None:
    if compare and config.encodes and config.agreement_images:
        with Console(stderr=True).status("comparing pixels before and after"):
            outcome.difference = compare()
    record.finish(split, outcome.to_dict() | {"provenance": provenance(source.describe(), config.overrides)})
    print_outcome(console, split, outcome)


def _encoding(config: PrepareConfig) -> Encoding:
    return Encoding(config.resize, config.quality or QUALITY, config.exif)


def _options(config: PrepareConfig) -> dict[str, Any]:
    """The options that two runs must share to write into the same folder."""
    quality = (config.quality or QUALITY) if config.encodes else None
    options = {"source": config.source, "to": config.to, "resize": config.resize, "quality": quality, "exif": config.exif}
    return options | ({"shard_mib": config.shard_mib} if config.to == "shards" else {})


def _check(source: Manifest, named: Path, out: Path) -> None:
    if source.task != "classification":
        raise ConfigError(
            f"{named}: its labels are not one class for each image, and class folders and .cls files cannot hold others"
        )
    if not len(source):
        raise PreparationError(f"{named}: no usable image; dali-pipes scan lists what is wrong")
    folder, target = named.resolve(), out.resolve()
    if named.is_dir() and (folder.is_relative_to(target) or target.is_relative_to(folder)):
        raise ConfigError(f"out={out} and the images, {named}, lie within each other; choose a folder beside them")


def _check_any(source: Manifest, outcome: Outcome) -> None:
    if not outcome.images:
        path, why = outcome.left_out[-1]
        raise PreparationError(f"{source.root}: none of its {len(outcome.left_out):,} images can be used, such as {path}: {why}")


def _say(line: str) -> None:
    console.print(line, markup=False, highlight=False)
