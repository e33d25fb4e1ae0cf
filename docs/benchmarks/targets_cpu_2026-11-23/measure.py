"""Made result.json and table.md here: python docs/benchmarks/targets_cpu_2026-11-23/measure.py
IMAGES [--rounds 6]

Views and detection on the CPU, against torchvision's transforms in a DataLoader. In every round
each arm runs once, in random order, as a fresh process; ratios are taken within the round, with the
interval of the benchmark. `torchvision` runs twice in each round: its ratio to itself is the
control.

views       DINO's 2 × 224 and 8 × 96 pixels of each image, cropped, resized, flipped, normalized to
float32; batches of 32 colors      the same with DINO's ColorJitter, RandomGrayscale, GaussianBlur
of 9 pixels decode      decoding alone: the one region that holds all views, against the region of
each, by the views' number and scale ssd         IoU crop, resize to 300 × 300, flip; images of
COCO's sizes, with seven boxes each; batches of 32 rcnn        shorter side to 800 and longer to
1333 at most, flip, padded batches of 4; the same images

The images of COCO's sizes are those of IMAGES, resized to 640 pixels on the longer side and saved
as JPEGs of quality 90.
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import torch
from PIL import Image

import dali_pipes as dp
from dali_pipes.backends.config import DecodingConfig
from dali_pipes.measure.stats import paired_ratio
from dali_pipes.system.progress import track
from dali_pipes.system.provenance import provenance

HERE = Path(__file__).parent
EPOCH, LEAST_S, WARM = 2_000, 4, 4  # images, seconds, batches
VIEWS = {
    "global": {"count": 2, "size": 224, "scale": [0.4, 1.0]},
    "local": {"count": 8, "size": 96, "scale": [0.05, 0.4]},
}
COLORS = [
    {
        "name": "ColorJitter",
        "brightness": 0.4,
        "contrast": 0.4,
        "saturation": 0.2,
        "hue": 0.1,
        "p": 0.8,
    },
    {"name": "RandomGrayscale", "p": 0.2},
    {"name": "GaussianBlur", "kernel_size": 9, "p": 0.5},
]
TRANSFORMS = {
    "views": dp.ViewsTransform(views=VIEWS),
    "colors": dp.ViewsTransform(views=VIEWS, augment=COLORS),
    "ssd": dp.IoUCropTransform(size=300),
    "rcnn": dp.ShortestSizeTransform(min_size=[800], max_size=1333),
}
BATCH = {"views": 32, "colors": 32, "ssd": 32, "rcnn": 4}
ARMS = {
    "views": ["torchvision", "torchvision again", "torch", "dali_cpu", "dali_cpu, ten loaders"],
    "colors": ["torchvision", "torchvision again", "torch", "dali_cpu", "dali_cpu, ten loaders"],
    "ssd": ["torchvision", "torchvision again", "torch", "dali_cpu"],
    "rcnn": ["torchvision", "torchvision again", "torch", "dali_cpu"],
}
DECODED = {  # views of one scale
    f"{count} of scale {low} to {high}": {"v": {"count": count, "size": 32, "scale": [low, high]}}
    for count, (low, high) in itertools.product((2, 10), ((0.05, 0.1), (0.05, 0.4), (0.4, 1.0)))
} | {"DINO's ten": VIEWS}


def ours(folder, work, arm):
    """Batches of `work`; of ten loaders tuples of ten."""
    manifest, transform = (
        dp.Manifest.load(
            folder / f"{'images' if work in ('views', 'colors') else 'objects'}.parquet"
        ),
        TRANSFORMS[work],
    )
    cores = len(os.sched_getaffinity(0))
    config = (
        dp.TorchConfig(num_workers=cores + 1)
        if arm == "torch"
        else dp.DaliConfig(device="cpu", num_threads=cores)
    )
    options = {"batch_size": BATCH[work], "device": "cpu"}
    if not arm.endswith("ten loaders"):
        return forever(dp.build_loader(manifest, config, transform=transform, **options))
    each = [view for group in transform.groups for view in group]
    return zip(
        *(forever(dp.build_loader(manifest, config, transform=view, **options)) for view in each),
        strict=True,
    )


def torchvisions(folder, work):
    """torchvision's v2 transforms in PyTorch's DataLoader, with the workers that `torch` has
    here.
    """
    from torch.utils.data import DataLoader
    from torchvision.transforms import v2

    listed = json.loads(
        (folder / f"{'images' if work in ('views', 'colors') else 'objects'}.json").read_text()
    )
    finish = [
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
    jitter = [
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
        v2.RandomGrayscale(0.2),
        v2.RandomApply([v2.GaussianBlur(9)], 0.5),
    ]
    if work in ("views", "colors"):
        colors = jitter if work == "colors" else []
        made = [
            v2.Compose(
                [
                    v2.RandomResizedCrop(each["size"], each["scale"]),
                    v2.RandomHorizontalFlip(),
                    *colors,
                    *finish,
                ]
            )
            for each in VIEWS.values()
            for _ in range(each["count"])
        ]
        crop = partial(several, made)
    else:
        moves = {
            "ssd": [
                v2.RandomIoUCrop(),
                v2.Resize((300, 300)),
                v2.RandomHorizontalFlip(),
                *finish,
                v2.SanitizeBoundingBoxes(),
            ],
            "rcnn": [
                v2.RandomShortestSize(800, 1333),
                v2.RandomHorizontalFlip(),
                *finish,
                v2.SanitizeBoundingBoxes(),
            ],
        }
        crop = partial(with_boxes, v2.Compose(moves[work]))
    images = Listed(listed, crop)
    collate = {"ssd": stacked, "rcnn": padded}.get(work)
    workers = len(os.sched_getaffinity(0)) + 1
    options = {
        "batch_size": BATCH[work],
        "shuffle": True,
        "drop_last": True,
        "num_workers": workers,
        "persistent_workers": True,
    }
    return forever(DataLoader(images, collate_fn=collate, **options))


class Listed(torch.utils.data.Dataset):
    def __init__(self, listed, crop):
        self.listed, self.crop = listed, crop

    def __len__(self):
        return len(self.listed)

    def __getitem__(self, place):
        path, boxes = self.listed[place]
        with Image.open(path) as file:
            return self.crop(file.convert("RGB"), boxes)


def several(made, image, boxes):
    return [each(image) for each in made]


def with_boxes(moves, image, boxes):
    from torchvision import tv_tensors

    boxes = tv_tensors.BoundingBoxes(
        torch.tensor(boxes), format="XYXY", canvas_size=(image.height, image.width)
    )
    return moves(image, {"boxes": boxes, "labels": torch.zeros(len(boxes), dtype=torch.int64)})


def stacked(samples):
    return torch.stack([image for image, _ in samples]), [target for _, target in samples]


def padded(samples):
    """As GeneralizedRCNNTransform.batch_images: multiples of 32, zeros at the right and below."""
    height, width = (
        -(-max(image.shape[axis] for image, _ in samples) // 32) * 32 for axis in (1, 2)
    )
    images = torch.zeros(len(samples), 3, height, width)
    for out, (image, _) in zip(images, samples, strict=True):
        out[:, : image.shape[1], : image.shape[2]] = image
    return images, [target for _, target in samples]


def decoded(folder, name, arm):
    """Decoding alone of the regions of these views, in one loader or in one for each view."""
    manifest, transform = (
        dp.Manifest.load(folder / "images.parquet"),
        dp.ViewsTransform(views=DECODED[name]),
    )
    views = [transform] if arm == "once" else [view for group in transform.groups for view in group]
    config = DecodingConfig(num_threads=len(os.sched_getaffinity(0)))
    loaders = [
        dp.build_loader(manifest, config, transform=view, batch_size=32, device="cpu")
        for view in views
    ]
    return zip(*map(forever, loaders), strict=True)


def forever(loader):
    return itertools.chain.from_iterable(itertools.repeat(loader))


def cpu_seconds():
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:4]) for process in processes)


def measure(folder, work, arm):
    """One trial in this process."""
    if work == "decode":
        name, _, way = arm.rpartition(", ")
        batches, size = decoded(folder, name, way), 32
    else:
        batches, size = (
            torchvisions(folder, work)
            if arm.startswith("torchvision")
            else ours(folder, work, arm),
            BATCH[work],
        )
    for _ in range(WARM):
        next(batches)
    start, cpu, images = time.perf_counter(), cpu_seconds(), 0
    while time.perf_counter() - start < LEAST_S or images < 8 * size:
        next(batches)
        images += size
    seconds = time.perf_counter() - start
    return {
        "images_per_s": images / seconds,
        "cpu_ms_per_image": (cpu_seconds() - cpu) / images * 1000,
    }


def trial(folder, work, arm):
    made = subprocess.run(
        [sys.executable, __file__, folder, "--child", work, arm],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if made.returncode:
        raise SystemExit(f"{work}, {arm}: {made.stderr[-2000:]}")
    return json.loads(made.stdout.splitlines()[-1])


def write_data(images, folder):
    manifest = dp.Manifest.open(images, progress=False)
    repeated = np.resize(np.arange(len(manifest)), EPOCH)
    manifest.subset(repeated).save(folder / "images.parquet")
    paths = [str(manifest.path(each).resolve()) for each in range(len(manifest))]
    (folder / "images.json").write_text(
        json.dumps([[paths[each], []] for each in repeated.tolist()])
    )
    rng, entries, boxes = np.random.default_rng(0), [], []
    (folder / "coco").mkdir()
    for number, path in enumerate(paths):
        with Image.open(path) as file:
            factor = 640 / max(file.size)
            image = file.convert("RGB").resize([max(1, round(each * factor)) for each in file.size])
        image.save(folder / f"coco/{number}.jpg", quality=90)
        size = np.array(image.size)
        start = rng.uniform(0, 0.7, (7, 2))
        some = np.concatenate([start, start + rng.uniform(0.05, 0.3, (7, 2))], axis=1) * np.tile(
            size, 2
        )
        boxes.append(some.astype(np.float32).tolist())
        entries.append(
            {
                "id": number,
                "file_name": f"{number}.jpg",
                "width": image.width,
                "height": image.height,
            }
        )
    objects = [
        {
            "id": 7 * number + at,
            "image_id": number,
            "category_id": 1,
            "bbox": [left, top, right - left, bottom - top],
            "iscrowd": 0,
        }
        for number, some in enumerate(boxes)
        for at, (left, top, right, bottom) in enumerate(some)
    ]
    content = {
        "images": entries,
        "annotations": objects,
        "categories": [{"id": 1, "name": "thing"}],
    }
    (folder / "coco.json").write_text(json.dumps(content))
    coco = dp.Manifest.from_coco(folder / "coco.json", root=folder / "coco", progress=False)
    coco.subset(repeated).save(folder / "objects.parquet")
    listed = [[str(folder / f"coco/{number}.jpg"), boxes[number]] for number in repeated.tolist()]
    (folder / "objects.json").write_text(json.dumps(listed))
    return manifest


def shown(ratio):
    return (
        "too few rounds"
        if ratio.low is None
        else f"{ratio.estimate:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
    )


def summarize(trials):
    lines, ratios = [], {}
    for work, arms in trials.items():
        if work == "decode":
            lines += [
                "| views | one region, CPU-ms an image | a region each | × [95 %] |",
                "|---|---|---|---|",
            ]
            for name in DECODED:
                once, each = (
                    [one["cpu_ms_per_image"] for one in arms[f"{name}, {way}"]]
                    for way in ("once", "each")
                )
                ratio = paired_ratio(each, once)
                ratios[f"{work}, {name}"] = ratio.to_dict()
                lines.append(
                    f"| {name} | {np.median(once):.2f} | {np.median(each):.2f} | {shown(ratio)} |"
                )
            lines.append("")
            continue
        bases = {"torchvision": list(arms), "dali_cpu, ten loaders": ["dali_cpu"]}
        lines += [
            (
                f"| {work} | images/s | CPU-ms an image | images/s × `torchvision` [95 %] | "
                "CPU time × [95 %] |"
            ),
            "|---|---|---|---|---|",
        ]
        for base, others in bases.items():
            for arm in others if base in arms else []:
                made = {
                    f: paired_ratio([o[f] for o in arms[base]], [o[f] for o in arms[arm]])
                    for f in ("images_per_s", "cpu_ms_per_image")
                }
                ratios[f"{work}, {arm} against {base}"] = {
                    figure: ratio.to_dict() for figure, ratio in made.items()
                }
                cells = [shown(ratio) for ratio in made.values()] if arm != base else ["1", "1"]
                name = f"`{arm}`" if base == "torchvision" else f"`{arm}` against `{base}`"
                rate, cpu = (np.median([one[figure] for one in arms[arm]]) for figure in made)
                lines.append(f"| {name} | {rate:,.0f} | {cpu:.2f} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines), ratios


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", nargs="+", default=[*ARMS, "decode"])
    parser.add_argument("--child", nargs=2)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given.images, *given.child)), flush=True)
        os._exit(0)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        manifest = write_data(given.images, folder)
        arms = ARMS | {"decode": [f"{name}, {way}" for name in DECODED for way in ("once", "each")]}
        tasks = [(work, arm) for work in given.only for arm in arms[work]]
        trials = {work: {arm: [] for arm in arms[work]} for work in given.only}
        order = [
            task for _ in range(given.rounds) for task in random.Random(0).sample(tasks, len(tasks))
        ]
        for work, arm in track(order, "trials", len(order)):
            trials[work][arm].append(trial(folder, work, arm))
    text, ratios = summarize(trials)
    facts = provenance(manifest.describe(), [])
    (HERE / "result.json").write_text(
        json.dumps({"ratios": ratios, "trials": trials, "provenance": facts}, indent=1) + "\n"
    )
    (HERE / "table.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
