"""`Encoded`: a picture of an item that is still to be decoded."""

import os
from hashlib import blake2b
from typing import Any

from dali_pipes.checks import describe_value
from dali_pipes.data.shards.addresses import is_remote
from dali_pipes.errors import ConfigError
from dali_pipes.plan.transforms import Transform


# no dataclass, since `rebuild` would take one for a container of the item
class Encoded:
    """A picture in an item of a data set, in place of its pixels, which a loader of `load` makes.

    Args:
        source: the path of an image file on this machine, or an encoded image as bytes.
        transform: what is made of it; None: the transform of `load`.
        draws: a name of random numbers. Pictures of an item with the same name have equal ones, so
            that equal transforms give them the same crop, flip and augmentation; such pictures must
            have equal sizes. None: the picture has random numbers of its own.

    Raises:
        ConfigError: an argument is of another kind.
    """

    __slots__ = ("draws", "source", "transform")

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        transform: Transform | None = None,
        draws: str | None = None,
    ):
        if not isinstance(source, (str, bytes)):
            source = _read_source(source)
        # on every item: `isinstance` and no declared checks, which take ten times as long
        if isinstance(source, str):
            if is_remote(source):
                raise ConfigError(
                    f"Encoded({source!r}): it takes a file on this machine; read the object, and "
                    "pass its bytes"
                )
            source = os.path.abspath(source)
        if not isinstance(transform, Transform | None):
            raise ConfigError(
                f"Encoded.transform is {describe_value(transform)}; it takes a transform of "
                "dali_pipes, such as TrainTransform() (transform_from_torch reads torchvision's)"
            )
        if not isinstance(draws, str | None):
            raise ConfigError(
                f"Encoded.draws is {describe_value(draws)}; it takes a name, which pictures with "
                "the same random numbers have in common"
            )
        self.source, self.transform, self.draws = source, transform, draws

    @classmethod
    def of_known(
        cls, source: str | bytes, transform: Transform | None, draws: str | None
    ) -> "Encoded":
        """The same for an absolute path, or bytes, and options that were checked before: in a third
        of the time.
        """
        made = object.__new__(cls)
        made.source, made.transform, made.draws = source, transform, draws
        return made

    @property
    def key(self) -> str:
        """What tells this image from all others: its path, or a hash of its bytes."""
        if isinstance(self.source, str):
            return self.source
        return f"bytes {blake2b(self.source, digest_size=16).hexdigest()}"

    def __repr__(self) -> str:
        source = self.source
        what = repr(source) if isinstance(source, str) else f"{len(source)} bytes"
        return f"Encoded({what})"


def _read_source(source: Any) -> str | bytes:
    if isinstance(source, (bytearray, memoryview)):
        return bytes(source)
    if isinstance(source, os.PathLike) and isinstance(path := os.fspath(source), str):
        return path
    raise ConfigError(
        f"Encoded takes the path of an image file, or an encoded image as bytes, and not "
        f"{describe_value(source)}; decoded pixels are no business of it: return them as they are"
    )
