"""What diagnose says of programs that were diagnosed once, and of planted causes, from the figures
that were kept of them.
"""

from pathlib import Path

import pytest
from golden import hold_to
from replayed import diagnose, list_runs, on_the_same_machine, print_out

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def said():
    with pytest.MonkeyPatch.context() as changed:
        on_the_same_machine(changed)
        yield {run: diagnose(run) for run in list_runs()}


def test_the_figures_of_then_have_the_causes_and_the_gains_of_today(said):
    found = {
        run.name: {part: each[part] for part in ("causes", "gains")} for run, each in said.items()
    }
    hold_to(HERE / "causes.json", found)


def test_a_user_reads_the_same_of_each_program(said):
    # the first of three runs of a program: the others differ in a few percent
    firsts = [run for run in said if not run.name.endswith((", 2", ", 3"))]
    found = {run.name: {part: said[run][part] for part in ("says", "evidence")} for run in firsts}
    # one of each cause as it is printed
    examples = {said[run]["causes"][0].split(":")[0]: run for run in firsts}
    printed = {cause: print_out(run) for cause, run in examples.items()}
    hold_to(HERE / "diagnoses.json", found | {"printed": printed})
