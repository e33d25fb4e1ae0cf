"""What the files of a data set show once a manifest has been made of them: those that a program may
treat in another way, modes that it does not convert, EXIF tags.
"""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from dali_pipes.adapters.from_torch.recorder import Trace
from dali_pipes.adapters.from_torch.recording.made_up import name_traits, traits_of
from dali_pipes.adapters.transforms.reading import refuse_unless
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Reader

_OF_RARE = 8  # samples of a kind of files that most data sets have few of
# labels and sizes of which one sample each is looked at, and pixels of all of these
_VARIED, _MOST_PIXELS = 128, 2**26


def find_extremes(manifest: Manifest) -> list[int]:
    """Samples with the smallest and largest files, sides, areas and aspect ratios, and one with
    each format: rules for such ones show in them.
    """
    height, width = manifest.sizes.T.astype(float)
    table = manifest.samples
    quantities = [height, width, height * width, width / height, table["bytes"].to_numpy()]

    extremes = {int(at) for each in quantities for at in (each.argmin(), each.argmax())}
    # and one of the most frequent size, which a program may take for a special one
    _, first, count = np.unique(manifest.sizes, axis=0, return_index=True, return_counts=True)
    extremes.add(int(first[count.argmax()]))
    for name in ("format", "jpeg", "orientation"):
        values = table[name].to_numpy()
        extremes |= {int(np.flatnonzero(values == each)[0]) for each in set(values.tolist())}

    # files whose EXIF tag, or whose mode, a program may leave as it is for some of the samples; a
    # file that is no JPEG may be of any mode
    orientation, jpeg = (table[name].to_numpy() for name in ("orientation", "jpeg"))
    is_gray = np.array([each.startswith("gray") for each in jpeg.tolist()])
    for rare in (orientation > 1, is_gray, jpeg == ""):
        if len(places := np.flatnonzero(rare)):
            spread = np.linspace(0, len(places) - 1, _OF_RARE).round().astype(int)
            extremes |= set(places[spread].tolist())
    return sorted(extremes)


def find_varied(manifest: Manifest, labels: Sequence[int] | None) -> list[int]:
    """Samples of many sizes and labels, if there are labels: rules for some of them show there."""
    height, width = manifest.sizes.T.astype(np.int64)
    values: list[Any] = [height * 2**32 + width]
    values.append(np.arange(len(manifest)) if labels is None else np.asarray(labels))

    chosen: set[int] = set()
    for each in values:
        _, first = np.unique(each, return_index=True)
        spread = np.linspace(0, len(first) - 1, min(len(first), _VARIED)).round().astype(int)
        chosen |= set(first[spread].tolist())

    # so many that it takes less than a second
    mixed = np.random.default_rng(0).permutation(sorted(chosen))
    pixels = (height * width)[mixed].cumsum()
    return sorted(mixed[pixels <= _MOST_PIXELS].tolist())


def read_exif(seen: Trace, manifest: Manifest) -> str:
    """Whether pictures are turned upright; "ignore" if none would be."""
    # without a file that has a tag both options do the same
    ids = np.arange(len(manifest))
    if seen.exif == "apply" and (manifest.take_orientations(ids) > 1).any():
        return "apply"
    return "ignore"


def refuse_modes(seen: Trace, manifest: Manifest) -> None:
    """Refuses files in modes that the data set does not convert to RGB."""
    if seen.modes is None:
        return

    # the manifest does not hold Pillow's modes, so each file is opened, and none is decoded
    reader = Reader()
    for sample in range(len(manifest)):
        place = manifest.extent(sample)
        file = BytesIO(reader.read(place).tobytes()) if place.member else place.file
        with Image.open(file) as image:
            others = traits_of(image) - set(seen.modes)
        refuse_unless(
            not others,
            seen.name,
            f"{place} has {name_traits(others)}, and it does not make of it what dali_pipes does, "
            'which is Image.open(path).convert("RGB")',
            'open images like that, or with .convert("L") for one channel of gray',
        )
