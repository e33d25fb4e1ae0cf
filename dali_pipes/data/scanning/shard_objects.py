"""Targets of the images in a shard: what its reader found by name, checked and made into columns."""

from collections.abc import Sequence
from io import BufferedReader
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.labels import is_unicode
from dali_pipes.data.objects import BOX_LABELS, TARGET, Targets
from dali_pipes.data.range_file import RangeFile
from dali_pipes.data.reader import ShardMember
from dali_pipes.data.scanning.found import Found, checked, numbered, object_namer
from dali_pipes.data.scanning.headers import Header
from dali_pipes.data.scanning.masks import mask_problem
from dali_pipes.data.table.schema import replaced
from dali_pipes.errors import ManifestError

_NO_LABEL = "no label, which others have; give it one, or remove those of all"


def target_columns(
    number: int, members: Sequence[ShardMember], headers: list[Header], targets: Targets, verify: str
) -> tuple[list[Header], dict[str, pa.Array]]:
    """The headers, with what is wrong with targets, and their columns; box_labels as the shard has them.

    Args:
        number: of the open shard.
    """
    given = [member.targets or {} for member in members]
    columns: dict[str, pa.Array] = {}
    if targets.text:
        columns[TARGET + "text"] = pa.array([each.get("text", "") for each in given], pa.large_string())
    if targets.mask:
        places = [each.get("mask", (0, 0)) for each in given]
        headers = [_with_mask(number, each, place, verify) for each, place in zip(headers, places, strict=True)]
        columns[TARGET + "mask"] = pa.array([""] * len(places), pa.large_string())
        columns |= {
            TARGET + name: pa.array([place[i] for place in places], pa.int64())
            for i, name in enumerate(("mask_offset", "mask_bytes"))
        }
    if not targets.boxes:
        return headers, columns
    objects = [None if header.problem else _objects(each, targets) for each, header in zip(given, headers, strict=True)]
    named = any(isinstance(label, str) for each in objects if each for label in each["box_labels"])
    headers = [
        each if each.problem else each._replace(problem=_misfit(some, targets, named))
        for each, some in zip(headers, objects, strict=True)
    ]
    good = [None if header.problem else each for header, each in zip(headers, objects, strict=True)]
    headers, checked_columns = checked(_found(good, targets, named), headers, targets.box_format, targets.bad_objects)
    return headers, columns | checked_columns


def _misfit(objects: dict[str, Any] | None, targets: Targets, named: bool) -> str | None:
    """
    Args:
        named: whether any object of the shard has a class name.
    """
    if objects is None:
        return targets.misfit
    if named and not all(isinstance(each, str) for each in objects["box_labels"]):
        return f"its {targets.box_labels} has class numbers, and this shard has class names too; write one of them in all"
    return None


def _with_mask(number: int, header: Header, place: tuple[int, int], verify: str) -> Header:
    if header.problem:
        return header
    why = mask_problem(BufferedReader(RangeFile.of(number, *place)), header.height, header.width, verify)
    return header._replace(problem=why and f"its mask: {why}")


def _objects(given: dict[str, Any], targets: Targets) -> dict[str, Any] | None:
    """Boxes, labels, areas and keypoints of an image, as many of each; None: they are not."""
    labels = given.get("box_labels")
    if not isinstance(labels, list) or not all(map(_is_label, labels)):
        return None
    found = {name: _numbers(given.get(name), width) for name, width in targets.widths.items() if name != "box_labels"}
    if any(each is None or len(each) != len(labels) for each in found.values()):
        return None
    return found | {"box_labels": labels}


def _is_label(value: Any) -> bool:
    return (type(value) is int and -(2**63) <= value < 2**63) or (isinstance(value, str) and is_unicode(value))


def _numbers(value: Any, width: int) -> NDArray[np.float64] | None:
    """(k, width), out of a list of as many, or of k lists; None: it is none."""
    try:
        found = np.array(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    whole = found.ndim > 0 and found.size % width == 0 and (found.ndim == 1 or found[0].size == width)
    return found.reshape(-1, width) if whole else None


def _found(objects: list[dict[str, Any] | None], targets: Targets, named: bool) -> Found:
    good = [each for each in objects if each]
    counts = np.array([len(each["box_labels"]) if each else 0 for each in objects], np.int64)
    all_of = {
        name: np.concatenate([np.empty((0, width)), *(each[name] for each in good)])
        for name, width in targets.widths.items()
        if name != "box_labels"
    }
    labels = pa.array([label for each in good for label in each["box_labels"]], pa.string() if named else pa.int64())
    areas, keypoints = all_of.get("areas"), all_of.get("keypoints")
    return Found(
        counts, all_of["boxes"], labels, object_namer(counts), areas=None if areas is None else areas[:, 0], keypoints=keypoints
    )


def objects_of_all(source: Any, tables: list[pa.Table], targets: Targets, classes: list[str] | None) -> tuple[list[str], pa.Table]:
    """The classes of the objects, and one table of those of all shards.

    Args:
        classes: those that there are; None: those that occur.

    Raises:
        ManifestError: labels that are not among the classes, or numbers in some shards and names in others.
    """
    kinds = {each[BOX_LABELS].type for each in tables if pc.sum(pc.list_value_length(each[BOX_LABELS])).as_py()}
    if len(kinds) > 1:
        raise ManifestError(
            f"{source}: some shards have class numbers in {targets.box_labels}, others names; write one of them in all"
        )
    kind = next(iter(kinds), pa.large_list(pa.int64()))
    table = pa.concat_tables(replaced(each, BOX_LABELS, each[BOX_LABELS].cast(kind)) for each in tables)
    classes, numbers, labels = numbered(source, table[BOX_LABELS].combine_chunks(), classes)
    return classes, replaced(replaced(table, BOX_LABELS, numbers), "label", labels)


def labels_of_all(table: pa.Table) -> pa.Table:
    """With an empty list for each image if none has a label; if some have, the others are a problem."""
    label = table["label"]
    lacking = pc.and_(pc.is_null(table["problem"]), pc.less(label, 0))
    if pc.all(pc.less(label, 0)).as_py():
        return replaced(table, "label", pa.array([[]] * len(table), pa.list_(pa.int32())))
    return replaced(table, "problem", pc.if_else(lacking, _NO_LABEL, table["problem"]))
