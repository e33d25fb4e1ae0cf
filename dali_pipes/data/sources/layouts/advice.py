"""Says what a source that is no data set may be: a path where nothing is, or a folder of images
without classes.
"""

import os
import re
from pathlib import Path

from dali_pipes.data.sources.layouts.descriptions import YOLO
from dali_pipes.data.sources.layouts.files import is_coco
from dali_pipes.data.sources.layouts.tree import LOOKED_AT, Tree, has_image_name
from dali_pipes.data.sources.names.splits import split_of
from dali_pipes.data.spelling import Text, images_folder, no_labels


def describe_no_classes(root: Path) -> Text:
    """Returns why a folder without subfolders, shards and Parquet files is no data set, and what it
    may be.
    """
    _, files = Tree(root).look()
    start = f"{root}: no class folders in it"
    images = [name for name in files if has_image_name(name)]
    tables = [name for name in files if name.lower().endswith((".csv", ".tsv"))]

    if not files:
        do = "give a folder with a subfolder of images for each class"
        return (f"{start}, it is empty; {do}",)
    if not images:
        hint = f"; did you mean the table {root / tables[0]}?" if tables else ""
        return (f"{start}; put the images of each class into a separate subfolder{hint}",)

    # a file beside the images may say what they are
    coco = [name for name in files if name.lower().endswith(".json") and is_coco(root / name)]
    if coco or tables:
        file = root / (coco or tables)[0]
        what = f"{start}, only images side by side, and {file.name}, which may list them: "
        return what, images_folder(file, root)
    if labels := _labels_of(root):
        return (f"{start}: {YOLO[0]} (the labels are in {labels}); {YOLO[1]}{root}",)

    # most likely one class folder was named instead of the folder that holds all
    meant = ""
    if len(Tree(root.parent).look()[0]) > 1 or split_of(root.parent.name):
        meant = f"; did you mean {root.parent}, which holds the classes?"

    do = (
        "put the images of each class into a separate subfolder, or list them in a table "
        "(path,label)"
    )
    without = f"{start}, only images side by side; {do}; without labels it is taken as it is ("
    return without, no_labels(), f"){meant}"


def describe_missing(path: Path) -> str:
    full = Path(os.path.abspath(path))

    if path.is_symlink():
        there = f"a link to {path.readlink()}, which is gone"
        return f"{path}: no such folder or file: {there}; mend it"
    if re.match(r"[A-Za-z]:[\\/]|\\\\", os.fspath(path)):
        do = "give the path on this machine, such as /mnt/…"
        return f"{path}: no such folder or file: a path of Windows; {do}"

    nearest = next(folder for folder in full.parents if folder.exists())
    names = Tree(nearest).look()
    has = ", ".join([*names[0], *names[1]][:5]) or "nothing"
    more = ", …" if len(names[0]) + len(names[1]) > 5 else ""
    return f"{path}: no such folder or file; {nearest} is there, and has {has}{more}"


def _labels_of(images: Path) -> Path | None:
    """Returns YOLO's folder of labels for a folder of images, which may be that folder itself."""
    parts = images.parts
    # YOLO finds the labels by replacing the folder images in a path by labels
    for place in (place for place, part in enumerate(parts) if part == "images"):
        labels = Path(*parts[:place], "labels", *parts[place + 1 :])
        if Tree(labels).holds("", ".txt"):
            return labels

    for name in Tree(images).look()[1][:LOOKED_AT]:
        if has_image_name(name) and (text := images / f"{Path(name).stem}.txt").is_file():
            return (
                images
                if re.match(r"\d+( -?\d*\.?\d+){4}\s", text.read_text(errors="replace")[:200])
                else None
            )
    return None
