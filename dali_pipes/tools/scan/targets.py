"""Targets as the command line names them: text=.txt, boxes=boxes, keypoint_names=[nose,tail]."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from dali_pipes.data.objects import Targets
from dali_pipes.errors import ConfigError


def read_targets(given: Iterable[str]) -> Targets:
    """Raises ConfigError if one has no such name, or no value that can be read."""
    from omegaconf import OmegaConf

    names = [each.name for each in fields(Targets)]
    values: dict[Any, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in names or not value:
            raise ConfigError(f"--target {text}: it takes NAME=VALUE, such as text=.txt; the names are {', '.join(names)}")
        try:
            values |= dict(OmegaConf.to_container(OmegaConf.from_dotlist([text])))  # type: ignore[arg-type]
        except Exception as error:  # of YAML
            raise ConfigError(f"--target {text}: its value cannot be read ({' '.join(str(error).split())})") from None
    return Targets(**values)
