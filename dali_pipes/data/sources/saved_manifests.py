"""Images in a file: `save` writes an `ImageTable`, `load` opens it, and `verify` checks all of it.

table/saved.py has the form of the file.
"""

from dataclasses import replace
from pathlib import Path

from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.shards.addresses import absolute
from dali_pipes.data.table import saved
from dali_pipes.data.table.samples import Samples, validate
from dali_pipes.data.table.schema import RULES, split_usable
from dali_pipes.errors import ManifestError


def load(file: str | Path) -> ImageTable:
    """Opens images that `save` wrote: an Arrow file is mapped, a Parquet file is read and checked.

    Raises:
        ManifestError: as `Manifest.load`.
    """
    stored = saved.read(file)
    if stored.known.get("rules") != RULES:
        raise ManifestError(
            f"{file}: another version of dali_pipes wrote it, with other rules of what is an image "
            "and what is known of it; scan the images again"
        )
    facts = ManifestFacts.read(stored.known)

    # A Parquet file is not mapped. Its rows are all read here, so they are checked, and the
    # fingerprint is theirs and not one that the file states.
    if not stored.file:
        return ImageTable.from_rows(
            stored.root, stored.classes, stored.table, facts.of_same_samples()
        )

    usable, others = split_usable(stored.table)
    validate(others)
    return ImageTable(
        absolute(stored.root), Samples(usable, (stored.file,)), stored.classes, others, facts
    )


def save(images: ImageTable, file: str | Path) -> None:
    """Writes the file whole or not at all.

    Raises:
        ManifestError: a file of that name exists and is not a manifest; it is left unchanged.
    """
    # fingerprint and description too, since computing them reads all rows
    facts = replace(images.facts, fingerprint=images.fingerprint, description=images.description)
    saved.write(
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
