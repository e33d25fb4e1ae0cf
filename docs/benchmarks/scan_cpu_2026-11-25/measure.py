"""What scans cost beside another version: a million files in class folders, and a COCO file of
COCO's size.

    python measure.py FOLDER OUT.json --before CHECKOUT [--rounds 3]

It makes FOLDER/train and FOLDER/coco if they are not there. Files are hard links of few JPEGs, which are the same to a scan. Each measurement is a new process;
the versions take turns, and begin in turn. CPU seconds are those of the process and of those that
it started.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from PIL import Image

CLASSES, EACH, SOURCES = 1000, 1000, 40
COCO_IMAGES, COCO_OBJECTS = 118_287, 860_001  # train2017
KINDS = ("first", "file", "folder", "coco")
HERE = Path(__file__).resolve().parents[3]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    make(given.folder.absolute())

    found: dict[str, dict[str, list[float]]] = {kind: {"before": [], "now": []} for kind in KINDS}
    for number in range(given.rounds):
        versions = [("before", given.before.absolute()), ("now", HERE)]
        for kind in KINDS:
            for name, checkout in versions[:: 1 if number % 2 else -1]:
                found[kind][name].append(run(given.folder.absolute(), kind, name, checkout))
                print(number, kind, name, found[kind][name][-1], flush=True)

    ratios = {
        kind: [now / before for now, before in zip(each["now"], each["before"], strict=True)]
        for kind, each in found.items()
    }
    summary = {
        kind: {"median": statistics.median(each), "rounds": each} for kind, each in ratios.items()
    }
    given.out.write_text(json.dumps({"ratio_of_cpu_s": summary, "cpu_s": found}, indent=1))


def make(folder: Path) -> None:
    if not (folder / "sources").exists():
        (folder / "sources").mkdir(parents=True)
        for number in range(SOURCES):
            Image.new("RGB", (640, 480), (number, 3 * number, 90)).save(
                folder / f"sources/{number}.jpg"
            )
    sources = [folder / f"sources/{number}.jpg" for number in range(SOURCES)]
    if not (folder / "train").exists():
        for label in range(CLASSES):
            (folder / f"train/n{label:05d}").mkdir(parents=True)
            for number in range(EACH):
                os.link(
                    sources[number * SOURCES // EACH],
                    folder / f"train/n{label:05d}/n{label:05d}_{number:06d}.JPEG",
                )
    if not (folder / "coco").exists():
        (folder / "coco/images").mkdir(parents=True)
        for number in range(COCO_IMAGES):
            os.link(sources[number % SOURCES], folder / f"coco/images/{number:012d}.jpg")
        draw = random.Random(0)
        images = [
            {"id": number, "file_name": f"{number:012d}.jpg", "width": 640, "height": 480}
            for number in range(COCO_IMAGES)
        ]
        objects = []
        for number in range(COCO_OBJECTS):
            x, y = draw.uniform(0, 600), draw.uniform(0, 440)
            box = [x, y, draw.uniform(1, 640 - x), draw.uniform(1, 480 - y)]
            one = {
                "id": number,
                "image_id": draw.randrange(COCO_IMAGES),
                "category_id": 1 + number % 80,
                "bbox": box,
            }
            corners = [x, y, x + box[2], y, x + box[2], y + box[3]]
            objects.append(one | {"area": box[2] * box[3], "iscrowd": 0, "segmentation": [corners]})
        categories = [{"id": 1 + number, "name": f"class {number}"} for number in range(80)]
        content = {"images": images, "annotations": objects, "categories": categories}
        (folder / "coco/instances.json").write_text(json.dumps(content))


def run(folder: Path, kind: str, name: str, checkout: Path) -> float:
    if kind == "first":
        (folder / f"{name}.arrow").unlink(missing_ok=True)
    command = [sys.executable, str(Path(__file__).resolve()), "scan", str(folder), kind, name]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    return json.loads(
        subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment).stdout
    )


def scan(folder: Path, kind: str, name: str) -> None:
    from dali_pipes import Manifest

    if kind == "coco":
        manifest = Manifest.from_coco(
            folder / "coco/instances.json", root=folder / "coco/images", progress=False
        )
    else:
        how = {} if kind == "first" else {"unchanged": kind}
        manifest = Manifest.scan(
            folder / "train", cache=folder / f"{name}.arrow", progress=False, **how
        )
    assert len(manifest) == (COCO_IMAGES if kind == "coco" else CLASSES * EACH)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps(sum(each.ru_utime + each.ru_stime for each in used)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["scan"]:
        scan(Path(sys.argv[2]), *sys.argv[3:])
    else:
        main()
