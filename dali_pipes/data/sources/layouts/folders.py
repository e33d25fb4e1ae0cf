"""Refuses folders of other programs: a `_find_…` function for each layout, in `_LAYOUTS`."""

import re
from collections.abc import Callable
from pathlib import Path

from dali_pipes.data.image_files.headers import IMAGE_EXTENSIONS
from dali_pipes.data.sources.layouts.descriptions import (
    CIFAR,
    COCO_FORM,
    HUGGING_FACE,
    LMDB,
    MNIST,
    ONE_IMAGE,
    TAR,
    VOC,
    YOLO,
    refuse,
)
from dali_pipes.data.sources.layouts.files import chunk_library, kind_of_file
from dali_pipes.data.sources.layouts.tree import Tree, has_image_name, join, place_of
from dali_pipes.data.sources.names.splits import split_of
from dali_pipes.data.sources.shards import is_shard
from dali_pipes.data.spelling import Text, images_folder, masks_folder

# names of folders in lower case
_IMAGES = ("images", "image", "imgs", "img", "jpegimages")
_MASKS = (
    "masks",
    "mask",
    "annotations",
    "annotation",
    "labels",
    "gt",
    "ground_truth",
    "segmentations",
    "trimaps",
)


def refuse_folder(tree: Tree, with_labels: bool = True) -> None:
    folders, files = tree.look()
    # shards and Parquet files are read, whatever is beside them
    if not folders and any(is_shard(name) or name.endswith(".parquet") for name in files):
        return

    # without labels a folder of another program is read if its images are files
    for find in _LAYOUTS if with_labels else (_find_containers,):
        find(tree)
    if folders:
        return

    if any(map(has_image_name, files)):
        return  # describe_no_classes says more about them
    for name in files:
        kind = kind_of_file(name)
        if (
            kind
            and kind not in (TAR, ONE_IMAGE)
            and not name.lower().endswith((".xml", ".jsonl", ".yaml", ".yml", ".db"))
        ):
            refuse(f"{tree.root}/{name}", *kind)


def _find_yolo(tree: Tree) -> None:
    folders, files = tree.look()
    # Darknet, from which YOLO comes, describes a set in these two files
    if {"obj.names", "obj.data"} & set(files):
        refuse(tree.root, "Darknet's layout of YOLO", COCO_FORM)

    # in the root, or in a folder for each split
    for part in ("", *(name for name in folders if split_of(name))):
        images, labels = tree.named(("images",), part), tree.named(("labels",), part)
        if images and labels and tree.holds(join(part, labels), ".txt"):
            refuse(place_of(tree, part), YOLO[0], f"{YOLO[1]}{place_of(tree, part)}/{images}")

    # the user may have named the folder of images itself
    root = tree.root
    if (
        isinstance(root, Path)
        and root.name == "images"
        and Tree(root.parent).holds("labels", ".txt")
    ):
        refuse(root, f"a part of {YOLO[0]}", f"{YOLO[1]}{root}")


def _find_voc(tree: Tree) -> None:
    years = [name for name in tree.look()[0] if re.fullmatch(r"VOC\d{4}|VOCdevkit", name)]
    # the root, VOC2012 or VOCdevkit in it, and the folders in these
    for part in (
        "",
        *years,
        *(join(year, name) for year in years for name in tree.look(year)[0][:8]),
    ):
        notes, images = tree.named(("annotations", "annotation"), part), tree.named(_IMAGES, part)
        if (
            not notes
            or not images
            or not (tree.holds(join(part, notes), ".xml") or images == "JPEGImages")
        ):
            continue

        masks = tree.named(("segmentationclass",), part)
        place = place_of(tree, part)
        also: Text = ()
        if masks:
            # VOC has masks of some images only
            command = masks_folder(f"{place}/{images}", f"{place}/{masks}", only_both=True)
            also = "; for masks: ", command
        refuse(place, *VOC, *also)


def _find_coco(tree: Tree) -> None:
    notes = tree.named(("annotations",))
    if not notes or not tree.holds(notes, ".json"):
        return

    files = [name for name in tree.look(notes)[1] if name.endswith(".json")]
    folders = [name for name in tree.look()[0] if name != notes]
    folders += [f"images/{name}" for name in tree.look("images")[0]]
    if not files or not folders:
        return

    # the file and the folder that belong together by their names, such as instances_val2017.json
    both = [
        (file, folder)
        for file in files
        for folder in folders
        if Path(folder).name in Path(file).stem
    ]
    preferred = [pair for pair in both if pair[0].startswith("instances")]
    file, folder = next(iter([*preferred, *both]), (files[0], folders[0]))

    file, images = f"{tree.root}/{notes}/{file}", f"{tree.root}/{folder}"
    do = "give a file of annotations and its images: "
    refuse(tree.root, "COCO's layout", do, images_folder(file, images))


def _find_masks(tree: Tree) -> None:
    folders = tree.look()[0]
    lower = {name.lower(): name for name in folders}
    pairs = [
        (lower[one], lower[two])
        for one in _IMAGES
        for two in _MASKS
        if one in lower and two in lower
    ]

    # a folder of masks for each split, beside that of its images
    ends = ("_masks", "_mask", "_labels", "annot")
    pairs += [
        (name, name + end)
        for name in folders
        if split_of(name)
        for end in ends
        if name + end in folders
    ]

    with_masks = [(images, _masks_of(tree, images, masks)) for images, masks in pairs]
    if {"leftImg8bit", "gtFine"} <= set(folders):  # Cityscapes, whose names from_masks knows
        with_masks = [("leftImg8bit", "gtFine")]

    for images, there in with_masks:
        if there:
            both = masks_folder(f"{tree.root}/{images}", f"{tree.root}/{there}")
            what = f"a folder of images and one of masks, {images} and {there}"
            refuse(tree.root, what, "give both, with a mask of the name of each image: ", both)


def _masks_of(tree: Tree, images: str, masks: str) -> str | None:
    """Returns the folder of masks, or the folder in it, that has a mask named as an image."""
    endings = [*IMAGE_EXTENSIONS, *map(str.upper, IMAGE_EXTENSIONS)]
    # a few folders and names are enough, since all masks of a set are named alike
    for part in ("", *tree.look(masks)[0][:8]):
        for name in tree.look(join(masks, part))[1][:20]:
            if not name.lower().endswith((".png", ".gif")):
                continue

            stem = Path(name).stem.removesuffix("_mask")
            # folders of splits are in both the images and the masks, or in the masks alone
            if any(tree.has(join(images, part, stem + ending)) for ending in endings):
                return masks
            if part and any(tree.has(join(images, stem + ending)) for ending in endings):
                return join(masks, part)
    return None


def _find_containers(tree: Tree) -> None:
    """Refuses what is in files of other libraries, here or in a folder for each split."""
    for part in ("", *filter(_may_hold_containers, tree.look()[0])):
        files = tree.look(part)[1]
        place = place_of(tree, part)

        # each library is recognized by the file that it itself looks for
        if "data.mdb" in files:
            refuse(place, *LMDB)
        if "index.json" in files and (library := chunk_library(files)):
            refuse(place, *library)

        if "dataset_dict.json" in files or (
            "state.json" in files and any(name.endswith(".arrow") for name in files)
        ):
            refuse(place, *HUGGING_FACE)
        if {"state.json", "dataset_info.json"} <= set(files):
            refuse(place, *HUGGING_FACE)

        # CIFAR-100's files are called train, test and meta
        if {"data_batch_1", "data_batch_1.bin"} & set(files) or {"train", "test", "meta"} <= set(
            files
        ):
            refuse(place, *CIFAR)

        if mnist := [name for name in files if kind_of_file(name) == MNIST]:
            refuse(f"{place}/{mnist[0]}", *MNIST)


def _may_hold_containers(folder: str) -> bool:
    return bool(
        split_of(folder)
        or re.search(r"lmdb\Z|\A(cifar-.*-(py|bin|python|binary)|raw)\Z", folder.lower())
    )


_LAYOUTS: tuple[Callable[[Tree], None], ...] = (
    _find_yolo,
    _find_voc,
    _find_coco,
    _find_masks,
    _find_containers,
)
