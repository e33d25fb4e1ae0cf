"""A manifest as a file: Arrow's file format, which processes map and share, or Parquet, which is
smaller.

`read` opens either, `write` saves one. Root, class names and what is known of the samples as a
whole are in the metadata of the schema.
"""

import json
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dali_pipes.data.omissions import Omission, read_omissions
from dali_pipes.data.table.schema import cast_columns
from dali_pipes.errors import ManifestError
from dali_pipes.system.files import replacing

MAPPED = ".arrow"
_KEY = b"dali_pipes"


class MappedFile:
    """A file that all processes of a machine map and share.

    If the file is replaced, as `write` does, those who have mapped it keep the old one. `check`
    notices a file that was written into; reading what has been cut off a file would end the process
    (SIGBUS).

    Raises:
        OSError, ValueError: it cannot be mapped.
    """

    def __init__(self, file: Path):
        self._file = file
        with file.open("rb") as opened:
            self.content = pa.py_buffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
            # of the mapped file itself, also after another one has taken its name
            self._number = os.dup(opened.fileno())
        self._stamp = self._read_stamp()

    def check(self) -> None:
        if self._read_stamp() != self._stamp:
            raise ManifestError(
                f"{self._file}: was changed while it was in use; write a new file and rename "
                "it, and start again"
            )

    def _read_stamp(self) -> tuple[int, int]:
        stat = os.fstat(self._number)
        return stat.st_size, stat.st_mtime_ns

    # os.close as a default: at the program's end the module `os` may be gone
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "_number"):
            close(self._number)


class SavedManifest(NamedTuple):
    """What a file holds, not yet checked.

    Attributes:
        table: usable images, then the others; in a mapped file each of the two is one chunk.
        known: "fingerprint" and "description" of the samples, the "folders" that were scanned, the
            "omissions" of other scans, the "mixture" that the samples are, and the "rules" of the
            scan, as far as the file has them.
        file: None if the file is not mapped.
    """

    root: str
    classes: Any
    table: pa.Table
    known: dict[str, Any]
    file: MappedFile | None = None


def read(file: str | Path) -> SavedManifest:
    try:
        mapped = MappedFile(Path(file)) if _is_arrow(Path(file)) else None
        table = _mapped_table(mapped) if mapped else pq.read_table(file)
        head = json.loads((table.schema.metadata or {})[_KEY])
        # a mapped table has its types already (`_mapped_table`), and a cast would copy it
        table = cast_columns(table) if not mapped else table.replace_schema_metadata()

        known = dict(head.get("known", {}))
        known["folders"] = {
            # JSON has made lists of the records
            name: _folder(*record)
            for name, record in known.get("folders", {}).items()
        }
        known["omissions"] = read_omissions(known.get("omissions", []))

        return SavedManifest(os.fspath(head["root"]), head["classes"], table, known, mapped)
    except FileNotFoundError:
        raise ManifestError(
            f"{file}: no such manifest; make one with Manifest.scan(root).save(file)"
        ) from None
    except (pa.ArrowException, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ManifestError(
            f"{file}: not a manifest of dali_pipes ({reason}); scan the images again"
        ) from None


def _folder(
    mtime_ns: int, usable: int, others: int, omissions: object = None
) -> tuple[int, int, int, list[Omission]]:
    return int(mtime_ns), int(usable), int(others), read_omissions(omissions)


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
