"""Errors that users cause, and the option checks that raise them. Programs print these as one line; anything else is a bug and
keeps its traceback."""

from collections.abc import Callable, Sequence
from dataclasses import field, fields
from typing import Any


class DaliPipesError(Exception):
    """Base of every error that a user can fix; its text names the thing, what breaks, and what to do instead.

    Attributes:
        status: what a program ends with.
    """

    status = 2

    @property
    def summary(self) -> str:
        """What a program prints where there is little room."""
        return str(self)


class ConfigError(DaliPipesError, ValueError):
    """An option, or a combination of options, that cannot work."""


class OptionError(ConfigError):
    """One option that cannot work, of a dataclass of options.

    Attributes:
        owner: that class.
        problem: begins with the option's name.
    """

    def __init__(self, owner: type, problem: str):
        super().__init__(f"{owner.__name__}.{problem}")
        self.owner, self.problem = owner, problem


class ManifestError(DaliPipesError, ValueError):
    """A folder, table or saved manifest that does not describe images."""


class OmissionError(ManifestError):
    """Images or objects that are left out, where `strict` allows none to be."""

    status = 1


class PreparationError(DaliPipesError, RuntimeError):
    """A folder that cannot be prepared, or an archive that cannot be read."""


class WorkerError(DaliPipesError, RuntimeError):
    """A worker process that was killed."""


class BadSampleError(DaliPipesError, RuntimeError):
    """Image files that failed while a loader was running. `bad_samples` lists (id, path, reason)."""

    def __init__(self, message: str, bad_samples: list[tuple[int, str, str]]):
        super().__init__(message)
        self.bad_samples = bad_samples

    @property
    def summary(self) -> str:
        """The first of the files alone."""
        if not self.bad_samples:
            return str(self)
        _, path, why = self.bad_samples[0]
        return f"{path}: {why}; fix or remove it (dali-pipes scan verify=full lists all such files)"


def option(default: Any, check: Callable[..., Any], *bounds: Any) -> Any:
    """A field of a dataclass of options, which `check_options` checks."""
    return field(default=default, metadata={"check": (check, bounds)})


def check_options(options: Any) -> None:
    """Calls `check(name, value, *bounds)` of every field made by `option`; what it returns, unless None, becomes the value.

    Raises:
        OptionError: a value that cannot work.
    """
    for each in fields(options):
        if "check" in each.metadata:
            check, bounds = each.metadata["check"]
            try:
                converted = check(each.name, getattr(options, each.name), *bounds)
            except ConfigError as error:
                raise OptionError(type(options), str(error)) from None
            if converted is not None:
                setattr(options, each.name, converted)


def check_choice(option: str, value: object, choices: Sequence[str | None]) -> None:
    if value not in choices:
        raise ConfigError(f"{option} is {value!r}; choose one of {', '.join(each for each in choices if each)}")


def check_min(option: str, value: float | None, least: float) -> None:
    if value is not None and value < least:
        raise ConfigError(f"{option} is {value}; it must be at least {least}")


def check_int(option: str, value: object, least: int, most: int | None = None) -> None:
    """Checks for an int; True and 3.0 are not ints."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        raise ConfigError(f"{option} is {value!r}; it takes whole numbers from {least} {'on' if most is None else f'to {most}'}")


def check_number(option: str, value: object, low: float, high: float) -> None:
    """Checks for a finite number, not text."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{option} is {value!r}; it takes numbers from {low:g} to {high:g}")


def check_ordered_pair(option: str, pair: object) -> tuple[float, float]:
    """Two positive numbers as a tuple, the smaller first; YAML has lists only."""
    if not isinstance(pair, Sequence) or len(pair) != 2 or not all(isinstance(each, (int, float)) for each in pair):
        raise ConfigError(f"{option} is {pair!r}; it takes two positive numbers, the smaller first")
    if not 0 < pair[0] <= pair[1] < float("inf"):
        raise ConfigError(f"{option} is {list(pair)}; it takes two positive numbers, the smaller first")
    return pair[0], pair[1]


def check_range(option: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{option} is {value}; it must lie between {low} and {high}")


def check_if_given(option: str, value: object, check: Callable[..., Any], *bounds: Any) -> Any:
    """Another check, of an option that may be None."""
    return None if value is None else check(option, value, *bounds)
