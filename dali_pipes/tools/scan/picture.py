"""Draws what is in a data set: classes, sizes, formats, chroma subsampling, EXIF orientation."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.tools.drawing.fonts import find_fonts

COLOUR = "#4269d0"
# the lightest, of a single image, is still plain to see on white
_SHADES = LinearSegmentedColormap.from_list("images", ["#7089d6", "#0b1b45"])
BARS = 12  # at most
_LETTERS = 24  # of a name beside a bar, at most
_WIDE = 5  # how many times the least value the greatest is, for a logarithmic axis
_PATH = 90  # letters of the folder in the title, at most
_STYLE = {
    "text.parse_math": False,  # names of classes may contain "$"
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
}
_NAMES = {"orientation": {"1": "1, upright"}, "subsampling": {"": "no JPEG"}}  # of values


def save_picture(manifest: Manifest, file: Path) -> str:
    """Writes six charts of the usable images into one file; its ending decides the format.

    Returns a sentence about the classes whose names no installed font can write, which have a
    number in the picture; "" if there are none.

    Raises:
        ConfigError: Matplotlib does not write this format.
    """
    refuse_other_format(file)
    root = str(manifest.root)
    # the end of a path tells more than its beginning
    root = root if len(root) <= _PATH else f"…{root[1 - _PATH :]}"
    # the names of more classes are not drawn
    classes = manifest.classes if len(manifest.classes) <= BARS else []
    fonts = find_fonts([root, *classes])

    with mpl.rc_context(_STYLE | {"font.family": fonts.families}):
        figure = Figure(figsize=(11, 6.6), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
        figure.suptitle(f"{fonts.readable(root)}: {count(len(manifest), 'image')}")

        first, *others = figure.subplots(2, 3).flat
        _classes(first, manifest, fonts.name(classes))
        for axes, draw in zip(others, _CHARTS, strict=True):
            draw(axes, manifest)
        figure.savefig(file, dpi=120)
    return fonts.note(classes)


def refuse_other_format(file: Path) -> None:
    """Raises ConfigError if Matplotlib writes no pictures of this ending."""
    if file.suffix[1:].lower() not in Figure().canvas.get_supported_filetypes():
        raise ConfigError(f"picture={file}: end its name in .png or .svg")


def count(number: int, noun: str) -> str:
    """Returns such as "1 image", "1,200 images" or "2 classes"."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def _classes(axes: Axes, manifest: Manifest, names: list[str]) -> None:
    """Draws a bar for each class or, if there are too many, a histogram of their sizes.

    For regression, a histogram of the first number to predict.

    Args:
        names: of the classes; none if there are too many.
    """
    if manifest.task == "regression":
        _histogram(axes, manifest.labels.reshape(len(manifest), -1)[:, 0], "images")
        axes.set_title("First number to predict")
        return

    # a label below 0 means none
    counts = np.bincount(manifest.labels[manifest.labels >= 0], minlength=len(manifest.classes))
    if len(counts) <= BARS:
        _bars(axes, dict(zip(names, counts.tolist(), strict=True)))
        axes.set_title("Images of each class")
        return

    _histogram(axes, counts, "classes")
    low, high = counts.min(), counts.max()
    have = f"{low:,} to {high:,} images" if low < high else count(low, "image")
    axes.set_title(f"{len(counts):,} classes of {have}" + (" each" if low == high else ""))
    axes.set_xlabel("images of a class")


def _sides(axes: Axes, manifest: Manifest) -> None:
    height, width = manifest.sizes.T
    # a few huge images would squeeze all others into a corner
    right, top = (int(np.percentile(side, 99.5) * 1.05) + 1 for side in (width, height))
    if is_same := len(np.unique(manifest.sizes, axis=0)) == 1:
        right, top = 2 * right, 2 * top  # in the middle, and not in a corner
    outside = int(((width > right) | (height > top)).sum())

    drawn = axes.hexbin(
        width,
        height,
        gridsize=28,
        bins="log",
        mincnt=1,
        extent=(0, right, 0, top),
        cmap=_SHADES,
        linewidths=0,
    )
    counts = np.asarray(drawn.get_array())
    if len(counts) and counts.min() < counts.max():
        bar = axes.figure.colorbar(drawn, ax=axes, format=FuncFormatter(_number))
        bar.ax.minorticks_off()
        bar.set_label("images")

    axes.set_xlim(0, right)
    axes.set_ylim(0, top)
    axes.set_title(
        f"Size: every image is {width[0]:,} × {height[0]:,} pixels"
        if is_same
        else "Width and height"
        + (f"; {count(outside, 'larger image')} not drawn" if outside else "")
    )
    axes.set_xlabel("width in pixels")
    axes.set_ylabel("height in pixels")


def _bytes(axes: Axes, manifest: Manifest) -> None:
    kib = manifest.bytes_each / 1024
    low, high = max(kib.min(), 0.01), max(kib.max(), 0.01)
    axes.set_title(f"File size: median {np.median(kib):,.3g} KiB")
    axes.set_xlabel("KiB")
    if low == high:
        _single(axes, f"{low:,.3g}", len(kib), "images")
        return

    if high < _WIDE * low:
        axes.hist(kib, bins=50, color=COLOUR)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    else:
        # equal widths on the logarithmic axis
        axes.hist(kib, bins=np.geomspace(low, high, 50).tolist(), color=COLOUR)
        axes.set_xscale("log")
        # a short axis would have one label or none
        axes.xaxis.set_major_locator(LogLocator(subs=[1, 2, 5] if high / low < 50 else [1]))
        axes.xaxis.set_minor_formatter(NullFormatter())
    # Matplotlib's own labels of a logarithmic axis are formulas, which `_STYLE` switches off
    axes.xaxis.set_major_formatter(FuncFormatter(_number))
    _count_axis(axes, "images")


def _histogram(axes: Axes, values: NDArray[Any], unit: str) -> None:
    """Draws how often there is each value, or range of values.

    Args:
        unit: what is counted.
    """
    low, high = values.min(), values.max()
    if low == high:
        _single(axes, _number(low), len(values), unit)
        return

    is_whole = np.issubdtype(values.dtype, np.integer)
    if is_whole:
        # a bar is of whole numbers, as many as every other one
        width = -(-int(high - low + 1) // 40)
        bins = np.arange(low, high + width + 1, width) - 0.5
    else:
        bins = np.linspace(low, high, 41)
    axes.hist(values, bins=bins.tolist(), color=COLOUR)
    axes.xaxis.set_major_locator(MaxNLocator(integer=is_whole, nbins=6))
    axes.xaxis.set_major_formatter(FuncFormatter(_number))
    _count_axis(axes, unit)


def _single(axes: Axes, value: str, number: int, unit: str) -> None:
    """Draws the one bar of values that are all the same."""
    bars = axes.bar([value], [number], width=0.3, color=COLOUR)
    axes.bar_label(bars, [f"all {number:,}" if number > 1 else "1"], padding=3)
    axes.set_xlim(-1, 1)
    axes.margins(y=0.15)
    _count_axis(axes, unit)


def _count_axis(axes: Axes, unit: str) -> None:
    axes.set_ylabel(unit)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.yaxis.set_major_formatter(FuncFormatter(_number))


def _number(value: float, _: object = None) -> str:
    return f"{value:,.6g}"


def _bars(axes: Axes, counts: dict[str, int]) -> None:
    """Draws a bar for each name, with its number; the axis would say the same again."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    names = [name or "unknown" for name, _ in ordered[:BARS]]
    numbers = [number for _, number in ordered[:BARS]]

    bars = axes.barh(range(len(names)), numbers, color=COLOUR)
    axes.set_yticks(range(len(names)), map(_shorten, names))
    axes.tick_params(axis="y", length=0)
    axes.bar_label(bars, [f"{number:,}" for number in numbers], padding=3)

    # bars of a few classes are no thicker than those of five
    axes.set_ylim(max(len(names), 5) - 0.5, -0.5)
    axes.margins(x=0.2)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)


def _shorten(name: str) -> str:
    """Leaves out the middle of a long name: names of classes often begin or end alike."""
    if len(name) <= _LETTERS:
        return name
    return f"{name[: _LETTERS // 2]}…{name[1 - _LETTERS // 2 :]}"


def _column(name: str, title: str) -> Callable[[Axes, Manifest], None]:
    def draw(axes: Axes, manifest: Manifest) -> None:
        counts = Counter(map(str, manifest.samples[name].to_pylist()))
        names = _NAMES.get(name, {})
        axes.set_title(title)
        _bars(axes, {names.get(value, value): number for value, number in counts.items()})

    return draw


_CHARTS: tuple[Callable[[Axes, Manifest], None], ...] = (
    _sides,
    _bytes,
    _column("format", "Images by format"),
    _column("subsampling", "Images by chroma subsampling of JPEG"),
    _column("orientation", "Images by EXIF orientation"),
)
