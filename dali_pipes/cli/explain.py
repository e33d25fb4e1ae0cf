"""Puts mistakes that Hydra and OmegaConf find into one line that says what to do.

`explain_mistake` asks the functions of `_EXPLANATIONS` in turn. Each of them knows one kind of
mistake by the class and the fields of the exception, and returns None for any other. What none of
them knows keeps the first words of the exception.
"""

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from hydra.types import RunMode
from omegaconf import (
    BooleanNode,
    Container,
    DictConfig,
    FloatNode,
    IntegerNode,
    ListConfig,
    OmegaConf,
    ValueNode,
)
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationKeyError,
    OmegaConfBaseException,
    ValidationError,
)

from dali_pipes.cli.conf import conf_folder, is_arm
from dali_pipes.cli.spelling import nested_options

_HELP = "--help shows the options"
_PARSER = OverridesParser.create()
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")  # to another option, in a value
# of a ConfigCompositionException of hydra/_internal/defaults_list.py, and of config_loader_impl.py
_MULTIPLE = re.compile(r"Multiple values for ([^.\s]+)\.")
_SAME_NAME = re.compile(r"'(\S+)' is validated against ConfigStore schema with the same name")
_TAKES: dict[type, str] = {
    IntegerNode: "whole numbers",
    FloatNode: "numbers",
    BooleanNode: "true or false",
}


@dataclass(frozen=True)
class CommandLine:
    """What Hydra was asked for.

    Attributes:
        job: the name of the job, and of its file in conf/.
        words: the words behind it, as Hydra reads them.
        users: the user's folder of configurations, in which the mistake may be.
    """

    job: str
    words: Sequence[str]
    users: Path | None

    @property
    def sweeps(self) -> bool:
        """Whether commas separate the values of a sweep."""
        return any(word in ("-m", "--multirun") for word in self.words)

    def overrides(self) -> list[Override]:
        """Returns the options among the words, parsed."""
        overrides = []
        for word in self.words:
            # words behind a flag may be of any form
            with contextlib.suppress(HydraException):
                overrides += [_PARSER.parse_override(word)] if "=" in word else []
        return overrides


def explain_mistake(error: BaseException, line: CommandLine) -> str:
    """Returns in one line what Hydra or OmegaConf says of a wrong command line or configuration."""
    # Hydra raises an error of OmegaConf again as an empty one, with the first as its cause
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    for explain in _EXPLANATIONS:
        if text := explain(cause, line):
            return text

    text = str(cause)
    inner = cause.__context__
    if type(cause) is ConfigCompositionException and isinstance(inner, OmegaConfBaseException):
        # a mistake in a file, which the first line names
        return f"{text.splitlines()[0]} {explain_mistake(inner, line)}"
    if isinstance(cause, OmegaConfBaseException | MissingConfigException):
        # types, schemas and the search path follow
        text = text.splitlines()[0]
    return f"{' '.join(text.split())}; {_HELP}{folder_note(line.users)}"


def folder_note(users: Path | None) -> str:
    """Returns a hint at the user's folder of configurations, to be added to an error."""
    if users is None:
        return ""
    return f"; {users} comes before our own configurations, and --conf DIR names another folder"


def _explain_word(error: BaseException, line: CommandLine) -> str | None:
    """A word that is not in Hydra's grammar."""
    if not isinstance(error, OverrideParseException):
        return None
    if "=" not in (error.override or ""):
        return f"{error.override}: an option is NAME=VALUE, such as data.train=DIR; {_HELP}"
    return (
        f"{error.override}: not understood; a value with spaces, commas, = or brackets needs "
        "quotes: \"key='value'\""
    )


def _explain_name(error: BaseException, line: CommandLine) -> str | None:
    """An option that does not exist."""
    if not isinstance(error, ConfigKeyError | ConfigAttributeError):
        return None
    if not isinstance(error.parent_node, DictConfig):
        return None

    near: list[str] = []
    root = error.parent_node._get_root()
    # a name without its group, such as train= for data.train=
    if error.full_key == error.key and isinstance(root, DictConfig):
        options = cast(dict[Any, Any], OmegaConf.to_container(root))
        near = nested_options(str(error.key), options)
    near = near or get_close_matches(str(error.key), map(str, error.parent_node), 1)

    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    group = str(error.full_key).rpartition(".")[0]
    shows = f"--help {group} shows the options" if group else _HELP
    return f"there is no option {error.full_key}{meant}; {shows}"


def _explain_reference(error: BaseException, line: CommandLine) -> str | None:
    """A value with ${…} that stands for an option that does not exist."""
    if not (isinstance(error, InterpolationKeyError) and isinstance(error.child_node, ValueNode)):
        return None

    names = _REFERENCE.findall(str(error.child_node._value()))
    missing = next((name for name in names if not _is_option(name, error.parent_node)), None)
    if missing is None:
        return None
    return (
        f"{error.full_key}: ${{{missing}}} stands for another option, and there is no {missing}; "
        f"a path with ${{{missing}}} in its name is written \\${{{missing}}}, within single quotes"
    )


def _is_option(name: str, node: Container) -> bool:
    # a name that begins with a dot is relative to the node
    start, absent = node if name.startswith(".") else node._get_root(), object()
    try:
        return OmegaConf.select(start, name, default=absent) is not absent
    except OmegaConfBaseException:
        return True  # it is one, whose own value refers to what is missing


def _explain_group(error: BaseException, line: CommandLine) -> str | None:
    """A group of options that the job does not have, such as model=resnet18 of `preview`."""
    if type(error) is not ConfigCompositionException:
        return None
    try:
        # Hydra clears its state before its error arrives here, so it is initialized once more
        with initialize_config_dir(str(line.users or conf_folder()), version_base="1.3"):
            known = _list_groups(line)
            group = _find_foreign_group(line, known)
    except (HydraException, ValueError):
        return None  # the mistake is in the files
    if group is None:
        return None

    places = sorted(place for place in known if place.split("@")[0] == group.split("@")[0])
    meant = f"; did you mean {' or '.join(places)}?" if places else ""
    return f"there are no options {group}=NAME for this job{meant}; {_HELP}"


def _explain_added_group(error: BaseException, line: CommandLine) -> str | None:
    """A group that the job has already, with a + before it, as many projects write experiments."""
    if type(error) is not ConfigCompositionException:
        return None
    if not (found := _MULTIPLE.match(str(error))):
        return None

    group = found[1]
    word = next((word for word in line.words if word.startswith((f"+{group}=", f"++{group}="))), "")
    return word and f"{word}: this job has {group} already; write {word.lstrip('+')}"


def _find_foreign_group(line: CommandLine, known: Sequence[str]) -> str | None:
    """Returns the first group on the command line that is not a known one."""
    loader = GlobalHydra.instance().config_loader()
    changes = (override for override in line.overrides() if override.type == OverrideType.CHANGE)
    unknown = (change for change in changes if change.get_key_element() not in known)
    groups = (default for default in unknown if loader.get_group_options(default.key_or_group))
    return next((group.get_key_element() for group in groups), None)


def _list_groups(line: CommandLine) -> list[str]:
    """Returns the groups that the job's files choose from, such as transform@eval_transform."""
    loader = GlobalHydra.instance().config_loader()
    known: list[str] = []

    # once more with what the job knows, since an experiment may add groups
    for _ in range(2):
        words = [
            override.input_line or ""
            for override in line.overrides()
            if override.get_key_element() in known
        ]
        defaults = loader.compute_defaults_list(line.job, words, RunMode.RUN)
        known = list(defaults.overrides.known_choices)
    return known


def _explain_same_name(error: BaseException, line: CommandLine) -> str | None:
    """A file on Hydra's own search path with the name of one of our options, which it cannot
    replace there.
    """
    if not (found := _SAME_NAME.search(str(error))):
        return None
    return (
        f"{found[1]}.yaml has the name of a built-in option; give it another name, or name its "
        "folder by --conf, whose files replace ours"
    )


def _explain_choice(error: BaseException, line: CommandLine) -> str | None:
    """A file that a group does not have, such as loader=dalli."""
    if not (isinstance(error, MissingConfigException) and error.options):
        return None

    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if group == "loader" and is_arm(name):
        return _explain_arm(name) + folder_note(line.users)

    # Hydra's plugins bring files of their own, as hydra-optuna-sweeper does
    if group in ("hydra/sweeper", "hydra/launcher"):
        plugin = f"hydra-{name.replace('_', '-')}-{group.removeprefix('hydra/')}"
        return f"there is no {group}={name} here; pip install {plugin}, if that is its plugin"

    # for Hydra the schemas are files of the group as well; nobody chooses one
    known = [option for option in error.options if not option.endswith("schema")]
    meant = f"did you mean {near[0]}? " if (near := get_close_matches(name, known, 1)) else ""
    return (
        f"there is no {group}={name}; {meant}there are {', '.join(known)}{folder_note(line.users)}"
    )


def _explain_arm(name: str) -> str:
    """A loader that only benchmarks have."""
    return (
        f"loader={name} is for benchmarks only, in the group arm: dali-pipes benchmark "
        f"arms=[{name}], with its options under loaders.{name}; a file names "
        f"arm@loaders.{name}: {name}"
    )


def _explain_commas(error: BaseException, line: CommandLine) -> str | None:
    """Values with commas between them, outside a sweep."""
    if type(error) is not ConfigCompositionException or line.sweeps:
        return None

    sweep = ValueType.SIMPLE_CHOICE_SWEEP
    word = next(
        (override.input_line for override in line.overrides() if override.value_type == sweep), None
    )
    if word is None:
        return None
    name, _, values = word.partition("=")
    return (
        f"{word}: a list needs brackets: '{name}=[{values}]'; with -m each value is a run of its "
        "own"
    )


def _explain_value(error: BaseException, line: CommandLine) -> str | None:
    """A value of another kind than the option's."""
    if not (isinstance(error, ValidationError) and error.full_key):
        return None

    option, node = error.full_key, error.child_node
    explains = f"--help {_find_option(error)} explains it"
    if isinstance(node, ListConfig):
        return f"{option}: a list needs brackets: '{option}=[…]'; {explains}"
    if takes := _TAKES.get(type(node)):
        value = "null" if error.value is None else f"'{error.value}'"
        return f"{option} is {value}; it takes {takes}; {explains}"
    return f"{option}: {str(error).splitlines()[0]}; {explains}"


def _find_option(error: ValidationError) -> str:
    """Returns the option that --help explains: for a value in a list or a mapping, all of it."""
    option, parent = str(error.full_key), error.parent_node
    while parent is not None and not is_dataclass(OmegaConf.get_type(parent)):
        option, parent = parent._get_full_key(None), parent._get_parent()
    return option


_EXPLANATIONS: tuple[Callable[[BaseException, CommandLine], str | None], ...] = (
    _explain_word,
    _explain_name,
    _explain_reference,
    _explain_added_group,
    _explain_same_name,
    _explain_group,
    _explain_choice,
    _explain_commas,
    _explain_value,
)
