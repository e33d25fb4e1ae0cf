"""The first batches of some 40 loaders: which samples, labels and targets, what is planned for each
image, and its pixels.

What is planned is kept by value for the first two samples, and by a hash for all. Pixels are kept
as the means of a grid of 4 × 4 fields for each channel, in steps of 255, and compared within
`STEPS`: CPUs and decoders round in other ways, and promise 1 allows a mean of 0.75. The pictures
have slopes of 3 steps a pixel and more, so a region that is one pixel off, another channel, a
missing mean or flip is seen. All loaders of a case are held to the same entry.
"""

import dataclasses
import hashlib
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from golden import hold_to
from make_shards import tar_shards
from own_functions import add_noise, brighten
from PIL import Image
from wide_images import write_wide

import dali_pipes as dp

FILE = Path(__file__).with_name("batches.json")
GRID = 4
STEPS = 1  # of 255, of the rounded mean of a field; normalized images are turned back into steps

DALI = dp.DaliConfig(device="cpu", num_threads=2)
GRAPH = dp.DaliConfig(device="cpu", num_threads=2, resize="dali")
TORCH = dp.TorchConfig(num_workers=0)
TORCHVISION = dp.TorchConfig(num_workers=0, decoder="torchvision")
WORKERS = dp.TorchConfig(num_workers=2)

LOADERS = {
    "dali": DALI,
    "graph": GRAPH,
    "torch": TORCH,
    "torchvision": TORCHVISION,
    "workers": WORKERS,
}

# no library's, so that a default in its place is seen
OWN = {"mean": (0.4, 0.5, 0.3), "std": (0.2, 0.3, 0.25)}
CROPS = dp.TrainTransform(size=48)


def augmented(*policies, **options):
    return dp.TrainTransform(**{"size": 40, "augment": [*policies], **options})


# name: images, transform, loaders, options of build_loader
CASES = {
    "train": ("photos", CROPS, [DALI, GRAPH, TORCH], {}),
    "train, own mean": (
        "photos",
        dp.TrainTransform(size=(40, 56), vertical_flip=0.5, **OWN),
        [DALI, TORCHVISION],
        {},
    ),
    "evaluation": ("photos", dp.EvalTransform(resize=50, size=44), [DALI, GRAPH, TORCH], {}),
    "bytes": ("photos", dp.TrainTransform(size=40, dtype="uint8"), [DALI, WORKERS], {}),
    "halves, channels last": (
        "photos",
        dp.TrainTransform(size=40, dtype="fp16", memory_format="channels_last"),
        [DALI, GRAPH],
        {},
    ),
    "bfloat16, bicubic": (
        "photos",
        dp.TrainTransform(size=40, dtype="bf16", interpolation="bicubic"),
        [DALI, TORCH],
        {},
    ),
    "upright": ("photos", dp.TrainTransform(size=40, exif="apply"), [DALI, GRAPH, TORCH], {}),
    "padded crop": (
        "photos",
        dp.RandomCropTransform(size=48, resize=(44, 44), padding=6),
        [DALI, TORCH],
        {},
    ),
    "crop as stored": (
        "photos",
        dp.RandomCropTransform(size=40, pad_if_needed=True),
        [DALI, GRAPH, TORCHVISION],
        {},
    ),
    "crop outside": (  # of some images nothing is visible
        "photos",
        dp.RandomCropTransform(size=40, padding=60),
        [DALI, GRAPH, TORCH, TORCHVISION],
        {},
    ),
    "crop outside, 16 bits": (
        "wide",
        dp.RandomCropTransform(size=30, padding=60, **OWN),
        [TORCH],
        {},
    ),
    "crop outside, masks": (
        "painted",
        dp.RandomCropTransform(size=40, padding=60, vertical_flip=0.5),
        [DALI, TORCH],
        {},
    ),
    "letterbox": ("photos", dp.LetterboxTransform(size=64), [DALI, TORCH], {}),
    "ten crops": ("photos", dp.TenCropTransform(size=32, resize=44), [DALI, TORCH], {}),
    "views": (
        "photos",
        dp.ViewsTransform(views={"large": {"count": 2, "size": 40}, "small": {"size": 24}}),
        [DALI, TORCH],
        {},
    ),
    "growing sizes": ("photos", dp.TrainTransform(sizes={0: 32, 2: 48}), [DALI, TORCH], {}),
    "TrivialAugment": ("photos", augmented("TrivialAugmentWide"), [DALI, TORCH], {}),
    "RandAugment": ("photos", augmented("RandAugment"), [DALI], {}),
    "AutoAugment": ("photos", augmented("AutoAugment"), [TORCH], {}),
    "color, blur, erasing": (
        "photos",
        augmented(
            {"name": "ColorJitter", "brightness": 0.4, "saturation": 0.4},
            {"name": "GaussianBlur", "kernel_size": 5, "p": 0.5},
            {"name": "RandomErasing", "p": 0.6},
        ),
        [DALI, TORCH],
        {},
    ),
    "own functions": (
        "photos",
        augmented(dp.Augment(brighten, draws=2), dp.Augment(add_noise, where="normalized")),
        [DALI, TORCH],
        {},
    ),
    "step before": (
        "photos",
        dp.TrainTransform(size=32, before=[{"name": "RandomRotation", "degrees": 30}]),
        [DALI, TORCH],
        {},
    ),
    "gray": (
        "photos",
        dp.TrainTransform(size=40, channels=1, mean=[0.45], std=[0.22]),
        [DALI, GRAPH, TORCH],
        {},
    ),
    "16 bits": ("wide", dp.TrainTransform(size=40, **OWN), [TORCH], {}),
    "boxes and masks": (
        "painted",
        dp.TrainTransform(size=(48, 40), scale=(0.5, 1.0)),
        [DALI, TORCH],
        {},
    ),
    "boxes and masks, upright": (
        "painted",
        dp.RandomCropTransform(size=60, resize=70, exif="apply"),
        [GRAPH, TORCH],
        {},
    ),
    "MixUp": ("photos", CROPS, [DALI, TORCH], {"batch_transform": dp.MixUp(num_classes=3)}),
    "CutMix": ("photos", CROPS, [DALI], {"batch_transform": dp.CutMix(num_classes=3)}),
    "in order": ("photos", CROPS, [TORCH], {"shuffle": False, "last_batch": "partial"}),
    "balanced": ("photos", CROPS, [DALI], {"sampling": "balanced"}),
    "per class": (
        "photos",
        CROPS,
        [DALI],
        {"sampling": {"name": "per_class", "classes": 2, "samples": 4}},
    ),
    "repeated": ("photos", CROPS, [TORCH], {"sampling": {"name": "repeated", "times": 3}}),
    "windows of shards": (
        "shards",
        CROPS,
        [DALI, TORCH],
        {"sampling": {"name": "windows", "lanes": 2}},
    ),
    "rank 2 of 3, padded": (
        "photos",
        CROPS,
        [DALI, TORCH],
        {"rank": dp.Rank(2, 3), "last_batch": "pad", "batch_size": 4},
    ),
    "rank 1 of 3, even": (
        "photos",
        CROPS,
        [TORCH],
        {"rank": dp.Rank(1, 3), "last_batch": "even", "batch_size": 4},
    ),
}


def describe_config(config) -> str:
    return next(name for name, each in LOADERS.items() if each is config)


def paint(number: int, mode: str = "RGB") -> Image.Image:
    """A picture of slopes: no turn, flip or exchange of channels leaves it equal."""
    height, width = 60 + 7 * number % 40, 70 + 11 * number % 50
    y, x = np.mgrid[:height, :width]
    channels = [x * 3 + number * 20, y * 3 + number * 10, 2 * x + 2 * y + number * 40]
    # a triangle wave, so that no edge of 255 to 0 depends on rounding
    pixels = 255 - np.abs(np.stack(channels, axis=-1) % 510 - 255)
    return Image.fromarray(pixels.astype(np.uint8)).convert(mode)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    root = tmp_path_factory.mktemp("golden")
    for number in range(27):
        folder = root / "photos" / f"class {number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 1 + number % 8
        paint(number).save(folder / f"{number:02d}.jpg", quality=95, subsampling=0, exif=exif)
    return {
        "photos": dp.Manifest.scan(root / "photos", progress=False),
        "painted": paint_objects(root / "painted"),
        "wide": wide(root / "wide"),
        "shards": shards(root),
    }


def wide(folder: Path) -> dp.Manifest:
    (folder / "a").mkdir(parents=True)
    write_wide(folder / "a")
    return dp.Manifest.scan(folder, bits=16, progress=False)


def shards(root: Path) -> dp.Manifest:
    photos = dp.Manifest.scan(root / "photos", progress=False)
    return dp.Manifest.scan(tar_shards(photos, root / "shards", per_shard=5), progress=False)


def paint_objects(folder: Path) -> dp.Manifest:
    """Pictures of which some are turned by EXIF, each with a mask, a text, and boxes for most."""
    (folder / "masks").mkdir(parents=True)
    rows = {"path": [], "boxes": [], "classes": [], "mask": [], "text": []}
    for number in range(16):
        image, exif = paint(number), Image.Exif()
        exif[0x0112] = 1 + number % 8
        image.save(folder / f"{number:02d}.jpg", quality=95, subsampling=0, exif=exif)

        left, top, right, bottom = box = [5 + number, 4, 40 + number, 50]
        mask = np.full((image.height, image.width), 2, np.uint8)
        mask[top:bottom, left:right] = 1
        Image.fromarray(mask).save(folder / f"masks/{number:02d}.png")

        boxes = [box] if number % 5 else []
        of_image = (f"{number:02d}.jpg", boxes, ["thing"] * len(boxes))
        more = (f"masks/{number:02d}.png", f"no. {number}")
        for values, value in zip(rows.values(), (*of_image, *more), strict=True):
            values.append(value)

    types = {"boxes": pa.list_(pa.list_(pa.float32())), "classes": pa.list_(pa.string())}
    columns = {name: pa.array(values, types.get(name)) for name, values in rows.items()}
    pq.write_table(pa.table(columns), folder / "table.parquet")
    targets = dp.Targets(boxes="boxes", box_labels="classes", mask="mask", text="text")
    return dp.Manifest.from_table(folder / "table.parquet", targets=targets, progress=False)


def build(manifest: dp.Manifest, transform, config, options) -> dp.Loader:
    options = {"batch_size": 8, "seed": 7, "device": "cpu", "last_batch": "drop", **options}
    return dp.build_loader(manifest, config, transform=transform, **options)


def describe_batch(batch: dp.Batch, planned, transform) -> dict:
    views = batch.views or {"images": batch.images[:, None]}
    return {
        "ids": batch.ids.tolist(),
        "labels": torch.as_tensor(batch.labels).double().round(decimals=4).tolist(),
        "targets": {name: describe(value) for name, value in batch.targets.items()},
        "planned": describe(planned.groups),
        "form": {name: f"{tuple(each.shape)} {each.dtype}" for name, each in views.items()},
        "pixels": {
            name: [[grid(image, transform) for image in of_sample] for of_sample in each]
            for name, each in views.items()
        },
    }


def describe(value):
    """What JSON can hold of a value; of an array the first two rows, and a hash of all."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f":  # sines and cosines differ in the last bits
            value = value.astype(np.float64).round(5) + 0.0
        whole = hashlib.sha1(np.ascontiguousarray(value).tobytes()).hexdigest()[:12]
        first = [str(row) if row.size <= 12 else "…" for row in np.asarray(value[:2])]
        return {"all": f"{value.shape} {value.dtype} {whole}", "first": first}
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        return {name: describe(getattr(value, name)) for name in fields}
    if isinstance(value, (tuple, list)):
        return [describe(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def grid(image: torch.Tensor, transform) -> list[str]:
    """For each channel the means of an image's fields, in steps of 255."""
    pixels = image.double()
    if image.dtype != torch.uint8:
        mean, std = (
            torch.tensor(each).reshape(-1, 1, 1) for each in (transform.mean, transform.std)
        )
        pixels = (pixels * std + mean) * 255
    fields = torch.nn.functional.adaptive_avg_pool2d(pixels, GRID).flatten(1).round().int()
    return [" ".join(map(str, channel)) for channel in fields.tolist()]


def allow(found, kept):
    """`found`, but for channels that are within `STEPS` of those that were kept, which stay."""
    if isinstance(found, list) and isinstance(kept, list) and len(found) == len(kept):
        return [allow(*both) for both in zip(found, kept, strict=True)]
    if isinstance(found, str) and isinstance(kept, str):
        new, old = (np.array(each.split(), int) for each in (found, kept))
        if new.shape == old.shape and np.abs(new - old).max() <= STEPS:
            return kept
    return found


def hold(name: str, found: dict) -> None:
    """Holds the batches of one loader to what is kept of its case."""
    kept = json.loads(FILE.read_text()).get(name, {}) if FILE.exists() else {}
    for step, batch in found.items():
        before = kept.get(step, {}).get("pixels", {})
        for view, pixels in batch["pixels"].items():
            batch["pixels"][view] = allow(pixels, before.get(view, []))
    hold_to(FILE, found, part=name)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        pytest.param(name, config, id=f"{name}, {describe_config(config)}")
        for name, (_, _, configs, _) in CASES.items()
        for config in configs
    ],
)
def test_first_batches_are_as_they_were(sources, name, config):
    images, transform, _, options = CASES[name]
    epoch = 2 if transform.at(2) != transform.at(0) else 0  # with another size
    with build(sources[images], transform, config, options) as loader:
        loader.set_epoch(epoch)
        found = {
            f"epoch {epoch}, step {step}": describe_batch(
                batch, loader.plan.batch(epoch, step), transform
            )
            for step, batch in enumerate(itertools.islice(loader, 2))
        }
    hold(name, found)


def test_nothing_is_kept_that_no_loader_is_held_to():
    assert json.loads(FILE.read_text()).keys() == {*CASES, "resumed", "substituted"}


@pytest.mark.parametrize(("before", "after"), [(DALI, TORCH), (TORCH, DALI), (GRAPH, DALI)])
def test_a_resume_in_mid_epoch_goes_on_as_it_did(sources, before, after):
    """On another loader and another number of ranks, after two global batches of 6."""
    options = {"batch_size": 6, "last_batch": "partial"}
    with build(sources["photos"], CROPS, before, options) as loader:
        loader.set_epoch(2)
        for _ in itertools.islice(loader, 2):
            pass
        state = loader.state_dict()

    options = {"batch_size": 3, "last_batch": "partial", "rank": dp.Rank(1, 2)}
    with build(sources["photos"], CROPS, after, options) as loader:
        loader.load_state_dict(state)
        found = {
            f"epoch 2, step {step}": describe_batch(batch, loader.plan.batch(2, step), CROPS)
            for step, batch in enumerate(itertools.islice(loader, 2), start=2)
        }
    hold("resumed", found)


def test_a_bad_sample_is_replaced_by_the_same_one(sources, tmp_path):
    shutil.copytree(sources["photos"].root, tmp_path / "photos")
    spoiled = dp.Manifest.scan(tmp_path / "photos", progress=False)
    spoiled.path(4).write_bytes(spoiled.path(4).read_bytes()[:700])
    options = {"on_bad_sample": "substitute", "max_bad_fraction": 0.5, "last_batch": "partial"}
    for config in (DALI, TORCH):
        with build(spoiled, CROPS, config, options) as loader:
            ids = [batch.ids.tolist() for batch in loader]
            bad = [(sample, Path(path).name) for sample, path, _ in loader.bad_samples]
        hold_to(FILE, {"ids": ids, "bad": bad}, part="substituted")
