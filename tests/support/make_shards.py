"""Shards of the images of a manifest, for tests."""

import io
import json
import tarfile
from pathlib import Path

import dali_pipes as dp

IMAGES_A_SHARD = 11


def add(archive: tarfile.TarFile, name: str, content: bytes, **fields) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for field, value in fields.items():
        setattr(member, field, value)
    archive.addfile(member, io.BytesIO(content))


def tar_shards(manifest: dp.Manifest, folder: Path, per_shard: int = IMAGES_A_SHARD) -> Path:
    """Each image with its class number, in the order of the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "classes.json").write_text(json.dumps(manifest.classes))
    for first in range(0, len(manifest), per_shard):
        with tarfile.open(folder / f"shard-{first // per_shard:06d}.tar", "w") as archive:
            for number in range(first, min(first + per_shard, len(manifest))):
                add(archive, f"{number:09d}.jpg", manifest.path(number).read_bytes())
                add(archive, f"{number:09d}.cls", str(manifest.labels[number]).encode())
    return folder
