"""Defines what a check finds, and shows all findings as a table and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dali_pipes.system.cuda import install_cuda

SCHEMA = 1
SETUP = f"{install_cuda()}, or in a checkout bash scripts/setup.sh, installs versions that fit"
OK, WARNING, FAILED = "ok", "warning", "failed"
_STYLES = {OK: "green", WARNING: "yellow", FAILED: "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check; `ok`, `warning` and `failed` make one.

    Attributes:
        status: "ok"; "warning": training on a GPU can work, with a drawback or in doubt; "failed":
            it cannot.
        found: the state that the check found.
        remedy: what to do; empty if the status is "ok".
    """

    status: str
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.status not in _STYLES or (self.status == OK) == bool(self.remedy):
            raise ValueError(
                f"{self}: a status is ok, warning or failed, and all but ok say what to do"
            )


ok, warning, failed = (partial(Finding, status) for status in (OK, WARNING, FAILED))


@dataclass(frozen=True, slots=True)
class ReportLine:
    """A finding, with its check and the check's group."""

    group: str
    check: str
    finding: Finding


def can_train_on_gpu(lines: Sequence[ReportLine]) -> bool:
    return all(line.finding.status != FAILED for line in lines)


def as_json(lines: Sequence[ReportLine], versions: dict[str, str]) -> dict[str, Any]:
    """Returns the JSON for stdout; docs/doctor.md lists the keys."""
    findings = [
        {"group": line.group, "check": line.check, **asdict(line.finding)} for line in lines
    ]
    return {
        "schema": SCHEMA,
        "can_train_on_gpu": can_train_on_gpu(lines),
        "findings": findings,
        "versions": versions,
    }


def print_lines(lines: Sequence[ReportLine], console: Console) -> None:
    """Prints a table for each group of checks, then one sentence."""
    # the same in all tables, so that their columns are aligned
    width = max(len(line.check) for line in lines)

    for group, members in groupby(lines, lambda line: line.group):
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=len(WARNING))
        table.add_column(width=width, no_wrap=True)
        table.add_column(overflow="fold")
        for line in members:
            style = _STYLES[line.finding.status]
            remedy = f"\n→ {line.finding.remedy}" if line.finding.remedy else ""
            table.add_row(
                Text(line.finding.status, style),
                Text(line.check),
                Text.assemble(line.finding.found, (remedy, style)),
            )

        console.print(Text(group, "bold"), table, "", sep="\n")

    console.print(Text(closing_sentence(lines)), soft_wrap=True)


def closing_sentence(lines: Sequence[ReportLine]) -> str:
    wrong, doubts = (
        [line for line in lines if line.finding.status == status] for status in (FAILED, WARNING)
    )
    warnings = (
        f"{len(doubts)} warning{'' if len(doubts) == 1 else 's'}" if doubts else "no warnings"
    )

    if wrong:
        names = ", ".join(f"{line.check} ({line.group})" for line in wrong)
        return f"Training on a GPU cannot work here; failed: {names}; {warnings}."
    return f"Training on a GPU can work here; {warnings}."


def size(count: float) -> str:
    """Formats a number of bytes, in the largest binary unit up to GiB of which there is one."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024

    return f"{count:,.0f} {unit}" if count >= 100 or unit == "B" else f"{count:,.1f} {unit}"
