"""The result for people: a table in the terminal and one HTML page that needs nothing else."""

import json
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from rich.console import Console
from rich.table import Table

Result = dict[str, Any]

TEMPLATE = Path(__file__).with_name("report.html")

HEADINGS = ["arm", "images/s", "×", "CPU-ms/img", "×", "wait p50", "p99", "memory"]

CAVEATS = [
    "One window per arm: a difference of a few percent can be noise of the machine.",
    "The loader alone, as fast as it goes. Training that computes longer than it loads gains nothing from a faster loader.",
    "Files come from the page cache, not from a disk or a network.",
    "One process on the machine. Several jobs at once share its cores.",
]


def print_table(result: Result, console: Console) -> None:
    first = next(iter(result["arms"]))
    table = Table(title=f"batches of {result['work']['batch_size']}, compared with {first}; waits in ms, peak memory in MiB")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for name, arm in result["arms"].items():
        table.add_row(*_cells(name, arm, result["arms"][first]))
    console.print(table)
    console.print(_agreement_line(result["agreement"]), soft_wrap=True)


def _cells(name: str, arm: Result, first: Result) -> list[str]:
    return [
        name if arm["device"] == "cpu" else f"{name} ({arm['device']})",
        f"{arm['images_per_s']:,.0f}",
        f"{arm['images_per_s'] / first['images_per_s']:.2f}",
        f"{arm['cpu_ms_per_image']:.2f}",
        f"{arm['cpu_ms_per_image'] / first['cpu_ms_per_image']:.2f}",
        f"{arm['wait_ms']['p50']:.1f}",
        f"{arm['wait_ms']['p99']:.1f}",
        f"{arm['peak_memory_mib']:,.0f}",
    ]


def _agreement_line(agreement: Result) -> str:
    if not agreement["images"]:
        return f"Pixels: {agreement['note']}."
    return (
        f"Pixels: {agreement['images']} images, same samples in the same order, |difference| of 255: "
        f"mean {agreement['mean']:.2f}, p99 {agreement['p99']:.0f}, max {agreement['max']:.0f}."
    )


def write_html(result: Result, file: Path) -> None:
    arms = result["arms"]
    first = next(iter(arms))
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(name, arm, arms[first])) + "</tr>"
        for name, arm in arms.items()
    )
    file.write_text(
        Template(TEMPLATE.read_text()).substitute(
            headline=escape(_headline(result)),
            agreement=escape(_agreement_line(result["agreement"])),
            speed=_bars({name: arm["images_per_s"] for name, arm in arms.items()}, "{:,.0f}"),
            cost=_bars({name: arm["cpu_ms_per_image"] for name, arm in arms.items()}, "{:.2f}"),
            rows=rows,
            headings="".join(f"<th>{escape(heading)}</th>" for heading in HEADINGS),
            first=escape(first),
            caveats="".join(f"<li>{escape(caveat)}</li>" for caveat in CAVEATS),
            provenance=escape(json.dumps(result["provenance"], indent=2, ensure_ascii=False)),
            work=escape(json.dumps(result["work"], indent=2, ensure_ascii=False)),
        )
    )


def _headline(result: Result) -> str:
    """The fastest arm that did the same work as the first."""
    arms = result["arms"]
    first, others = next(iter(arms)), result["agreement"]["arms"]
    if not others or first not in (result["agreement"].get("reference"), *others):
        return f"{first}: {arms[first]['images_per_s']:,.0f} images/s"
    best = max((name for name in arms if name != first and name in others), key=lambda name: arms[name]["images_per_s"])
    faster = arms[best]["images_per_s"] / arms[first]["images_per_s"]
    cost = arms[best]["cpu_ms_per_image"] / arms[first]["cpu_ms_per_image"]
    return f"{best} delivers {faster:.2f} × the images/s of {first}, at {cost:.2f} × its CPU time per image"


def _bars(values: dict[str, float], form: str) -> str:
    largest = max(values.values())
    return "".join(
        f"<div class=bar><span>{escape(name)}</span><i style='width:{100 * value / largest:.1f}%'></i>"
        f"<b>{form.format(value)}</b></div>"
        for name, value in values.items()
    )
