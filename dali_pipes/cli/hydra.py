"""How every job starts.

`run` prepares the command line for Hydra (the user's folder of configurations, quotes, ~), lets
Hydra compose the configuration, turns it into the job's dataclass and calls the job. A mistake of
the user, in Hydra's part or in the job, ends the program in one line: `_explain` rewrites Hydra's
and OmegaConf's errors, `_placed` those of our own options, `explain_file_error` the system's.
`explained` writes the text of --help from the docstrings of the schemas.
"""

import errno
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, cast

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, ValueNode
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationKeyError,
    OmegaConfBaseException,
    ValidationError,
)

from dali_pipes.cli.conf import (
    MARKER,
    WITHIN,
    conf_folder,
    is_arm,
    others_folder,
    register,
    texts_of,
    users_folder,
)
from dali_pipes.cli.overrides import at_home, spelled
from dali_pipes.cli.spelling import in_options, nested_options
from dali_pipes.errors import ConfigError, DaliPipesError, OptionError

# the flags of Hydra's own parser, which answers any other with its usage
_FLAGS = tuple(
    f"--{name}"
    for name in (
        *(
            "help",
            "hydra-help",
            "version",
            "cfg",
            "resolve",
            "package",
            "run",
            "multirun",
            "shell-completion",
        ),
        *("config-path", "config-name", "config-dir", "experimental-rerun", "info"),
    )
)

# of a disk, a quota, or a limit on the size of files
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PARSER = OverridesParser.create()
_OTHER_TYPE = re.compile(
    r"Value (.*) of type '\w+' (?:could not be converted to|is not a valid) "
    r"(Integer|Float|Bool)"
)


class OursAfterTheUsers(SearchPathPlugin):
    """Adds our configurations to Hydra's search path, behind the primary folder, the user's.

    Hydra takes the first of several files with one name, so the user's replace ours.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("dali_pipes", f"file://{conf_folder()}")


def run(config_name: str, job: Callable[[Any], None], words: str) -> None:
    """Composes `config_name`.yaml with the command line, and calls `job` with the typed config.

    Args:
        words: with which --help begins.
    """
    # until then errors are the same on all ranks, and only the first of a machine reports them
    composed = False

    def task(config: DictConfig) -> None:
        nonlocal composed
        print_warnings_on_stderr()
        try:
            expand_homes(config, texts)

            given = [word.partition("=")[0] for word in sys.argv[1:]]
            if (
                "hydra.run.dir" in given
                and "out" not in given
                and str(config.get("out")).startswith("runs/")
            ):
                # users of Hydra look there for what a run wrote
                config.out = HydraConfig.get().runtime.output_dir

            options = OmegaConf.to_object(config)
            if not is_dataclass(options):
                stop_once(
                    f"{config_name}.yaml is not based on {config_name}_schema, which has "
                    f"the options of this job{_whose(users)}"
                )

            composed = True
            job(options)
        except (DaliPipesError, OmegaConfBaseException) as error:
            message = (
                _placed(error, config)
                if isinstance(error, DaliPipesError)
                else _explain(error, users)
            )
            stop(message, getattr(error, "status", 2)) if composed else stop_once(message)
        except OSError as error:
            stop(explain_file_error(error, config.get("out")))

    users: Path | None = None
    try:
        users, sys.argv[1:] = users_folder(sys.argv[1:])
        register(users)
    except ConfigError as error:
        stop_once(str(error))

    if users:
        Plugins.instance().register(OursAfterTheUsers)
    elif (another := others_folder()) and not int(os.environ.get("LOCAL_RANK", 0)):
        print(
            (
                f"note: {another} is not read: nothing in it says that it is for dali_pipes; "
                f"{_how_to_be_read(another)}"
            ),
            file=sys.stderr,
        )

    OmegaConf.register_new_resolver(
        "explained", lambda *, _root_: explained(words, _root_), replace=True
    )
    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets errors in the command line come up to here

    if wrong := next(
        (word for word in sys.argv[1:] if word.startswith("--") and not word.startswith(_FLAGS)),
        None,
    ):
        such = wrong.strip("-").split("=")[0].replace("-", "_") or "data.train"
        stop_once(
            f"{wrong}: an option is NAME=VALUE, such as {such}=…; --help explains every option"
        )

    texts, sweeps = (
        texts_of(config_name),
        any(word in ("-m", "--multirun") for word in sys.argv[1:]),
    )
    # Hydra reads the words from sys.argv
    sys.argv[1:] = [spelled(word, texts, sweeps, _parsed) for word in sys.argv[1:]]
    # argparse takes -m only as the first or the last word
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: word not in ("-m", "--multirun"))

    try:
        hydra.main(
            version_base="1.3", config_path=str(users or conf_folder()), config_name=config_name
        )(task)()
    except KeyboardInterrupt:
        stop("interrupted", 130)
    except Exception as error:
        if composed or isinstance(error, BrokenPipeError):
            raise
        # a folder that Hydra could not make, such as hydra.run.dir
        if isinstance(error, OSError) and error.filename is not None:
            stop_once(explain_file_error(error))
        stop_once(_explain(error, users))


def explain_file_error(error: OSError, out: str | None = None) -> str:
    """Returns in one line what the system says of a file.

    Args:
        out: where the job writes, for an error that names no file: when a disk becomes full, the
            write fails, not the opening.

    Raises:
        OSError: the error itself, if it is about neither a file nor a full disk.
    """
    if error.filename is not None:
        path = Path(os.fsdecode(error.filename)).absolute()

        if isinstance(error, FileExistsError | NotADirectoryError):
            in_the_way = next(
                (each for each in (path, *path.parents) if each.exists() and not each.is_dir()),
                None,
            )
            if in_the_way:
                return (
                    f"{path}: {in_the_way} is a file, and a folder is needed there; name "
                    "another place"
                )
        return f"{path}: {(error.strerror or str(error)).lower()}"

    # PyArrow's errors have the number in their text only
    number = next(
        (each for each in _FULL if error.errno == each or os.strerror(each) in str(error)), None
    )
    if number is None:
        raise error

    where = (
        f"; free some, or write elsewhere than {Path(out).absolute()}"
        if out
        else "; free some, or write elsewhere"
    )
    return f"a file could not be written: {os.strerror(number).lower()}{where}"


def print_warnings_on_stderr() -> None:
    """Prints the package's warnings as plain lines on stderr, and moves what others log there too,
    so that a job's JSON is alone on stdout.
    """
    root, name = logging.getLogger(), "dali_pipes"
    # a sweep runs its jobs in one process
    if any(handler.name == name for handler in root.handlers):
        return

    # Hydra's console handler
    for handler in root.handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.addFilter(lambda record: not record.name.startswith(name))
            handler.setStream(sys.stderr)

    own = logging.StreamHandler(sys.stderr)
    own.name = name
    own.setLevel(logging.WARNING)
    own.addFilter(logging.Filter(name))
    root.addHandler(own)


def as_hydra_reads(word: str, job: str, sweeps: bool = False) -> str:
    """Returns a word of a job's command line with the quotes that Hydra's grammar needs, and with
    the home folder for ~.
    """
    return spelled(word, texts_of(job), sweeps, _parsed)


def _parsed(text: str) -> Any:
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
        for each in range(len(node)):
            expand_homes(node._get_node(each), {place: False}, place)

    elif (
        texts.get(place) is False and isinstance(node, ValueNode) and isinstance(node._value(), str)
    ):
        node._set_value(at_home(node._value()))


def sweep_folder() -> Path | None:
    """Returns the folder of the sweep (`-m`) that this job belongs to; None without one."""
    config = HydraConfig.get()
    return Path(config.sweep.dir) if config.mode == RunMode.MULTIRUN else None


def job_number(option: str) -> int | None:
    """Returns this job's number within a sweep (`-m`), for the name of what it writes.

    Returns None if there is no sweep, or if the sweep gives each job its own value of `option`.
    """
    config = HydraConfig.get()
    if config.mode != RunMode.MULTIRUN:
        return None

    # commas and functions of Hydra, such as choice(…), are values of a sweep
    words = (word for word in sys.argv[1:] if word.startswith(f"{option}="))
    return None if any("," in word or "(" in word for word in words) else int(config.job.num)


def job_folder() -> Path | None:
    """Returns the folder of this job within a sweep (`-m`); None without a sweep.

    Raises:
        ConfigError: torchrun started the sweep, which would run once on every rank.
    """
    config = HydraConfig.get()
    if config.mode != RunMode.MULTIRUN:
        return None
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigError(
            "-m under torchrun would sweep on every rank; start each run with torchrun, or "
            "sweep with cluster=slurm"
        )
    return Path(config.runtime.output_dir)


def _placed(error: DaliPipesError, config: DictConfig) -> str:
    """Returns the error's text; an option has its full name in it, such as loader.num_threads."""
    if not isinstance(error, OptionError):
        return in_options(error, HydraConfig.get().job.config_name or "")

    # several nodes may have this class, as transform and eval_transform: first those that fail
    nodes = [("", config), *_groups(config)]
    places = [(place, node) for place, node in nodes if OmegaConf.get_type(node) is error.owner]
    broken = [place for place, node in places if _cannot_work(node)] + [
        place for place, _ in places
    ]
    if not broken:
        return str(error)

    of_training = (
        " (its size is transform.size; transform@eval_transform=letterbox "
        "eval_transform.flip=0 takes whole images)"
    )
    return f"{broken[0]}{error.problem}{of_training if broken[0] == 'eval_transform.' else ''}"


def _groups(config: DictConfig, prefix: str = "") -> Iterator[tuple[str, DictConfig]]:
    for name in config:
        node = config._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none():
            place = f"{prefix}{name!s}."
            yield place, node
            yield from _groups(node, place)


def _cannot_work(config: DictConfig) -> bool:
    try:
        OmegaConf.to_object(config)
    except DaliPipesError:
        return True
    return False


def _explain(error: BaseException, users: Path | None) -> str:
    """Returns in one line what Hydra or OmegaConf says of a wrong command line or configuration.

    Args:
        users: the user's folder of configurations, in which the mistake may be.
    """
    # where the classes of their errors do not tell cases apart, the text does
    if isinstance(error, OverrideParseException):
        if "=" not in (error.override or ""):
            return (
                f"{error.override}: an option is NAME=VALUE, such as data.train=DIR; --help "
                "explains every option"
            )
        return (
            f"{error.override}: not understood; a value with spaces, commas, = or brackets "
            "needs quotes: \"key='value'\""
        )

    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error

    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)) and isinstance(
        cause.parent_node, DictConfig
    ):
        root = cause.parent_node._get_root()
        # a name without its group, such as train= for data.train=
        nested = cause.full_key == cause.key and isinstance(root, DictConfig)
        near = (
            nested_options(str(cause.key), cast(dict[Any, Any], OmegaConf.to_container(root)))
            if nested
            else []
        )
        near = near or get_close_matches(str(cause.key), map(str, cause.parent_node), 1)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        return f"there is no option {cause.full_key}{meant}; --help explains every option"

    if isinstance(cause, InterpolationKeyError) and (
        found := re.match(r"Interpolation key '(.*)' not found", str(cause))
    ):
        escaped = (
            f"; a path with ${{{found[1]}}} in its name is written \\${{{found[1]}}}, within "
            "single quotes"
        )
        return (
            f"{cause.full_key}: ${{{found[1]}}} stands for another option, and there is no "
            f"{found[1]}{escaped}"
        )

    if found := re.match(
        r"Could not override '([\w./]+)'\.? *\n?No match in the defaults list", str(cause)
    ):
        return f"there are no options {found[1]}=NAME for this job; --help explains every option"

    if isinstance(cause, MissingConfigException) and cause.options and cause.missing_cfg_file:
        group, _, name = cause.missing_cfg_file.rpartition("/")
        if group == "loader" and is_arm(name):
            if name.endswith("_schema"):
                return (
                    f"a file in loader/ extends {name}, which only benchmarks have; it is in the "
                    f"group arm now: move the file to arm/{_whose(users)}"
                )
            return (
                f"loader={name} is for benchmarks only, in the group arm: dali-pipes benchmark "
                f"arms=[{name}], with its options under loaders.{name}; a file names "
                f"arm@loaders.{name}: {name}{_whose(users)}"
            )
        known = [each for each in cause.options if not each.endswith("schema")]
        meant = f"did you mean {near[0]}? " if (near := get_close_matches(name, known, 1)) else ""
        tuned = "; dali-pipes tune writes tuned ones" if name.startswith("tuned_") else ""
        return (
            f"there is no {group}={name}; {meant}there are {', '.join(known)}{tuned}{_whose(users)}"
        )

    if found := re.match(r"Ambiguous value for argument '(([\w./]+)=(.*))'", str(cause)):
        return (
            f"{found[1]}: a list needs brackets: '{found[2]}=[{found[3]}]'; with -m each value "
            "is a run of its own"
        )

    if isinstance(cause, ValidationError) and cause.full_key:
        if "is not a ListConfig" in str(cause):
            return (
                f"{cause.full_key}: a list needs brackets: '{cause.full_key}=[…]'; --help "
                "explains every option"
            )
        if found := _OTHER_TYPE.match(str(cause)):
            takes = {"Integer": "whole numbers", "Float": "numbers", "Bool": "true or false"}[
                found[2]
            ]
            return f"{cause.full_key} is {found[1]}; it takes {takes}; --help explains every option"
        return f"{cause.full_key}: {str(cause).splitlines()[0]}; --help explains every option"

    # all else: their own words, without search paths, types and schemas
    text = str(cause).split("Config search path")[0]
    lines = [
        line.strip()
        for line in text.splitlines()
        if line.strip()
        and not line.strip().startswith(("object_type", "reference_type"))
        and not line.endswith("schema")
    ]
    return f"{' '.join(lines)}; --help explains every option{_whose(users)}"


def _whose(users: Path | None) -> str:
    return (
        (f"; {users} comes before our own configurations, and --conf DIR names another folder")
        if users
        else ""
    )


def _how_to_be_read(folder: Path) -> str:
    return (
        f"touch {folder / MARKER}, --conf {folder}, or a folder {folder / WITHIN} for ours "
        "makes it so"
    )


def explained(words: str, config: DictConfig) -> str:
    """Returns the text of --help: the job's words, then those of the options, from the docstrings
    of their schemas.

    Hydra reads it as a template, in which a dollar must be written twice. Python's None is null on
    a command line.
    """
    parts = [words, *_sections("", config), _choices(config)]
    return re.sub(r"\bNone\b", "null", "\n\n".join(part.strip() for part in parts)).replace(
        "$", "$$"
    )


def _sections(prefix: str, config: DictConfig) -> Iterator[str]:
    schema = OmegaConf.get_type(config) or dict
    if attributes := _attributes(schema):
        summary = (inspect.getdoc(schema) or "").split("\n\n")[0].replace("\n", " ")
        yield f"{prefix}: {summary}\n{attributes}" if prefix else f"Options:\n{attributes}"
    for name in map(str, config):
        child = config._get_node(name)
        if isinstance(child, DictConfig) and is_dataclass(OmegaConf.get_type(child)):
            yield from _sections(f"{prefix}.{name}".lstrip("."), child)


def _attributes(schema: type) -> str:
    """Returns the lines under "Attributes:" of a class and then of its bases."""
    texts = [
        inspect.cleandoc(vars(each).get("__doc__") or "").partition("Attributes:\n")[2]
        for each in schema.mro()
    ]
    return "\n".join(text.rstrip() for text in texts if text)


def _choices(config: DictConfig) -> str:
    groups = sorted(
        {
            # transform@eval_transform is a second choice from the group transform
            choice.split("@")[0]
            for choice in config.hydra.runtime.choices
            if not choice.startswith("hydra/")
        }
    )

    names = GlobalHydra.instance().config_loader().get_group_options
    lines = (
        (f"    {group}: {', '.join(name for name in names(group) if not name.endswith('schema'))}")
        for group in groups
    )
    return "\n".join(["Groups of options, chosen by GROUP=NAME:", *lines])


def stop(message: str, status: int = 2) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(status)


def stop_once(message: str) -> NoReturn:
    """Ends the program for a mistake that all ranks of torchrun see.

    Only the first rank of each machine reports it.
    """
    if int(os.environ.get("LOCAL_RANK", 0)):
        sys.exit(2)
    stop(message)
