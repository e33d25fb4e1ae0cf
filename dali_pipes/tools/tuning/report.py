"""The settings that were tried, as plain values and as a table."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from dali_pipes.measure.figures import arm_figures
from dali_pipes.measure.wording import interval, print_runs
from dali_pipes.tools.tuning.race import Race
from dali_pipes.tools.tuning.settings import Setting

SHORT = 10  # characters of a reason that fit into the table

_FIGURES = ("images_per_s", "cpu_s_per_1000_images", "cpus", "peak_pss_mib", "gpu_memory_mib")
_HEADINGS = {  # of the figures in the table: heading and format
    "images_per_s": ("images/s", "{:,.0f}"),
    "cpu_s_per_1000_images": ("CPU-s/1,000", "{:.2f}"),
    "peak_pss_mib": ("PSS MiB", "{:,.0f}"),
    "gpu_memory_mib": ("GPU MiB", "{:,.0f}"),
}


def tries(race: Race) -> list[dict[str, Any]]:
    """Every setting that was run or discarded, the default first, then the fastest. docs/tune.md names the keys."""
    settings = dict.fromkeys([*race.others, *race.out])
    return [
        _one(race, race.default),
        *sorted(
            (_one(race, setting) for setting in settings if setting != race.default),
            key=lambda one: (one["out"] is None, one["rounds"], one["images_per_s"] or 0),
            reverse=True,
        ),
    ]


def _one(race: Race, setting: Setting) -> dict[str, Any]:
    figures = dict(arm_figures(race.trials[setting])) if race.trials[setting] else {}
    ratio = None if setting == race.default else race.against_default(setting)
    return {
        **dict(setting.options),
        "batch_size": setting.batch_size,
        "rounds": sum(trial["round"] > 0 for trial in race.trials[setting]),
        **{name: figures.get(name) for name in _FIGURES},
        "ratio": ratio.to_dict() if ratio else None,
        "out": race.out.get(setting),
    }


def print_tries(found: Sequence[dict[str, Any]], console: Console) -> None:
    """A table, and the longer reasons why a setting is out below it."""
    fixed = {*_FIGURES, "rounds", "ratio", "out"}
    options = [name for name in found[0] if name not in fixed and len({one[name] for one in found}) > 1]
    shown = [name for name in _HEADINGS if any(one[name] is not None for one in found)]
    headings = ["setting", "rounds", *(_HEADINGS[name][0] for name in shown), "× [95 %]", "out"]
    rows, reasons = [], []
    for number, one in enumerate(found):
        setting = " ".join(f"{name}={one[name]}" for name in options) + ("" if number else " (default)")
        figures = ["" if one[name] is None else _HEADINGS[name][1].format(one[name]) for name in shown]
        ratio, why = interval(one["ratio"]) if one["ratio"] else "", one["out"] or ""
        reasons += [f"{setting}: {why}"] if len(why) > SHORT else []
        rows.append([setting.strip(), str(one["rounds"]), *figures, ratio, "see below" if len(why) > SHORT else why])
    print_runs("Settings that were tried; × is images/s against the default of the same rounds", headings, rows, console)
    for reason in reasons:
        console.print(reason, soft_wrap=True, markup=False, highlight=False)
