"""How every job starts: Hydra composes its options from conf/ and the words of the command line.

    words ─▶ --conf DIR, quotes, ~ ─▶ Hydra: conf/JOB.yaml ─▶ dataclass of options ─▶ job

`run` is the way of a job, and `_Run` what Hydra calls. A mistake of the user ends the program in
one line: `explain.py` writes Hydra's and OmegaConf's, `spelling.py` those of our own options,
`messages.py` the system's.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, ListConfig, OmegaConf, ValueNode
from omegaconf.errors import OmegaConfBaseException

from dali_pipes.cli.conf import (
    MARKER,
    SUBFOLDER,
    conf_folder,
    find_foreign_folder,
    find_user_folder,
    register,
    texts_of,
)
from dali_pipes.cli.explain import CommandLine, explain_mistake, folder_note
from dali_pipes.cli.help import find_topic, help_text
from dali_pipes.cli.messages import (
    explain_file_error,
    is_first_rank,
    print_warnings_on_stderr,
    stop,
    stop_once,
)
from dali_pipes.cli.overrides import expand_home, spell
from dali_pipes.cli.spelling import explain_in_options
from dali_pipes.cli.sweep import is_sweep, search_mode
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ConfigError, DaliPipesError

# The flags of Hydra's own parser, which answers any other with its usage; but for
# --experimental-rerun, which reads a pickle.
_FLAGS = tuple(
    f"--{name}"
    for name in (
        *("help", "hydra-help", "version", "cfg", "resolve", "package", "run", "multirun"),
        *("config-path", "config-name", "config-dir", "info"),
    )
)
_PARSER = OverridesParser.create()


class PackageSearchPath(SearchPathPlugin):
    """Adds our configurations to Hydra's search path, behind the primary folder, the user's.

    Hydra takes the first of several files with one name, so the user's replace ours.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("dali_pipes", f"file://{conf_folder()}")


def run(name: str, job: Callable[[Any], None], description: str) -> None:
    """Composes `name`.yaml with the command line, and calls `job` with the options.

    Args:
        description: the text that --help begins with.
    """
    users, words = _find_folder(sys.argv[1:])
    topic, words = find_topic(words)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets errors in the command line come up to here

    refuse_flags(words)
    line = CommandLine(name, prepare_words(words, name), users)
    sys.argv[1:] = line.words  # Hydra reads them there

    task = _Run(line, job, os.getpid())
    start = hydra.main(
        version_base="1.3", config_path=str(users or conf_folder()), config_name=name
    )
    try:
        if topic is None:
            start(task.call)()
        else:
            print(_explain(description, topic, line))
    except KeyboardInterrupt:
        stop("interrupted", 130)
    except Exception as error:
        # `call` explains the errors of a job: any other is a fault of the program, and keeps its
        # traceback; a closed pipe ends the program in `main`
        if task.composed or isinstance(error, BrokenPipeError):
            raise
        # a folder that Hydra could not make, such as hydra.run.dir
        if isinstance(error, OSError) and error.filename is not None:
            stop_once(explain_file_error(error))
        stop_once(explain_mistake(error, line))
    if task.failed:
        failed = f"{len(task.failed)} of {task.started} runs of the sweep failed"
        stop(f"{failed}: {', '.join(task.failed)}")


@dataclass
class _Run:
    """One run of a job; a sweep calls it several times.

    Attributes:
        process: the process that started the sweep, and runs its jobs unless a cluster does.
        started, failed: how many runs there were so far, and the numbers of those that failed.
        composed: whether the options are known to be right. Until then errors are the same on all
            ranks, and only the first of a machine reports them.
    """

    line: CommandLine
    job: Callable[[Any], None]
    process: int
    started: int = 0
    failed: list[str] = field(default_factory=list)
    composed: bool = False

    def call(self, config: DictConfig) -> Any:
        """Calls the job with its composed options, and returns what it returns, which a sweeper
        that searches takes.
        """
        # here, since Hydra has set up logging just before
        print_warnings_on_stderr()

        self.started += 1
        try:
            options = self._read_options(config)
            self.composed = True
            _make_named_sources(options)
            return self.job(options)
        except DaliPipesError as error:
            message = explain_in_options(error, self.line.job, config)
            if not self._goes_on(error):
                self._stop(message, error.status)
            number = str(HydraConfig.get().job.num)
            own = [each for each in HydraConfig.get().overrides.task if each not in self.line.words]
            print(f"error: run {number} ({', '.join(own)}): {message}", file=sys.stderr)
            self.failed.append(number)
            return None
        except OmegaConfBaseException as error:
            self._stop(explain_mistake(error, self.line))
        except OSError as error:
            stop(explain_file_error(error, config.get("out")))

    def _goes_on(self, error: DaliPipesError) -> bool:
        """Returns whether a sweep goes on after a run that failed."""
        # a search needs a value, and a job of a cluster fails by itself
        if not is_sweep() or search_mode() or os.getpid() != self.process:
            return False
        # an option that is wrong before any run has succeeded is wrong in all of them
        succeeded = self.started > len(self.failed) + 1
        return succeeded or not isinstance(error, ConfigError)

    def _read_options(self, config: DictConfig) -> Any:
        """Returns the options as the job's dataclass."""
        expand_homes(config, texts_of(self.line.job))
        self._follow_run_folder(config)

        options = OmegaConf.to_object(config)
        if not is_dataclass(options):
            stop_once(
                f"{self.line.job}.yaml is not based on {self.line.job}_schema, which has the "
                f"options of this job{folder_note(self.line.users)}"
            )
        return options

    def _follow_run_folder(self, config: DictConfig) -> None:
        """Has the job write into hydra.run.dir, where users of Hydra look for what a run wrote."""
        options = [word.partition("=")[0] for word in self.line.words]
        if "hydra.run.dir" not in options or "out" in options:
            return
        # The default folders of jobs that write a run are below runs/, and train, whose default is
        # None, names a new one there by the time. Any other folder stays.
        out, of_train = config.get("out"), self.line.job == "train"
        if str(out).startswith("runs/") or (of_train and out is None):
            config.out = HydraConfig.get().runtime.output_dir

    def _stop(self, message: str, status: int = 2) -> None:
        (stop if self.composed else stop_once)(message, status)


def _make_named_sources(options: Any) -> None:
    """Makes the demo set for a job that reads it (data=demo)."""
    data = getattr(options, "data", None)
    if isinstance(data, DataConfig) and data.demo:
        from dali_pipes.data.demo import make_named_set

        make_named_set(data, getattr(options, "split", "train"))


def _explain(description: str, topic: str, line: CommandLine) -> str:
    """Returns the text of --help, with the options as the command line gives them.

    Hydra's own --help lists the options of all groups first, whether they are shown or not: ten
    seconds of CPU.
    """
    options = [word for word in line.words if word not in ("-m", "--multirun")]
    if flag := next((word for word in options if word.startswith("-")), None):
        stop_once(f"--help does not take {flag}, only options and --conf DIR")
    with initialize_config_dir(str(line.users or conf_folder()), version_base="1.3"):
        config = compose(line.job, options, return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        try:
            return help_text(description, config, topic)
        except ConfigError as error:
            stop_once(str(error))


def _find_folder(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Makes the configurations known to Hydra, ours and the user's.

    Returns:
        the user's folder, if there is one, and the words without `--conf DIR`.
    """
    try:
        users, others = find_user_folder(words)
        register(users)
    except ConfigError as error:
        stop_once(str(error))

    if users:
        Plugins.instance().register(PackageSearchPath)
    elif (foreign := find_foreign_folder()) and is_first_rank():
        note = (
            f"note: {foreign} is not read: nothing in it says that it is for dali_pipes; to have "
            f"it read, make an empty file {foreign / MARKER}, give --conf {foreign}, or put the "
            f"files for dali_pipes into {foreign / SUBFOLDER}"
        )
        print(note, file=sys.stderr)
    return users, others


def refuse_flags(words: Sequence[str]) -> None:
    """Ends the program at a word that begins with -- and is no flag of Hydra's."""
    for word in words:
        # by its beginning, since a flag may have its value in the same word
        if word.startswith("--") and not word.startswith(_FLAGS):
            name = word.strip("-").split("=")[0].replace("-", "_") or "data.train"
            stop_once(
                f"{word}: an option is NAME=VALUE, such as {name}=…; --help shows the options"
            )


def prepare_words(words: Sequence[str], job: str) -> list[str]:
    """Returns the words of a job's command line as Hydra must read them."""
    texts, sweeps = texts_of(job), CommandLine(job, words, None).sweeps
    spelled = [spell(word, texts, sweeps, _parse) for word in words]
    # argparse takes -m only as the first or the last word
    return sorted(spelled, key=lambda word: word not in ("-m", "--multirun"))


def spell_word(word: str, job: str, sweeps: bool = False) -> str:
    """Returns one word of a job's command line as Hydra must read it: with the quotes that its
    grammar needs, and with the home folder for ~.
    """
    return spell(word, texts_of(job), sweeps, _parse)


def _parse(text: str) -> Any:
    """Returns the value that Hydra reads from the text of a word, such as a number.

    Raises:
        ConfigError: the text is not in Hydra's grammar.
    """
    try:
        return _PARSER.parse_override(f"option={text}").value()
    except HydraException as error:
        raise ConfigError(str(error)) from None


def expand_homes(node: Any, texts: dict[str, bool], place: str = "") -> None:
    """Replaces ~ by the home folder in the options that are text, also in those from a file."""
    # the methods that begin with _ read a value without resolving ${…}
    if isinstance(node, DictConfig) and not (
        node._is_none() or node._is_missing() or node._is_interpolation()
    ):
        for name in node:
            expand_homes(node._get_node(name), texts, f"{place}.{name!s}".lstrip("."))

    elif (
        isinstance(node, ListConfig)
        and texts.get(place)
        and not (node._is_none() or node._is_interpolation())
    ):
        for index in range(len(node)):
            expand_homes(node._get_node(index), {place: False}, place)

    elif (
        texts.get(place) is False and isinstance(node, ValueNode) and isinstance(node._value(), str)
    ):
        node._set_value(expand_home(node._value()))
