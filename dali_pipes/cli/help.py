"""The text of --help: a job's words, and then every option, from the docstrings of the schemas."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass

from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf


def help_text(words: str, config: DictConfig) -> str:
    """Returns the text of --help: the job's words, its options, and the files of each group.

    Hydra reads it as a template, in which a dollar must be written twice. Python's None is null on
    a command line.
    """
    parts = [words, *_sections("", config), _choices(config)]
    text = "\n\n".join(part.strip() for part in parts)
    return re.sub(r"\bNone\b", "null", text).replace("$", "$$")


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
        inspect.cleandoc(vars(base).get("__doc__") or "").partition("Attributes:\n")[2]
        for base in schema.mro()
    ]
    return "\n".join(text.rstrip() for text in texts if text)


def _choices(config: DictConfig) -> str:
    """Returns a line for each group of options, with the names of its files."""
    choices = config.hydra.runtime.choices
    # transform@eval_transform is a second choice from the group transform
    groups = {choice.split("@")[0] for choice in choices if not choice.startswith("hydra/")}

    names = GlobalHydra.instance().config_loader().get_group_options
    lines = (
        f"    {group}: {', '.join(name for name in names(group) if not name.endswith('schema'))}"
        for group in sorted(groups)
    )
    return "\n".join(["Groups of options, chosen by GROUP=NAME:", *lines])
