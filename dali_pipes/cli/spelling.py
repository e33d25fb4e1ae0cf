"""The words of a command line in errors: options of Python in its spelling, and proposals for
options with a wrong name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf

from dali_pipes.backends.registry import list_backends
from dali_pipes.errors import DaliPipesError, NoGpuError, OptionError, SmallDataError


def explain_in_options(error: DaliPipesError, job: str, config: DictConfig) -> str:
    """Returns the error's text, with options as they are written on a command line.

    Args:
        job: the name of the job.
        config: its options.
    """
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

    return str(error)


def _name_option(error: OptionError, config: DictConfig) -> str:
    """Returns the error's text with the full name of the option, such as loader.num_threads."""
    # several nodes may have this class, as transform and eval_transform: first those that fail
    nodes = [("", config), *_find_groups(config)]
    places = [(place, node) for place, node in nodes if OmegaConf.get_type(node) is error.owner]
    places.sort(key=lambda each: not _fails(each[1]))
    if not places:
        return str(error)

    place = places[0][0]
    of_training = (
        " (its size is transform.size; transform@eval_transform=letterbox "
        "eval_transform.flip=0 takes whole images)"
    )
    return f"{place}{error.problem}{of_training if place == 'eval_transform.' else ''}"


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
    if found := list(dict.fromkeys(_find_places(name, config))):
        return found

    others = [
        each
        for each, entry in list_backends().items()
        if name in [field.name for field in fields(entry.config)]
    ]
    return [f"loader.{name} of loader={others[0]}"] if others and "loader" in config else []


def _find_places(name: str, config: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    for each, value in config.items():
        each = "ARM" if prefix == "loaders." else each  # there are many, most with the same options
        if prefix and str(each) == name:
            yield f"{prefix}{each}"
        if isinstance(value, Mapping):
            yield from _find_places(name, value, f"{prefix}{each}.")
