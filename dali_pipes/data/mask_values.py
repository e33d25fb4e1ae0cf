"""The meaning of the values in masks: class numbers, or pixels that are ignored.

`MaskValues` replaces values when a mask is decoded; `check_masks` reads some masks of a manifest
and reports values that mean nothing.
"""

import os
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import to_python
from dali_pipes.data.image_files.stored import open_stored
from dali_pipes.data.omissions import add_detail
from dali_pipes.data.reader import Extent, Reader
from dali_pipes.data.shards.addresses import is_remote
from dali_pipes.data.shards.remote import read_object
from dali_pipes.errors import ConfigError, ManifestError
from dali_pipes.system.cpus import available_cpus

IGNORED = 255  # the default of `transform.ignore_index`
SAMPLED_MASKS = 32  # masks of a manifest that are read, unless all are verified
_SHOWN = 5  # values in a message
_HIGHEST = 2**31

Values = NDArray[Any]


class MaskValues(NamedTuple):
    """What the values of a manifest's masks mean.

    Attributes:
        replacements: what a value is replaced by, such as {255: 1}.
        named: whether the manifest's classes are those of the masks.
    """

    replacements: dict[int, int]
    named: bool

    @classmethod
    def read(cls, stored: Any) -> Self:
        """Reads what a file says of the values of masks.

        None, where it says nothing, gives values that mean themselves.

        Raises:
            ManifestError: they are no numbers.
        """
        if stored is None:
            return cls({}, False)
        try:
            pairs, named = stored
            replacements = dict(pairs)
        except (TypeError, ValueError):
            replacements, named = {None: None}, None

        if not is_mapping(replacements) or type(named) is not bool:
            raise ManifestError(
                "the manifest's values of masks are no numbers; scan the images again"
            )
        return cls(replacements, named)

    def stored(self) -> list[Any]:
        return [list(map(list, self.replacements.items())), self.named]

    def renumber(self, numbers: NDArray[np.int64]) -> Self:
        """The meaning after the classes got other numbers: n becomes numbers[n]."""
        if not self.named:
            return self

        # a value that nothing replaces is a class number itself
        now = {number: number for number in range(len(numbers))} | self.replacements
        new = {
            # a number that is no class, such as 255, stays
            value: int(numbers[number]) if number < len(numbers) else number
            for value, number in now.items()
        }

        return self._replace(
            replacements={
                value: new[value]
                for value in new
                if value in self.replacements or value != new[value]
            }
        )

    def decode(self, encoded: BytesIO) -> Values:
        """Decodes a mask into (H, W) uint8 or int32 and replaces its values.

        Args:
            encoded: a mask that `mask_problem` finds nothing wrong with.
        """
        values = np.asarray(open_stored(encoded))
        values = values if values.dtype == np.uint8 else values.astype(np.int32)

        if not self.replacements:
            return values

        # one look-up for all pixels, where 8 bits hold all numbers
        if values.dtype == np.uint8 and all(
            0 <= number < 256 for number in self.replacements.values()
        ):
            table = np.arange(256, dtype=np.uint8)
            for value, number in self.replacements.items():
                # a value over 255 is an empty slice and changes nothing
                table[value : value + 1] = number
            return table[values]

        # the stored values are compared, so that what was replaced is not replaced again
        made = values.astype(np.int32)
        for value, number in self.replacements.items():
            made[values == value] = number
        return made

    def problem_of(self, values: Values, classes: int, ignored: Collection[int]) -> str | None:
        """Says what is wrong with a mask's values, if the classes are the masks'; None: nothing."""
        if not self.named or (values.max(initial=0) < classes and values.min(initial=0) >= 0):
            return None

        strange = [
            value
            for value in _distinct_values(values)
            if not 0 <= value < classes and value not in ignored
        ]
        if not strange:
            return None

        instead = IGNORED if IGNORED in ignored else next(iter(ignored))
        return f"its values include {_some(strange)}; {self.advice(strange[0], classes, instead)}"

    def advice(self, value: int, classes: int, ignored: int) -> str:
        numbers = (
            f"the {classes} classes are numbered from 0, so classes has to name each, the "
            "background too if it is one"
        )
        last = classes - 1
        return (
            f"{numbers}; or mask_values={{{value}: {last}}} joins {value} to class {last}, "
            f"{{{value}: {ignored}}} has it ignored"
        )


def is_mapping(replacements: object) -> bool:
    """Whether this is a dict from whole numbers to whole numbers that a mask may have."""
    if not isinstance(replacements, dict):
        return False
    return all(
        type(value) is int and 0 <= value < _HIGHEST
        for pair in replacements.items()
        for value in pair
    )


def check_mask_values(option: str, value: Any) -> dict[int, int]:
    """Checks for a mapping of whole numbers to whole numbers, and returns it as a dict.

    YAML may have the keys as text.
    """
    try:
        replacements = {
            int(each) if isinstance(each, str) else each: new
            for each, new in dict(to_python(value) or {}).items()
        }
    except (TypeError, ValueError):
        replacements = {None: None}

    if not is_mapping(replacements):
        raise ConfigError(
            f"{option} is {value!r}; it takes numbers by the values that they replace, such as "
            f"{{255: 1}}"
        )
    return replacements


def check_masks(
    places: Iterable[Extent | None], values: MaskValues, classes: int
) -> tuple[dict[int, str], list[set[int]]]:
    """Reads masks and checks their values.

    A mask that cannot be read is passed over: `mask_problem` reports it.

    Returns:
        What is wrong with masks, by their position in `places`; and the values of each mask.
    """
    reader = Reader()
    ignored = {IGNORED, *values.replacements.values()}

    def look(place: Extent | None) -> tuple[str | None, list[int]]:
        if place is None:
            return None, []
        try:
            alone = is_remote(place.file) and place.member
            decoded = values.decode(BytesIO(_fetch(place) if alone else reader.read(place).data))
        except Exception:  # Pillow's plugins raise almost anything on broken files
            return None, []
        why = values.problem_of(decoded, classes, ignored)
        # a problem is text of a table, which must be UTF-8
        name = os.fsencode(str(place)).decode(errors="backslashreplace")
        return why and add_detail(f"its mask: {why}", name), _distinct_values(decoded)

    with ThreadPoolExecutor(available_cpus()) as pool:
        looks = list(pool.map(look, places))
    reader.close()

    problems = {at: why for at, (why, _) in enumerate(looks) if why}
    return problems, [set(values) for _, values in looks]


def _fetch(place: Extent) -> bytes:
    """Reads one mask out of a shard by itself: for a few masks the shard is not copied again."""
    return read_object(place.file, place.offset, place.offset + place.length)


def _distinct_values(values: Values) -> list[int]:
    """The values that a mask has, in ascending order."""
    if values.dtype == np.uint8:
        return np.flatnonzero(np.bincount(values.ravel(), minlength=256)).tolist()
    return np.unique(values).tolist()


def _some(values: list[int]) -> str:
    return ", ".join(map(str, values[:_SHOWN])) + (", …" if len(values) > _SHOWN else "")
