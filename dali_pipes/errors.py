"""Mistakes of users.

Programs print these errors as one line; anything else is a bug and keeps its traceback. The text
has Python's spelling, and the command line writes the same in its own (cli/spelling.py). So an
error about an option is an `OptionError`, or its `ChoiceError`, and one that proposes an argument
has a `Spelling` of it among its parts.
"""

from dataclasses import dataclass
from types import EllipsisType
from typing import Any, ClassVar, Self


class DaliPipesError(Exception):
    """Base of every error that a user can fix.

    Its text says what is wrong, where, and what to do instead.

    Attributes:
        parts: the text in parts, of which some are a `Spelling`.
        status: the exit status of a program that ends with it.
    """

    # argparse's status for a wrong command line
    status = 2

    def __init__(self, *parts: object):
        super().__init__("".join(map(str, parts)))
        self.parts = parts

    @property
    def summary(self) -> str:
        """The text for a program that has little room for it."""
        return str(self)

    def __reduce__(self) -> Any:
        # To and from other processes. Exception's own would call the class with the finished text
        # alone, which a class with further arguments does not take.
        return type(self)._restore, (self.args, dict(vars(self)))

    @classmethod
    def _restore(cls, texts: tuple[Any, ...], attributes: dict[str, Any]) -> Self:
        error = cls.__new__(cls, *texts)
        vars(error).update(attributes)
        return error


@dataclass(frozen=True, slots=True)
class Spelling:
    """Words in the text of an error that a command line writes in another way than Python does.

    As text they are Python's.
    """

    python: str
    command_line: str

    def __str__(self) -> str:
        return self.python


class ConfigError(DaliPipesError, ValueError):
    """An option, or a combination of options, that cannot work."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A dataclass of options, or one of its options, in the text of an error or a warning.

    As text it is Python's: `TorchConfig`, `TorchConfig.num_workers`, or with a value
    `TorchConfig(num_workers=4)`.
    """

    owner: type
    option: str = ""
    value: Any = ...  # to be set; None is a value

    def __str__(self) -> str:
        if not isinstance(self.value, EllipsisType):
            return f"{self.owner.__name__}({self.option}={self.value!r})"
        return f"{self.owner.__name__}.{self.option}" if self.option else self.owner.__name__


class OptionError(ConfigError):
    """One option of a dataclass that cannot work.

    Attributes:
        owner: the dataclass.
        parts: what is wrong, in parts. The first begins with the option's name; each option to set
            instead is a `Mention`.
    """

    joint: ClassVar[str] = "."  # between the dataclass and what is wrong

    def __init__(self, owner: type, *parts: str | Mention | Spelling):
        super().__init__(f"{owner.__name__}{self.joint}{''.join(map(str, parts))}")
        self.owner, self.parts = owner, parts


class ChoiceError(OptionError):
    """A dataclass of options that was chosen, such as a transform, and does not fit the rest.

    Attributes:
        parts: what is wrong, as a sentence whose subject is the dataclass.
    """

    joint = " "


class NoGpuError(ConfigError):
    """A GPU is needed, and there is none.

    Attributes:
        of_loader: whether the loader's options need it; otherwise it is the device of the batches.
        reason: why PyTorch sees no GPU, in its own words.
    """

    def __init__(self, message: str, of_loader: bool, reason: str):
        super().__init__(message)
        self.of_loader, self.reason = of_loader, reason


class RankError(DaliPipesError):
    """An error on one rank of a run, as another rank reports it.

    Attributes:
        rank: where it was.
        error: what was wrong there.
    """

    def __init__(self, rank: int, error: DaliPipesError):
        super().__init__(f"rank {rank}: {error}")
        self.rank, self.error, self.status = rank, error, error.status


class SmallDataError(ConfigError):
    """There are fewer images than one global batch has, and partial batches are dropped.

    Attributes:
        root, images: the data set, and how many images an epoch of it has.
        batch, ranks: the number of images in a batch of one rank, and of ranks.
    """

    def __init__(self, root: object, images: int, batch: int, ranks: int):
        super().__init__(
            f"{root}: {images} images do not fill one global batch of {batch * ranks} "
            f"({batch} × {ranks} ranks), and last_batch='drop' drops partial ones; use a "
            "smaller batch_size, or last_batch='partial' or 'pad'"
        )
        self.root, self.images, self.batch, self.ranks = root, images, batch, ranks


class ManifestError(DaliPipesError, ValueError):
    """A folder, table or saved manifest that does not describe images."""


class OmissionError(ManifestError):
    """Images or objects that are left out, although `strict` allows none to be."""

    # not 2: nothing is wrong with the command itself
    status = 1


class PreparationError(DaliPipesError, RuntimeError):
    """A folder that cannot be prepared, or an archive that cannot be read."""


class WorkerError(DaliPipesError, RuntimeError):
    """A worker process that was killed."""


class BadSampleError(DaliPipesError, RuntimeError):
    """Image files that failed while a loader was running.

    Attributes:
        bad_samples: (id, path, reason) of each.
    """

    def __init__(self, message: str, bad_samples: list[tuple[int, str, str]]):
        super().__init__(message)
        self.bad_samples = bad_samples

    @property
    def summary(self) -> str:
        """The text for the first of the files alone."""
        if not self.bad_samples:
            return str(self)
        _, path, why = self.bad_samples[0]
        return f"{path}: {why}; fix or remove it (dali-pipes scan verify=full lists all such files)"
