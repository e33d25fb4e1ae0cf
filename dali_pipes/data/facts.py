"""`ManifestFacts`: what is known of the images of a manifest as a whole, beside the rows.

A scan states most of them, a saved manifest has them too (`read`, `write`), and a manifest that is
made of another one keeps those that still hold (`of_part`, `of_same_samples`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self

from dali_pipes.data.mask_values import MaskValues
from dali_pipes.data.objects import Keypoints
from dali_pipes.data.omissions import Omission, read_omissions
from dali_pipes.data.sources.rows.earlier import FolderRecords
from dali_pipes.data.table.schema import RULES
from dali_pipes.errors import ManifestError

_AS_STORED = MaskValues({}, False)  # each value in a mask means itself


MODES = ("stratified", "proportional")  # of mixtures


class Mix(NamedTuple):
    """The arguments of `Manifest.mix`: how much of a mixture comes from which source.

    Attributes:
        mode: "stratified" or "proportional".
        shares: by the name of the source, in the order of the column `source`; their sum is 1.
    """

    mode: str
    shares: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class ManifestFacts:
    """What is known of images as a whole.

    Attributes:
        fingerprint, description: of the samples, as a saved file has them, so that opening it does
            not read all rows; None: not computed yet.
        folders: those that were scanned, by their path, in the form of sources/rows/earlier.py.
        omissions: what is left out besides rows with a problem and besides what `folders` leave
            out.
        doubts: what is used and most likely means something else than it is read as, as
            `doubts.find_doubts` finds it; None: it has not looked yet.
        reading: the options that the rows depend on and that are not the defaults, in JSON's types.
        parent_omissions, parent_bad_images: what is left out of the images from which `filter` or
            `split` chose these; how many of them cannot be used, and how many there are.
        mixture: the arguments of `mix`; None: this is no mixture.
        keypoints: those that the objects have; None: there are none.
        names_flip_pairs: whether the pairs of keypoints that change places were given; otherwise
            they were taken from the names.
        mask_values: the meaning of the values in masks.
        masks_upright: whether masks are of the upright pictures.
        boxes_upright: whether boxes and keypoints were given for upright pictures.
        category_ids: the id of each class in its COCO file, or None for a class that is not in it;
            None: not known.
        turned_by_source: whether the source's own library turns images by their EXIF tag.
        has_wide: whether an image may have 16 bits a channel (image_files/wide.py).
    """

    fingerprint: str | None = None
    description: dict[str, Any] | None = None
    folders: FolderRecords = field(default_factory=dict)
    omissions: list[Omission] = field(default_factory=list)
    doubts: list[Omission] | None = None
    reading: dict[str, Any] = field(default_factory=dict)
    parent_omissions: list[Omission] = field(default_factory=list)
    parent_bad_images: tuple[int, int] | None = None
    mixture: Mix | None = None
    keypoints: Keypoints | None = None
    names_flip_pairs: bool = False
    mask_values: MaskValues = _AS_STORED
    masks_upright: bool = False
    boxes_upright: bool = False
    category_ids: list[Any] | None = None
    turned_by_source: bool = False
    has_wide: bool = False

    @classmethod
    def read(cls, known: Mapping[str, Any]) -> Self:
        """Reads what a file says.

        Args:
            known: what `write` returned, once it has been JSON; any of it may be missing.

        Raises:
            ManifestError: keypoints, values of masks or shares make no sense.
            TypeError, ValueError, AttributeError: folders make none.
        """
        return cls(
            **{
                each.name: _READ.get(each.name, _as_it_is)(known[each.name])
                for each in fields(cls)
                # what was left out has the default, such as doubts that nobody has looked for
                if known.get(each.name) is not None
            }
        )

    def write(self) -> dict[str, Any]:
        """The form in which a file has them, in JSON's types; None and False are left out."""
        known = {each.name: getattr(self, each.name) for each in fields(self)}
        known["mask_values"] = self.mask_values.stored() if any(self.mask_values) else None
        return {"rules": RULES} | {
            name: value for name, value in known.items() if value not in (None, False)
        }

    def of_part(self) -> Self:
        """What still holds of some of the samples."""
        # folders count rows; omissions, doubts and reading are about all images: a part has none
        return replace(
            self.of_same_samples(),
            folders={},
            omissions=[],
            doubts=[],
            reading={},
            parent_omissions=[],
            parent_bad_images=None,
        )

    def of_same_samples(self) -> Self:
        """What still holds if cells of the rows are changed."""
        return replace(self, fingerprint=None, description=None)


def _as_it_is(stored: Any) -> Any:
    return stored


def _read_folders(stored: Any) -> FolderRecords:
    return {name: _read_folder(*record) for name, record in stored.items()}


def _read_folder(
    mtime_ns: int, usable: int, others: int, omissions: object = None
) -> tuple[int, int, int, list[Omission]]:
    return int(mtime_ns), int(usable), int(others), read_omissions(omissions)


def _read_reading(stored: Any) -> dict[str, Any]:
    return stored if isinstance(stored, dict) else {}


def _read_counts(stored: object) -> tuple[int, int] | None:
    if (
        isinstance(stored, list)
        and len(stored) == 2
        and all(type(count) is int for count in stored)
    ):
        return stored[0], stored[1]
    return None


def _read_mixture(stored: Any) -> Mix:
    try:
        mode, shares = stored
        mixture = Mix(mode, {name: float(share) for name, share in dict(shares).items()})
    except (TypeError, ValueError, OverflowError):
        mixture = Mix("", {})
    are_shares = all(0 < share < math.inf for share in mixture.shares.values())
    if mixture.mode not in MODES or not mixture.shares or not are_shares:
        raise ManifestError("the manifest's mixture has no shares by name; mix the manifests again")
    return mixture


def _read_description(stored: Any) -> dict[str, Any] | None:
    known = isinstance(stored, dict) and stored.keys() == {"images", "mean_kib", "median_size"}
    return stored if known else None


def _read_list(stored: Any) -> list[Any] | None:
    return stored if isinstance(stored, list) else None


# by fact: how it is read from JSON's types, in which a file may say anything
_READ: dict[str, Callable[[Any], Any]] = {
    "description": _read_description,
    "category_ids": _read_list,
    "folders": _read_folders,
    "omissions": read_omissions,
    "doubts": read_omissions,
    "reading": _read_reading,
    "parent_omissions": read_omissions,
    "parent_bad_images": _read_counts,
    "mixture": _read_mixture,
    "keypoints": Keypoints.read,
    "names_flip_pairs": bool,
    "mask_values": MaskValues.read,
    "masks_upright": bool,
    "boxes_upright": bool,
    "turned_by_source": bool,
    "has_wide": bool,
}
