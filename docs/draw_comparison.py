"""Draws README's two charts from the results that they are of.

python docs/draw_comparison.py
"""

import json
import sys
from pathlib import Path

from matplotlib.axes import Axes

from dali_pipes.tools.drawing.svg import COLORS, INK, standalone, svg

DOCS = Path(__file__).parent
# by the name of the chart: the result, and its arms in the words of README
CHARTS = {
    "cpu": (
        "loaders_cpu_8_pairs_2026-11-23/fp32_64/result.json",
        {"torch": "PyTorch", "dali_native": "plain DALI", "dali_cpu": "dali_pipes"},
    ),
    "gpu": (
        "gpu_h200_2026-11-27_graph/loader.json",
        {"torch_torchvision": "PyTorch", "dali_native_fancy": "plain DALI", "dali": "dali_pipes"},
    ),
}


def draw(chart: str) -> str:
    """Returns a chart as an SVG file: images/s, with the least and the most of all rounds."""
    file, names = CHARTS[chart]
    arms = json.loads((DOCS / "benchmarks" / file).read_text())["arms"]

    def bars(axes: Axes) -> None:
        for place, (arm, color) in enumerate(
            zip(names, (COLORS[7], COLORS[7], COLORS[0]), strict=True)
        ):
            figures = arms[arm]
            rate, low, high = (figures[f"images_per_s{end}"] for end in ("", "_low", "_high"))
            axes.barh(place, rate, color=color, height=0.6)
            axes.plot([low, high], [place, place], color=INK, linewidth=1.2)
            axes.text(high * 1.02, place, f" {rate:,.0f}", va="center")
        axes.set_yticks(range(len(names)), names.values())
        axes.invert_yaxis()
        axes.set_xlim(0, 1.25 * max(arms[arm]["images_per_s_high"] for arm in names))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.locator_params(axis="x", nbins=4)
        axes.set_xlabel("images per second")
        axes.grid(False, axis="y")

    return standalone(svg(chart, bars, 2.0))


if __name__ == "__main__":
    for name in sys.argv[1:] or CHARTS:
        (DOCS / f"comparison_{name}.svg").write_text(draw(name))
