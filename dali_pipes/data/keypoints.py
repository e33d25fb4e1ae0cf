"""The names of an object's keypoints, and which of them change places on a flip.

The pairs are given by the user or found by the words left and right in the names.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

from dali_pipes.errors import ConfigError, ManifestError

# splits leftEye and LEye into words too
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^A-Za-z\d]+")
_JOINED = re.compile(r"(left|right)(?=[a-z])")  # as in lefteye
_OTHER_SIDE = {"left": "right", "right": "left", "l": "r", "r": "l"}


class Keypoints(NamedTuple):
    """The names of an object's keypoints, and the keypoints that they become on a flip.

    Attributes:
        names: such as "left_eye".
        flipped: the number of the keypoint that each is called once the image is flipped left to
            right.
    """

    names: list[str]
    flipped: list[int]

    @classmethod
    def read(cls, stored: Any) -> Self | None:
        """Reads what a file says of keypoints; None if it says nothing.

        Raises:
            ManifestError: these are no names, or their flip is no exchange.
        """
        if stored is None:
            return None

        try:
            names, flipped = stored
            # two flips give the keypoints as they were, so the numbers are an exchange
            if all(type(name) is str for name in names) and [
                flipped[partner] for partner in flipped
            ] == list(range(len(names))):
                return cls(names, flipped)
        except (TypeError, ValueError, IndexError):
            pass

        raise ManifestError(
            "the manifest's keypoints have no names, or do not become one another on a flip; "
            "scan the images again"
        )

    @classmethod
    def from_names(
        cls, names: list[str], flip_pairs: Sequence[Sequence[str]] | None = None
    ) -> Self:
        """Finds the keypoint that each one becomes on a flip.

        Args:
            flip_pairs: names that become one another on a flip; None: those that differ by the
                words "left" and "right", or "l" and "r".

        Raises:
            ManifestError: two have the same name, or a pair has a name that there is not.
        """
        if len(set(names)) < len(names):
            raise ManifestError(
                f"the keypoints {', '.join(names)} are not all different; give each its own name"
            )
        if flip_pairs is not None:
            return cls(names, _apply_pairs(names, flip_pairs))

        # by the words of the names; letters may differ in case if that is still unique
        places = {name: place for place, name in enumerate(names)}
        small = {name.lower(): place for place, name in enumerate(names)}

        flipped = []
        for place, name in enumerate(names):
            others = [places.get(other) for other in _other_sides(name)]
            if len(small) == len(names):  # Left_Eye and right_eye
                others += [small.get(other.lower()) for other in _other_sides(name)]
            flipped.append(next((other for other in others if other is not None), place))

        # names that are no pairs, such as two that find the same other one, leave all in place
        return cls(
            names,
            flipped
            if [flipped[partner] for partner in flipped] == list(range(len(names)))
            else list(range(len(names))),
        )

    @property
    def unpaired_names(self) -> list[str]:
        """The names with the word "left" or "right" that have no keypoint for the other side."""
        alone = [
            name
            for place, (name, other) in enumerate(zip(self.names, self.flipped, strict=True))
            if place == other
        ]
        return [
            name
            for name in alone
            if {"left", "right"} & {*map(str.lower, _WORD.findall(name))} or _JOINED.match(name)
        ]

    @property
    def has_pairs(self) -> bool:
        return self.flipped != list(range(len(self.names)))


def _other_sides(name: str) -> Iterator[str]:
    """Yields the names that the keypoint of the other side may have."""
    words = _WORD.findall(name)
    if any(word.lower() in _OTHER_SIDE for word in words):
        yield "".join(map(_other_side, words))
    if joined := _JOINED.match(name):
        yield _OTHER_SIDE[joined[0]] + name[joined.end() :]


def _other_side(word: str) -> str:
    other = _OTHER_SIDE.get(word.lower(), word)
    return other.upper() if word.isupper() else other.capitalize() if word.istitle() else other


def _apply_pairs(names: list[str], flip_pairs: Sequence[Sequence[str]]) -> list[int]:
    flipped = list(range(len(names)))
    for one, other in flip_pairs:
        for name in (one, other):
            if name not in names:
                raise ManifestError(
                    f"flip_pairs has {name!r}, and the keypoints are {', '.join(names)}; name those"
                )
        at, to = names.index(one), names.index(other)
        flipped[at], flipped[to] = to, at
    return flipped


def check_flip_pairs(option: str, value: Any) -> list[list[str]]:
    """Checks for lists of two names, none of them twice, and returns them as lists."""
    entries = value if isinstance(value, (list, tuple)) else [value]
    pairs = [list(item) if isinstance(item, (list, tuple)) else [] for item in entries]
    if not all(len(pair) == 2 and all(isinstance(name, str) for name in pair) for pair in pairs):
        raise ConfigError(
            f"{option} is {value!r}; it takes pairs of names, such as [['eye_a', 'eye_b']]"
        )
    names = [name for pair in pairs for name in pair]
    if again := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"{option} has {again[0]!r} twice; a keypoint becomes one other")
    return pairs
