"""Numbers the classes of labels, and refuses names that look the same."""

import unicodedata

import pyarrow as pa
import pyarrow.compute as pc

from dali_pipes.data.labels.cells import LabelCells
from dali_pipes.data.labels.stored import MAX_CLASSES
from dali_pipes.errors import ManifestError


def number_names(count: int) -> list[str]:
    """The names of classes that have none: their numbers."""
    return [str(number) for number in range(count)]


def number_classes(cells: LabelCells) -> tuple[list[str], pa.Array]:
    """Numbers the classes of labels: class names, and int32 class numbers.

    Names are sorted; integers are class numbers themselves.
    """
    file, labels = cells.file, cells.values
    if not len(labels):
        raise ManifestError(f"{file}: no row has a label; fill the column of labels")

    if pa.types.is_integer(labels.type):
        low, high = pc.min_max(labels).as_py().values()
        # by NumPy, which compares unsigned numbers of 64 bits too
        numbers = labels.to_numpy()
        instead = "number the classes from 0, without large gaps"
        cells.refuse(
            (numbers < 0) | (numbers >= MAX_CLASSES),
            f"labels run from {low} to {high}, as {{value}}",
            instead,
        )
        return number_names(high + 1), labels.cast(pa.int32())

    try:
        names = labels.cast(pa.string())
    except pa.ArrowException:
        why = f"labels of type {labels.type} make no sense"
        raise ManifestError(f"{file}: {why}; give class numbers, names, or fractions") from None

    # a name may be there in two forms
    names = pc.utf8_normalize(names, form="NFC")
    # sorted as ImageFolder sorts folders, so that a table and folders number alike
    classes = sorted(pc.unique(names).to_pylist())
    _refuse_lookalikes(cells._replace(values=names), classes)
    return classes, pc.index_in(names, value_set=pa.array(classes, pa.string()))


def _refuse_lookalikes(cells: LabelCells, classes: list[str]) -> None:
    """Raises ManifestError if two names look the same, such as é and e with a combining accent."""
    if all(map(str.isascii, classes)):
        return

    seen: dict[str, str] = {}
    for name in classes:
        first = seen.setdefault(_appearance(name), name)
        if first != name:
            row, other = (
                cells.rows[pc.index(cells.values, class_name).as_py()] + 1
                for class_name in (first, name)
            )
            raise ManifestError(
                f"{cells.file}: the classes {first!a} (row {row}) and {name!a} (row "
                f"{other}) look the "
                "same; write one of them in all rows"
            )


def _appearance(name: str) -> str:
    """A name as one sees it: composed characters, all blanks alike, and nothing of no width."""
    composed = unicodedata.normalize("NFC", name)
    shown = (
        " " if character.isspace() else character
        for character in composed
        if unicodedata.category(character) != "Cf"
    )
    return "".join(shown)
