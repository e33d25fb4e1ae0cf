"""dali-pipes compare RUN --chart FILE, as a user runs it."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

RUN = Path(__file__).parents[3] / "docs/benchmarks/loaders_cpu_8_pairs_2026-11-23/fp32_64"


def test_the_chart_is_written_into_folders_that_are_made_for_it(command, tmp_path):
    done = command("compare", str(RUN), "--chart", str(tmp_path / "new/folder/ratios.svg"))
    assert done.returncode == 0, done.stderr
    words = " ".join(
        ElementTree.parse(tmp_path / "new/folder/ratios.svg").getroot().itertext()
    ).split()
    assert {"torch", "dali_cpu"} <= set(words)


@pytest.mark.parametrize(
    ("run", "chart", "message"),
    [
        (
            str(RUN),
            "/dev/full",
            "no space left on device; free some, or write elsewhere than /dev/full",
        ),
        (str(RUN), "/dev/null/ratios.svg", "/dev/null"),
        ("/no/such/run", "ratios.svg", "/no/such/run"),
    ],
)
def test_what_cannot_be_written_or_read_is_said_in_one_line(
    command, tmp_path, monkeypatch, run, chart, message
):
    monkeypatch.chdir(tmp_path)
    done = command("compare", run, "--chart", chart)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (
        done.returncode == 2
        and len(errors) == 1
        and message in errors[0]
        and "Traceback" not in done.stderr
    )
