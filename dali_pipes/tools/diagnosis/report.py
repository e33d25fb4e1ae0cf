"""What a diagnosis looks like: the answer first, then where the time goes, the evidence, the paces
and the fixes; and the same for JSON.

`print_diagnosis` prints it, `to_dict` is for JSON; both take their sentences from `headline` and
`evidence`.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dali_pipes.system.cpus import affinity_cores
from dali_pipes.system.stdout import say
from dali_pipes.tools.diagnosis.examination.diagnosis import Diagnosis
from dali_pipes.tools.diagnosis.items.profile import ItemPart, ItemProfile
from dali_pipes.tools.diagnosis.programs.base import Fix
from dali_pipes.tools.diagnosis.verdict.figures import TrainingFigures
from dali_pipes.tools.diagnosis.verdict.rules import VERDICTS

BAR = 30  # characters of the longest bar
MAX_PARTS = 5  # of an item's time that are drawn
FIX_KEYS = ("what", "why", "note", "predicted", "measured", "patch", "is_hidden")


def print_diagnosis(diagnosis: Diagnosis, workers: int, console: Console) -> None:
    """Prints the answer first, then what it is based on."""
    say(
        console,
        "",
        headline(diagnosis),
        *(f"  also: {line}" for line in _other_causes(diagnosis)),
        "",
    )
    if diagnosis.remarks:
        say(console, *(f"  {line}" for line in diagnosis.remarks), "")

    console.print(_bars("Where the time of training goes", list(step_parts(diagnosis.figures))))
    if diagnosis.items and diagnosis.items.parts:
        title = f"Where an item of the loader spends {diagnosis.items.seconds * 1e3:,.3g} ms"
        console.print(_bars(title, list(item_parts(diagnosis.items))))
    say(console, "", *(f"  - {line}" for line in evidence(diagnosis, workers)))
    if diagnosis.left_out:
        say(console, f"  - not tried, since the time was over: {'; '.join(diagnosis.left_out)}")
    if diagnosis.items and diagnosis.items.failed:
        say(
            console,
            (
                f"  - {diagnosis.items.failed} items raised an error, and are not in what an item "
                "spends its time with"
            ),
        )

    console.print(_paces(diagnosis))
    if diagnosis.fixes:
        console.print(_fixes(diagnosis.fixes))
        patch = next((fix.patch for fix in diagnosis.fixes if fix.patch), "")
        say(console, *(f"  {line}" for line in patch.splitlines()))
    else:
        console.print("Nothing was found that would make it 3 % faster or more.")


def headline(diagnosis: Diagnosis) -> str:
    """Returns what costs most, why, and what to do."""
    figures, verdict = diagnosis.figures, diagnosis.verdict
    waits = figures.wait_share + figures.start_share
    who = "Your GPU" if torch.cuda.is_available() else "Training"
    waited = (
        f"{who} waits {waits:.0%} of the time for batches"
        if waits >= 0.01
        else f"{who} does not wait for batches"
    )

    why = f"{waited}. {verdict.name} ({verdict.confidence} confidence): {VERDICTS[verdict.name]}"
    part = dearest(diagnosis)
    # what an item spends its time with explains these verdicts only
    if part is not None and verdict.name.startswith(("prep", "fetch", "straggler")):
        why += f"; {describe_part(part, diagnosis)}"

    first = next((fix for fix in diagnosis.fixes if fix.predicted), None)
    wrong = "".join(
        f"{line[0].upper()}{line[1:]}. " for line in diagnosis.remarks if line.startswith("wrong: ")
    )
    return f"{wrong}{why}." + (f" Do this: {first.what} ({_gain(first)})." if first else "")


def dearest(diagnosis: Diagnosis) -> ItemPart | None:
    """Returns what takes the largest share of an item's time; None if that is not known."""
    return diagnosis.items.parts[0] if diagnosis.items and diagnosis.items.parts else None


def describe_part(part: ItemPart, diagnosis: Diagnosis) -> str:
    """Returns such as "np.loadtxt in features.py:31 is 92 % of an item's time, 2.1 of 2.3 ms"."""
    assert diagnosis.items is not None
    where = f" in {part.where}" if part.where else ""
    times = f"{part.seconds * 1e3:.3g} of {diagnosis.items.seconds * 1e3:.3g} ms"
    return f"{part.name}{where} is {part.share:.0%} of an item's time, {times}" + (
        ", spent waiting" if part.waits else ""
    )


def _other_causes(diagnosis: Diagnosis) -> Iterator[str]:
    for cause in diagnosis.verdict.also:
        when = ", once the other programs have ended" if cause.is_hidden else ""
        yield f"{cause.name}, {cause.loss:.0%} of the time{when}: {VERDICTS[cause.name]}"


def evidence(diagnosis: Diagnosis, workers: int) -> list[str]:
    """Returns the evidence for the verdict, a line for each finding; the general ones first."""
    figures, one_off, cores = diagnosis.figures, diagnosis.one_off, affinity_cores()

    lines = [
        f"{figures.wait_share:.0%} of the time of training went into waiting for batches; "
        f"{figures.prep_stall:.0%} of the model's "
        "own pace is lost to the loader (prep stall)",
        f"training makes {figures.overlap:.0%} of what the slower of model and loader makes "
        "alone; beside the loader the steps "
        f"themselves make {1 - figures.contention:.0%} of the model's own pace",
        f"alone, the loader keeps {figures.loader_cores:.1f} cores busy, for {workers} "
        f"worker{'s' * (workers != 1)}; in training {figures.busy:.0%} of "
        f"{cores} cores are busy"
        + (f", {figures.others:.1f} of them with other programs" if figures.others >= 0.2 else ""),
    ]

    # the loader
    if figures.start_share >= 0.01:
        why = (
            "workers are made anew for each of them"
            if one_off.starts_anew
            else "the first batches of each take longer"
        )
        lines.append(f"{figures.start_share:.0%} of the time goes into starting epochs: {why}")
    if diagnosis.items:
        lines += [describe_part(part, diagnosis) for part in diagnosis.items.parts[:3]]

    # the model's step
    if figures.blocked is not None and one_off.device_busy is None:
        lines.append(
            f"{figures.blocked:.0%} of the model's step went into waiting for something other "
            "than a core"
        )
    if one_off.device_busy is not None:
        lines.append(
            f"the GPU works {one_off.device_busy:.0%} of the model's step, which waits for it "
            f"{one_off.syncs} times"
        )
    if one_off.transfer_share:
        lines.append(
            f"copying a batch to the GPU would take {one_off.transfer_share:.0%} of a step's time"
        )
    if one_off.larger_gain is not None:
        lines.append(
            f"in batches four times as large the model makes {one_off.larger_gain:.2f} × the "
            "images/s"
        )

    # the images, and what the machine lacks
    if figures.straggling:
        lines.append(
            f"batches that take more than three times as long as usual cost "
            f"{figures.straggling:.0%} of the loader's time"
        )
    if one_off.is_fetched:
        lines.append(
            "images come over the network, out of an object store, as far as the local cache "
            "does not hold them"
        )
    lines += [
        f"slow to read and decode: {name}, {seconds * 1e3:,.0f} ms"
        for name, seconds in diagnosis.slow
    ]
    if figures.throttled:
        lines.append(
            f"in training, a CPU quota kept our cores from running for {figures.throttled:.0%} "
            "of the time"
        )
    if figures.memory_stall >= 0.01 or figures.alloc_retries:
        lines.append(
            f"{figures.memory_stall:.0%} of the time something waited for memory; "
            f"{figures.alloc_retries} retries on the GPU"
        )

    if one_off.cold_rate is not None:
        was = (
            "it is unknown how much was"
            if diagnosis.resident is None
            else f"{diagnosis.resident:.0%} was"
        )
        fits = one_off.data_fits
        epochs = (
            "the first epoch alone is like that"
            if fits
            else "every epoch is like that, the images do not fit in memory"
        )
        loss = f"training loses {stall_shares(diagnosis)['fetch_stall']:.0%} (fetch stall)"
        lines.append(f"from files not in the page cache ({was}) {loss}; {epochs}")
    return lines


def stall_shares(diagnosis: Diagnosis) -> dict[str, float | None]:
    """Returns the shares of the pace that are lost: of the model's pace to the loader, and of
    training's to files that are not in memory.
    """
    cold = diagnosis.one_off.cold_rate
    fetch = None if cold is None else max(0.0, 1 - cold / diagnosis.figures.together)
    return {"prep_stall": diagnosis.figures.prep_stall, "fetch_stall": fetch}


def step_parts(figures: TrainingFigures) -> Iterator[tuple[str, float]]:
    """Yields the parts of the time of training with their shares, which add up to 1."""
    longer = figures.step_share * figures.contention
    yield "the model's step, as alone", figures.step_share - longer
    yield "the step, longer than alone", longer
    yield "waiting for batches", figures.wait_share
    yield "starting epochs", figures.start_share


def item_parts(items: ItemProfile) -> Iterator[tuple[str, float]]:
    """Yields the parts of an item's time with their shares, which add up to 1."""
    for part in items.parts[:MAX_PARTS]:
        yield f"{part.name} in {part.where}" if part.where else part.name, part.share
    yield "all else", 1 - sum(part.share for part in items.parts[:MAX_PARTS])


def _bars(title: str, parts: list[tuple[str, float]]) -> Table:
    """One bar of all the time, in pieces: each on its line, where the one before has ended."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(overflow="fold", max_width=36)
    table.add_column(justify="right")
    table.add_column(no_wrap=True)

    start = 0.0
    for name, share in parts:
        end = min(start + max(share, 0.0), 1.0)
        if share >= 0.005:
            left = round(BAR * start)
            # a small part is to be seen as well
            length = max(round(BAR * end) - left, 1)
            bar = " " * min(left, BAR - length) + "█" * length
            table.add_row(escape(name), f"{share:.0%}", bar.ljust(BAR))
        start = end
    return table


def _paces(diagnosis: Diagnosis) -> Table:
    figures = diagnosis.figures
    paces = {
        "model alone": figures.model,
        "loader alone": figures.loader,
        "training": figures.together,
    }
    if diagnosis.one_off.cold_rate is not None:
        paces["training, cold files"] = diagnosis.one_off.cold_rate

    table = Table("pace", "images/s", "")
    table.columns[1].justify = "right"
    # a loader far ahead of the model would leave the other bars too short to compare
    longest = max(figures.model, figures.together, min(figures.loader, 2 * figures.model))

    for name, pace in paces.items():
        length = round(BAR * min(pace / longest, 1))
        table.add_row(
            name,
            f"{pace:,.0f}" if pace >= 100 else f"{pace:.1f}",
            "█" * length + ("…" if pace > longest else ""),
        )
    return table


def _fixes(fixes: list[Fix]) -> Table:
    table = Table(
        "fix",
        "why",
        "predicted",
        title="What would change it, as a factor on images/s",
        title_justify="left",
    )
    # a long line to change folds rather than ends in dots
    table.columns[0].overflow = "fold"
    tried = any(fix.measured for fix in fixes)
    if tried:
        table.add_column("measured")

    for fix in fixes:
        later = "once the other programs have ended" if fix.is_hidden else ""
        why = "; ".join(part for part in (fix.why, fix.note, later) if part)
        measured = [f"{fix.measured:.2f} ×" if fix.measured else ""][:tried]
        table.add_row(escape(fix.what), escape(why), _gain(fix), *measured)
    return table


def _gain(fix: Fix) -> str:
    gain = fix.predicted
    return "?" if gain is None else f"{gain.estimate:.2f} × [{gain.low:.2f}, {gain.high:.2f}]"


def to_dict(diagnosis: Diagnosis, workers: int) -> dict[str, Any]:
    """Returns the diagnosis for JSON; docs/diagnose.md describes it."""
    verdict = diagnosis.verdict

    return {
        "schema": 3,
        "says": headline(diagnosis),
        "verdict": verdict.name,
        "confidence": verdict.confidence,
        "also": [asdict(cause) for cause in verdict.also],
        "rounds_say": verdict.rounds,
        "means": VERDICTS[verdict.name],
        "evidence": evidence(diagnosis, workers),
        "figures": asdict(diagnosis.figures) | asdict(diagnosis.one_off) | stall_shares(diagnosis),
        "items": asdict(diagnosis.items) if diagnosis.items else None,
        "fixes": [
            {name: getattr(fix, name) for name in FIX_KEYS}
            | {"predicted": asdict(fix.predicted) if fix.predicted else None}
            for fix in diagnosis.fixes
        ],
        "slow_images": [{"name": name, "seconds": seconds} for name, seconds in diagnosis.slow],
        "seconds": diagnosis.seconds,
        "left_out": list(diagnosis.left_out),
        "remarks": list(diagnosis.remarks),
        # a round was called a window, and the schema keeps the name
        "windows": [asdict(one) for one in diagnosis.rounds],
    }
