"""What comes out of a source, as values of JSON in which a change is readable: a line for each
image, object and file that is left out.
"""

import contextlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

import dali_pipes as dp
from dali_pipes.data.reader import Reader

from .pictures import made


def describe(open_source: Callable[[], dp.Manifest], places: dict[str, str]) -> dict[str, Any]:
    """What a source gives, or the error with which it is refused; what is empty is left out.

    Args:
        places: what stands for folders and addresses of this machine.
    """
    with _log_lines() as lines:
        try:
            said = _describe_manifest(open_source())
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}

    said = {name: value for name, value in (said | {"log": _number(lines)}).items() if value}
    text = json.dumps(said, ensure_ascii=False)
    for place, name in places.items():
        text = text.replace(place, name)
    # a name that is not UTF-8 has half characters, which a file cannot hold
    return json.loads(text.encode(errors="xmlcharrefreplace"))


def _describe_manifest(manifest: dp.Manifest) -> dict[str, Any]:
    ids = np.arange(len(manifest))
    keypoints, mixture, facts = (
        manifest.facts.keypoints,
        manifest.facts.mixture,
        manifest.facts.mask_values,
    )
    has_masks = manifest.has_target("mask") or manifest.has_target("mask_bytes")
    upright = {"masks": manifest.facts.masks_upright, "boxes": manifest.facts.boxes_upright}
    return {
        "kind": _describe_kind(manifest),
        "root": str(manifest.root),
        "classes": _number(manifest.classes),
        "images": _number(_describe_image(manifest, sample_id) for sample_id in ids.tolist()),
        "columns": {name: _describe_column(manifest, name) for name in manifest.columns},
        "objects": _describe_objects(manifest),
        "texts": _number(manifest.take_texts("text", ids)) if manifest.has_target("text") else {},
        "masks": _number(_describe_mask(manifest, sample_id) for sample_id in ids.tolist())
        if has_masks
        else {},
        "values of masks": {f"{was}": now for was, now in facts.replacements.items()},
        "classes are those of masks": facts.named,
        "of upright pictures": ", ".join(name for name, is_so in upright.items() if is_so),
        "keypoints": _number(
            f"{name}, flipped {keypoints.names[flipped]}"
            for name, flipped in zip(*keypoints, strict=True)
        )
        if keypoints
        else {},
        "category ids": manifest.facts.category_ids,
        "shares": mixture and {"mode": mixture.mode, **mixture.shares},
        "problems": _number(f"{path}: {why}" for path, why in manifest.problems),
        "dropped": _number(f"{name}: {why}" for name, why in manifest.dropped),
        "omissions": _describe_omissions(manifest.omissions),
        "omissions of the whole": _describe_omissions(manifest.of_whole),
        "bad images of the whole": _describe_whole(manifest),
        # of names below the root, labels, sizes and columns; this test's folder is in no name but
        # those of absolute paths
        "fingerprint": manifest.fingerprint if str(manifest.root) != "/" else "",
    }


def _number(lines: Iterable[Any]) -> dict[str, Any]:
    """By its number, so that one line that is missing does not hide the others."""
    return {f"{number:03d}": line for number, line in enumerate(lines)}


def _describe_kind(manifest: dp.Manifest) -> str:
    where = {
        "files of their own": manifest.whole_files,
        "in an object store": manifest.is_fetched,
        "read from copies": manifest.copied,
        "some of 16 bits": manifest.has_wide,
    }
    return ", ".join([manifest.task, *(name for name, is_so in where.items() if is_so)])


def _describe_image(manifest: dp.Manifest, sample_id: int) -> str:
    one = np.array([sample_id])
    row = manifest.samples.slice(sample_id, 1).to_pylist()[0]
    label = manifest.take_labels(one)[0].tolist()
    if manifest.task == "multilabel":
        label = [number for number in label if number >= 0]
    (height, width), turned = manifest.take_sizes(one)[0], manifest.take_orientations(one)[0]
    kind = " ".join(filter(None, [row["format"], row["jpeg"], row["decoded"] * "decoded"]))
    return (
        f"{manifest.name(sample_id)}: label {label}, {height} high, {width} wide, "
        f"turned {turned}, {kind}, {_describe_content(manifest, sample_id)}"
    )


def _describe_content(manifest: dp.Manifest, sample_id: int) -> str:
    try:
        return made.get(manifest.read(sample_id).tobytes(), "another picture")
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _describe_column(manifest: dp.Manifest, name: str) -> dict[str, Any]:
    values = [_finite(value) for value in manifest.columns[name].tolist()]
    kind = manifest.samples.schema.field(f"column:{name}").type
    is_of_batches = " in batches" * (name in manifest.numeric_columns)
    return {"type": f"{kind}{is_of_batches}", "values": _number(values)}


def _finite(value: Any) -> Any:
    """NaN equals nothing, not even itself, and JSON has no infinity."""
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _describe_objects(manifest: dp.Manifest) -> dict[str, dict[str, str]]:
    """By the number of the image."""
    objects = manifest.take_objects(np.arange(len(manifest)))
    if objects is None:
        return {}

    lines: dict[str, dict[str, str]] = {}
    outlines = {}
    if manifest.has_target("outlines"):
        texts = manifest.take_texts("outlines", np.arange(len(manifest)))
        outlines = {image: json.loads(text or "[]") for image, text in enumerate(texts)}
    for place, image in enumerate(objects.images.tolist()):
        of_image = lines.setdefault(f"{image:03d}", {})
        line = f"label {objects.labels[place]}, box {_join(objects.boxes[place])}"
        if objects.areas is not None:
            line += f", area {objects.areas[place]:g}"
        if objects.crowd is not None and objects.crowd[place]:
            line += ", a crowd"
        if objects.keypoints is not None:
            points = "; ".join(_join(point) for point in objects.keypoints[place])
            line += f", keypoints {points}"
        if image in outlines:
            line += f", outline {json.dumps(outlines[image][len(of_image)])}"
        of_image[f"{len(of_image):03d}"] = line
    return lines


def _join(values: Iterable[float]) -> str:
    return " ".join(f"{value:g}" for value in values)


def _describe_mask(manifest: dp.Manifest, sample_id: int) -> str:
    extent = manifest.mask_extent(sample_id)
    if extent is None:
        return "none"
    height, width = manifest.mask_size(sample_id)
    content = Reader(keep=1).read(extent).tobytes()
    return f"{extent}: {height} high, {width} wide, {made.get(content, 'another picture')}"


def _describe_whole(manifest: dp.Manifest) -> str:
    """How many images cannot be used of those from which these were chosen."""
    own = (manifest.bad_images, len(manifest) + manifest.bad_images)
    return "{} of {}".format(*manifest.bad_of_whole) if manifest.bad_of_whole != own else ""


def _describe_omissions(omissions: Iterable[Any]) -> dict[str, str]:
    return {
        f"{omission.kind} ({omission.unit})": f"{omission.number}: {', '.join(omission.names)}"
        for omission in omissions
    }


@contextlib.contextmanager
def _log_lines() -> Iterator[list[str]]:
    """What the package logs, from warnings up."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.levelname}: {record.getMessage()}")

    handler, log = Handler(logging.WARNING), logging.getLogger("dali_pipes")
    log.addHandler(handler)
    log.propagate = False  # pytest would print all of it beside the difference
    try:
        yield lines
    finally:
        log.removeHandler(handler)
        log.propagate = True
