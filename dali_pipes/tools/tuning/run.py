"""Tuning from start to end: search, comparison with the default, the file that `loader=tuned_HOST` reads."""

import json
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from dali_pipes.measure.agreement import gate
from dali_pipes.measure.protocol import Trials, Turn, images_of
from dali_pipes.measure.results import Agreement, Trial
from dali_pipes.measure.wording import control_line
from dali_pipes.measure.workload import lacks_gpu, to_dict
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.files import new_folder
from dali_pipes.system.stdout import print_json
from dali_pipes.tools.tuning.config import TuneConfig
from dali_pipes.tools.tuning.limits import limits
from dali_pipes.tools.tuning.race import Race
from dali_pipes.tools.tuning.report import print_tries, tries
from dali_pipes.tools.tuning.search import search
from dali_pipes.tools.tuning.settings import Setting, choices, settings
from dali_pipes.tools.tuning.tuned_file import command_line, tuned_file, write
from dali_pipes.tools.tuning.verdict import Comparison, compare, verdict, winner_of

SCHEMA = 2

console = Console(stderr=True)


def tune(config: TuneConfig) -> None:
    """Searches, compares and writes. The tries go to stderr, the result as one line of JSON to stdout, all into a new folder.

    Raises:
        ConfigError: there is nothing to search, or no setting can be kept.
        ArmError: the default fails, or the winner delivers other pixels. After any error an earlier file is unchanged.
    """
    cores = config.cpus or available_cpus()
    default, others = settings(config, cores)
    file = tuned_file(config.into, config.host)
    manifest = images_of(config)
    folder = new_folder(Path(config.out))
    trials = Trials(config, manifest, folder)
    if lacks_gpu(config.loader):
        _say("No GPU here: DALI on its CPU backend.")

    def run(turn: Turn, setting: Setting) -> Trial:
        return trials.run(turn, setting.applied_to(config.loader), setting.batch_size)

    race = Race(default, others, config.seed)
    try:
        search(config, run, race, _say)
    finally:
        print_tries(tries(race), console)
    winner = winner_of(race)
    compared: Comparison | None = None
    if winner != default and race.default_runs:
        agreement = _agreement(config, trials, {"default": default, "tuned": winner}, folder / "samples")
        compared = {**compare(run, default, winner, config.pairs, config.seed), "agreement": agreement}
    kept, sentence = verdict(config, race, winner, compared)
    facts = trials.facts()
    facts["work"]["loader"], facts["protocol"]["minutes"] = to_dict(config.loader), config.minutes
    result = {
        "schema": SCHEMA,
        "conclusion": sentence,
        "file": str(file),
        "kept": "default" if kept == default else "tuned",
        "setting": _plain(kept),
        "default": _plain(default),
        "tries": tries(race),
        "comparison": compared,
        "values": choices(config, cores) | {"batch_size": sorted({config.batch_size, *config.batch_sizes})},
        "limits": limits(config),
        **facts,
    }
    (folder / "result.json").write_text(json.dumps(result, indent=1))
    _write(config, file, kept, default, result)
    if compared and not compared["failed"]:
        _say(control_line(compared["control"], "the default"))
    _say(f"{sentence}.")
    _say(f"Use it with loader={file.stem}: {file}")
    print_json(result)


def _agreement(config: TuneConfig, trials: Trials, arms: dict[str, Setting], samples: Path) -> Agreement:
    """
    Raises:
        ArmError: the default and the winner deliver different samples or pixels.
    """
    loaders = {arm: setting.applied_to(config.loader) for arm, setting in arms.items()}
    work = replace(trials.work, batch_size=arms["tuned"].batch_size)
    return gate(config, work, loaders, "default", trials.cpus, samples)


def _write(config: TuneConfig, file: Path, kept: Setting, default: Setting, result: dict[str, Any]) -> None:
    loader = config.loader if kept == default else kept.applied_to(config.loader)
    facts = [
        f"loader={file.stem}: settings of loader={config.loader_name}, tuned for batches of {kept.batch_size}, "
        f"workload={config.workload}, on {result['provenance']['date']} by",
        command_line(config.overrides),
        *textwrap.wrap(f"{result['conclusion']}.", 120),
    ]
    write(file, loader, facts)


def _plain(setting: Setting) -> dict[str, Any]:
    return dict(setting.options) | {"batch_size": setting.batch_size}


def _say(line: str) -> None:
    console.print(line, soft_wrap=True, markup=False, highlight=False)
