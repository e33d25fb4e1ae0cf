"""The examination: rounds of all parts, what is measured once, the verdict, and the fixes with their gain; and its report."""

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dali_pipes.measure.stats import paired_ratio
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.memory import memory_left
from dali_pipes.system.stdout import say
from dali_pipes.tools.diagnosis.probes import Fix, Probes, Round, TrainingProgram, busy_share, copy_seconds, count_syncs
from dali_pipes.tools.diagnosis.verdict import VERDICTS, Figures, OneOffFigures, Verdict, advice, figures, judge
from dali_pipes.tools.diagnosis.window import Window

WORTH = 1.03  # a smaller gain is not proposed
BAR = 30  # characters
FIX_KEYS = ("what", "why", "note", "predicted", "measured")
Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings.

    Attributes:
        slow: the images of the batch that was waited for longest, as (name, seconds), the slowest first; for stragglers only.
        resident: the share of the files that was in the page cache when the cold run began; None: unknown, or not run.
    """

    verdict: Verdict
    figures: Figures
    one_off: OneOffFigures
    fixes: list[Fix]
    rounds: list[Round]
    slow: list[tuple[str, float]]
    resident: float | None


@dataclass(frozen=True, slots=True)
class ProbeBudget:
    """The time to spend: rounds, minimum seconds of each window, and pairs of runs with and without the first fix."""

    rounds: int = 3
    seconds: float = 3.0
    verify_pairs: int = 0
    cold: bool = True

    @property
    def steps(self) -> int:
        """About how many steps `examine` announces."""
        return 1 + 4 * self.rounds + 2 + 4 + 2 * self.verify_pairs


def examine(program: TrainingProgram, budget: ProbeBudget, announce: Announce = lambda text: None) -> Diagnosis:
    """Runs the program in parts and as a whole, for a few windows each.

    Args:
        announce: called with a text before each step.
    """
    with program.feed() as feed:
        announce("the first batches")
        probes = Probes(program, feed, budget.seconds)
        rounds = [_round(probes, number, budget.rounds, announce) for number in range(budget.rounds)]
        one_off, resident = _one_off(program, probes, rounds, budget, announce)
        slow = sorted(feed.slow(probes.slowest), key=lambda each: -each[1])[:5] if probes.slowest is not None else []
    verdict, found = judge(rounds, one_off, program.workers, program.burst), figures(rounds, program.burst)
    possible = [*program.fixes(verdict.name), *advice(verdict.name, found, one_off, program.workers)]
    fixes = [_predicted(fix, program, rounds, budget, announce) for fix in possible]
    fixes = sorted((fix for fix in fixes if fix.predicted is None or fix.predicted >= WORTH), key=lambda fix: -(fix.predicted or 0))
    for place, fix in enumerate(fixes):
        if budget.verify_pairs and fix.program:
            fixes[place] = replace(fix, measured=measured_gain(program, fix.program, budget, announce))
            break
    return Diagnosis(verdict, found, one_off, fixes, rounds, slow if verdict.name == "straggler" else [], resident)


def _round(probes: Probes, number: int, count: int, announce: Announce) -> Round:
    """In this order, and in the next round in reverse, so that a machine that slows down favours no part."""
    parts = ("model", "loader", "model_under_load", "together")
    windows: dict[str, Window] = {}
    for part in parts if number % 2 == 0 else parts[::-1]:
        announce(f"round {number + 1} of {count}: {part}")
        windows[part] = getattr(probes, part)()
    return Round(**windows)


def _one_off(
    program: TrainingProgram, probes: Probes, rounds: list[Round], budget: ProbeBudget, announce: Announce
) -> tuple[OneOffFigures, float | None]:
    """The measurements made once, and the share of cold files that were still cached."""
    announce("larger batches")
    larger = None if torch.cuda.is_available() else probes.larger()  # on a GPU the profiler shows how busy it is
    cold, resident = None, None
    if budget.cold and program.paths:
        announce("files that are not in memory")
        cold, resident = probes.cold()
    one_off = OneOffFigures(
        larger_gain=larger.rate / median(one.model.rate for one in rounds) if larger else None,
        cold_rate=cold.rate if cold else None,
        data_fits=program.data_bytes < memory_left(),
        decodes_on_gpu=program.decodes_on_gpu,
        is_fetched=program.is_fetched,
    )
    if torch.cuda.is_available():
        announce("the GPU during a step")
        seconds = median(one.together.seconds / len(one.together.waits_s) for one in rounds)
        copied, pinned = program.transfer_size()
        one_off = replace(
            one_off,
            device_busy=busy_share(probes.one_step),
            syncs=count_syncs(probes.one_step),
            transfer_share=copy_seconds(copied, pinned) / seconds if copied else 0.0,
        )
    return one_off, resident


def _predicted(fix: Fix, program: TrainingProgram, rounds: list[Round], budget: ProbeBudget, announce: Announce) -> Fix:
    """The fix with its predicted gain."""

    def typical(part: str) -> Window:
        """The window with the median rate."""
        return sorted((getattr(one, part) for one in rounds), key=lambda window: window.rate)[len(rounds) // 2]

    def probe(changed: TrainingProgram, part: str) -> Window:
        with changed.feed() as other:
            return getattr(Probes(changed, other, budget.seconds), part)()

    announce(f"what it would gain: {fix.what}")
    try:
        return replace(fix, predicted=predicted_gain(fix, program, typical("model"), typical("loader"), probe))
    except Exception as error:  # such as too little memory: the diagnosis is valid without this fix
        why = (str(error).splitlines() or [type(error).__name__])[0]
        return replace(fix, note=f"could not be tried: {why[:100]}", program=None)


def pace(model: Window, loader: Window, serial: bool = False, cores: int | None = None) -> float:
    """Images/s that both allow together: the slower one's, or what the cores can do for both. `serial`: they alternate."""
    if serial:
        return 1 / (1 / model.rate + 1 / loader.rate)
    cpu = max(model.cpu_s / model.images + loader.cpu_s / loader.images, 1e-9)
    return min(model.rate, loader.rate, (cores or available_cpus()) / cpu)


def predicted_gain(
    fix: Fix, program: TrainingProgram, model: Window, loader: Window, probe: Callable[[TrainingProgram, str], Window]
) -> float | None:
    """The factor on images/s: only the part that is changed is run, alone.

    Args:
        model, loader: these parts before the change.
        probe: runs one part of a program.
    """
    parts, serial = {"model": model, "loader": loader}, not program.in_flight
    before, cores = pace(model, loader, serial), available_cpus()
    if fix.program is not None:
        parts[fix.part], serial = probe(fix.program, fix.part), not fix.program.in_flight
    elif fix.speeds_up:  # the same work in less time, for as much CPU time
        parts |= {part: replace(parts[part], seconds=parts[part].seconds / factor) for part, factor in fix.speeds_up.items()}
        cores = len(os.sched_getaffinity(0))
    else:
        return None
    return pace(parts["model"], parts["loader"], serial, cores) / before


def measured_gain(before: TrainingProgram, after: TrainingProgram, budget: ProbeBudget, announce: Announce) -> float | None:
    """The factor on images/s of the whole, before and after in ABBA order: the geometric mean over the pairs."""
    rates: dict[str, list[float]] = {"before": [], "after": []}
    for number in range(budget.verify_pairs):
        pair = [("before", before), ("after", after)]
        for which, program in pair if number % 2 == 0 else pair[::-1]:
            announce(f"checking the fix: {which}, {number + 1} of {budget.verify_pairs}")
            with program.feed() as feed:
                rates[which].append(Probes(program, feed, budget.seconds).together().rate)
    gain = paired_ratio(rates["before"], rates["after"]).estimate
    return gain if math.isfinite(gain) else None


def print_diagnosis(diagnosis: Diagnosis, workers: int, console: Console) -> None:
    console.print(_paces(diagnosis))
    name, confidence = diagnosis.verdict.name, diagnosis.verdict.confidence
    console.print(f"[bold]{escape(name)}[/bold] ({confidence} confidence): {VERDICTS[name]}.", soft_wrap=True, highlight=False)
    say(console, *(f"  - {line}" for line in evidence(diagnosis, workers)))
    if diagnosis.fixes:
        console.print(_fixes(diagnosis.fixes))
    else:
        console.print("Nothing was found that would make it 3 % faster or more.")


def evidence(diagnosis: Diagnosis, workers: int) -> list[str]:
    """The evidence for the verdict, a line for each finding; the general ones first."""
    found, one_off, cores = diagnosis.figures, diagnosis.one_off, len(os.sched_getaffinity(0))
    lines = [
        f"{found.wait_share:.0%} of the time of training went into waiting for batches; {found.prep_stall:.0%} of the model's "
        "own pace is lost to the loader (prep stall)",
        f"training makes {found.overlap:.0%} of what the slower of model and loader makes alone; beside the loader, but with "
        f"batches that are ready, the model makes {1 - found.contention:.0%} of its own pace",
        f"alone, the loader keeps {found.loader_cores:.1f} cores busy, for {workers} workers; in training {found.busy:.0%} of "
        f"{cores} cores are busy" + (f", {found.others:.1f} of them with other programs" if found.others >= 0.2 else ""),
    ]
    if found.blocked is not None and one_off.device_busy is None:
        lines.append(f"{found.blocked:.0%} of the model's step went into waiting for something other than a core")
    if one_off.device_busy is not None:
        lines.append(f"the GPU works {one_off.device_busy:.0%} of the model's step, which waits for it {one_off.syncs} times")
    if one_off.transfer_share:
        lines.append(f"copying a batch to the GPU would take {one_off.transfer_share:.0%} of a step's time")
    if one_off.larger_gain is not None:
        lines.append(f"in batches four times as large the model makes {one_off.larger_gain:.2f} × the images/s")
    if found.straggling:
        lines.append(f"{found.straggling:.0%} of the loader's time lies beyond three times its usual pace")
    if one_off.is_fetched:
        lines.append("images come over the network, out of an object store, as far as the local cache does not hold them")
    lines += [f"slow to read and decode: {name}, {seconds * 1e3:,.0f} ms" for name, seconds in diagnosis.slow]
    if found.throttled:
        lines.append(f"in training, a CPU quota kept our cores from running for {found.throttled:.0%} of the time")
    if found.memory_stall >= 0.01 or found.alloc_retries:
        lines.append(f"{found.memory_stall:.0%} of the time something waited for memory; {found.alloc_retries} retries on the GPU")
    if one_off.cold_rate is not None:
        was = "it is unknown how much was" if diagnosis.resident is None else f"{diagnosis.resident:.0%} was"
        fits = one_off.data_fits
        epochs = "the first epoch alone is like that" if fits else "every epoch is like that, the images do not fit in memory"
        loss = f"training loses {stalls(diagnosis)['fetch_stall']:.0%} (fetch stall)"
        lines.append(f"from files not in the page cache ({was}) {loss}; {epochs}")
    return lines


def stalls(diagnosis: Diagnosis) -> dict[str, float | None]:
    """Shares of the pace that are lost: of the model's pace to the loader, and of training's to files that are not in memory."""
    cold = diagnosis.one_off.cold_rate
    fetch = None if cold is None else max(0.0, 1 - cold / diagnosis.figures.together)
    return {"prep_stall": diagnosis.figures.prep_stall, "fetch_stall": fetch}


def _paces(diagnosis: Diagnosis) -> Table:
    found = diagnosis.figures
    paces = {
        "model alone": found.model,
        "loader alone": found.loader,
        "model beside the loader": found.model_under_load,
        "training": found.together,
    }
    if diagnosis.one_off.cold_rate is not None:
        paces["training, cold files"] = diagnosis.one_off.cold_rate
    table = Table("", "images/s", "")
    table.columns[1].justify = "right"
    longest = max(found.model, found.model_under_load, found.together, min(found.loader, 2 * found.model))
    for name, pace in paces.items():
        length = round(BAR * min(pace / longest, 1))
        table.add_row(name, f"{pace:,.0f}" if pace >= 100 else f"{pace:.1f}", "█" * length + ("…" if pace > longest else ""))
    return table


def _fixes(fixes: list[Fix]) -> Table:
    table = Table("fix", "why", "predicted", title="What would change it, as a factor on images/s", title_justify="left")
    table.columns[0].overflow = "fold"
    tried = any(fix.measured for fix in fixes)
    if tried:
        table.add_column("measured")
    for fix in fixes:
        why = f"{fix.why}; {fix.note}" if fix.note else fix.why
        gains = [fix.predicted, fix.measured][: 1 + tried]
        table.add_row(escape(fix.what), escape(why), *("?" if gain is None else f"{gain:.2f} ×" for gain in gains))
    return table


def to_dict(diagnosis: Diagnosis, workers: int) -> dict[str, Any]:
    """For JSON. docs/diagnose.md describes it."""
    verdict = diagnosis.verdict
    return {
        "schema": 2,
        "verdict": verdict.name,
        "confidence": verdict.confidence,
        "rounds_say": verdict.rounds,
        "means": VERDICTS[verdict.name],
        "evidence": evidence(diagnosis, workers),
        "figures": asdict(diagnosis.figures) | asdict(diagnosis.one_off) | stalls(diagnosis),
        "fixes": [{name: getattr(fix, name) for name in FIX_KEYS} for fix in diagnosis.fixes],
        "slow_images": [{"name": name, "seconds": seconds} for name, seconds in diagnosis.slow],
        "windows": [asdict(one) for one in diagnosis.rounds],
    }
