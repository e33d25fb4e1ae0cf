"""What readers do once the objects and masks of images are known: refuse a source from which
nothing could be learned, doubt those of turned images, and note what the targets mean.
"""

from pathlib import Path

import numpy as np

from dali_pipes.data.doubts import add_doubt
from dali_pipes.data.image_files.headers import ScanOptions
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.mask_values import IGNORED, SAMPLED_MASKS, MaskValues, check_masks
from dali_pipes.data.objects import TARGET, TURNED
from dali_pipes.data.sources.rows.objects import BAD_OBJECT, refuse_without_objects
from dali_pipes.errors import ManifestError

_LEVELS = "mask_values={255: 1} makes 255 class 1, {255: 255} says that it is to be ignored"
_ONLY_IGNORED = f"masks have 0 and {IGNORED} alone, and {IGNORED} is ignored; {_LEVELS}"
# of gray levels that are no classes: how bright the brightest is, and how many there are
_BRIGHT, _FEW_LEVELS = 64, 6
# black, blue, red, magenta, green, cyan, yellow and white as Pillow turns them to gray
_OF_COLORS = {0, 29, 76, 105, 150, 179, 226, IGNORED}
_GAP = 8  # from one to the next, if there are more of them
_SMOOTHED, _MANY_LEVELS, _BRIGHTEST = 200, 64, 255
_INSTANCES = 1000  # what a class is multiplied by, if the number of an object is added


def add_targets(images: ImageTable, source: str | Path, check: ScanOptions) -> ImageTable:
    """Adds what is known of all objects and masks.

    Raises:
        ManifestError: no object is left, or the masks have other values than classes.
    """
    targets = check.targets
    _refuse_without_objects(images, source)
    if targets.annotated is None:
        images = _doubt_turned_images(images)

    is_upright = targets.annotated == "upright"
    images = images.with_facts(
        boxes_upright=is_upright and targets.boxes is not None,
        names_flip_pairs=targets.flip_pairs is not None,
    )
    if targets.mask:
        images = _add_mask_values(images, source, check)
        images = images.with_facts(masks_upright=is_upright)
    return images


def _refuse_without_objects(images: ImageTable, source: str | Path) -> None:
    """Raises ManifestError if a source has objects and usable images, but no usable object."""
    if not images.has_target("boxes") or not images.rows.all_empty(TARGET + "boxes"):
        return

    problems = [each for each in images.problems if each[1].startswith(BAD_OBJECT)]
    lost = [f"{name}: {why}" for name, why in images.dropped + problems]
    if len(images):
        refuse_without_objects(source, lost)


def _doubt_turned_images(images: ImageTable) -> ImageTable:
    """Doubts turned images with objects or a mask, where no option says how they were annotated.

    A mask whose size fits only one way says so itself.
    """
    has_boxes = images.has_target("boxes")
    if not has_boxes and not images.has_target("mask"):
        return images

    turned: list[int] = []
    for ids in images.rows.blocks():
        orientation = images.take_orientations(ids)
        if has_boxes:
            unsaid = images.rows.lengths(TARGET + "boxes", ids) > 0
        else:
            height, width = images.take_sizes(ids).T
            # a mask of another size than the image is refused, so its size says how it was made
            unsaid = (orientation < 5) | (height == width)
        turned += ids[unsaid & (orientation != 1)].tolist()

    return (
        add_doubt(images, TURNED, map(images.relative_name, turned), len(turned))
        if turned
        else images
    )


def _add_mask_values(images: ImageTable, source: str | Path, check: ScanOptions) -> ImageTable:
    """Adds the meaning of masks' values; images whose masks have other values become problems."""
    names = list(check.classes or ())
    # classes may be those of labels or objects, and then values of masks have no names
    of_masks = bool(names) and not images.has_target("boxes") and not images.labels.size
    values = MaskValues(check.targets.mask_values or {}, of_masks)
    images = images.with_facts(mask_values=values)
    if not len(images):
        return images

    # read all masks, or a few that are spread evenly; in a store each mask is a request
    every = check.verify == "full" and not images.is_fetched
    ids = np.arange(0, len(images), 1 if every else -(-len(images) // SAMPLED_MASKS))
    problems, of_each = check_masks(
        (images.mask_extent(sample_id) for sample_id in ids.tolist()), values, len(names)
    )
    seen = set().union(*of_each)
    _refuse_useless_masks(source, values, names, len(ids), problems, seen)
    if why := _find_gray_levels(values, names, seen) or _find_two_forms(values, of_each):
        images = add_doubt(images, why, map(images.relative_name, ids.tolist()), len(ids))

    return images.mark_problems({int(ids[at]): why for at, why in problems.items()})


def _refuse_useless_masks(
    source: str | Path,
    values: MaskValues,
    classes: list[str],
    looks: int,
    problems: dict[int, str],
    seen: set[int],
) -> None:
    """Raises ManifestError if masks cannot be used, or would teach nothing.

    Args:
        looks: how many masks were looked at.
        problems: as `check_masks` returns them.
        seen: all values of these masks.
    """
    if len(problems) == looks:
        why = next(iter(problems.values()))
        raise ManifestError(
            f"{source}: {looks:,} masks were looked at, and none can be used; {why}"
        )

    if classes and seen and min(seen) >= len(classes):
        advice = "mask_values says which values are classes, such as {255: 1}"
        raise ManifestError(
            f"{source}: nothing but ignored values is in the {looks:,} masks that were "
            f"looked at; {advice}"
        )

    are_alone = values.named and len(classes) in (1, 2) and seen == {0, IGNORED}
    if are_alone and not _is_stated(IGNORED, values):
        advice = _LEVELS
        if len(classes) == 1:
            advice = (
                f"name the background too, as classes=['background', {classes[0]!r}]; then {advice}"
            )
        raise ManifestError(
            f"{source}: the {looks:,} masks that were looked at have 0 and {IGNORED} "
            f"alone, and {IGNORED} is ignored, so only {classes[0]!r} would be learned; {advice}"
        )


def _is_stated(value: int, values: MaskValues) -> bool:
    return value in {*values.replacements, *values.replacements.values()}


def _find_gray_levels(values: MaskValues, classes: list[str], seen: set[int]) -> str:
    """Says that the values of masks are gray levels and no classes; "": they may be classes.

    Args:
        seen: the values in the masks that were looked at.
    """
    if classes:
        # what is named is checked
        is_ignored = len(classes) > 2 and seen == {0, IGNORED}
        return _ONLY_IGNORED if is_ignored and not _is_stated(IGNORED, values) else ""
    highest = max(seen - {IGNORED}, default=0)
    if _SMOOTHED <= highest <= _BRIGHTEST and len(seen) > _MANY_LEVELS:
        return (
            f"masks have {len(seen)} values up to {highest}, as if their edges were smoothed, and "
            "each is taken for a class; save them without smoothing, as PNG"
        )
    if values.replacements:
        return ""  # what is replaced was looked at

    if seen == {0, IGNORED}:
        return _ONLY_IGNORED
    if highest >= _INSTANCES and len(seen - {0}) > 1 and not _are_spread(seen):
        return (
            f"masks have values up to {highest}, as instance numbers, as class * 1000 + number, "
            "which are taken for class numbers; write masks of classes, or say what the values are "
            "by mask_values"
        )
    # classes are numbered without large gaps, and drawing programs have few levels, far apart
    are_few = highest >= _BRIGHT and len(seen) <= _FEW_LEVELS
    if are_few or _are_spread(seen) or (len(seen) > 2 and seen <= _OF_COLORS):
        levels = sorted(seen - {0})
        numbers = ", ".join(f"{level}: {place}" for place, level in enumerate(levels, 1))
        return (
            f"masks have the values {', '.join(map(str, sorted(seen)))}, as gray levels of a "
            f"drawing program, which are taken for class numbers; mask_values={{{numbers}}} makes "
            "classes of them"
        )
    return ""


def _are_spread(seen: set[int]) -> bool:
    """Whether values are equally far from one another, and far, as gray levels are."""
    for levels in (seen, seen - {IGNORED}):
        steps = set(np.diff(sorted(levels)).tolist())
        if len(levels) > 2 and len(steps) == 1 and min(steps) >= _GAP:
            return True
    return False


def _find_two_forms(values: MaskValues, of_each: list[set[int]]) -> str:
    """Says that some masks have 0 and 1, and others 0 and 255 for the same; "": they have not.

    Args:
        of_each: the values of each mask that was looked at.
    """
    # where 1 and 255 are in one mask, 255 is the border of objects, or what nobody knows
    if _is_stated(IGNORED, values) or any({1, IGNORED} <= some for some in of_each):
        return ""
    ones, ignored = of_each.count({0, 1}), of_each.count({0, IGNORED})
    if not (ones and ignored):
        return ""
    return (
        f"of the masks that were looked at {ones:,} have 0 and 1 alone and {ignored:,} have 0 and "
        f"{IGNORED}, which is ignored; {_LEVELS}"
    )
