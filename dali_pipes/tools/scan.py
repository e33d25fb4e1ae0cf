"""What a scan found, for people: the summary, and every file that will not be used."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dali_pipes.data.config import SPLITS, DataConfig
from dali_pipes.data.headers import MAX_PIXELS, VERIFY, check_max_pixels
from dali_pipes.data.images import open_images
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import check_choice, check_options, option


@dataclass(kw_only=True, slots=True)
class ScanConfig:
    """scripts/scan.py.

    Attributes:
        split: "train" or "val".
        verify: "header" reads headers only; "full" decodes every image, on all cores.
        max_pixels: images with more are not used.
        out: Parquet file for the manifest; None: only the summary.
    """

    data: DataConfig = field(default_factory=DataConfig)
    split: str = option("train", check_choice, SPLITS)
    verify: str = option("header", check_choice, VERIFY)
    max_pixels: int = option(MAX_PIXELS, check_max_pixels)
    out: str | None = None

    def __post_init__(self) -> None:
        check_options(self)


def scan(config: ScanConfig) -> None:
    """Scans one split, prints what is there and what is wrong, and saves the manifest if asked to."""
    console = Console(soft_wrap=True)
    manifest = open_images(config.data, config.split, verify=config.verify, max_pixels=config.max_pixels)
    console.print(_summary(manifest))
    for path, problem in manifest.problems:
        console.print(f"{escape(path)}: {escape(problem)}", highlight=False)
    if config.out:
        manifest.save(config.out)
        console.print(f"Manifest: {config.out}", markup=False)


def _summary(manifest: Manifest) -> Table:
    table = Table(title=escape(str(manifest.root)), show_header=False)
    usable = manifest.table.filter(manifest.table["problem"].is_null())
    table.add_row("images", f"{len(manifest):,}")
    if manifest.task == "regression":
        table.add_row("numbers to predict", f"{1 if manifest.labels.ndim == 1 else manifest.labels.shape[1]:,}")
    else:
        several = ", any number for each image" if manifest.task == "multilabel" else ""
        empty = len(manifest.classes) - len(np.unique(manifest.labels[manifest.labels >= 0]))
        table.add_row("classes", f"{len(manifest.classes):,}{several}" + (f" ({empty:,} without a usable image)" if empty else ""))
    if manifest.columns:
        table.add_row("columns", escape(", ".join(manifest.columns)))
    table.add_row("not used", f"{len(manifest.problems):,}")
    if len(manifest):
        table.add_row("size", f"{usable['bytes'].to_numpy().sum() / 1e9:,.2f} GB")
        height, width = np.median(manifest.sizes, axis=0)
        table.add_row("median height × width", f"{height:.0f} × {width:.0f}")
        formats = Counter(usable["format"].to_pylist())
        table.add_row("formats", ", ".join(f"{name} {count:,}" for name, count in formats.most_common()))
        table.add_row("rotated by EXIF (ignored)", f"{int((usable['orientation'].to_numpy() > 1).sum()):,}")
    return table
