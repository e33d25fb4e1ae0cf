"""docs/steps.md: its tables of what `transform_from_torch` makes of the cases of `library_steps`,
from the figures that docs/benchmarks/steps_cpu_2026-11-26/measure.py has measured.
"""

import json
import math
from pathlib import Path
from typing import Any

from library_steps import CASES, LOADERS, Case

REPO = Path(__file__).parents[2]
FIGURES = REPO / "docs/benchmarks/steps_cpu_2026-11-26/figures.json"
COST = FIGURES.with_name("cost.json")
PAGE = REPO / "docs/steps.md"
BEGIN, END = "<!-- tables: made by measure.py -->\n", "<!-- end of the tables -->\n"
FALSE_ALARM_RATE = 1e-6  # with which two equal distributions are farther apart than `chance`
PLACES = {
    "size": "What gives images their size",
    "before": "Before a resize or a crop",
    "after": "After it",
    "floats": "After ToTensor",
}

# Words that stand in the text of a step whose pixels differ on purpose by more than a step of 255,
# and why. A name matches the beginning of a step.
EDGES = "edges blend with the black around the image, as torchvision's of tensors do"
NEAREST = "at places half-way between two pixels the other one is taken"
SOLARIZES = "Solarize inverts a value at the threshold, as torchvision's of tensors does"
HUE = "hue is computed in floats, as torchvision's of tensors, and Pillow has 8 bits for it"
ON_PURPOSE = {
    "TrivialAugmentWide()": f"{NEAREST}; {SOLARIZES}",
    "TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR)": f"{EDGES}; {SOLARIZES}",
    "AutoAugment()": f"{NEAREST}; {SOLARIZES}",
    "RandomRotation(15)": NEAREST,
    "RandomRotation(15, InterpolationMode.BILINEAR)": EDGES,
    "ColorJitter(hue=0.1)": HUE,
    "ColorJitter(0.4, 0.4, 0.4, 0.1)": HUE,
}


def key_of(case: Case) -> str:
    return f"{case.library}, {case.place}: {case.text}"


def read_figures() -> dict[str, Any]:
    return json.loads(FIGURES.read_text())


def why_different(case: Case, figures: dict[str, Any]) -> str:
    """Why a step of the plan differs on purpose; "": it does not."""
    is_plan = figures["kind"] == "plan" and case.place == "after"
    return ON_PURPOSE.get(case.text, "") if is_plan else ""


def chance(count: int) -> float:
    """The distance of Kolmogorov and Smirnov up to which two samples of this size are alike."""
    return math.sqrt(-math.log(FALSE_ALARM_RATE / 2) / count)


def write_tables(figures: dict[str, Any]) -> str:
    """All tables in Markdown, one for each library and place."""
    cases, lines = figures["cases"], []
    costs = json.loads(COST.read_text())["cpu_us_an_image"] if COST.exists() else {}
    for library in dict.fromkeys(case.library for case in CASES):
        lines += [f"## {library}", ""]
        for place, title in PLACES.items():
            rows = [
                (case, cases[key_of(case)])
                for case in CASES
                if (case.library, case.place) == (library, place)
            ]
            carried_out = [row for row in rows if row[1]["kind"] != "refused"]
            if carried_out:
                lines += [f"**{title}**", "", *_HEAD[bool(costs)]]
                lines += [_row(case, each, costs) for case, each in carried_out]
                lines.append("")

        refused = [
            f"| `{case.text}` | {_escape(cases[key_of(case)]['words'])} |"
            for case in CASES
            if case.library == library and cases[key_of(case)]["kind"] == "refused"
        ]
        if refused:
            lines += ["**Refused**", "", "| step | why |", "|---|---|", *refused, ""]
    return "\n".join(lines)


# without and with costs
_HEAD = (
    [
        "| step | becomes | `torch` | `dali_cpu` | `dali` | draws |",
        "|---|---|---|---|---|---|",
    ],
    [
        "| step | becomes | `torch` | `dali_cpu` | `dali` | draws | CPU-µs |",
        "|---|---|---|---|---|---|---|",
    ],
)


def _row(case: Case, each: dict[str, Any], costs: dict[str, Any]) -> str:
    words = each["words"].partition("; edges blend")[0]
    if why := why_different(case, each):
        words += f" ({why})"
    pixels = [_write_pixels(each["pixels"].get(name)) for name in LOADERS]
    draws = f"{each['draws']['distance']:.3f}" if each["draws"]["distance"] else "0"
    cells = [f"`{case.text}`", _escape(words), *pixels, draws]
    cells += [_write_cost(costs.get(key_of(case)))] if costs else []
    return f"| {' | '.join(cells)} |"


def _write_pixels(pixels: dict[str, float] | None) -> str:
    if pixels is None:
        return "refused"
    if not pixels["max"]:
        return "0"
    mean = f"{pixels['mean']:.3f}" if pixels["mean"] >= 0.001 else "< 0.001"
    return f"{pixels['max']:.0f} / {mean}"


def _write_cost(cost: dict[str, Any] | None) -> str:
    if cost is None:
        return ""
    # what is less than nothing is noise
    numbers = [max(0, cost[name]["middle"]) for name in ("own", "torch", "dali_cpu")]
    return " / ".join(f"{number:.0f}" for number in numbers)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def page_with(tables: str) -> str:
    """The page with these tables between its marks."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{tables}\n{END}{tail}"
