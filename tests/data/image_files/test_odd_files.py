"""Scans that should not end: pipes, links that lead around, file systems without times, caches of
other users.
"""

import os
import subprocess
import sys

import pytest
from PIL import Image

import dali_pipes as dp
from dali_pipes.data.sources.names import LOOPS
from dali_pipes.data.table.saved import is_manifest


@pytest.fixture
def folder(tmp_path):
    for name in ("cat/0.jpg", "dog/deep/1.jpg"):
        (tmp_path / "set" / name).parent.mkdir(parents=True)
        Image.new("RGB", (8, 6)).save(tmp_path / "set" / name)
    return tmp_path / "set"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["scan", "table", "masks"])
def test_a_pipe_is_a_problem_and_does_not_hang(folder, kind):
    os.mkfifo(folder / "cat/p.jpg")
    if kind == "scan":
        manifest = dp.Manifest.scan(folder, progress=False)
    elif kind == "table":
        (folder / "t.csv").write_text("path,label\ncat/0.jpg,a\ncat/p.jpg,a\n")
        manifest = dp.Manifest.open(folder / "t.csv", progress=False)
    else:
        (folder / "masks").mkdir()
        os.mkfifo(folder / "masks/0.png")
        manifest = dp.Manifest.from_masks(folder / "cat", folder / "masks", progress=False)
    assert any("not a regular file" in why for _, why in manifest.problems)


def test_a_link_to_a_folder_above_is_left_out_by_name(folder):
    (folder / "dog/deep/up").symlink_to(folder / "dog")
    (folder / "dog/self").symlink_to(".")
    (folder / "dog/more").symlink_to(folder / "cat")  # leads to other images: that is read
    for cache in (None, folder.parent / "m.arrow", folder.parent / "m.arrow"):
        manifest = dp.Manifest.scan(folder, cache=cache, unchanged="folder", progress=False)
        assert len(manifest) == 3
        (loops,) = [each for each in manifest.omissions if each.kind == LOOPS]
        assert loops.number == 2 and set(loops.names) == {"dog/deep/up", "dog/self"}


@pytest.mark.timeout(120)
def test_a_link_to_a_folder_above_is_left_out_of_pairs_too(folder):
    for name in ("masks/0.png", "masks/deep/1.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        Image.new("L", (8, 6)).save(folder / name)
    (folder / "dog/deep").rename(folder / "cat/deep")
    for name in ("cat", "masks"):
        (folder / name / "deep/up").symlink_to(folder / name)
        (folder / name / "self").symlink_to(".")
    (folder / "cat/more").symlink_to(folder / "cat/deep")  # leads to other images: that is read

    manifest = dp.Manifest.from_masks(
        folder / "cat", folder / "masks", missing="skip", progress=False
    )
    assert [manifest.name(number) for number in range(len(manifest))] == [
        str(folder / "cat/0.jpg"),
        str(folder / "cat/deep/1.jpg"),
    ]
    (loops,) = [each for each in manifest.omissions if each.kind == LOOPS]
    assert loops.number == 5 and set(loops.names) == {"deep/up", "self"}


@pytest.mark.parametrize("ns", [0, 10**18])
def test_folders_whose_times_stand_still_are_listed_again(folder, tmp_path, ns):
    def stand_still():
        for each in [folder, *folder.rglob("*")]:
            os.utime(each, ns=(ns, ns))

    stand_still()
    assert len(dp.Manifest.open(folder, cache_dir=tmp_path / "cache", progress=False)) == 2
    Image.new("RGB", (8, 6)).save(folder / "cat/new.jpg")
    stand_still()
    assert len(dp.Manifest.open(folder, cache_dir=tmp_path / "cache", progress=False)) == 3


def test_the_rows_of_another_root_are_not_taken(folder, tmp_path):
    twin = tmp_path / "twin"
    subprocess.run(["cp", "-a", folder, twin], check=True)
    Image.new("RGB", (6, 8)).save(twin / "cat/0.jpg")
    (twin / "cat/0.jpg").write_bytes(
        (twin / "cat/0.jpg").read_bytes().ljust((folder / "cat/0.jpg").stat().st_size, b"\0")
    )
    os.utime(twin / "cat/0.jpg", ns=((folder / "cat/0.jpg").stat().st_mtime_ns,) * 2)
    dp.Manifest.scan(folder, cache=tmp_path / "m.arrow", progress=False)
    assert dp.Manifest.scan(twin, cache=tmp_path / "m.arrow", progress=False).sizes[0].tolist() == [
        8,
        6,
    ]


def test_a_cache_that_cannot_be_looked_at_is_gone_without(folder, tmp_path, monkeypatch, caplog):
    def refused(self):
        raise PermissionError(13, "Permission denied", os.fspath(self))

    monkeypatch.setattr("pathlib.Path.exists", refused)
    manifest = dp.Manifest.open(folder, cache_dir="/root/of/others", progress=False)
    assert len(manifest) == 2 and "continuing without a cache" in caplog.text


@pytest.mark.slow
def test_whether_a_file_is_a_manifest_is_read_without_pythons_files(folder, tmp_path):
    """Arrow's threads let go of a Python file while the interpreter ended, and the process
    aborted.
    """
    manifest = dp.Manifest.scan(folder, progress=False)
    for name in (b"a.arrow", b"b.parquet", b"\xff.arrow"):
        manifest.save(tmp_path / os.fsdecode(name))
        assert is_manifest(tmp_path / os.fsdecode(name))
    program = (
        "import sys, torch, dali_pipes as dp\ndp.Manifest.scan(sys.argv[1], cache=sys.argv[2], "
        "progress=False)"
    )
    command = [sys.executable, "-c", program, str(folder), str(tmp_path / "c.arrow")]
    assert [
        subprocess.run(command, check=False, capture_output=True).returncode for _ in range(3)
    ] == [0] * 3
