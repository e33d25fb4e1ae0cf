"""Scans a folder of a million files for the first time and again; hard links of few JPEGs, which
are the same to a scan.

python million_files.py FOLDER OUT.json        # makes FOLDER/train if it is not there
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image

from dali_pipes import Manifest

CLASSES, EACH, SOURCES = 1000, 1000, 40


def main(folder: Path, out: Path) -> None:
    if not (folder / "train").exists():
        make(folder)
    for cache in folder.glob("m.*"):
        cache.unlink()
    runs = ["", "file", "folder"] if hasattr(Manifest, "take_labels") else ["", ""]
    found = []
    for unchanged in runs:
        command = [sys.executable, __file__, "scan", str(folder), unchanged]
        found.append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
        print(found[-1], flush=True)
    out.write_text(json.dumps(found, indent=1))


def make(folder: Path) -> None:
    for number in range(SOURCES):
        (folder / "sources").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (500, 375), (number, 3 * number, 90)).save(
            folder / f"sources/{number}.jpg"
        )
    for label in range(CLASSES):
        (folder / f"train/n{label:05d}").mkdir(parents=True)
        for number in range(EACH):
            os.link(
                folder / f"sources/{number * SOURCES // EACH}.jpg",
                folder / f"train/n{label:05d}/n{label:05d}_{number:06d}.JPEG",
            )


def scan(folder: Path, unchanged: str) -> None:
    start, how = time.monotonic(), {"unchanged": unchanged} if unchanged else {}
    cache = folder / ("m.arrow" if hasattr(Manifest, "take_labels") else "m.parquet")
    manifest = Manifest.scan(folder / "train", cache=cache, progress=False, **how)
    mine, others = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    cpu_s = [each.ru_utime + each.ru_stime for each in (mine, others)]
    result = {
        "images": len(manifest),
        **how,
        "seconds": time.monotonic() - start,
        "cpu_s": sum(cpu_s),
    }
    print(json.dumps(result | {"peak_mib": mine.ru_maxrss / 1024}))


if __name__ == "__main__":
    if sys.argv[1] == "scan":
        scan(Path(sys.argv[2]), sys.argv[3])
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
