"""What `prepare` leaves of a small folder of drawn images: files, labels, bytes and pixels.

Images that are kept as they are, are held by hash. What is encoded anew depends on the encoder's
version: of it the format, the size and the pixels are held, these within three of 255.
"""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from golden import hold_to
from PIL import Image
from tools.preparation.prepared import prepared

import dali_pipes as dp

FILE = Path(__file__).with_name("prepared.json")
WAYS = {
    "shards": {"to": "shards", "shard_mib": 1},
    "smaller, in shards": {"to": "shards", "resize": 64},
    "smaller, in a folder": {"to": "folder", "resize": 64},
}
NEAR = 3


@pytest.fixture
def drawn(tmp_path):
    """Twelve images of three classes, stored without compression: bytes that no version of an
    encoder changes.
    """
    rng = np.random.default_rng(3)
    for number in range(12):
        folder = tmp_path / "drawn" / ("bird", "cat", "dog")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        across, down = np.meshgrid(np.arange(200 + 9 * number), np.arange(220 - 7 * number))
        pixels = np.stack([across, down, (across + down + 8 * number) // 2], 2) % 256
        pixels[:60, :60] = rng.integers(0, 256, 3)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:02d}.bmp")
    return tmp_path / "drawn"


def files_of(folder):
    """Yields the name and the content of each file, those in tars too."""
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.suffix == ".tar":
            with tarfile.open(file, "r:") as tar:
                for member in tar:
                    yield f"{name} / {member.name}", tar.extractfile(member).read()
        elif file.is_file():
            yield name, file.read_bytes()


def describe(content, originals):
    """Returns the text of a file, the rows of an index, the hash of an image that was kept, or what
    another image shows.
    """
    if content.startswith(b"ARROW1"):
        return f"{len(pa.ipc.open_file(content).read_all())} rows"
    try:
        image = Image.open(io.BytesIO(content))
    except OSError:
        return content.decode()
    if content in originals:
        return hashlib.sha256(content).hexdigest()
    coarse = np.asarray(image.convert("RGB").resize((2, 2), Image.Resampling.BOX)).tolist()
    return {"format": image.format, "size": list(image.size), "coarse": coarse}


def near(found, kept):
    """Returns what was found, with the pixels that were kept where they are near enough."""
    if not isinstance(found, dict) or not isinstance(kept, dict):
        return found
    if "coarse" in found and "coarse" in kept:
        apart = np.abs(np.subtract(found["coarse"], kept["coarse"])).max()
        return found | {"coarse": kept["coarse"]} if apart <= NEAR else found
    return {name: near(each, kept.get(name)) for name, each in found.items()}


@pytest.mark.slow
def test_a_prepared_set_has_the_same_files_labels_and_pixels(drawn, tmp_path):
    originals = {file.read_bytes() for file in drawn.rglob("*.bmp")}
    found = {}
    for way, options in WAYS.items():
        folder = prepared(drawn, tmp_path / way, **options)
        files = {name: describe(each, originals) for name, each in files_of(folder)}
        manifest = dp.Manifest.open(folder, progress=False)
        found[way] = {"files": files, "classes": manifest.classes}
        found[way]["labels"] = manifest.labels.tolist()

    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    hold_to(FILE, near(found, kept))
