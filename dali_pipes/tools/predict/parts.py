"""The folder of a prediction: what it was made from, and its parts.

`claim` writes _predict.json or checks it; `Parts` are the Parquet files. Each is written under
another name first, so that a file which exists is complete.
"""

import contextlib
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.loader.fingerprint import iter_changes
from dali_pipes.system.files import open_replacing

NAME = "_predict.json"  # readers of a folder of Parquet files skip names that begin with "_"


def claim(
    out: Path, facts: dict[str, Any], choice: dict[str, Any], known: dict[str, Any]
) -> dict[str, Any]:
    """Records what the folder `out` is made from, or checks that it is made from the same.

    The first process writes the facts; the others join the same work, or are refused.

    Args:
        facts: what decides the outputs, in values that JSON does not change.
        choice: facts that later processes take from the folder, unless `facts` has them.
        known: more that readers may want.

    Returns:
        the folder's facts.

    Raises:
        ConfigError: the folder holds something else, or was made from other facts; the text names
            them.
    """
    out.mkdir(parents=True, exist_ok=True)

    file, aside = out / NAME, out / f".{NAME}.{uuid.uuid4().hex}"
    if any(not name.startswith(".") for name in os.listdir(out)) and not file.exists():
        raise ConfigError(
            f"{out} is not empty and holds no prediction; choose another folder with out=DIR, "
            "nothing was changed"
        )

    try:
        aside.write_text(json.dumps({"facts": choice | facts, **known}, indent=1))
        with contextlib.suppress(FileExistsError):
            # complete at once, and unlike a rename it never replaces what another process wrote
            os.link(aside, file)
    finally:
        aside.unlink(missing_ok=True)

    # the facts of the first process, which may be another one
    then = json.loads(file.read_text())["facts"]
    if changed := [
        f"{name} was {before}, and now is {after}"
        for name, before, after in iter_changes(then, {**then, **facts})
    ]:
        raise ConfigError(
            f"{out} was started with other options: {'; '.join(changed)}; restore that, or choose "
            "another folder with out=DIR"
        )

    return then


@dataclass(frozen=True, slots=True)
class Parts:
    """The files: `size` consecutive ids in each; the last one has the images without an id.

    Those are the images that the scan found unusable. What a part holds depends on nothing else, so
    any number of processes can share the work, and another number can continue it.
    """

    out: Path
    manifest: Manifest
    size: int

    def __len__(self) -> int:
        return -(-len(self.manifest) // self.size) + bool(self.manifest.problems)

    def ids(self, part: int) -> NDArray[np.int64]:
        return np.arange(part * self.size, min((part + 1) * self.size, len(self.manifest)))

    def missing(self) -> list[int]:
        return [part for part in range(len(self)) if not self._file(part).exists()]

    def write(self, part: int, outputs: dict[str, NDArray[Any]], problems: dict[int, str]) -> None:
        """Writes one part.

        Args:
            outputs: the columns by name, (N, K) each; for images without an id only the dtype and
                K matter.
            problems: why images have no outputs, by id.
        """
        ids = self.ids(part)

        if len(ids):
            columns = (
                self.manifest.subset(ids).samples.select(["path", "member"]).to_pydict().values()
            )
            paths = [
                path + b"/" + member if member else path
                for path, member in zip(*columns, strict=True)
            ]

            why = [problems.get(sample_id) for sample_id in ids.tolist()]
        else:
            paths, why = (
                [os.fsencode(path) for path, _ in self.manifest.problems],
                [reason for _, reason in self.manifest.problems],
            )

        bad, values = np.array([reason is not None for reason in why]), dict[str, pa.Array]()
        for name, rows in outputs.items():
            # resized, since the part without ids gets the columns of one blank image
            flat = pa.array(np.resize(rows, (len(why), rows.shape[1])).ravel())
            values[name] = pa.FixedSizeListArray.from_arrays(
                flat, rows.shape[1], mask=pa.array(bad)
            )

        numbers = pa.array(ids) if len(ids) else pa.nulls(len(why), pa.int64())
        # paths are bytes, and Parquet's strings are UTF-8
        names = pa.array([path.decode(errors="backslashreplace") for path in paths])
        with open_replacing(self._file(part)) as file:
            table = pa.table(
                {"id": numbers, "path": names, **values, "problem": pa.array(why, pa.string())}
            )
            pq.write_table(table, file, use_dictionary=False)

    def finish(self) -> int:
        """Removes what killed processes have left; returns the number of images with a problem.

        All parts must be there.
        """
        for left in self.out.glob(".part-*"):
            left.unlink(missing_ok=True)

        # read from the files, since other ranks may have written them
        columns = [
            pq.read_table(self._file(part), columns=["problem"])["problem"]
            for part in range(len(self))
        ]
        return sum(len(column) - column.null_count for column in columns)

    def _file(self, part: int) -> Path:
        return self.out / f"part-{part:06d}.parquet"
