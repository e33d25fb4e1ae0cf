"""Draws what is in a data set: classes, sizes, formats, chroma subsampling, EXIF orientation."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError

COLOUR = "#4269d0"
BARS = 12  # at most
_STYLE = {
    "text.parse_math": False,  # names of classes may contain "$"
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
}


def save_picture(manifest: Manifest, file: Path) -> None:
    """Writes six charts of the usable images into one file; its ending decides the format.

    Raises:
        ConfigError: Matplotlib does not write this format.
    """
    refuse_other_format(file)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 6), layout="constrained")
        figure.suptitle(f"{manifest.root}: {len(manifest):,} images")

        for axes, draw in zip(figure.subplots(2, 3).flat, _CHARTS, strict=True):
            draw(axes, manifest)
        figure.savefig(file, dpi=120)


def refuse_other_format(file: Path) -> None:
    """Raises ConfigError if Matplotlib writes no pictures of this ending."""
    if file.suffix[1:].lower() not in Figure().canvas.get_supported_filetypes():
        raise ConfigError(f"picture={file}: end its name in .png or .svg")


def _classes(axes: Axes, manifest: Manifest) -> None:
    """Draws a bar for each class or, if there are too many, a histogram of their sizes.

    For regression, a histogram of the first number to predict.
    """
    if manifest.task == "regression":
        axes.hist(manifest.labels.reshape(len(manifest), -1)[:, 0], bins=40, color=COLOUR)
        axes.set_title("first number to predict")
        return

    # a label below 0 means none
    counts = np.bincount(manifest.labels[manifest.labels >= 0], minlength=len(manifest.classes))
    if len(counts) <= BARS:
        _bars(
            axes, dict(zip(manifest.classes, counts.tolist(), strict=True)), "images of each class"
        )
        return

    axes.hist(counts, bins=40, color=COLOUR)

    axes.set_title(
        f"images of a class: {counts.min():,} to {counts.max():,} ({len(counts):,} classes)"
    )
    axes.set_ylabel("classes")


def _sides(axes: Axes, manifest: Manifest) -> None:
    height, width = manifest.sizes.T
    # a few huge images would squeeze all others into a corner
    top = [int(np.percentile(side, 99.5)) + 1 for side in (width, height)]

    axes.hexbin(
        width,
        height,
        gridsize=40,
        bins="log",
        mincnt=1,
        extent=(0, top[0], 0, top[1]),
        cmap="GnBu",
        linewidths=0,
    )

    axes.set_title("width and height in pixels, darker: more images")
    axes.set_xlabel("width")
    axes.set_ylabel("height")


def _bytes(axes: Axes, manifest: Manifest) -> None:
    kib = manifest.bytes_each / 1024
    axes.hist(
        kib,
        # equal widths on the logarithmic axis
        bins=np.geomspace(max(kib.min(), 0.01), max(kib.max(), 0.02), 50).tolist(),
        color=COLOUR,
    )
    axes.set_xscale("log")
    axes.set_title(f"size of a file, median {np.median(kib):,.0f} KiB")
    axes.set_xlabel("KiB")


def _bars(axes: Axes, counts: dict[str, int], title: str) -> None:
    shown = dict(sorted(counts.items(), key=lambda item: -item[1])[:BARS])

    bars = axes.barh(range(len(shown)), list(shown.values()), color=COLOUR)
    axes.set_yticks(range(len(shown)), [name or "unknown" for name in shown])
    axes.bar_label(bars, [f"{count:,}" for count in shown.values()], padding=3)

    # bars of a few classes are no thicker than those of five
    axes.set_ylim(max(len(shown), 5) - 0.5, -0.5)
    axes.margins(x=0.2)
    axes.set_title(title)


def _column(name: str, title: str) -> Callable[[Axes, Manifest], None]:
    def draw(axes: Axes, manifest: Manifest) -> None:
        values = manifest.samples[name]
        _bars(
            axes, {str(value): count for value, count in Counter(values.to_pylist()).items()}, title
        )

    return draw


_CHARTS: tuple[Callable[[Axes, Manifest], None], ...] = (
    _classes,
    _sides,
    _bytes,
    _column("format", "format"),
    _column("subsampling", "chroma subsampling of JPEGs"),
    _column("orientation", "EXIF orientation; 1 is upright"),
)
