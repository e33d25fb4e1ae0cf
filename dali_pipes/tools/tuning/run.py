"""Tuning from start to end: the search, the comparison with the default, and the file that
`loader=tuned_HOST` reads.
"""

import os
import platform
import re
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.registry import entry_of
from dali_pipes.errors import ConfigError
from dali_pipes.measure.agreement import check_agreement
from dali_pipes.measure.figures import arm_figures
from dali_pipes.measure.images import open_measured_images
from dali_pipes.measure.printing import print_runs
from dali_pipes.measure.protocol import Trials
from dali_pipes.measure.results import Trial
from dali_pipes.measure.rounds import TrialKey
from dali_pipes.measure.users_loader import work_of
from dali_pipes.measure.wording import control_line, interval
from dali_pipes.measure.workload import lacks_gpu, to_dict
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.files import make_run_folder, replacing, to_yaml
from dali_pipes.system.stdout import print_json, save_result, say
from dali_pipes.tools.tuning.config import TuneConfig
from dali_pipes.tools.tuning.search import Race, limits, search
from dali_pipes.tools.tuning.settings import Setting, choices, settings
from dali_pipes.tools.tuning.verdict import Comparison, compare, verdict, winner_of

SCHEMA = 2
MAX_REASON = 10  # the longest reason, in characters, that fits into the table
_FIGURES = ("images_per_s", "cpu_s_per_1000_images", "cpus", "peak_pss_mib", "gpu_memory_mib")
_HEADINGS = {  # of the figures in the table: heading and format
    "images_per_s": ("images/s", "{:,.0f}"),
    "cpu_s_per_1000_images": ("CPU-s/1,000", "{:.2f}"),
    "peak_pss_mib": ("PSS MiB", "{:,.0f}"),
    "gpu_memory_mib": ("GPU MiB", "{:,.0f}"),
}

console = Console(stderr=True)


def tune(config: TuneConfig) -> None:
    """Searches, compares, and writes the file.

    The tries go to stderr, the result as one line of JSON to stdout, all into a new folder.

    Raises:
        ConfigError: there is nothing to search, or no setting can be kept.
        ArmError: the default fails, or the winner delivers other pixels. After any error an earlier
            file is unchanged.
    """
    if config.function:
        with work_of(config.function, config, console) as (work, yours):
            # without a number of workers in the options, the search starts from the user's own
            free = getattr(work.loader, "num_workers", 0) is None
            _tune(
                replace(work, loader=replace(work.loader, num_workers=yours.num_workers))
                if free
                else work
            )
    else:
        _tune(config)


def _tune(config: TuneConfig) -> None:
    cores = config.cpus or available_cpus()
    default, others = settings(config, cores)
    file = tuned_file(config.into, config.host)
    manifest = open_measured_images(config)
    folder = make_run_folder(Path(config.out))
    trials = Trials(config, manifest, folder)

    if lacks_gpu(config.loader):
        say(console, "No GPU here: DALI on its CPU backend.")

    def run(key: TrialKey, setting: Setting) -> Trial:
        return trials.run(key, setting.applied_to(config.loader), setting.batch_size)

    race = Race(default, others, config.seed)
    try:
        search(config, run, race, partial(say, console))
    finally:
        # also if the search ends with an error
        print_tries(tries(race))

    winner = winner_of(race)
    compared: Comparison | None = None
    # a default that ran out of memory cannot run in a comparison
    if winner != default and race.default_runs:
        loaders = {
            arm: setting.applied_to(config.loader)
            for arm, setting in (("default", default), ("tuned", winner))
        }
        work = replace(trials.work, batch_size=winner.batch_size)
        # before the comparison: it ends the run if the two deliver other pixels
        agreement = check_agreement(
            config, work, loaders, "default", trials.cpus, folder / "samples"
        )
        compared = {
            **compare(run, default, winner, config.pairs, config.seed),
            "agreement": agreement,
        }

    kept, sentence = verdict(config, race, winner, compared)
    facts = trials.facts()
    facts["work"]["loader"], facts["protocol"]["minutes"] = to_dict(config.loader), config.minutes

    result = {
        "schema": SCHEMA,
        "conclusion": sentence,
        "file": str(file),
        "kept": "default" if kept == default else "tuned",
        "setting": kept.to_dict(),
        "default": default.to_dict(),
        "tries": tries(race),
        "comparison": compared,
        "values": choices(config, cores)
        | {"batch_size": sorted({config.batch_size, *config.batch_sizes})},
        "limits": limits(config),
        **facts,
    }
    save_result(folder, result)

    comments = [
        f"loader={file.stem}: settings of loader={config.loader_name}, tuned for batches "
        f"of {kept.batch_size}, "
        f"workload={config.workload}, on {facts['provenance']['date']} by",
        command_line(config.overrides),
        *textwrap.wrap(f"{sentence}.", 120),
    ]
    write(file, config.loader if kept == default else kept.applied_to(config.loader), comments)

    if compared and not compared["failed"]:
        say(console, control_line(compared["control"], "the default"))
    say(console, f"{sentence}.", f"Use it with loader={file.stem}: {file}")
    print_json(result)


def tries(race: Race) -> list[dict[str, Any]]:
    """Returns every setting that was run or discarded, the default first, then the fastest.

    docs/tune.md names the keys.
    """

    def one(setting: Setting) -> dict[str, Any]:
        figures = dict(arm_figures(race.trials[setting])) if race.trials[setting] else {}
        ratio = None if setting == race.default else race.against_default(setting)
        return {
            **setting.to_dict(),
            # without round 0, which only shows how long a trial takes
            "rounds": sum(trial["round"] > 0 for trial in race.trials[setting]),
            **{name: figures.get(name) for name in _FIGURES},
            "ratio": ratio.to_dict() if ratio else None,
            "out": race.out.get(setting),
        }

    others = [
        one(setting)
        for setting in dict.fromkeys([*race.others, *race.out])
        if setting != race.default
    ]
    others.sort(
        key=lambda row: (row["out"] is None, row["rounds"], row["images_per_s"] or 0),
        reverse=True,
    )
    return [one(race.default), *others]


def print_tries(tries: Sequence[dict[str, Any]]) -> None:
    """Prints a table, and below it the longer reasons why a setting is out."""
    fixed = {*_FIGURES, "rounds", "ratio", "out"}
    # an option that is the same everywhere says nothing
    options = [
        name for name in tries[0] if name not in fixed and len({one[name] for one in tries}) > 1
    ]
    shown = [name for name in _HEADINGS if any(one[name] is not None for one in tries)]
    headings = ["setting", "rounds", *(_HEADINGS[name][0] for name in shown), "× [95 %]", "out"]

    rows, reasons = [], []
    for number, one in enumerate(tries):
        setting = " ".join(f"{name}={one[name]}" for name in options) + (
            "" if number else " (default)"
        )
        figures = [
            "" if one[name] is None else _HEADINGS[name][1].format(one[name]) for name in shown
        ]
        ratio, why = interval(one["ratio"]) if one["ratio"] else "", one["out"] or ""
        reasons += [f"{setting}: {why}"] if len(why) > MAX_REASON else []
        rows.append(
            [
                setting.strip(),
                str(one["rounds"]),
                *figures,
                ratio,
                "see below" if len(why) > MAX_REASON else why,
            ]
        )

    print_runs(
        "Settings that were tried; × is images/s against the default of the same rounds",
        headings,
        rows,
        console,
    )
    say(console, *reasons)


def tuned_file(into: str, host: str | None) -> Path:
    """Returns where the file goes. In its name, all but letters, digits, - and _ becomes _.

    Raises:
        ConfigError: it cannot be written there.
    """
    folder = Path(into).absolute()
    # missing folders are made with the file
    closest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not closest.is_dir() or not os.access(closest, os.W_OK):
        raise ConfigError(
            f"into={folder}: {closest} is no folder, or it cannot be written to; give another "
            "folder"
        )

    name = re.sub(r"[^A-Za-z0-9_-]", "_", host or platform.node())
    if not name.strip("_"):
        raise ConfigError("this machine has no name to use in a file name; give one, host=NAME")
    return folder / f"tuned_{name}.yaml"


def write(file: Path, loader: LoaderConfig, comments: Sequence[str]) -> None:
    """Replaces the file as a whole, with every option of the loader and with `comments`, one line
    each.
    """
    # a line break in a comment would end it
    text = "".join(f"# {' '.join(line.split())}\n" for line in comments)
    text += f"defaults:\n  - {entry_of(loader).name}_schema\n  - _self_\n\n{to_yaml(loader)}"

    with replacing(file) as aside:
        aside.write_text(text)


def command_line(overrides: Sequence[str]) -> str:
    return f"dali-pipes tune {shlex.join(overrides)}"
