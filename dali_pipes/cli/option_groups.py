"""The options of a job in groups, with their texts and defaults, as --help shows them.

The text of an option is in the docstring of its schema, that of a file is the comment with which it
begins, that of a named option is beside it (named_options.py), and a default is the value that the
command line gives.
"""

import inspect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, cast

from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigSource
from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dali_pipes.cli.named_options import NAMED_OPTIONS
from dali_pipes.cli.spelling import spell_value

_ATTRIBUTE = re.compile(r" {4}(\w[\w, ]*): (.*)")  # the line of a docstring that begins with names
_SEVERAL = "Sets several options at once."  # of files that no schema describes


@dataclass(frozen=True)
class OptionsOfOneText:
    """Options that share a text: mostly a single one.

    Attributes:
        defaults: their values by their full names, as on a command line.
    """

    text: str
    defaults: Mapping[str, str]


@dataclass(frozen=True)
class Choice:
    """What a command line takes from a group: a file of conf/ or a named option.

    Attributes:
        key: what it writes before =, such as transform@eval_transform.
        name: its name, or null.
        others: the names of what else the group has.
        texts: what is said of these, by their names.
    """

    key: str
    name: str
    others: tuple[str, ...]
    texts: Mapping[str, str]


@dataclass(frozen=True)
class Group:
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
    choice: Choice | None
    options: tuple[OptionsOfOneText, ...] = ()
    members: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        if self.choice:
            return f"{self.choice.key}={self.choice.name}"
        return f"{self.name}.NAME" if self.members else self.name


def find_groups(config: DictConfig) -> Iterator[Group]:
    """Yields the job's own options, the groups of options, and then those that have only files."""
    choices = _find_choices(config)
    # what the job says of its groups
    texts = {name: text for names, text in _read_docstring(config) for name in names}

    nodes = dict(_find_nodes(config))
    nodes |= {name: None for name in choices if name not in nodes}
    for name, node in nodes.items():
        yield _make_group(name, node, nodes, choices.get(name), texts.get(name, ""))


def _find_choices(config: DictConfig) -> dict[str, Choice]:
    """Returns the files that the options are from, by the places that they have in the options."""
    chosen = {
        key: name or "null"
        for key, name in config.hydra.runtime.choices.items()
        if not key.startswith("hydra/")
    }
    sources = GlobalHydra.instance().config_loader().get_sources()
    choices = {}
    # Hydra has the opposite of the order in which the job names them
    for key, name in reversed(chosen.items()):
        group, _, place = key.partition("@")
        # nobody chooses a schema
        names = {
            each
            for source in sources
            if source.available() and source.is_group(group)
            for each in source.list(group, ObjectType.CONFIG)
        }
        others = sorted(each for each in names - {name} if not each.endswith("schema"))
        texts = _read_texts(sources, group, others)
        choices[place or group] = Choice(key, name, tuple(others), texts)
    return choices


def _read_texts(
    sources: Sequence[ConfigSource], group: str, names: Sequence[str]
) -> dict[str, str]:
    """Returns what is said of options of a group: the comment with which a file begins, or the text
    of a named option.
    """
    folders, texts = [Path(source.path) for source in sources if source.scheme() == "file"], {}
    for name in names:
        # as Hydra takes them: from the first source that has the file
        files = (folder / group / f"{name}.yaml" for folder in folders)
        if file := next((file for file in files if file.is_file()), None):
            lines = [line for line in file.read_text().splitlines() if "@package" not in line]
            comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
            texts[name] = " ".join(line.removeprefix("#").strip() for line in comment)
        elif option := NAMED_OPTIONS.get(group, {}).get(name):
            texts[name] = option.text
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
    choice: Choice | None,
    text_of_job: str,
) -> Group:
    """Returns the group of a node.

    Args:
        nodes: those of all groups.
        text_of_job: what the job says of the group; "": nothing.
    """
    # an experiment has options of all groups, and a null none
    if node is None:
        return Group(name, text_of_job or _SEVERAL, choice)

    schema = OmegaConf.get_type(node)
    if not is_dataclass(schema):
        inside = (f"{name}.{member}" for member in map(str, node))
        members = tuple(member for member in inside if member in nodes)
        return Group(name, text_of_job, choice, members=members)

    summary = " ".join((inspect.getdoc(schema) or "").split("\n\n")[0].split())
    text = f"{text_of_job.rstrip('.')}. {summary}" if text_of_job else summary

    options = []
    for names, words in _read_docstring(node):
        full = {f"{name}.{each}".lstrip("."): each for each in names}
        defaults = {each: _spell_default(node, full[each]) for each in full if each not in nodes}
        options += [OptionsOfOneText(words, defaults)] if defaults else []
    return Group(name, text, choice, tuple(options))


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
