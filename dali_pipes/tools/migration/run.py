"""dali-pipes migrate -- train.py ARGS, from start to end.

the program runs until its training begins          (watched.py, in its own process)
a report for each DataLoader that it has made       (report.py)
the change of the program                           (edits.py)
the A/B of its DataLoader and ours                  (the benchmark, which the caller gives)
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from dali_pipes.errors import ConfigError
from dali_pipes.measure.arms.program_loader import ProgramLoaderConfig
from dali_pipes.measure.config import MeasureConfig
from dali_pipes.measure.program_loaders import Origin
from dali_pipes.measure.program_process import MeasuredProgram
from dali_pipes.measure.protocol import cores_of
from dali_pipes.measure.users_loader import of_work, refuse_own_options
from dali_pipes.measure.worker_process import ArmError, exit_on_signals
from dali_pipes.measure.workload import to_dict
from dali_pipes.system.files import make_run_folder
from dali_pipes.system.program.process import ProgramError
from dali_pipes.system.program.words import ProgramJob, read_program
from dali_pipes.system.stdout import print_json, say
from dali_pipes.tools.migration.edits import Proposal, Wish, propose
from dali_pipes.tools.migration.report import LoaderReport

console = Console(stderr=True)

_WATCHED = "dali_pipes.tools.migration.watched:run_and_measure"
_JOB = ProgramJob("migrate", "migrated", "dali_pipes.explain(loader)")
_LIGHTNING = (
    "Lightning trains with this change in one process; for several ranks, and to resume inside an "
    "epoch, take the DataModule of docs/integrations.md"
)
# libraries that run or make DataLoaders themselves, so that the change may not be enough
_OF_LIBRARIES = {
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "accelerate": (
        "Accelerate's prepare passes our loader through, and does not know where its epoch ends: "
        "accumulate and gather_for_metrics need the AccelerateLoader of docs/integrations.md, "
        "which yields batches of dali_pipes"
    ),
    "transformers": (
        "the Trainer makes its DataLoaders itself: let get_train_dataloader return "
        "dali_pipes.adapters.transformers.TrainerLoader(loader.loader) (docs/integrations.md)"
    ),
}
Config = TypeVar("Config", bound=MeasureConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramRun:
    """A program, and what is asked of its migration.

    Attributes:
        words: those behind `--` on the command line.
        limit: seconds in which its training has to begin.
        number: the DataLoader that is measured; None: the one that trains.
        measure: whether the A/B is run.
        out: folder for the reports.
    """

    words: Sequence[str]
    limit: float
    number: int | None
    measure: bool
    out: Path


@dataclass(frozen=True, slots=True)
class ProgramLoader:
    """A DataLoader of the program, as its process has described it.

    Attributes:
        trains: whether the program trains with it.
        before_training: whether the program was done with it before there was an optimizer.
        iterated_by: the library that iterates it; "": the program itself.
        work: what `save_work` has returned; None: it is not measured.
        unmeasurable: why it cannot be measured; "": it can.
    """

    number: int
    origin: Origin
    report: LoaderReport
    trains: bool
    before_training: bool
    iterated_by: str
    work: dict[str, Any] | None
    unmeasurable: str

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "ProgramLoader":
        origin = Origin.from_dict(value["origin"])
        return cls(**{**value, "origin": origin, "report": LoaderReport.from_dict(value["report"])})

    @property
    def converts(self) -> bool:
        return not self.report.refusal

    def heading(self) -> str:
        what = ", which trains" if self.trains else ""
        if self.before_training:
            what = ", iterated before there was an optimizer: the change leaves it as it is"
        return f"DataLoader {self.number}, {self.origin.place(Path.cwd())}{what}: "


def migrate_program(
    config: Config,
    run: ProgramRun,
    compare: Callable[[Config, ProgramLoaderConfig, MeasuredProgram, Path], None],
) -> None:
    """Reports what of a program's DataLoaders can be carried over, prints the change, and measures.

    Args:
        compare: runs the A/B of the program's DataLoader with this config in the program's
            process, into a folder.

    Raises:
        ConfigError: it is no program that can be watched, or its DataLoader cannot be carried over.
        ProgramError: its training did not begin.
    """
    refuse_own_options(config)
    program = read_program(run.words, _JOB)
    _JOB.say(f"running {' '.join(run.words)} until its training begins")

    with tempfile.TemporaryDirectory() as folder:
        job: dict[str, Any] = {
            "words": program.words,
            "is_module": program.is_module,
            "number": run.number,
            "loader": to_dict(config.loader),
            # absolute, since the program may change its working directory
            "cache_dir": config.data.cache_dir and str(Path(config.data.cache_dir).absolute()),
            "folder": folder,
            "dump": f"{folder}/dump",
        }
        with (
            exit_on_signals(),
            MeasuredProgram(_WATCHED, job, cores_of(config), program.flags) as process,
        ):
            loaders, seconds = _watch(process, run, Path(job["dump"]))
            for loader in loaders:
                loader.report.print(console, loader.heading())

            proposal = _propose(loaders)
            result = _to_dict(run, loaders, proposal, seconds)
            # before a refusal ends the job, so that its report stays
            kept = _save(run.out, result, proposal)
            _print(proposal, kept)

            target = _choose(loaders, run.number)
            if not target.converts:
                raise ConfigError(f"{target.origin.place(Path.cwd())}: {target.report.refusal}")
            if not run.measure:
                print_json(result)
                return

            if target.work is None:
                raise ConfigError(
                    f"{target.origin.place(Path.cwd())} is carried over, and not measured: "
                    f"{target.unmeasurable}; measure=false only shows the change"
                )
            if left_out := target.report.unmeasured:
                say(console, f"The loaders compared with yours are measured without {left_out}.")
            yours = ProgramLoaderConfig(
                words=program.words,
                place=target.origin.place(Path.cwd()),
                num_workers=target.work["workers"],
            )
            compare(of_work(config, target.work), yours, process, kept)


def _propose(loaders: Sequence[ProgramLoader]) -> Proposal:
    wishes = [
        Wish(loader.origin, loader.converts, not loader.before_training) for loader in loaders
    ]
    proposal = propose(wishes, Path.cwd())
    libraries = {loader.iterated_by for loader in loaders} | {
        loader.origin.library for loader in loaders
    }
    proposal.notes += [text for library, text in _OF_LIBRARIES.items() if library in libraries]
    return proposal


def _watch(
    process: MeasuredProgram, run: ProgramRun, dump: Path
) -> tuple[list[ProgramLoader], float]:
    """Follows the program; returns its DataLoaders, and the seconds until its training began."""
    loaders, last, start = list[ProgramLoader](), dict[str, Any](), time.monotonic()
    text = f"{' '.join(run.words)} did not come to its training"
    try:
        for answer in process.answers(run.limit):
            last |= answer
            if "doing" in answer:
                _JOB.say(answer["doing"])
            elif "loader" in answer:
                loaders.append(ProgramLoader.from_dict(answer["loader"]))
            elif "seconds" in answer:
                _JOB.say(f"its training began after {answer['seconds']:.1f} s")
    except ArmError as error:
        raise ProgramError(f"{text} ({error})") from None

    if "failed" in last:
        print(last.get("trace", ""), end="", file=sys.stderr)
        is_late = "seconds" not in last and time.monotonic() - start >= run.limit
        why = last["failed"]
        if why is None:
            # the program did not answer at the limit, but faulthandler has written where it was
            stack = [line.strip() for line in dump.read_text().splitlines() if "File" in line]
            why = f"it was at {stack[0] if stack else 'an unknown place'}, and was ended"
        late = f" within limit={run.limit:g} s" if is_late else ""
        raise ProgramError(f"{text}{late} ({why})", last.get("status", 1))

    if not last["optimizers"]:
        _JOB.say("it has made no optimizer: the DataLoader that it iterated last counts")
    return loaders, last["seconds"]


def _choose(loaders: Sequence[ProgramLoader], number: int | None) -> ProgramLoader:
    for loader in loaders:
        if loader.trains if number is None else loader.number == number:
            return loader
    raise ConfigError(f"number is {number}; the program has made {len(loaders)} DataLoaders")


def _to_dict(
    run: ProgramRun, loaders: Sequence[ProgramLoader], proposal: Proposal, seconds: float
) -> dict[str, Any]:
    return {
        "program": [*run.words],
        "seconds_before_training": seconds,
        "loaders": [
            {
                "number": loader.number,
                "place": loader.origin.place(Path.cwd()),
                "trains": loader.trains,
                **loader.report.to_dict(),
            }
            for loader in loaders
        ],
        "diff": proposal.diff,
        "notes": proposal.notes,
    }


def _save(out: Path, result: Mapping[str, Any], proposal: Proposal) -> Path:
    """Writes migration.json and program.diff into a new folder, and returns the folder."""
    folder = make_run_folder(out)
    (folder / "migration.json").write_text(json.dumps(result, indent=1))
    if proposal.diff:
        # the diff has the line endings of the program's files
        (folder / "program.diff").write_text(proposal.diff, newline="")
    return folder


def _print(proposal: Proposal, folder: Path) -> None:
    console.print()
    if proposal.diff:
        say(console, f"The change, which patch -p0 < {folder / 'program.diff'} makes:", "")
        say(console, proposal.diff.rstrip("\n"), "")
    else:
        say(console, "No change of the program is proposed.")
    if proposal.notes:
        say(console, "To know:", *(f"  {note}" for note in proposal.notes), "")
