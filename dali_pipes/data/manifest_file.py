"""A manifest as a file: its table as Parquet, with the root and the class names in the file's metadata."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dali_pipes.data.manifest_table import typed
from dali_pipes.errors import ManifestError
from dali_pipes.system.files import replacing

_KEY = b"dali_pipes"


def read(file: str | Path) -> tuple[str, Any, pa.Table]:
    """Root, class names and table; what they hold is not checked.

    Raises:
        ManifestError: the file is missing, damaged, or not a manifest.
    """
    try:
        table = pq.read_table(file)
        head = json.loads((table.schema.metadata or {})[_KEY])
        return os.fspath(head["root"]), head["classes"], typed(table)
    except FileNotFoundError:
        raise ManifestError(f"{file}: no such manifest; make one with Manifest.scan(root).save(file)") from None
    except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ManifestError(f"{file}: not a manifest of dali_pipes ({reason}); scan the images again") from None


def write(file: Path, root: str, classes: list[str], table: pa.Table) -> None:
    """Writes the file whole or not at all.

    Raises:
        ManifestError: a file of that name exists and is not a manifest; it is left unchanged.
    """
    refuse_foreign(file)
    head = json.dumps({"root": root, "classes": classes})
    with replacing(file) as aside, aside.open("wb") as out:
        pq.write_table(table.replace_schema_metadata({_KEY: head}), out, compression="zstd")


def refuse_foreign(file: Path) -> None:
    if file.exists() and not is_manifest(file):
        raise ManifestError(f"{file} exists and is not a manifest of dali_pipes; choose another name, nothing was changed")


def is_manifest(file: Path) -> bool:
    try:
        return _KEY in (pq.read_schema(file).metadata or {})
    except (pa.ArrowException, OSError):
        return False
