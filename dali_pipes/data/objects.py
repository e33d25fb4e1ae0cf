"""What a manifest knows beyond an image's label: objects with boxes, keypoints and outlines, a
mask, a text.

These are columns called "target:NAME". A column is a large list of numbers, of which an image has
as many as it needs, or a large string; the path of a mask is binary, as the file system has it:

    boxes          4 float32 an object: left, top, right, bottom in pixels of the image as stored,
                   not turned by its EXIF tag
    box_labels     int64 class number of each object
    areas          float32 of each object, in pixels
    crowd          bool of each object: a group that is outlined as one, as COCO's iscrowd
    keypoints      3 float32 a keypoint, as many an object as `Keypoints.names`: x, y, and COCO's
                   visibility 0, 1 or 2
    outlines       JSON of a list: COCO's segmentation of each object, polygons or run lengths
    mask           path of a mask, relative to the root; "" if it is a part of the image's shard,
                   or there is none
    mask_offset    int64, the byte of the shard at which the mask begins
    mask_bytes     int64, the mask's length there; 0: not there
    text           a text, such as a caption
    dropped        what was wrong with objects that were left out, one a line

`Targets` holds the options for reading them, and `Objects` what a manifest returns of the boxes.
`Keypoints` names an object's keypoints, and says which of them change places on a flip: pairs that
the user gives, or that the words left and right in the names tell.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.checks import check_choice, check_names
from dali_pipes.data.mask_values import check_mask_values
from dali_pipes.errors import ConfigError, ManifestError, OptionError
from dali_pipes.options import check_options, option

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


TARGET = "target:"
BOX_LABELS = TARGET + "box_labels"
MASK = TARGET + "mask"
TYPES: dict[str, pa.DataType] = {
    "boxes": pa.large_list(pa.float32()),
    "box_labels": pa.large_list(pa.int64()),
    "areas": pa.large_list(pa.float32()),
    "crowd": pa.large_list(pa.bool_()),
    "keypoints": pa.large_list(pa.float32()),
    "outlines": pa.large_string(),
    "mask": pa.large_binary(),
    "mask_offset": pa.int64(),
    "mask_bytes": pa.int64(),
    "text": pa.large_string(),
    "dropped": pa.large_string(),
}
BOX_FORMATS = tuple(
    prefix + name for prefix in ("", "relative_") for name in ("xyxy", "xywh", "cxcywh")
)
BAD_OBJECTS = ("drop", "problem")
ANNOTATED = (None, "stored", "upright")
# the doubt of annotated images that are turned, where no option says how they were annotated
TURNED = (
    "annotated images are turned by their EXIF tag, and their annotations are taken for those of "
    "the images as stored, though most programs show them upright; set annotated to 'upright' or "
    "'stored', as they were annotated"
)


@dataclass(kw_only=True, slots=True)
class Targets:
    """What is read of each sample besides its label. A name is that of a table's column; of a tar's
    member, such as ".txt", or of a key in its .json.

    Attributes:
        boxes: four numbers for each object, one after the other or in lists of four; None: no
            objects.
        box_labels: the class number from 0, or the class name, of each object; needed with boxes.
        box_format: "xyxy", "xywh", "cxcywh", in pixels of the image as stored, or "relative_" and
            one of these, in fractions of its width and height.
        areas: the area of each object in pixels; None: that of its box.
        keypoints: x, y and visibility of each keypoint of each object, in pixels or in fractions as
            the boxes; None: no keypoints.
        keypoint_names: what they are; needed with keypoints.
        flip_pairs: names of keypoints that become one another on a flip, such as [["eye_a",
            "eye_b"]]; None: those that differ by the words "left" and "right", or "l" and "r".
        mask: a path, relative to the root; in a tar the mask itself, a PNG; None: no
            masks.
        mask_values: what values of masks are replaced by, such as {255: 1} of masks of 0 and 255;
            None: nothing.
        text: a text, such as a caption; None: no texts.
        bad_objects: what becomes of an object with a box that is empty, inverted, not finite or
            outside the image: "drop" leaves it out and lists it; "problem" leaves out its image.
        annotated: whether boxes, keypoints and masks are in pixels (or fractions) of the image as
            "stored", or of the "upright" picture, as its EXIF tag turns it and most programs show
            it; None: as stored, with a warning of images that are turned.
    """

    boxes: str | None = None
    box_labels: str | None = None
    box_format: str = option("xyxy", check_choice, BOX_FORMATS)
    areas: str | None = None
    keypoints: str | None = None
    keypoint_names: list[str] = option(list, check_names, "names of keypoints")
    flip_pairs: Any = option(None, check_flip_pairs)
    mask: str | None = None
    mask_values: Any = option(None, check_mask_values)
    text: str | None = None
    bad_objects: str = option("drop", check_choice, BAD_OBJECTS)
    annotated: str | None = option(None, check_choice, ANNOTATED)

    def __post_init__(self) -> None:
        check_options(self)
        for name, needed in (
            ("boxes", "box_labels"),
            ("box_labels", "boxes"),
            ("areas", "boxes"),
            ("keypoints", "boxes"),
        ):
            if getattr(self, name) and not getattr(self, needed):
                raise OptionError(type(self), f"{name} needs {needed}; name it as well")

        if bool(self.keypoints) != bool(self.keypoint_names):
            raise OptionError(
                type(self),
                "keypoints and keypoint_names need one another; a flip goes by the names",
            )

    @property
    def named(self) -> dict[str, str]:
        """The columns, members or keys that are read, by the field that names them."""
        every = ("boxes", "box_labels", "areas", "keypoints", "mask", "text")
        return {option: name for option in every if (name := getattr(self, option))}

    @property
    def widths(self) -> dict[str, int]:
        """How many values an object has in each field that is read."""
        every = {"boxes": 4, "box_labels": 1, "areas": 1, "keypoints": 3 * len(self.keypoint_names)}
        return {option: width for option, width in every.items() if getattr(self, option)}

    @property
    def keypoints_named(self) -> Keypoints | None:
        return (
            Keypoints.from_names(list(self.keypoint_names), self.flip_pairs)
            if self.keypoints
            else None
        )

    @property
    def misfit(self) -> str:
        """The problem of an image whose objects have too few or too many values."""
        wanted = ", ".join(
            f"{width} in {getattr(self, option)}" for option, width in self.widths.items()
        )
        return f"the values of its objects do not belong together; each object needs {wanted}"


NO_TARGETS = Targets()


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of N images, M in all; those of one image stand one after the other.

    Attributes:
        counts: (N,) int64, how many each image has.
        boxes: (M, 4) float32 left, top, right, bottom in pixels.
        labels: (M,) int64 class numbers.
        areas: (M,) float32 in pixels; None: not known.
        crowd: (M,) bool; None: not known.
        keypoints: (M, K, 3) float32 x, y, visibility; None: there are none.
    """

    counts: NDArray[np.int64]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    areas: NDArray[np.float32] | None = None
    crowd: NDArray[np.bool_] | None = None
    keypoints: NDArray[np.float32] | None = None

    @property
    def images(self) -> NDArray[np.int64]:
        """(M,) the position of each object's image among the N."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def keep(self, mask: NDArray[np.bool_]) -> Self:
        """Only the objects where the mask is true, of the same images."""
        counts = np.bincount(self.images[mask], minlength=len(self.counts)).astype(np.int64)
        # all fields after `counts` have one entry for each object
        values = [getattr(self, part.name) for part in fields(self)[1:]]
        kept: list[Any] = [None if value is None else value[mask] for value in values]
        return type(self)(counts, *kept)
