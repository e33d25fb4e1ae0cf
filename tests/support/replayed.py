"""Diagnoses that were made once and whose figures are kept, and what is said of them today.

Only this page knows the rules' own types: `list_runs` reads the figures, `diagnose` applies the
rules and returns what a user reads. Neither items nor rounds were kept, so what an item spends its
time with is missing, and the confidence is the one of then.
"""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console

from dali_pipes.system import cpus
from dali_pipes.tools.diagnosis.examination.diagnosis import Diagnosis
from dali_pipes.tools.diagnosis.examination.gains import find_fixes
from dali_pipes.tools.diagnosis.measuring.span import Round, Span
from dali_pipes.tools.diagnosis.measuring.training import drive
from dali_pipes.tools.diagnosis.report import print_diagnosis, to_dict
from dali_pipes.tools.diagnosis.verdict.figures import OneOffFigures, TrainingFigures
from dali_pipes.tools.diagnosis.verdict.judge import Verdict
from dali_pipes.tools.diagnosis.verdict.rules import find_causes

RESULTS = Path(__file__).parents[2] / "docs/benchmarks"
ASKERS = "askers_programs_cpu_2cores_2026-11-25"
CORES = 2  # of the machine that measured
# what the oldest of the committed results do not have
MISSING = {"start_share": 0.0, "loader_freed": 1.0, "model_freed": 1.0, "model_throttled": 0.0}
PLANTED_WORKERS = {"one worker": 1}  # the others of that result have two


@dataclass(frozen=True, eq=False)
class Run:
    """One diagnosis that was made: its figures, and its confidence."""

    name: str
    workers: int
    figures: dict[str, Any]
    confidence: str
    rounds: list[str]


def list_runs() -> Iterator[Run]:
    for name, runs in json.loads((RESULTS / ASKERS / "result.json").read_text()).items():
        for number, run in enumerate(runs, 1):
            yield _run(f"{name}, {number}", _workers_of(name), run)

    planted = RESULTS / "planted_causes_cpu_2cores_2026-11-21/result.json"
    for name, run in json.loads(planted.read_text()).items():
        yield _run(f"planted: {name}", PLANTED_WORKERS.get(name, CORES), run)

    for name in ("contention", "model_bound"):
        file = RESULTS / f"diagnose_{name}_cpu_2cores_2026-11-21/result.json"
        yield _run(f"training: {name}", 1, json.loads(file.read_text()))


def _run(name: str, workers: int, run: dict[str, Any]) -> Run:
    rounds = run.get("rounds_say", [run["verdict"]])
    return Run(name, workers, run["figures"], run["confidence"], rounds)


def _workers_of(name: str) -> int:
    program = RESULTS / ASKERS / "programs" / f"{name.split(',')[0]}.py"
    found = re.search(r"num_workers=(\d+)", program.read_text()) if program.exists() else None
    return max(1, int(found[1])) if found else 1


def on_the_same_machine(monkeypatch) -> None:
    """Makes this machine one of as many cores as were measured on, with no GPU and no quota."""
    monkeypatch.setattr(cpus.os, "sched_getaffinity", lambda process: set(range(CORES)))
    monkeypatch.setattr(cpus, "cpu_quota", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def diagnose(run: Run) -> dict[str, Any]:
    """Returns what a user reads: the causes with their cost in percent, the sentences, the evidence
    and the gains.
    """
    diagnosis = _diagnosis(run)
    verdict, said = diagnosis.verdict, to_dict(diagnosis, run.workers)
    causes = {verdict.name: verdict.loss, **{cause.name: cause.loss for cause in verdict.also}}
    return {
        "causes": [f"{name}: {loss:.0%}" for name, loss in causes.items()],
        "says": said["says"],
        "evidence": said["evidence"],
        "gains": {fix["what"]: _gain(fix["predicted"]) for fix in said["fixes"]},
    }


def print_out(run: Run) -> list[str]:
    """Returns the lines that a user reads in the terminal."""
    printed = io.StringIO()
    print_diagnosis(_diagnosis(run), run.workers, Console(file=printed, width=100))
    return [line.rstrip() for line in printed.getvalue().splitlines()]


def _diagnosis(run: Run) -> Diagnosis:
    figures = _read(TrainingFigures, MISSING | run.figures)
    one_off = _read(OneOffFigures, run.figures)
    first, *also = find_causes(figures, one_off, run.workers)
    verdict = Verdict(first.name, run.confidence, run.rounds, tuple(also), first.loss)

    return Diagnosis(
        verdict,
        figures,
        one_off,
        fixes=_advised(verdict, figures, one_off, run.workers),
        rounds=[],
        items=None,
        slow=[],
        resident=None,
        seconds=1.0,
    )


def _read(kind: type, figures: dict[str, Any]) -> Any:
    names = [field.name for field in fields(kind)]
    return kind(**{name: figures[name] for name in names if name in figures})


def _gain(predicted: dict[str, float] | None) -> str:
    if predicted is None:
        return "?"
    return "{estimate:.2f} × [{low:.2f}, {high:.2f}]".format(**predicted)


def _advised(
    verdict: Verdict, figures: TrainingFigures, one_off: OneOffFigures, workers: int
) -> list[Any]:
    """Returns the advice on a verdict, with the gains that are calculated from the figures."""
    program = SimpleNamespace(
        workers=workers,
        in_flight=0 if one_off.is_serial else workers,
        fixes=lambda cause: [],
        feed=_refuse,
    )
    state = SimpleNamespace(
        program=program,
        one_off=one_off,
        rounds=[_round(figures)],
        undisturbed=[],
        items=None,
        left_out=[],
        announce=lambda text: None,
    )
    return drive(find_fixes(state, verdict, figures, []), lambda batch: None)


def _refuse() -> None:
    raise RuntimeError("the program was not kept")


def _round(figures: TrainingFigures) -> Round:
    """Returns one second of training that has these figures, and its parts alone."""
    steps = 100
    loader_cpu = figures.loader_cores / figures.loader  # CPU seconds an image
    own_cores = figures.busy * CORES - figures.others
    model_cpu = max(own_cores / figures.together - loader_cpu, 0.0)
    step_s = 1 - figures.wait_share

    def span(rate: float, seconds: float, cpu: float, wait: float) -> Span:
        return Span(
            images=rate * seconds,
            seconds=seconds,
            cpu_s=rate * seconds * cpu,
            waits_s=(wait / steps,) * steps,
            gaps_s=None,
            blocked_s=None,
            busy=figures.busy,
            throttled_s=None,
            memory_stall=None,
            alloc_retries=0,
        )

    return Round(
        # at the pace of the steps in training, so that `Round.steps` leaves it as it is
        model=span(figures.model, max(step_s, 1e-3), model_cpu, 0.0),
        loader=span(figures.loader, 1.0, loader_cpu, 1.0),
        together=span(
            figures.together, 1.0, loader_cpu + model_cpu, min(figures.wait_share, 0.999)
        ),
    )
