"""Prints a result: the conclusion, the table of the arms, and what a reader has to know.

`cells` is a row of the table, which the HTML page has as well; wording.py has the sentences.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dali_pipes.measure.results import Result
from dali_pipes.measure.wording import agreement_line, control_line, headline, interval, notes

HEADINGS = ["arm", "images/s", "× [95 %]", "CPU-s/1,000", "× [95 %]", "wait ms p50/p99", "PSS MiB"]


def print_result(result: Result, console: Console) -> None:
    """Prints the result of a benchmark."""
    work = result["work"]
    pairs = result["protocol"]["pairs"]
    title = (
        f"{pairs} {'pair' if pairs == 1 else 'pairs'}, batches of {work['batch_size']}, "
        f"workload {work['workload']}"
    )
    title += f", {work['corun']} jobs at once" if work["corun"] > 1 else ""

    rows = [cells(result, arm) for arm in result["arms"]]

    # the conclusion comes first
    console.print(f"{headline(result)}.", soft_wrap=True, markup=False, highlight=False)
    print_runs(f"{title}; × is against {result['baseline']}", HEADINGS, rows, console)

    control = control_line(
        result["control"], result["baseline"], result["protocol"].get("restart", True)
    )
    for line in (control, agreement_line(result), *notes(result)):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def cells(result: Result, name: str) -> list[str]:
    """The row of an arm, under `HEADINGS`."""
    arm = result["arms"][name]
    if "images_per_s" not in arm:
        return [name, "failed" if arm["failed"] else "left out", *[""] * (len(HEADINGS) - 2)]

    # the ratio of the baseline to itself is 1, without an interval; the control has its noise
    ratio = arm["ratio"] if name != result["baseline"] else None
    wait = arm["wait_ms"]
    return [
        name if arm["device"] == "cpu" else f"{name} ({arm['device']})",
        f"{arm['images_per_s']:,.0f}",
        interval(ratio["images_per_s"]) if ratio else "1",
        f"{arm['cpu_s_per_1000_images']:.2f}",
        interval(ratio["cpu_s_per_1000_images"]) if ratio else "1",
        f"{wait['p50']:.0f} / {wait['p99']:.0f}",
        "" if arm["peak_pss_mib"] is None else f"{arm['peak_pss_mib']:,.0f}",
    ]


def print_runs(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console
) -> None:
    """Prints rows of one or several results as a table."""
    table = Table(title=title)
    for heading in headings:
        table.add_column(
            # headings break where a unit or an interval begins, which keeps columns narrow
            heading.replace(" [", "\n[").replace("/1,000", "\n/1,000").replace(" p50", "\np50"),
            justify="right" if any(letter in heading for letter in "×/") else "left",
            overflow="fold",  # a long word continues on the next line; it is not cut
        )

    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
