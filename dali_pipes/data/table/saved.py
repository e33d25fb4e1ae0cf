"""A manifest as a file: Arrow's file format, which processes map and share, or Parquet, which is
smaller.

`load` opens either, `save` writes one, and `verify` checks all of one that is mapped. Root, class
names and what is known of the samples as a whole are in the metadata of the schema.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.shards.addresses import absolute
from dali_pipes.data.table.samples import MappedFile, Samples, validate
from dali_pipes.data.table.schema import RULES, cast_columns, split_usable
from dali_pipes.errors import ManifestError
from dali_pipes.system.files import replacing

MAPPED = ".arrow"
_KEY = b"dali_pipes"


def load(file: str | Path) -> ImageTable:
    """Opens a file: an Arrow file is mapped, a Parquet file is read and checked.

    Raises:
        ManifestError: as `Manifest.load`.
    """
    try:
        mapped = MappedFile(Path(file)) if _is_arrow(Path(file)) else None
        table = _mapped_table(mapped) if mapped else pq.read_table(file)
        head = json.loads((table.schema.metadata or {})[_KEY])
        # a mapped table has its types already (`_mapped_table`), and a cast would copy it
        table = cast_columns(table) if not mapped else table.replace_schema_metadata()

        root, classes, known = os.fspath(head["root"]), head["classes"], head.get("known", {})
        if known.get("rules") != RULES:
            raise ManifestError(
                f"{file}: another version of dali_pipes wrote it, with other rules of what is an "
                "image and what is known of it; scan the images again"
            )
        facts = ManifestFacts.read(known)
        if facts.category_ids is not None and len(facts.category_ids) != len(classes):
            raise ManifestError(
                f"{file}: its ids of categories are not those of its classes; scan again"
            )
    except ManifestError:
        raise  # it is a ValueError, and says what is wrong
    except FileNotFoundError:
        raise ManifestError(
            f"{file}: no such manifest; make one with Manifest.scan(root).save(file)"
        ) from None
    except (
        *(pa.ArrowException, OSError),
        # the metadata may be anything
        *(ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError),
    ) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ManifestError(
            f"{file}: not a manifest of dali_pipes ({reason}); scan the images again"
        ) from None

    # A Parquet file is not mapped. Its rows are all read here, so they are checked, and the
    # fingerprint is theirs and not one that the file states.
    if not mapped:
        return ImageTable.from_rows(root, classes, table, facts.of_same_samples())

    usable, others = split_usable(table)
    validate(others)
    return ImageTable(absolute(root), Samples(usable, (mapped,)), classes, others, facts)


def save(images: ImageTable, file: str | Path) -> None:
    """Writes a file whole or not at all.

    Raises:
        ManifestError: a file of that name exists and is not a manifest; it is left unchanged.
    """
    # fingerprint and description too, since computing them reads all rows
    facts = replace(images.facts, fingerprint=images.fingerprint, description=images.description)
    write(
        Path(file),
        str(images.root),
        images.classes,
        images.rows.table(),
        images.others,
        facts.write(),
    )


def verify(images: ImageTable) -> None:
    """Reads all of a mapped file, and checks what `load` does not check.

    Raises:
        ManifestError: its rows cannot be of images, or do not have its fingerprint.
    """
    images.rows.validate(images.rows.whole.column_names)
    images.check()

    known = images.facts.fingerprint
    if known is not None and known != images.compute_fingerprint():
        raise ManifestError(
            f"{images.root}: the manifest's rows are not those that it was saved with; scan "
            "the images again"
        )


def write(
    file: Path,
    root: str,
    classes: list[str],
    samples: pa.Table,
    others: pa.Table,
    known: dict[str, Any],
) -> None:
    """Writes the file whole or not at all: as Arrow if its name ends in .arrow, else as Parquet."""
    refuse_other_file(file)

    head = {_KEY: json.dumps({"root": root, "classes": classes, "known": known})}
    with replacing(file) as aside, aside.open("wb") as out:
        if file.suffix != MAPPED:
            pq.write_table(
                pa.concat_tables([samples, others]).replace_schema_metadata(head),
                out,
                compression="zstd",
            )
            return

        with pa.ipc.new_file(out, samples.schema.with_metadata(head)) as writer:
            for table in (samples, others):
                # one chunk for each, in which rows are found without a search
                writer.write_table(table.combine_chunks())


def refuse_other_file(file: Path) -> None:
    if file.exists() and not is_manifest(file):
        raise ManifestError(
            f"{file} exists and is not a manifest of dali_pipes; choose another name, nothing "
            "was changed"
        )


def is_manifest(file: Path) -> bool:
    try:
        with file.open("rb") as opened, pa.memory_map(f"/proc/self/fd/{opened.fileno()}") as mapped:
            # Opened by Python, for names that are not UTF-8, and read by Arrow alone: a Python file
            # that Arrow's threads let go of while the interpreter ends makes the process abort.
            schema = pa.ipc.open_file(mapped).schema if _is_arrow(file) else pq.read_schema(mapped)
            return _KEY in (schema.metadata or {})
    except (pa.ArrowException, OSError):
        return False


def _is_arrow(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(6) == b"ARROW1"


def _mapped_table(file: MappedFile) -> pa.Table:
    table = pa.ipc.open_file(pa.BufferReader(file.content)).read_all()
    table.validate()  # that the buffers have the lengths they need; their content is not read
    if table.schema.remove_metadata() != cast_columns(table.schema.empty_table()).schema:
        raise pa.ArrowInvalid("its columns are not a manifest's")
    return table
