"""The images of `same_bits.py`: `write` makes them up, small and the same in every run, and
`SOURCES` opens them with the dali_pipes that it is given.
"""

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

ORIENTATION = 0x0112
CLASSES = 3
KEYPOINTS = ["nose", "left_eye", "right_eye"]


def paint(number: int, height: int | None = None, width: int | None = None) -> Image.Image:
    """A picture of slopes and noise, in which every pixel and every channel is another."""
    height, width = height or 61 + 7 * number % 40, width or 70 + 11 * number % 50
    y, x = np.mgrid[:height, :width]
    channels = [x * 3 + number * 20, y * 3 + number * 10, 2 * x + 2 * y + number * 40]
    waves = 255 - np.abs(np.stack(channels, axis=-1) % 510 - 255)
    noise = np.random.default_rng(number).normal(0, 12, waves.shape)
    return Image.fromarray((waves + noise).clip(0, 255).astype(np.uint8))


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


def save(image: Image.Image, folder: Path, number: int, form: str, **options: Any) -> None:
    """Saves it in the folder of its class."""
    file = folder / f"class {number % CLASSES}" / f"{number:02d}.{form.lower()}"
    file.parent.mkdir(parents=True, exist_ok=True)
    image.save(file, form, **options)


def write(root: Path, sources: Iterable[str]) -> None:
    """Writes what these sources need, each into a folder of its own."""
    for name in {SOURCES[source].folder for source in sources}:
        (root / name).mkdir(parents=True)
        WRITERS[name](root / name)


def photos(folder: Path) -> None:
    ways = cycle([{"subsampling": 0}, {"subsampling": 2}, {"progressive": True}])
    for number, way in zip(range(26), ways, strict=False):
        save(paint(number), folder, number, "JPEG", quality=90, **way)


def kinds(folder: Path) -> None:
    """A file of each kind, and of each as many again, of another size."""
    ways: list[tuple[str, str, dict[str, Any]]] = [
        *(("JPEG", "RGB", {"subsampling": how}) for how in ("4:4:4", "4:2:2", "4:2:0", "4:1:1")),
        ("JPEG", "RGB", {"progressive": True}),
        ("JPEG", "RGB", {"quality": 30, "restart_marker_rows": 1}),
        *(("JPEG", mode, {"quality": 90}) for mode in ("L", "CMYK")),
        *(("PNG", mode, {}) for mode in ("RGB", "L", "RGBA", "LA", "P", "1")),
        ("WEBP", "RGB", {"lossless": True}),
        ("WEBP", "RGB", {"quality": 80}),
        *((form, "RGB", {}) for form in ("BMP", "TIFF")),
    ]
    for number, (form, mode, options) in enumerate(ways * 2):
        save(paint(number).convert(mode), folder, number, form, **options)


def sizes(folder: Path) -> None:
    """From one pixel to more than any crop, as JPEG and as PNG."""
    shapes = [(1, 1), (1, 2), (3, 1), (2, 3), (8, 8), (5, 300), (280, 7), (17, 16), (41, 40)]
    shapes += [(40, 40), (33, 120), (240, 320), (401, 299)]
    for number, shape in enumerate(shapes * 2):
        form = "JPEG" if number < len(shapes) else "PNG"
        save(paint(number, *shape), folder, number, form)


def orientations(folder: Path) -> None:
    for number in range(24):
        form = "JPEG" if number < 16 else "PNG"
        save(paint(number), folder, number, form, exif=turned(1 + number % 8))


def wide(folder: Path) -> None:
    """16 bits a channel, and some files of 8 among them."""
    (folder / "class 0").mkdir()
    for number in range(16):
        noise = np.random.default_rng(number).integers(0, 256, (61, 80 - number, 3))
        pixels = np.asarray(paint(number, *noise.shape[:2])).astype(np.uint16) * 256 + noise
        pixels = pixels[..., 0] if number % 3 == 2 else pixels.astype(np.uint16)
        pixels = (pixels >> 8).astype(np.uint8) if number % 5 == 4 else pixels.astype(np.uint16)
        form = "tif" if number % 2 else "png"
        assert cv2.imwrite(str(folder / "class 0" / f"{number:02d}.{form}"), pixels)


def broken(folder: Path) -> None:
    photos(folder)
    for file in sorted(folder.rglob("*.jpeg"))[3::7]:
        file.write_bytes(file.read_bytes()[:700])


def shards(folder: Path) -> None:
    for first in range(0, 26, 5):
        with tarfile.open(folder / f"{first:06d}.tar", "w") as archive:
            for number in range(first, min(first + 5, 26)):
                content = io.BytesIO()
                paint(number).save(content, "JPEG", quality=90)
                of_sample = {"jpg": content.getvalue(), "cls": str(number % CLASSES).encode()}
                for extension, some in of_sample.items():
                    member = tarfile.TarInfo(f"{number:06d}.{extension}")
                    member.size = len(some)
                    archive.addfile(member, io.BytesIO(some))


def painted(folder: Path) -> None:
    """Images of which most are turned by EXIF, with boxes, masks and texts."""
    (folder / "masks").mkdir()
    rows: dict[str, list[Any]] = {"path": [], "boxes": [], "classes": [], "mask": [], "text": []}
    for number in range(20):
        image = paint(number)
        image.save(folder / f"{number:02d}.jpg", quality=95, exif=turned(1 + number % 8))
        boxes = boxes_of(number)
        mask = np.full((image.height, image.width), 2, np.uint8)
        for at, (left, top, right, bottom) in enumerate(boxes):
            mask[top:bottom, left:right] = 3 + at
        Image.fromarray(mask).save(folder / f"masks/{number:02d}.png")

        names = ["thing" if at % 2 else "other" for at in range(len(boxes))]
        values = f"{number:02d}.jpg", boxes, names, f"masks/{number:02d}.png", f"no. {number}"
        for column, value in zip(rows.values(), values, strict=True):
            column.append(value)

    types = {"boxes": pa.list_(pa.list_(pa.float32())), "classes": pa.list_(pa.string())}
    columns = {name: pa.array(values, types.get(name)) for name, values in rows.items()}
    pq.write_table(pa.table(columns), folder / "table.parquet")


def boxes_of(number: int) -> list[list[int]]:
    """Up to three boxes, and none of every fifth image; some reach the image's edge."""
    boxes = [[5 + number, 4, 40 + number, 50], [0, 20, 30, 61], [20, 30, 22, 59]]
    return boxes[: number % 5 and 1 + number % 3]


def coco(folder: Path) -> None:
    """Boxes, outlines and keypoints."""
    images, objects = [], []
    for number in range(16):
        image, name = paint(number), f"{number:02d}.jpg"
        image.save(folder / name, quality=95)
        images.append(
            {"id": number, "file_name": name, "width": image.width, "height": image.height}
        )
        for left, top, right, bottom in boxes_of(number):
            points = [left, top, 2, (left + right) / 2, top + 3, 1, 0, 0, 0]
            objects.append(
                {
                    "id": len(objects),
                    "image_id": number,
                    "category_id": 1 + len(objects) % 2,
                    "bbox": [left, top, right - left, bottom - top],
                    "area": (right - left) * (bottom - top),
                    "iscrowd": 0,
                    "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
                    "keypoints": points,
                }
            )
    categories = [{"id": at, "name": f"kind {at}", "keypoints": KEYPOINTS} for at in (1, 2)]
    content = {"images": images, "annotations": objects, "categories": categories}
    (folder / "objects.json").write_text(json.dumps(content))


def masks(folder: Path) -> None:
    for part in ("images", "masks"):
        (folder / part).mkdir()
    for number in range(20):
        image = paint(number)
        image.save(folder / f"images/{number:02d}.jpg", quality=95)
        values = np.random.default_rng(number).integers(0, 5, (image.height // 6, image.width // 6))
        values = np.pad(values.repeat(6, 0).repeat(6, 1), ((0, 5), (0, 5)), mode="edge")
        mask = values[: image.height, : image.width].astype(np.uint8)
        Image.fromarray(mask).save(folder / f"masks/{number:02d}.png")


def numbers(folder: Path) -> None:
    """Three numbers for each image in place of a class."""
    lines = ["path,label"]
    for number in range(20):
        paint(number).save(folder / f"{number:02d}.jpg", quality=95)
        lines.append(f"{number:02d}.jpg,{number / 7} {-number} {number % 3}")
    (folder / "table.csv").write_text("\n".join(lines))


def pairs(folder: Path) -> None:
    for part in ("pictures", "negatives"):
        (folder / part).mkdir()
    for number in range(14):
        paint(number).save(folder / f"pictures/{number:02d}.png")
        ImageOps.invert(paint(number)).save(folder / f"negatives/{number:02d}.png")


WRITERS: Mapping[str, Callable[[Path], None]] = {
    "photos": photos,
    "kinds": kinds,
    "sizes": sizes,
    "orientations": orientations,
    "wide": wide,
    "broken": broken,
    "shards": shards,
    "painted": painted,
    "coco": coco,
    "masks": masks,
    "numbers": numbers,
    "pairs": pairs,
}


class Pairs(Dataset):
    """A picture and its negative."""

    def __init__(self, folder: Path, transform: Any):
        self.files = sorted(map(str, (folder / "pictures").iterdir()))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        first = self.files[index]
        return self.transform(_read(first), _read(first.replace("pictures", "negatives")))


def _read(file: str) -> Image.Image:
    with Image.open(file) as image:
        return image.convert("RGB")


def open_pairs(dp: Any, folder: Path, evaluation: bool) -> DataLoader:
    steps = [v2.RandomResizedCrop(24, (0.3, 1)), v2.RandomHorizontalFlip()]
    steps = [v2.Resize(40), v2.CenterCrop(32)] if evaluation else steps
    ends = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    data_set = Pairs(folder, v2.Compose([*steps, *ends]))
    return DataLoader(data_set, batch_size=5, shuffle=not evaluation)


def scan(dp: Any, folder: Path, **options: Any) -> Any:
    return dp.Manifest.scan(folder, progress=False, **options)


def open_painted(dp: Any, folder: Path) -> Any:
    targets = dp.Targets(
        boxes="boxes", box_labels="classes", mask="mask", text="text", annotated="stored"
    )
    return dp.Manifest.from_table(folder / "table.parquet", targets=targets, progress=False)


def open_coco(dp: Any, folder: Path) -> Any:
    return dp.Manifest.open(folder / "objects.json", progress=False)


def open_masks(dp: Any, folder: Path) -> Any:
    return dp.Manifest.from_masks(folder / "images", folder / "masks", progress=False)


def open_numbers(dp: Any, folder: Path) -> Any:
    return dp.Manifest.from_table(
        folder / "table.csv", label_separator=" ", task="regression", progress=False
    )


class Source(NamedTuple):
    """What a case loads.

    Attributes:
        folder: its files, the name of their writer.
        open: given dali_pipes and that folder, makes a manifest, or a DataLoader for `from_torch`.
    """

    folder: str
    open: Callable[[Any, Path], Any]


SOURCES: Mapping[str, Source] = {
    **{
        name: Source(name, scan)
        for name in ("photos", "kinds", "sizes", "orientations", "broken", "shards")
    },
    "wide": Source("wide", partial(scan, bits=16)),
    "painted": Source("painted", open_painted),
    "coco": Source("coco", open_coco),
    "masks": Source("masks", open_masks),
    "numbers": Source("numbers", open_numbers),
    "pairs": Source("pairs", partial(open_pairs, evaluation=False)),
    "pairs, evaluation": Source("pairs", partial(open_pairs, evaluation=True)),
}
