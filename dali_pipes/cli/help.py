"""What --help says: the job's own words, and those of every option that has any, from the schema that the option is typed by."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass

from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf


def explained(words: str, config: DictConfig) -> str:
    """Hydra takes it for a template, where a dollar must be written twice. What Python calls None is null on a command line."""
    parts = [words, *_sections("", config), _groups(config)]
    return re.sub(r"\bNone\b", "null", "\n\n".join(part.strip() for part in parts)).replace("$", "$$")


def _sections(prefix: str, config: DictConfig) -> Iterator[str]:
    schema = OmegaConf.get_type(config) or dict
    if attributes := _attributes(schema):
        yield f"{prefix}: {_summary(schema)}\n{attributes}" if prefix else f"Options:\n{attributes}"
    for name in map(str, config):
        child = config._get_node(name)
        if isinstance(child, DictConfig) and is_dataclass(OmegaConf.get_type(child)):
            yield from _sections(f"{prefix}.{name}".lstrip("."), child)


def _summary(schema: type) -> str:
    return (inspect.getdoc(schema) or "").split("\n\n")[0].replace("\n", " ")


def _attributes(schema: type) -> str:
    """The lines under "Attributes:" of a class and its bases, its own first."""
    texts = [inspect.cleandoc(vars(each).get("__doc__") or "").partition("Attributes:\n")[2] for each in schema.mro()]
    return "\n".join(text.rstrip() for text in texts if text)


def _groups(config: DictConfig) -> str:
    groups = sorted({choice.split("@")[0] for choice in config.hydra.runtime.choices if not choice.startswith("hydra/")})
    names = GlobalHydra.instance().config_loader().get_group_options
    lines = (f"    {group}: {', '.join(name for name in names(group) if not name.endswith('schema'))}" for group in groups)
    return "\n".join(["Groups of options, chosen by GROUP=NAME:", *lines])
