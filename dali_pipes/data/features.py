"""What Hugging Face's `datasets` notes of the columns of a data set, its features: which column
holds the images (`find_image_column`), which ones class numbers, and the names of these
(`class_names`, `name_numbers`).

They are dictionaries, as the metadata of a file has them in JSON, and as `Features.to_dict` of an
open data set gives them: {COLUMN: {"_type": "ClassLabel", "names": […]}}.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from dali_pipes.data.arrow_types import is_list
from dali_pipes.data.omissions import Omission
from dali_pipes.errors import ManifestError


def features_of(schema: pa.Schema) -> dict[str, Any]:
    """The features in a schema's metadata; nothing if that is not of `datasets`."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: of for name, of in features.items() if isinstance(of, dict)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def find_image_column(
    place: Path | str, schema: pa.Schema, features: Mapping[str, Any], or_bytes: bool = True
) -> str | None:
    """The name of the only column of images; None: there is none.

    It is the one that `datasets` calls an Image, or else the structs of bytes of which it says
    nothing: an Audio has the same form. Where there is none of these, it is the only column of
    bytes.

    Args:
        place: the data set, for errors.
        or_bytes: whether a column of bytes may be one.

    Raises:
        ManifestError: there are several, or `datasets` would convert the images.
    """
    noted = {name: of.get("_type") for name, of in features.items() if isinstance(of, dict)}
    structs = [
        field.name
        for field in schema
        if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0
    ]
    images = [name for name in structs if noted.get(name) == "Image"]
    names = images or [name for name in structs if noted.get(name) is None]
    if or_bytes and not names:
        names = [field.name for field in schema if _is_binary(field.type)]
    if len(names) > 1:
        raise ManifestError(
            f"{place}: has several columns of images, {', '.join(names)}; name one, "
            f"from_hf(…, image={names[0]!r}), of Parquet files after "
            "datasets.load_dataset('parquet', data_files=…, split='train')"
        )
    if names:
        refuse_mode(place, names[0], features)
    return names[0] if names else None


def refuse_mode(place: Path | str, name: str, features: Mapping[str, Any]) -> None:
    """Refuses a column of images that `datasets` would convert to another mode of Pillow's than
    RGB.
    """
    feature = features.get(name)
    mode = feature.get("mode") if isinstance(feature, dict) else None
    if mode not in (None, "RGB"):
        raise ManifestError(
            f"{place}: the column {name} is declared as Image(mode={mode!r}), and batches are made "
            "of the pixels as they are stored; cast it, dataset.cast_column("
            f"{name!r}, datasets.Image()), and make gray ones by the transform (channels=1)"
        )


def _is_binary(kind: pa.DataType) -> bool:
    is_one = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(check(kind) for check in is_one)


def class_names(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """The columns of class numbers, or of lists of them, and the names of each.

    A field of a column of objects is "objects.category".
    """
    found: dict[str, list[str]] = {}
    for name, feature in features.items():
        inner = _item(feature)
        fields = (
            {name: inner} if "_type" in inner else {f"{name}.{key}": inner[key] for key in inner}
        )
        for place, of in fields.items():
            label = _item(of)
            if label.get("_type") == "ClassLabel" and isinstance(label.get("names"), list):
                found[place] = list(map(str, label["names"]))
    return found


def name_numbers(
    table: pa.Table, column: str, names: Mapping[str, list[str]], classes: list[str]
) -> tuple[list[str], bool, list[Omission]]:
    """Returns the classes by the names that `datasets` notes, whether it has them, and what is in
    doubt about them.

    Args:
        column: the one of class numbers.
        names: as from `class_names`.
        classes: of the labels as they were read; of numbers the numbers.
    """
    kind = table[column].type if column in table.column_names else pa.null()
    while is_list(kind):
        kind = kind.value_type
    # the note stays with a column that is written anew with words
    known = names.get(column, []) if pa.types.is_integer(kind) else []
    if not known or not classes:
        return classes, False, []
    if len(classes) <= len(known):
        return known, True, []

    what = f"class numbers without a name among the {len(known)} of the ClassLabel {column}, "
    what += "so that all classes are called by their numbers"
    without = classes[len(known) :]
    return classes, False, [Omission(what, len(without), without[:3], "doubt")]


def _item(feature: Any) -> dict[str, Any]:
    """What is in lists, of lists, of a feature; {} if that is none of `datasets`."""
    lists = ("Sequence", "List", "LargeList")
    # `datasets` before version 4 has lists of Python too, and a struct may have a field `feature`
    while isinstance(feature, list) or (
        isinstance(feature, dict) and feature.get("_type") in lists
    ):
        feature = feature.get("feature") if isinstance(feature, dict) else (feature or [{}])[0]
    return feature if isinstance(feature, dict) else {}
