"""A result in the terminal, and several of them in one table."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dali_pipes.measure.results import Result
from dali_pipes.measure.wording import agreement_line, control_line, headline, interval, notes

HEADINGS = ["arm", "images/s", "× [95 %]", "CPU-s/1,000", "× [95 %]", "wait ms p50/p99", "PSS MiB"]


def print_result(result: Result, console: Console) -> None:
    work = result["work"]
    pairs = result["protocol"]["pairs"]
    title = f"{pairs} {'pair' if pairs == 1 else 'pairs'}, batches of {work['batch_size']}, workload {work['workload']}"
    title += f", {work['corun']} jobs at once" if work["corun"] > 1 else ""
    console.print(_table(f"{title}; × is against {result['baseline']}", HEADINGS, [cells(result, arm) for arm in result["arms"]]))
    control = control_line(result["control"], result["baseline"])
    for line in (f"{headline(result)}.", control, agreement_line(result), *notes(result)):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def cells(result: Result, name: str) -> list[str]:
    arm = result["arms"][name]
    if "images_per_s" not in arm:
        return [name, "failed" if arm["failed"] else "left out", *[""] * (len(HEADINGS) - 2)]
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


def print_runs(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    console.print(_table(title, headings, rows))


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title)
    for heading in headings:
        table.add_column(
            heading.replace(" [", "\n[").replace("/1,000", "\n/1,000").replace(" p50", "\np50"),
            justify="right" if any(letter in heading for letter in "×/") else "left",
            overflow="fold",  # a long word continues on the next line; it is not cut
        )
    for row in rows:
        table.add_row(*map(escape, row))
    return table
