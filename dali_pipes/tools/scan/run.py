"""Scans a data set for people: prints a summary, and every file that will not be used.

`scan` opens one split as training does, and may save its manifest; `index` writes the index of a
source beside it.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dali_pipes.checks import check_choice
from dali_pipes.data.config import SPLITS, DataConfig
from dali_pipes.data.image_files.headers import VERIFY, check_max_pixels
from dali_pipes.data.images import open_images
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.objects import NO_TARGETS, Targets
from dali_pipes.data.omissions import is_without_label, merge, printable
from dali_pipes.data.sources.kinds import kind_of
from dali_pipes.data.sources.opening import READERS
from dali_pipes.data.sources.options import TABLES, SourceOptions
from dali_pipes.data.table.saved import refuse_other_file
from dali_pipes.options import check_options, option
from dali_pipes.system.files import refuse_unwritable
from dali_pipes.system.stdout import say


@dataclass(kw_only=True, slots=True)
class ScanConfig:
    """dali-pipes scan.

    Attributes:
        split: "train" or "val".
        verify: "header" reads headers only; "full" decodes every image, on all cores.
        max_pixels: images with more are not used; None: data.max_pixels.
        out: file for the manifest, NAME.arrow to be mapped or NAME.parquet; None: only the summary.
        strict: ends with status 1 if an image or an object is left out.
    """

    data: DataConfig = field(default_factory=DataConfig)
    split: str = option("train", check_choice, SPLITS)
    verify: str = option("header", check_choice, VERIFY)
    max_pixels: int | None = option(None, check_max_pixels)
    strict: bool = False
    out: str | None = None

    def __post_init__(self) -> None:
        check_options(self)


def scan(config: ScanConfig) -> None:
    """Scans one split, prints what is there and what is wrong, and saves what `config` asks for."""
    console = Console(soft_wrap=True)
    # a file that cannot be written, before a scan that may take hours
    if config.out:
        refuse_other_file(Path(config.out))
        refuse_unwritable(Path(config.out))

    limit = config.max_pixels or config.data.max_pixels
    # every file is looked at, where opening for training looks at each folder once
    manifest = open_images(
        config.data, config.split, verify=config.verify, max_pixels=limit, unchanged="file"
    )
    # a saved manifest is mapped into memory, and `load` does not read all of it
    manifest.verify()

    _report(console, manifest)

    if config.out:
        manifest.save(config.out)
        say(console, f"Manifest: {config.out}")

    manifest.tell_omissions(config.strict)


def index(
    source: str, verify: str, targets: Targets = NO_TARGETS, with_labels: bool = True
) -> None:
    """Scans images, prints what `scan` does, and writes their index beside them.

    If no image has a label, they are read without labels, so that the index contains all of them.
    """
    console = Console(soft_wrap=True)

    # not `open_source`, which would take an index that is there
    kind = kind_of(source)
    read = READERS[kind if kind in TABLES else "images"]
    options = SourceOptions(verify=verify, targets=targets, with_labels=with_labels)
    images = read(source, options)

    problems = [why for _, why in images.problems]
    if with_labels and not len(images) and any(map(is_without_label, problems)):
        images = read(source, replace(options, with_labels=False))

        do = "to have texts or masks in it, index again with --target, such as --target text=.txt"
        say(
            console,
            (
                "No image has a label: the index is without labels, and holds the images alone; "
                f"{do}"
            ),
        )

    # only now, since what the first look leaves out is of no interest if there was a second one
    manifest = Manifest.of(images)
    manifest.tell_omissions()
    _report(console, manifest)
    say(console, f"Index: {manifest.save_index()}")


def _report(console: Console, manifest: Manifest) -> None:
    console.print(_summary(manifest))
    if manifest.omissions:
        console.print(_omissions(manifest))

    say(console, *(printable(f"{path}: {why}") for path, why in manifest.problems))
    for kind in merge(manifest.passed_over):
        names = ", ".join(kind.names) + (", …" if kind.number > len(kind.names) else "")
        say(console, printable(f"{kind.kind}: {names}"))

    if manifest.dropped:
        say(
            console,
            (f"{len(manifest.dropped):,} objects left out of images that are used:"),
        )
        say(console, *(printable(f"{path}: {why}") for path, why in manifest.dropped))


def _omissions(manifest: Manifest) -> Table:
    """A table of how much is left out, by reason."""
    table = Table("not used, or in doubt, because", "how many", title="left out, and in doubt")
    units = {
        "image": "",
        "object": " objects",
        "folder": " folders",
        "doubt": ", in doubt",
        "file": ", beside the images",
        "note": ", a note",
    }

    for omission in manifest.omissions:
        table.add_row(
            escape(printable(omission.kind)), f"{omission.number:,}{units[omission.unit]}"
        )
    return table


def _summary(manifest: Manifest) -> Table:
    table = Table(title=escape(str(manifest.root)), show_header=False)
    usable = manifest.samples

    table.add_row("images", f"{len(manifest):,}")

    if manifest.task == "regression":
        table.add_row(
            "numbers to predict",
            f"{1 if manifest.labels.ndim == 1 else manifest.labels.shape[1]:,}",
        )
    else:
        several = ", any number for each image" if manifest.task == "multilabel" else ""
        # a label below 0 means none
        empty = len(manifest.classes) - len(np.unique(manifest.labels[manifest.labels >= 0]))
        table.add_row(
            "classes",
            f"{len(manifest.classes):,}{several}"
            + (f" ({empty:,} without a usable image)" if empty else ""),
        )

    if objects := manifest.take_objects(np.arange(len(manifest))):
        table.add_row(
            "objects",
            f"{len(objects.boxes):,}"
            + (f" ({len(manifest.dropped):,} left out)" if manifest.dropped else ""),
        )

    if targets := [
        name for name in ("keypoints", "outlines", "mask", "text") if manifest.has_target(name)
    ]:
        table.add_row("targets", ", ".join(targets))

    if manifest.columns:
        table.add_row("columns", escape(", ".join(manifest.columns)))
    table.add_row(
        "not used",
        f"{sum(omission.number for omission in manifest.omissions if omission.unit == 'image'):,}",
    )

    if len(manifest):
        table.add_row("size", f"{usable['bytes'].to_numpy().sum() / 1e9:,.2f} GB")
        height, width = np.median(manifest.sizes, axis=0)
        table.add_row("median height × width", f"{height:.0f} × {width:.0f}")

        formats = Counter(usable["format"].to_pylist())
        table.add_row(
            "formats", ", ".join(f"{name} {count:,}" for name, count in formats.most_common())
        )

        # formats other than JPEG have none
        coded = Counter(filter(None, usable["jpeg"].to_pylist()))
        if coded:
            table.add_row(
                "JPEGs", ", ".join(f"{name} {count:,}" for name, count in coded.most_common())
            )
        table.add_row(
            "with an EXIF rotation", f"{int((usable['orientation'].to_numpy() > 1).sum()):,}"
        )

    return table
