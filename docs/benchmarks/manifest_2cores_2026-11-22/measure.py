"""What a manifest of many rows costs each rank: opening it, its memory, and the look-ups of a step.

    python measure.py OUT.json [ROWS …]

By default 1.3, 20 and 100 million rows; 100 million need 12 GB of disk and of memory.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from dali_pipes import Manifest
from dali_pipes.data.table.schema import SCHEMA

BATCH, BATCHES, REPEATS, CLASSES = 256, 400, 3, 1000
RANKS = (1, 4)


def main(out: Path, sizes: list[int]) -> None:
    result = {}
    for rows in sizes:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "m.arrow")
            start = time.monotonic()
            table = made_up(rows)
            made = time.monotonic()
            manifest = Manifest(
                "/imagenet/train", [str(number) for number in range(CLASSES)], table
            )
            checked = time.monotonic()
            manifest.save(file)
            saved = time.monotonic()
            del table, manifest
            found = {
                "made_s": made - start,
                "checked_s": checked - made,
                "saved_s": saved - checked,
            }
            found["mb"] = file.stat().st_size / 1e6
            for ranks in RANKS:
                command = [sys.executable, __file__, "rank", str(file)]
                processes = [
                    subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(ranks)
                ]
                found[f"{ranks} ranks"] = [
                    json.loads(process.communicate()[0]) for process in processes
                ]
        result[f"{rows:,}"] = found
        print(rows, json.dumps(found), flush=True)
    out.write_text(json.dumps(result, indent=1))


def made_up(rows: int) -> pa.Table:
    """Rows as a scan of ImageNet has them, with paths of 31 bytes."""
    rng = np.random.default_rng(0)
    paths = np.empty((rows, 31), np.uint8)
    paths[:] = np.frombuffer(b"n01440764/n01440764_000000.JPEG", np.uint8)
    rest = np.arange(rows)
    for place in range(25, 16, -1):
        paths[:, place] = ord("0") + rest % 10
        rest //= 10
    names = [None, pa.py_buffer(np.arange(rows + 1) * 31), pa.py_buffer(paths.reshape(-1))]
    columns = {
        "path": pa.Array.from_buffers(pa.large_binary(), rows, names),
        "problem": pa.nulls(rows, pa.string()),
    }
    columns["label"] = pa.array(rng.integers(0, CLASSES, rows, np.int32))
    columns["bytes"] = pa.array(rng.integers(50_000, 200_000, rows))
    columns |= {
        side: pa.array(rng.integers(200, 600, rows, np.int32)) for side in ("height", "width")
    }
    same = {
        "mtime_ns": 1,
        "orientation": 1,
        "format": "JPEG",
        "decoded": False,
        "subsampling": "4:2:0",
    }
    for name, value in (same | {"member": b"", "offset": 0, "file_bytes": 0}).items():
        columns[name] = pa.repeat(pa.scalar(value, SCHEMA.field(name).type), rows)
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def rank(file: str) -> None:
    before, start = memory(), time.monotonic()
    manifest = Manifest.load(file)
    manifest.fingerprint  # noqa: B018  what a loader asks for when it is built
    found = {"open_s": time.monotonic() - start, "open": grown(before)}
    rng = np.random.default_rng(os.getpid())
    batches = [rng.integers(0, len(manifest), BATCH) for _ in range(BATCHES)]
    takes = {
        "labels": take_labels(manifest),
        "sizes": take_sizes(manifest),
        "paths": manifest.path_matrix,
    }
    for name, take in takes.items():
        found[f"{name}_cpu_us"] = min(cpu_us(take, batches) for _ in range(REPEATS))
    print(json.dumps(found | {"after_look_ups": grown(before)}))


def take_labels(manifest):
    """The way of version 0.1 where there is no other."""
    return getattr(manifest, "take_labels", lambda ids: manifest.labels[ids])


def take_sizes(manifest):
    return getattr(manifest, "take_sizes", lambda ids: manifest.sizes[ids])


def cpu_us(take, batches) -> float:
    start = time.process_time()
    for ids in batches:
        take(ids)
    return (time.process_time() - start) / BATCH / BATCHES * 1e6


def memory() -> dict[str, float]:
    lines = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return {words[0].rstrip(":"): int(words[1]) / 1024 for words in lines}


def grown(before: dict[str, float]) -> dict[str, float]:
    """MiB: private ones, and those of the file, which all processes share."""
    now = memory()
    private = now["Anonymous"] - before["Anonymous"]
    return {
        "private_mib": round(private, 1),
        "shared_mib": round(now["Rss"] - before["Rss"] - private, 1),
    }


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank(sys.argv[2])
    else:
        main(
            Path(sys.argv[1]),
            [int(float(rows)) for rows in sys.argv[2:]] or [1_300_000, 20_000_000, 100_000_000],
        )
