"""The words of a command line in errors: options of Python in its spelling, and proposals for
options with a wrong name.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf

from dali_pipes.backends.registry import list_backends
from dali_pipes.errors import (
    ChoiceError,
    DaliPipesError,
    Mention,
    NoGpuError,
    OptionError,
    RankError,
    SmallDataError,
    Spelling,
)
from dali_pipes.measure.arms import ARMS
from dali_pipes.plan.sampling import SAMPLINGS
from dali_pipes.plan.transforms import TRANSFORMS


def explain_in_options(error: DaliPipesError, job: str, config: DictConfig) -> str:
    """Returns the error's text, with options as they are written on a command line.

    Args:
        job: the name of the job.
        config: its options.
    """
    if isinstance(error, RankError):
        return f"rank {error.rank}: {explain_in_options(error.error, job, config)}"

    if isinstance(error, OptionError):
        return _name_option(error, config)

    if isinstance(error, NoGpuError) and error.of_loader:
        return (
            "this loader needs a GPU, and PyTorch sees none here; choose loader=dali_cpu "
            "or loader=torch, or check the driver "
            f"(nvidia-smi). PyTorch says: {error.reason}"
        )

    if isinstance(error, SmallDataError):
        ranks = f" on {error.ranks} ranks" if error.ranks > 1 else ""
        return (
            f"{error.root}: {error.images} images do not fill one batch of "
            f"{error.batch}{ranks}, and {job} leaves out what fills "
            "none; set batch_size (with accumulate=1) to "
            f"{max(1, error.images // error.ranks)} at most"
        )

    return _join(error.parts, config)


def _name_option(error: OptionError, config: DictConfig) -> str:
    """Returns the error's text with the full names of options, such as loader.num_threads."""
    problem = _join(error.parts, config)
    if isinstance(error, ChoiceError):
        return f"{spell(Mention(error.owner), config)} {problem}"

    place = _find_place(error.owner, config)
    if place is None:
        return f"{error.owner.__name__}.{problem}"
    of_training = (
        " (its size is transform.size; transform@eval_transform=letterbox "
        "eval_transform.flip=0 takes whole images)"
    )
    return f"{place}{problem}{of_training if place == 'eval_transform.' else ''}"


def _join(parts: Iterable[object], config: DictConfig) -> str:
    return "".join(
        spell(part, config) if isinstance(part, Mention | Spelling) else str(part) for part in parts
    )


def spell(mention: Mention | Spelling, config: DictConfig) -> str:
    """Returns how a command line writes options of Python: loader=dali, loader.num_threads, or
    loader.num_threads=4.
    """
    if isinstance(mention, Spelling):
        return mention.command_line

    place = _find_place(mention.owner, config)
    if place is None:
        return str(mention)
    if mention.option:
        value = "" if mention.value is ... else f"={spell_value(mention.value)}"
        return f"{place}{mention.option}{value}"

    group, name = _choices().get(mention.owner, ("", ""))
    # an arm, or another node that was not chosen by its group's name alone
    return f"{group}={name}" if place == f"{group}." else place.removesuffix(".")


def spell_mentions(record: logging.LogRecord) -> bool:
    """Has a warning name options as a command line does; a filter of `logging`."""
    if isinstance(record.args, tuple):
        # a warning does not know the options of the job: it names what any command line would take
        none = OmegaConf.create({})
        record.args = tuple(
            spell(value, none) if isinstance(value, Mention | Spelling) else value
            for value in record.args
        )
    return True


def spell_value(value: Any) -> str:
    """Returns a value as it is written in an override."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {spell_value(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(spell_value, value))}]"
    return str(value)


def _choices() -> dict[type, tuple[str, str]]:
    """Returns the group and the name by which a command line chooses a class of options."""
    return {
        **{transform: ("transform", name) for name, transform in TRANSFORMS.items()},
        **{sampling: ("sampling", name) for name, sampling in SAMPLINGS.items()},
        **{config: ("loader", name) for name, config in list_backends().items()},
        **{arm.config: ("arm", arm.config.name) for arm in ARMS},
    }


def _find_place(owner: type, config: DictConfig) -> str | None:
    """Returns what comes before the names of these options, such as "loader."; None if they have no
    place on a command line.
    """
    # several nodes may have this class, as transform and eval_transform: first those that fail
    nodes = [("", config), *_find_groups(config)]
    places = [(place, node) for place, node in nodes if OmegaConf.get_type(node) is owner]
    places.sort(key=lambda place: not _fails(place[1]))
    if places:
        return places[0][0]
    group, _ = _choices().get(owner, ("", ""))
    return f"{group}." if group else None


def _find_groups(config: DictConfig, prefix: str = "") -> Iterator[tuple[str, DictConfig]]:
    """Yields the groups of options, each with what comes before its options' names."""
    for name in config:
        node = config._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none():
            place = f"{prefix}{name!s}."
            yield place, node
            yield from _find_groups(node, place)


def _fails(config: DictConfig) -> bool:
    """Returns whether these options cannot work."""
    try:
        OmegaConf.to_object(config)
    except DaliPipesError:
        return True
    return False


def nested_options(name: str, config: Mapping[Any, Any]) -> list[str]:
    """Returns the full names of the options with this name, such as data.train for train; else the
    one that another loader has.
    """
    if places := list(dict.fromkeys(_find_places(name, config))):
        return places

    others = [
        loader
        for loader, config in list_backends().items()
        if name in [field.name for field in fields(config)]
    ]
    return [f"loader.{name} of loader={others[0]}"] if others and "loader" in config else []


def _find_places(name: str, config: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    for option, value in config.items():
        # there are many arms, most with the same options
        option = "ARM" if prefix == "loaders." else option
        if prefix and str(option) == name:
            yield f"{prefix}{option}"
        if isinstance(value, Mapping):
            yield from _find_places(name, value, f"{prefix}{option}.")
