import io

import pytest
from rich.console import Console

from dali_pipes.tools.doctor.report import (
    Finding,
    ReportLine,
    as_json,
    can_train_on_gpu,
    closing_sentence,
    print_lines,
)

FINE = ReportLine("software", "DALI", Finding("ok", "DALI 2.4.0 [bold]ran[/bold]"))
DOUBT = ReportLine("storage", "speed", Finding("warning", "120 MB/s", "a faster disk " * 12))
WRONG = ReportLine(
    "GPU",
    "driver and GPUs",
    Finding("failed", "no GPU: " + "NVML " * 30, "CPU loaders work: loader=dali_cpu"),
)


def printed(lines, width):
    console = Console(file=io.StringIO(), width=width)
    print_lines(lines, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_it_reads_well_at_any_width(width):
    message = printed([FINE, DOUBT, WRONG], width)
    lines = [line.rstrip() for line in message.splitlines()]
    assert max(map(len, lines)) <= width
    assert [line for line in lines if line in ("software", "storage", "GPU")] == [
        "software",
        "storage",
        "GPU",
    ]
    assert "ok       DALI             DALI 2.4.0 [bold]ran[/bold]" in lines
    found = next(line for line in lines if line.startswith("failed "))
    # under each other, and so is what does not fit into one line
    assert found.index("no GPU") == 26
    assert all(line.startswith(" " * 26) for line in lines[lines.index(found) + 1 : -2])
    assert "→ CPU loaders work: loader=dali_cpu" in " ".join(message.split())


def test_the_last_sentence():
    assert closing_sentence([FINE]) == "Training on a GPU can work here; no warnings."
    assert closing_sentence([FINE, DOUBT, DOUBT]) == "Training on a GPU can work here; 2 warnings."
    message = "Training on a GPU cannot work here; failed: driver and GPUs (GPU); 1 warning."
    assert closing_sentence([FINE, DOUBT, WRONG]) == message


def test_a_program_reads_the_same():
    message = as_json([FINE, WRONG], {"torch": "2.10"})
    assert (
        message["schema"] == 1
        and message["can_train_on_gpu"] is False
        and message["versions"] == {"torch": "2.10"}
    )
    assert message["findings"][0] == {
        "group": "software",
        "check": "DALI",
        "status": "ok",
        "found": "DALI 2.4.0 [bold]ran[/bold]",
        "remedy": "",
    }
    assert can_train_on_gpu([FINE, DOUBT]) and not can_train_on_gpu([FINE, WRONG])
