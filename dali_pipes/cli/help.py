"""The text of --help: a job and its options in short, or one group of options in full.

    config ─▶ groups, each with its options ─▶ a line for each, or all about what is asked for

All texts are the docstrings of the schemas, and all defaults are those of the command line.
"""

import inspect
import itertools
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from hydra.core.global_hydra import GlobalHydra
from hydra.plugins.config_source import ConfigSource
from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dali_pipes.cli.spelling import spell_value
from dali_pipes.errors import ConfigError

ALL, OWN = "all", "options"  # what --help takes besides names: everything, the job's own options
# what is set most often: --help of a job begins with those that the job has
OFTEN = (
    *("data.root", "data.train", "data.val", "arms", "workload", "to", "resize", "quality"),
    *("epochs", "batch_size", "precision", "transform.size", "optimizer.lr"),
    *("loader.num_threads", "loader.num_workers", "pairs", "minutes", "verify", "resume"),
    *("seed", "out"),
)
_FEW = 14  # a job's own options up to which all of them come first
_NARROWEST, _WIDEST = 60, 100  # columns of the text
_LEFT = 26  # columns of a name and its default, where a line explains it
_ATTRIBUTE = re.compile(r" {4}(\w[\w, ]*): (.*)")  # the line of a docstring that begins with names
_COMMANDS = ("dali-pipes ", "torchrun ")  # how the lines of examples begin
_GROUPS = "Groups: GROUP=NAME takes another one, GROUP.OPTION=VALUE sets an option in it:"
_SEVERAL = "Sets several options at once."  # of files that no schema describes
_NOTES = (
    f"--help GROUP and --help OPTION show the full text, such as --help data; --help {OWN} that of "
    f"the job's own options, --help {ALL} that of everything. A value null means: not set.",
    "Files in --conf DIR, or in conf/ of the working directory, come before ours of the same name.",
    "-m sweeps over options given as a,b,c; --cfg job prints all options as the command line has "
    "them; --hydra-help explains more.",
)


@dataclass(frozen=True)
class _Options:
    """Options that share a text: mostly a single one.

    Attributes:
        defaults: their values by their full names, as on a command line.
    """

    text: str
    defaults: Mapping[str, str]


@dataclass(frozen=True)
class _Choice:
    """The file of options that a command line takes from a group.

    Attributes:
        key: what it writes before =, such as transform@eval_transform.
        name: the name of the file, or null.
        others: the names of the group's other files.
        texts: the comments with which the files begin, by their names.
    """

    key: str
    name: str
    others: tuple[str, ...]
    texts: Mapping[str, str]


@dataclass(frozen=True)
class _Group:
    """Options whose full names begin alike.

    Attributes:
        name: the beginning, such as data.targets; "": the job's own options.
        text: what the group is.
        options: none if a group has only files, as experiment has, or none is chosen.
        choice: the file that the options are from; None: they are from none.
        members: the names of groups, if there are only groups in it, as in loaders of benchmark.
    """

    name: str
    text: str
    choice: _Choice | None
    options: tuple[_Options, ...] = ()
    members: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        if self.choice:
            return f"{self.choice.key}={self.choice.name}"
        return f"{self.name}.NAME" if self.members else self.name


def find_topic(words: Sequence[str]) -> tuple[str, list[str]]:
    """Returns what --help is to explain, and the words as Hydra takes them.

    In `--help optimizer` the second word is no option, and in `--help loader=torch` it is both.
    """
    others = list(words)
    place = next((place for place, word in enumerate(words) if word in ("-h", "--help")), None)
    if place is None:
        return "", others
    topic = next(iter(words[place + 1 :]), "")
    # another flag, or Hydra's way to leave an option out
    if topic.startswith(("-", "~")):
        return "", others
    if topic and "=" not in topic:
        del others[place + 1]
    return topic, others


def help_text(words: str, config: DictConfig, topic: str = "", width: int | None = None) -> str:
    """Returns the text of --help, in which Python's None is null, as on a command line.

    Hydra reads it as a template, in which a dollar must be written twice.

    Args:
        words: what the job does, and examples.
        config: the job's options, as the command line has them.
        topic: what follows --help: the name of a group or an option, or GROUP=NAME.
        width: columns of the text; None: as many as the terminal has, up to 100.

    Raises:
        ConfigError: there is no such group or option.
    """
    columns = shutil.get_terminal_size((_WIDEST, 0)).columns
    width = width or max(_NARROWEST, min(_WIDEST, columns))

    groups = list(_find_groups(config))
    name, _, choice = topic.partition("=")
    if choice and name not in [group.name for group in groups if group.options]:
        name = ""  # any option, which does not say what to explain

    if name == ALL:
        parts = [_fill_words(words, width), *(_explain(group, width) for group in groups)]
    elif name:
        parts = [_explain_topic(name, groups, width)]
    else:
        parts = [_fill_words(words, width), *_summarize(groups, width)]
    text = "\n\n".join(part.rstrip() for part in parts)
    return re.sub(r"\bNone\b", "null", text).replace("$", "$$")


def _explain_topic(name: str, groups: list[_Group], width: int) -> str:
    """Returns all about the group or the option of this name."""
    for group in groups:
        if name == (group.name or OWN) or (group.choice and name == group.choice.key):
            inside = [each.name for each in groups if each.name.startswith(f"{group.name}.")]
            hints = [f"  {each}: --help {each}" for each in inside if each not in group.members]
            return "\n".join([_explain(group, width), *hints])
    for options in (options for group in groups for options in group.options):
        if name in options.defaults:
            return _explain_options(options, width)

    names = [
        *(group.name for group in groups),
        *(option for group in groups for options in group.options for option in options.defaults),
    ]
    # a name without its group, such as lr for optimizer.lr, or else one that looks like it
    near = [each for each in names if each.endswith(f".{name}")][:3]
    near = near or get_close_matches(name, [*names, OWN, ALL], 1)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ConfigError(
        f"--help {name}: no group and no option has this name{meant}; --help lists them"
    )


def _summarize(groups: list[_Group], width: int) -> Iterator[str]:
    """Yields the options that are set most, the groups, and the job's other options, in lines."""
    lines = {
        name: _line(f"{name}={default}", options.text, width)
        for group in groups
        for options in group.options
        for name, default in options.defaults.items()
    }
    own = [name for options in groups[0].options for name in options.defaults]
    often = [name for name in OFTEN if name in lines]
    title = "Set most often, with defaults:"
    if len(own) <= _FEW:
        often = [*(name for name in often if name not in own), *own]
        title = "Options, with defaults:"
    yield "\n".join([title, *map(lines.__getitem__, often)])

    members = {name for group in groups for name in group.members}
    blocks = [
        "\n".join([_line(group.title, group.text, width), *_list_choices(group, width)])
        for group in groups[1:]
        if group.name not in members
    ]
    if blocks:
        yield "\n".join([_GROUPS, *blocks])

    rest = [lines[name] for name in own if name not in often]
    if rest:
        yield "\n".join(["Other options, with defaults:", *rest])
    yield "\n".join(_fill(note, width) for note in _NOTES)


def _line(left: str, text: str, width: int) -> str:
    """Returns one line: what is set, and as much of its text as there is room for."""
    shown = left if len(left) <= width // 2 else f"{left[: width // 2]}…"
    line = f"  {shown:<{_LEFT}}  "
    room = width - len(line)
    if len(text) <= room:
        return (line + text).rstrip()

    # whole clauses, unless they leave most of the line empty
    ends = [end.start() for end in re.finditer(r"(?<=[;.]) ", text) if end.start() + 2 <= room]
    if ends and ends[-1] > room // 2:
        return f"{line}{text[: ends[-1]]} …"
    return line + textwrap.shorten(text, room, placeholder=" …")


def _explain(group: _Group, width: int) -> str:
    """Returns all about a group."""
    head = f"{group.title}: {group.text}" if group.text else f"{group.title}:"
    lines = [_fill(head, width), *_explain_choices(group, width), ""]
    return "\n".join([*lines, *(_explain_options(options, width) for options in group.options)])


def _list_choices(group: _Group, width: int) -> list[str]:
    if group.choice and group.choice.others:
        return [_fill(f"or {', '.join(group.choice.others)}", width, 4)]
    return [_fill(", ".join(group.members), width, 4)] if group.members else []


def _explain_choices(group: _Group, width: int) -> list[str]:
    """Returns what each file of a group is, if all of them say it."""
    choice = group.choice
    if not choice or len(choice.texts) < len(choice.others):
        return _list_choices(group, width)
    return [
        textwrap.fill(
            choice.texts[name],
            width,
            initial_indent=f"  {f'or {name}':<{_LEFT}}  ",
            subsequent_indent=" " * (_LEFT + 4),
            break_on_hyphens=False,
        )
        for name in choice.others
    ]


def _explain_options(options: _Options, width: int) -> str:
    """Returns the options of one text with their defaults, and the text."""
    heads = [f"  {name}={default}" for name, default in options.defaults.items()]
    return "\n".join([*heads, _fill(options.text, width, 6)])


def _fill(text: str, width: int, indent: int = 0) -> str:
    first, other = " " * indent, " " * (indent or 4)
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=other,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _fill_words(words: str, width: int) -> str:
    """Returns the words of a job, with its examples as they stand."""
    paragraphs = inspect.cleandoc(words).split("\n\n")
    return "\n\n".join(
        paragraph
        if paragraph.startswith(_COMMANDS)
        else textwrap.fill(paragraph, width, break_on_hyphens=False)
        for paragraph in paragraphs
    )


def _find_groups(config: DictConfig) -> Iterator[_Group]:
    """Yields the job's own options, the groups of options, and then those that have only files."""
    choices = _find_choices(config)
    # what the job says of its groups
    texts = {name: text for names, text in _read_docstring(config) for name in names}

    nodes = dict(_find_nodes(config))
    nodes |= {name: None for name in choices if name not in nodes}
    for name, node in nodes.items():
        yield _make_group(name, node, nodes, choices.get(name), texts.get(name, ""))


def _find_choices(config: DictConfig) -> dict[str, _Choice]:
    """Returns the files that the options are from, by the places that they have in the options."""
    chosen = {
        key: name or "null"
        for key, name in config.hydra.runtime.choices.items()
        if not key.startswith("hydra/")
    }
    # once for each group: every call copies all that Hydra has read
    loader = GlobalHydra.instance().config_loader()
    list_files = loader.get_group_options
    files = {group: list_files(group) for group in {key.partition("@")[0] for key in chosen}}

    choices = {}
    # Hydra has the opposite of the order in which the job names them
    for key, name in reversed(chosen.items()):
        group, _, place = key.partition("@")
        # nobody chooses a schema
        others = [each for each in files[group] if not each.endswith("schema") and each != name]
        texts = _read_comments(loader.get_sources(), group, others)
        choices[place or group] = _Choice(key, name, tuple(others), texts)
    return choices


def _read_comments(
    sources: Sequence[ConfigSource], group: str, names: Sequence[str]
) -> dict[str, str]:
    """Returns the comments with which files of a group begin, of those that begin with one."""
    folders, texts = [Path(source.path) for source in sources if source.scheme() == "file"], {}
    for name in names:
        # as Hydra takes them: from the first source that has the file
        files = (folder / group / f"{name}.yaml" for folder in folders)
        if file := next((file for file in files if file.is_file()), None):
            lines = [line for line in file.read_text().splitlines() if "@package" not in line]
            comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
            texts[name] = " ".join(line.removeprefix("#").strip() for line in comment)
    return {name: text for name, text in texts.items() if text}


def _find_nodes(config: DictConfig, name: str = "") -> Iterator[tuple[str, DictConfig | None]]:
    """Yields the nodes that are groups by their names: those of a schema, and mappings of those."""
    if config._is_none() or config._is_interpolation():
        return
    inner = [
        found
        for key in map(str, config)
        if isinstance(child := config._get_node(key), DictConfig) and key != "hydra"
        for found in _find_nodes(child, f"{name}.{key}".lstrip("."))
    ]
    if inner or is_dataclass(OmegaConf.get_type(config)):
        yield name, config
    yield from inner


def _make_group(
    name: str,
    node: DictConfig | None,
    nodes: Mapping[str, DictConfig | None],
    choice: _Choice | None,
    text_of_job: str,
) -> _Group:
    """Returns the group of a node.

    Args:
        nodes: those of all groups.
        text_of_job: what the job says of the group; "": nothing.
    """
    # an experiment has options of all groups, and a null none
    if node is None:
        return _Group(name, text_of_job or _SEVERAL, choice)

    schema = OmegaConf.get_type(node)
    if not is_dataclass(schema):
        inside = (f"{name}.{member}" for member in map(str, node))
        members = tuple(member for member in inside if member in nodes)
        return _Group(name, text_of_job, choice, members=members)

    summary = " ".join((inspect.getdoc(schema) or "").split("\n\n")[0].split())
    text = f"{text_of_job.rstrip('.')}. {summary}" if text_of_job else summary

    options = []
    for names, words in _read_docstring(node):
        full = {f"{name}.{each}".lstrip("."): each for each in names}
        defaults = {each: _spell_default(node, full[each]) for each in full if each not in nodes}
        options += [_Options(words, defaults)] if defaults else []
    return _Group(name, text, choice, tuple(options))


def _read_docstring(node: DictConfig) -> Iterator[tuple[list[str], str]]:
    """Yields names of options and their text: those of a schema, and then of its bases."""
    left = [name for name in map(str, node) if not _is_filled_in(node, name)]
    for schema in (OmegaConf.get_type(node) or dict).mro():
        lines = inspect.cleandoc(vars(schema).get("__doc__") or "").partition("Attributes:\n")[2]

        entries: list[list[str]] = []
        for line in lines.splitlines():
            if entry := _ATTRIBUTE.fullmatch(line):
                entries.append([entry[1], entry[2]])
            elif line.strip():
                entries[-1][1] += f" {line.strip()}"

        for names, text in entries:
            # a base may explain an option again
            known = [name for name in names.split(", ") if name in left]
            left = [name for name in left if name not in known]
            if known:
                yield known, text


def _is_filled_in(node: DictConfig, name: str) -> bool:
    """Returns whether a file of ours fills in what only Hydra knows: nobody sets that."""
    return str(_read_unresolved(node, name)).startswith("${hydra:")


def _read_unresolved(node: DictConfig, name: str) -> Any:
    return cast(Node, node._get_node(name))._value()


def _spell_default(node: DictConfig, name: str) -> str:
    try:
        value: Any = node[name]
    except OmegaConfBaseException:
        # it stands for an option that there is not
        value = _read_unresolved(node, name)
    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=True)
    # without spaces a shell needs no quotes
    return spell_value(value).replace(", ", ",")
