"""Names of the prepared files: ImageFolder sorts them as it sorted those of the source."""

import itertools
import os
from collections.abc import Sequence

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError

LONGEST = 255  # bytes of a name, on nearly all file systems
_JPEG = (".jpg", ".jpeg")


def class_folders(classes: Sequence[str]) -> list[str]:
    """A folder name for each class, which sort as the classes do; numbers get leading zeros for that.

    Raises:
        ConfigError: there is no such name.
    """
    numbers = all(name.isascii() and name.isdecimal() for name in classes)
    folders = [name.zfill(max(map(len, classes))) for name in classes] if numbers else list(classes)
    for name in folders:
        if name in ("", ".", "..") or "/" in name or "\0" in name or len(os.fsencode(name)) > LONGEST:
            raise ConfigError(f"class {name!r} cannot be the name of a folder; to=shards keeps any class")
    if any(one >= other for one, other in itertools.pairwise(folders)):
        raise ConfigError("the classes are not in sorted order, and folders would renumber them; to=shards keeps their order")
    return folders


def output_names(manifest: Manifest) -> list[str]:
    """The path of each sample below the output's root, by sample id; every name ends in .jpg or .jpeg.

    An image keeps its folder and name, with .jpg added if it has another extension. In a folder where that would change the order
    or make two names the same or too long, the images are numbered.

    Raises:
        ConfigError: folders cannot keep the manifest's order.
    """
    folders = class_folders(manifest.classes)
    labels = manifest.labels.tolist()
    if any(one > other for one, other in itertools.pairwise(labels)):
        raise ConfigError(
            f"{manifest.root}: the images are not sorted by class, and folders would renumber them; to=shards keeps their order"
        )
    paths = [os.fsdecode(path) for path in manifest.samples["path"].to_pylist()]
    if _is_class_tree(paths, [folders[label] for label in labels]):
        grouped = itertools.groupby(map(os.path.split, paths), key=lambda each: each[0])
        return [os.path.join(folder, name) for folder, files in grouped for name in _renamed([file for _, file in files])]
    by_class = itertools.groupby(labels)
    return [os.path.join(folders[label], name) for label, same in by_class for name in _numbers(len(list(same)))]


def _is_class_tree(paths: list[str], folders: list[str]) -> bool:
    """Whether each image is in its class's folder, in the order of an ImageFolder."""
    parts = [path.split("/") for path in paths]
    inside = all(
        part[0] == folder and len(part) > 1 and not {"", ".", ".."} & {*part} for part, folder in zip(parts, folders, strict=True)
    )
    by_class = list(zip(folders, map(os.path.split, paths), strict=True))
    return inside and all(one < other for one, other in itertools.pairwise(by_class))


def _renamed(names: list[str]) -> list[str]:
    new = [name if name.lower().endswith(_JPEG) else f"{name}.jpg" for name in names]
    sorted_alike = all(one < other for one, other in itertools.pairwise(new))
    return new if sorted_alike and all(len(os.fsencode(name)) <= LONGEST for name in new) else _numbers(len(names))


def _numbers(count: int) -> list[str]:
    return [f"{number:08d}.jpg" for number in range(count)]
