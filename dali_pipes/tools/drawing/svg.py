"""Charts as SVG.

They are drawn in placeholder colors, which `svg` replaces by variables of the page's CSS, so that
they follow its light or dark colors; `standalone` makes a chart a file of its own.
"""

import io
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

PALETTE = Path(__file__).with_name("palette.css").read_text()
# inches; about the width of the page's column, so that letters are as large as the page's
WIDTH = 5.2
# placeholders, which no other part of an SVG contains
INK, LINE = "#ab1001", "#ab1002"
COLORS = [f"#ab20{number:02x}" for number in range(10)]
_CSS = {INK: "var(--ink)", LINE: "var(--line)"} | {
    color: f"var(--c{number})" for number, color in enumerate(COLORS)
}
_STYLE = {
    "svg.fonttype": "none",  # letters stay text, in the page's font
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": LINE,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def standalone(chart: str) -> str:
    """Completes a chart to an SVG file, with the page's colors."""
    # inside an HTML page an SVG needs no namespaces, in a file it does
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    style = f"<style>{PALETTE}text {{ font-family: system-ui, sans-serif !important; }}</style>"
    return re.sub(r"<svg([^>]*)>", rf"<svg {names}\1>{style}", chart, count=1)


def svg(name: str, draw: Callable[[Axes], None], height: float) -> str:
    """Draws a chart.

    Args:
        name: differs between the charts of a page.
        draw: draws into the axes, in `INK`, `LINE` and `COLORS`.
        height: in inches; the width is `WIDTH`.
    """
    # the salt makes the ids of elements, which must differ between the charts of a page, and be the
    # same when the page is written again
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure.subplots())
        out = io.StringIO()
        with warnings.catch_warnings():
            # the reader's browser writes the letters, and has fonts of its own
            warnings.filterwarnings("ignore", "Glyph .* missing from")
            figure.savefig(
                out,
                format="svg",
                transparent=True,
                metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
            )

    text = out.getvalue()
    # what only a file of its own needs; without a fixed size it scales with the column
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r' width="[\d.]+pt" height="[\d.]+pt"', "", text, count=1)

    return re.sub("|".join(_CSS), lambda color: _CSS[color[0]], text)
