"""Runs a preparation from start to end.

    scan the source → `_check` that the output can keep all of it → lock the folder (`recorded`)
    for each split (`_split`): write → scan what was written → compare pixels → record

A part of the work (`config.work`) only writes; the run that merges the parts does the rest.
"""

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dali_pipes.data.images import open_images
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError, PreparationError
from dali_pipes.system.provenance import provenance
from dali_pipes.system.stdout import say
from dali_pipes.tools.preparation.beside import kept_beside, usage, without
from dali_pipes.tools.preparation.compare import pixel_difference
from dali_pipes.tools.preparation.config import QUALITY, PrepareConfig
from dali_pipes.tools.preparation.encode import Encoding
from dali_pipes.tools.preparation.folder import check_order, to_folder
from dali_pipes.tools.preparation.record import Outcome, Record, recorded
from dali_pipes.tools.preparation.shards import to_shards, write_here

MIB = 2**20

console = Console(soft_wrap=True)


def prepare(config: PrepareConfig) -> None:
    """Writes `config.out`, and reports counts, sizes and differences of the images.

    A run after a killed one continues where that stopped.

    Raises:
        ConfigError, ManifestError, PreparationError: a user's mistake; existing files are
            unchanged.
    """
    out = Path(os.path.abspath(str(config.out)))
    data = config.data
    splits = [split for split in ("train", "val") if data.root or getattr(data, split)] or ["train"]
    sources = {split: without(open_images(data, split), list(config.drop)) for split in splits}

    for split, source in sources.items():
        _check(source, Path(data.source(split)), out, config.to)

    with recorded(out, _options(config, sources.values()), config.work.name) as record:
        for split, source in sources.items():
            _split(config, record, split, source)

    if config.work.name:
        say(console, "When all parts have ended: the same command with part=merge")
        return

    place = f"data.root={out}" if len(splits) == 2 else f"data.{splits[0]}={out / splits[0]}"
    say(console, f"Use them with {place}{usage(sources[splits[0]])}")

    if columns := list(sources[splits[0]].columns):
        say(
            console,
            (
                f"The .json of each image has its columns ({', '.join(columns)}), which a scan of "
                "shards does not read"
            ),
        )


def _split(config: PrepareConfig, record: Record, split: str, source: Manifest) -> None:
    """Prepares one split."""
    record.begin(
        split,
        {"fingerprint": source.fingerprint, "images": len(source), "bytes": source.bytes_in_all},
    )

    encoding = Encoding(config.resize, config.quality or QUALITY, config.exif)
    if config.to == "folder":
        outcome, ids = to_folder(record, split, source, encoding, config.work)
    else:
        if config.engine == "ray":
            # Ray is an optional dependency, and its import takes a second
            from dali_pipes.tools.preparation.on_ray import write_all
        else:
            write_all = write_here

        packed = encoding if config.encodes else None
        outcome, ids = to_shards(
            record, split, source, packed, config.shard_mib * MIB, write_all, config.work
        )

    # only when all parts are there
    if not config.work.name:
        if not ids:
            path, why = outcome.left_out[-1]
            raise PreparationError(
                f"{source.root}: none of its {len(outcome.left_out):,} images can be used, "
                f"such as {path}: {why}"
            )

        if config.to == "folder":
            limit = config.data.max_pixels
            written = Manifest.open(
                record.out / split, max_pixels=limit, cache_dir=config.data.cache_dir
            )
            # other files in the folder would change the ids of those that this run wrote
            check_order(written, source, ids)
        else:
            written = Manifest.scan(
                record.out / split, max_pixels=config.data.max_pixels, progress=False
            )
            # for a bucket that the shards are copied to: opening it there then reads no shard
            written.save_index()

        if config.encodes and config.agreement_images:
            with Console(stderr=True).status("comparing pixels before and after"):
                outcome.difference = pixel_difference(config, source, ids, written)

    record.finish(
        split, asdict(outcome) | {"provenance": provenance(source.describe(), config.overrides)}
    )
    _print_outcome(split, outcome)


def _options(config: PrepareConfig, sources: Iterable[Manifest]) -> dict[str, Any]:
    """Returns the options that two runs must share to write into the same folder."""
    # what changes no byte of the files, such as engine and part, may differ from run to run
    quality = (config.quality or QUALITY) if config.encodes else None
    options: dict[str, Any] = {"to": config.to, "resize": config.resize}
    options |= {"quality": quality, "exif": config.exif}

    beside = sorted({name for source in sources for name in kept_beside(source)})
    options |= {"beside": beside} if beside else {}

    return options | ({"shard_mib": config.shard_mib} if config.to == "shards" else {})


def _check(source: Manifest, named: Path, out: Path, to: str) -> None:
    if source.task != "classification":
        raise ConfigError(
            f"{named}: its labels are not one class for each image, and class folders and "
            ".cls files cannot hold others"
        )

    if not len(source):
        raise PreparationError(f"{named}: no usable image; dali-pipes scan lists what is wrong")
    if source.has_wide:
        raise ConfigError(
            f"{named}: it has images of 16 bits a channel, which are not prepared; read it without "
            "bits=16"
        )
    if to == "folder" and (lost := kept_beside(source)):
        advice = f"to=shards keeps all, drop=[{','.join(lost)}] leaves them out"
        raise ConfigError(f"{named}: class folders cannot keep {', '.join(lost)}; {advice}")
    if source.facts.masks_upright and "mask" in kept_beside(source):
        raise ConfigError(
            f"{named}: masks of upright pictures are not written into shards; leave them out "
            "with drop=[mask]"
        )

    # a scan of the images would find what is written
    folder, target = named.resolve(), out.resolve()
    if named.is_dir() and (folder.is_relative_to(target) or target.is_relative_to(folder)):
        raise ConfigError(
            f"of out={out} and the images, {named}, one is inside the other; choose a folder "
            "beside them"
        )


def _print_outcome(split: str, outcome: Outcome) -> None:
    """Prints a table of one split, and every file that was left out."""
    table = Table(title=escape(split), show_header=False)
    made = outcome.images - outcome.kept
    table.add_row("images", f"{outcome.images:,}")
    table.add_row("encoded", f"{made - outcome.same_pixels:,}")
    table.add_row("copied, pixels unchanged", f"{outcome.same_pixels:,}")
    if outcome.kept:
        table.add_row("kept from an earlier run", f"{outcome.kept:,}")
    table.add_row("left out", f"{len(outcome.left_out):,}")

    share = outcome.bytes_after / max(outcome.bytes_before, 1)
    table.add_row(
        "size",
        (
            f"{_size(outcome.bytes_before)} before, {_size(outcome.bytes_after)} after: "
            f"{share:.2f} ×"
        ),
    )

    if outcome.difference:
        for name in ("evaluation", "training"):
            difference = outcome.difference[name]
            mean, p99, largest = (difference[figure] for figure in ("mean", "p99", "max"))
            figures = f"mean {mean:.2f}, p99 {p99:.0f}, max {largest:.0f}"
            table.add_row(
                f"pixels, {name}", f"{figures} of 255 over {outcome.difference['images']} images"
            )

    console.print(table)
    for path, why in outcome.left_out:
        # a name may have other bytes than UTF-8, which cannot be printed
        readable = os.fsencode(path).decode("utf-8", "backslashreplace")
        say(console, f"left out: {readable}: {why}")


def _size(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
