"""What a scan does not do again: folders that were not touched."""

import multiprocessing
import os
import shutil
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dali_pipes import Manifest, ManifestError
from dali_pipes.data.sources.rows import files
from dali_pipes.data.table import saved

LONG_AGO = 10**18  # ns


@pytest.fixture
def folder(thumbnails, tmp_path):
    shutil.copytree(thumbnails.root, tmp_path / "set")
    settle(tmp_path / "set")
    return tmp_path / "set"


@pytest.fixture
def looks(monkeypatch):
    """How often a file was read, a folder listed, and either looked at."""
    counts = Counter()

    def counted(module, name, of):
        original = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *given, **named: counts.update([of]) or original(*given, **named)
        )

    counted(files, "read_header", "read")
    counted(os, "scandir", "listed")
    counted(os, "stat", "looked at")
    return counts


def settle(root):
    """As if nothing had been modified for long."""
    for each in [root, *root.rglob("*")]:
        os.utime(each, ns=(LONG_AGO, LONG_AGO))


def scan(folder, **options):
    return Manifest.scan(folder, cache=folder.parent / "m.arrow", progress=False, **options)


def fresh(folder):
    return Manifest.scan(folder, progress=False)


def draw(file, width=8):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, 6)).save(file)


def test_an_untouched_folder_costs_one_look(folder, looks):
    first = scan(folder)
    folders = len([each for each in folder.rglob("*") if each.is_dir()])
    looks.clear()
    again = scan(folder, unchanged="folder")
    # the root: whether it holds shards, and its classes
    assert looks["read"] == 0 and looks["listed"] <= 2
    assert folders <= looks["looked at"] <= folders + 20 < 37
    assert (
        again.table.equals(first.table)
        and again.fingerprint == first.fingerprint
        and again.facts.folders == first.facts.folders
    )


def test_by_its_own_time_every_file_is_looked_at_and_none_is_read(folder, looks):
    scan(folder)
    looks.clear()
    scan(folder)
    assert looks["read"] == 0 and looks["looked at"] >= 37


def test_only_a_folder_that_was_touched_is_listed_and_only_what_is_new_is_read(folder, looks):
    scan(folder)
    draw(folder / "class 1" / "new.jpg")
    looks.clear()
    assert scan(folder, unchanged="folder").table.equals(fresh(folder).table)
    assert looks["read"] == 1 + 38  # of the fresh scan


def test_a_file_written_over_is_found_by_its_own_time_and_not_by_its_folders(folder):
    first = scan(folder)
    draw(first.path(3), width=9)
    assert scan(folder, unchanged="folder").sizes.tolist() == first.sizes.tolist()
    assert scan(folder).sizes[3].tolist() == [6, 9]


def test_a_file_with_a_problem_is_looked_at_again_wherever_it_is(folder):
    bad = sorted(folder.rglob("*.jpg"))[7]
    good = bad.read_bytes()
    bad.write_bytes(b"")
    settle(folder)
    assert len(scan(folder)) == 36
    bad.write_bytes(good)
    assert len(scan(folder, unchanged="folder")) == 37


def test_a_folder_that_was_modified_a_moment_ago_is_not_believed(folder):
    draw(folder / "class 1" / "new.jpg")
    stamp = os.stat(folder / "class 1").st_mtime_ns
    scan(folder)
    draw(folder / "class 1" / "newer.jpg")  # with a coarse clock: at the same time
    os.utime(folder / "class 1", ns=(stamp, stamp))
    assert len(scan(folder, unchanged="folder")) == 39


def test_a_header_scan_of_a_folder_is_not_a_full_one(folder, looks, monkeypatch):
    monkeypatch.setitem(files._ONE_PROCESS_MAX, "full", 100)
    scan(folder)
    looks.clear()
    assert (
        scan(folder, unchanged="folder", verify="full").table["decoded"].to_numpy().all()
        and looks["read"] == 37
    )
    looks.clear()
    scan(folder, unchanged="folder", verify="full")
    assert looks["read"] == 0
    assert len(scan(folder, unchanged="folder", max_pixels=40)) == 0


def test_the_cache_of_a_twin_is_not_believed(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "twin")
    scan(folder)
    draw(tmp_path / "twin" / next(iter(folder.rglob("*.jpg"))).relative_to(folder), width=11)
    settle(tmp_path / "twin")
    twin = scan(tmp_path / "twin", unchanged="folder")
    assert twin.root == tmp_path / "twin" and twin.table.equals(fresh(tmp_path / "twin").table)


names = st.sampled_from(["a", "b", "a/x", "a/x/y", "a-x", "c"])
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "break", "rename", "write over"]),
        names,
        st.integers(0, 3),
    ),
    max_size=6,
)


def change(root, kind, folder, number):
    file = root / folder / f"{number}.jpg"
    if kind == "add" or (kind == "write over" and file.exists()):
        draw(file, width=8 + len(kind))
    elif file.exists() and kind == "remove":
        file.unlink()
    elif file.exists() and kind == "break":
        file.unlink()
        file.write_bytes(b"broken")
    elif file.exists() and kind == "rename":
        file.rename(file.with_name(f"renamed {number}.jpg"))


@pytest.mark.slow
@given(before=CHANGES, then=CHANGES, unchanged=st.sampled_from(["file", "folder"]))
def test_a_scan_again_finds_what_a_first_scan_would(tmp_path_factory, before, then, unchanged):
    root = tmp_path_factory.mktemp("sets") / "set"
    draw(root / "b/always.jpg")
    for each in before:
        change(root, *each)
    settle(root)
    scan(root)
    for each in then:
        kind, where, number = each
        if (
            unchanged == "file"
            or kind not in ("add", "write over")
            or not (root / where / f"{number}.jpg").exists()
        ):
            change(root, *each)
    again = scan(root, unchanged=unchanged)
    assert again.table.equals(fresh(root).table) and again.classes == fresh(root).classes
    assert again.fingerprint == fresh(root).fingerprint


def test_a_scan_that_was_stopped_begins_again(folder, monkeypatch):
    def stops(path, check):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files, "read_header", stops)
        with pytest.raises(KeyboardInterrupt):
            scan(folder)
    assert not list(folder.parent.glob("m.arrow*"))
    (folder.parent / "m.arrow.lock").touch()  # as one that was killed leaves it
    assert scan(folder).table.equals(fresh(folder).table)
    assert not (folder.parent / "m.arrow.lock").exists()


def test_scans_at_once_read_once_and_share_what_they_found(folder, tmp_path):
    """As the ranks of a training do that all open the same folder."""
    log = tmp_path / "read.txt"

    def rank(number):
        original = files.read_header
        files.read_header = lambda path, check: log.open("a").write(".") and original(path, check)
        (file,) = scan(folder).rows.files
        (tmp_path / f"inode {number}").write_text(str(os.fstat(file._number).st_ino))

    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank, args=(number,)) for number in range(3)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    assert len(log.read_text()) == 37
    assert len({(tmp_path / f"inode {number}").read_text() for number in range(3)}) == 1
    assert not (tmp_path / "m.arrow.lock").exists()


def test_what_has_not_changed_is_not_written_again(folder):
    scan(folder)
    stat = (folder.parent / "m.arrow").stat()
    for unchanged in ("file", "folder"):
        scan(folder, unchanged=unchanged)
        assert (folder.parent / "m.arrow").stat() == stat


def test_a_folder_that_cannot_be_read_is_named(folder, monkeypatch):
    original = os.scandir

    def refuses(path):
        if os.fsdecode(path).endswith("class 1"):
            raise PermissionError(13, "Permission denied")
        return original(path)

    monkeypatch.setattr(os, "scandir", refuses)
    with pytest.raises(ManifestError, match="class 1: permission denied; make it readable"):
        fresh(folder)


def test_folders_that_have_lost_all_their_images_are_refused(folder):
    (folder / "class 9").mkdir()
    settle(folder)
    scan(folder)
    for file in folder.rglob("*.jpg"):
        file.unlink()
    with pytest.raises(ManifestError, match="hold no image"):
        scan(folder, unchanged="folder")


def test_a_link_to_a_folder_that_is_gone(folder, tmp_path):
    draw(tmp_path / "else/where/1.jpg")
    (folder / "class 1/link").symlink_to(tmp_path / "else/where")
    settle(folder)
    assert len(scan(folder)) == 38
    shutil.rmtree(tmp_path / "else")
    assert scan(folder, unchanged="folder").table.equals(fresh(folder).table)


@pytest.mark.parametrize("left", [0, 5, 100, 5000])
def test_a_damaged_cache_is_replaced(folder, tmp_path, left, caplog):
    Manifest.open(folder, cache_dir=tmp_path / "cache", progress=False)
    (cache,) = (tmp_path / "cache").iterdir()
    os.truncate(cache, left)
    again = Manifest.open(folder, cache_dir=tmp_path / "cache", progress=False)
    assert (
        again.table.equals(fresh(folder).table)
        and "is damaged; the images are scanned again" in caplog.text
    )


@pytest.mark.parametrize("name", [b"\xfe", b"L" * 200])
def test_roots_with_strange_names(folder, tmp_path, name):
    root = folder.rename(tmp_path / os.fsdecode(name))
    for _ in range(2):
        assert len(Manifest.open(root, cache_dir=tmp_path / "cache", progress=False)) == 37
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_scan_that_finds_nothing_leaves_nothing(tmp_path):
    with pytest.raises(ManifestError, match="no such folder"):
        Manifest.scan(tmp_path / "gone", cache=tmp_path / "m.arrow")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "folders", [{"a": 1}, {"a": [1, 2]}, {"a": ["x", 1, 1]}, {"a": [1, 5, 0]}, {}]
)
def test_a_cache_with_strange_folders(folder, folders):
    saved.save(scan(folder).with_facts(folders=folders), folder.parent / "m.arrow")
    assert scan(folder, unchanged="folder").table.equals(fresh(folder).table)
