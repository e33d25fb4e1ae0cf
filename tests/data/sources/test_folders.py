"""A folder is what its owner means: housekeeping is no class, splits are not merged, classes can be
named.
"""

import os
import shutil
import time
import unicodedata
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

import dali_pipes as dp
from dali_pipes.data.sources import scans
from dali_pipes.data.sources.names import is_housekeeping

HOUSEKEEPING = [
    ".ipynb_checkpoints",
    ".git",
    "__MACOSX",
    "@eaDir",
    "lost+found",
    "$RECYCLE.BIN",
    "#recycle",
    "System Volume Information",
]


def draw(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6)).save(root / name)


def scan(root, **options):
    return dp.Manifest.scan(root, progress=False, **options)


def paths(manifest):
    return [
        os.path.relpath(manifest.path(number), manifest.root) for number in range(len(manifest))
    ]


@pytest.mark.parametrize("name", HOUSEKEEPING)
@pytest.mark.parametrize("where", ["", "cat/", "cat/deep/"])
@pytest.mark.parametrize("holds_an_image", [False, True])
def test_housekeeping_is_no_class_and_no_image(tmp_path, name, where, holds_an_image):
    draw(tmp_path, "cat/0.jpg", "cat/deep/1.jpg", "dog/0.jpg")
    before = scan(tmp_path)
    (tmp_path / where / name).mkdir(parents=True)
    if holds_an_image:
        draw(tmp_path, f"{where}{name}/0-checkpoint.jpg")
    after = scan(tmp_path)
    assert (after.classes, after.labels.tolist(), paths(after)) == (
        before.classes,
        before.labels.tolist(),
        paths(before),
    )
    numbered = [
        each.names
        for each in after.omissions
        if each.kind.endswith("to which ImageFolder gives class numbers")
    ]
    assert numbered == ([[name]] if holds_an_image and not where else [])


@pytest.mark.parametrize(
    "name", ["Thumbs.db", "desktop.ini", ".DS_Store", "._0.jpg", "ehthumbs.db"]
)
def test_housekeeping_files_are_not_read(tmp_path, name):
    draw(tmp_path, "cat/0.jpg")
    (tmp_path / "cat" / name).write_bytes(b"no image")
    manifest = scan(tmp_path, strict=True)
    assert len(manifest) == 1 and manifest.problems == []


def test_the_root_itself_may_have_any_name(tmp_path):
    draw(tmp_path, ".cache/train/cat/0.jpg")
    assert scan(tmp_path / ".cache/train").classes == ["cat"]


SPLITS = {
    "ImageNet's": ["train/a/0.jpg", "train/b/0.jpg", "val/a/0.jpg"],
    "three": ["train/a/0.jpg", "valid/a/0.jpg", "test/a/0.jpg"],
    "capitals": ["Training/a/0.jpg", "Testing/a/0.jpg"],
    "Kaggle's": ["training_set/cats/0.jpg", "test_set/cats/0.jpg"],
    "Intel's": ["seg_train/a/0.jpg", "seg_test/a/0.jpg", "seg_pred/0.jpg"],
    "STL's": ["train/a/0.jpg", "test/a/0.jpg", "unlabeled/0.jpg"],
    "years": ["train2017/0.jpg", "val2017/0.jpg"],
    "flat": ["train/0.jpg", "test/0.jpg"],
    "one": ["train/a/0.jpg"],
    "beside documents": ["train/a/0.jpg", "val/a/0.jpg", "docs/read.txt"],
    "beside samples": ["train/a/0.jpg", "val/a/0.jpg", "samples/0.jpg"],
    "beside housekeeping": ["train/a/0.jpg", "val/a/0.jpg", "__MACOSX/train/a/0.jpg"],
    "dev": ["dev/a/0.jpg", "train/a/0.jpg", "eval/a/0.jpg"],
}


@pytest.mark.parametrize("kind", SPLITS)
def test_splits_are_never_read_as_one(tmp_path, kind):
    for name in SPLITS[kind]:
        if name.endswith("txt"):
            (tmp_path / name).parent.mkdir()
            (tmp_path / name).touch()
        else:
            draw(tmp_path, name)
    reads = [
        scan,
        lambda root: dp.Manifest.open(root, progress=False),
        lambda root: scan(f"file://{root}"),
    ]
    # a store lists no folder without an object
    for read in reads[: 2 if kind == "beside samples" else 3]:
        with pytest.raises(dp.ManifestError, match="not classes; name one of them: ") as caught:
            read(tmp_path)
    first = str(caught.value).split("name one of them: ")[1].split(" (")[0]
    if kind not in ("flat", "years"):
        assert len(scan(first)) >= 1
    chosen = sorted(name.split("/")[0] for name in SPLITS[kind] if "train" in name.lower())
    assert len(scan(tmp_path, classes=list(dict.fromkeys(chosen)))) >= 1


@pytest.mark.parametrize(
    "names",
    [
        ["train/0.jpg", "bus/0.jpg", "car/0.jpg"],
        ["train/0.jpg", "test/0.jpg", "bus/0.jpg"],
        ["test_tube/0.jpg", "beaker/0.jpg"],
        ["test_tube/0.jpg"],
        ["trains/0.jpg", "planes/0.jpg"],
        ["valid_ticket/0.jpg", "invalid_ticket/0.jpg"],
        ["dev_board/0.jpg", "test_tube/0.jpg"],
    ],
)
def test_a_class_whose_name_has_such_a_word_stays_a_class(tmp_path, names):
    draw(tmp_path, *names)
    assert (
        scan(tmp_path).classes
        == sorted({name.split("/")[0] for name in names})
        == ImageFolder(tmp_path).classes
    )


def test_housekeeping_that_two_classes_have_does_not_make_splits_of_them(tmp_path):
    draw(tmp_path, "train/0.jpg", "test/0.jpg", "bus/0.jpg")
    for name in ("train", "test"):
        (tmp_path / name / "@eaDir").mkdir()
    assert scan(tmp_path).classes == ["bus", "test", "train"]


def test_classes_are_numbered_as_they_are_named(tmp_path):
    draw(tmp_path, "train/a/0.jpg", "train/b/0.jpg", "train/c/0.jpg", "val/a/0.jpg", "val/c/0.jpg")
    train = scan(tmp_path / "train")
    val = scan(tmp_path / "val", classes=train.classes)
    assert val.classes == train.classes and val.labels.tolist() == [0, 2]
    cached = [
        dp.Manifest.open(
            tmp_path / "val", classes=train.classes, cache_dir=tmp_path / "cache", progress=False
        )
        for _ in range(2)
    ]
    assert all(each.labels.tolist() == [0, 2] for each in cached)
    other = dp.Manifest.open(
        tmp_path / "val", classes=["c", "a"], cache_dir=tmp_path / "cache", progress=False
    )
    assert (
        other.classes == ["c", "a"]
        and other.labels.tolist() == [0, 1]
        and paths(other) == ["c/0.jpg", "a/0.jpg"]
    )
    assert dp.Manifest.open(
        tmp_path / "val", cache_dir=tmp_path / "cache", progress=False
    ).labels.tolist() == [0, 1]


def test_a_class_that_comes_or_goes_moves_the_numbers_of_a_cached_scan(tmp_path):
    draw(tmp_path, "set/a/0.jpg", "set/b/0.jpg")
    for each in [tmp_path / "set", *(tmp_path / "set").rglob("*")]:
        os.utime(each, ns=(10**18, 10**18))
    options = {"cache": tmp_path / "m.arrow", "unchanged": "folder"}
    for classes, labels in (
        (["a", "b"], [0, 1]),
        (["a", "x", "b"], [0, 2]),
        (None, [0, 1]),
        (["b"], [0]),
    ):
        assert scan(tmp_path / "set", classes=classes, **options).labels.tolist() == labels


def test_folders_that_classes_does_not_name_are_left_out_by_name(tmp_path):
    draw(tmp_path, "a/0.jpg", "b/0.jpg", "b/deep/1.jpg", ".hidden/0.jpg")
    manifest = scan(tmp_path, classes=["a"])
    assert paths(manifest) == ["a/0.jpg"]
    assert ("images of folders that classes does not name", 2) in [
        (each.kind, each.number) for each in manifest.omissions
    ]
    assert scan(tmp_path, classes=[".hidden", "a"]).classes == [".hidden", "a"]


def forbid(monkeypatch, *names):
    """Folders of these names cannot be listed."""
    original = os.scandir

    def refuse(path="."):
        if not isinstance(path, int) and Path(os.fsdecode(path)).name in names:
            raise PermissionError(13, "Permission denied", path)
        return original(path)

    monkeypatch.setattr(os, "scandir", refuse)


@pytest.mark.parametrize("options", [{}, {"classes": ["a"]}, {"with_labels": False}])
def test_what_is_left_out_by_its_name_may_be_unreadable(tmp_path, monkeypatch, options):
    draw(tmp_path, "a/0.jpg", "lost+found/0.jpg", ".Trash-0/0.jpg")
    forbid(monkeypatch, "lost+found", ".Trash-0")
    manifest = scan(tmp_path, **options)
    assert paths(manifest) == ["a/0.jpg"]
    aside = {name for each in manifest.omissions for name in each.names}
    assert aside == {"lost+found/", ".Trash-0/"}


def test_only_folders_that_classes_names_are_read(tmp_path, monkeypatch):
    draw(tmp_path, "a/0.jpg", "b/0.jpg", "b/inner/1.jpg", "secret/0.jpg")
    # folders that link to one another would have very many paths
    for one in range(8):
        (tmp_path / f"b/{one}").mkdir()
        for other in range(8):
            (tmp_path / f"b/{one}/to{other}").symlink_to(tmp_path / f"b/{other}")
    forbid(monkeypatch, "secret")
    manifest = scan(tmp_path, classes=["a"])
    assert paths(manifest) == ["a/0.jpg"]
    assert [(each.kind, each.names) for each in manifest.omissions] == [
        ("images of folders that classes does not name", ["b/0.jpg", "b/inner/1.jpg"]),
        ("unreadable folders that classes does not name", ["secret/"]),
    ]
    shutil.rmtree(tmp_path / "b")
    with pytest.raises(dp.ManifestError, match="secret: permission denied; make it readable"):
        scan(tmp_path)


@pytest.mark.parametrize("name", ["\u00e9t\u00e9", ".cach\u00e9"])
def test_classes_are_found_in_any_form_of_their_accents(tmp_path, name):
    draw(tmp_path, f"{name}/0.jpg", "Cat/0.jpg")
    for form in ("NFC", "NFD"):
        manifest = scan(tmp_path, classes=[unicodedata.normalize(form, name), "Cat"])
        assert manifest.labels.tolist() == [0, 1] and not manifest.omissions


def test_splits_are_refused_before_what_is_in_them_is_listed(tmp_path, monkeypatch):
    draw(tmp_path, "train/a/0.jpg", "val/a/0.jpg")
    forbid(monkeypatch, "a")
    with pytest.raises(dp.ManifestError, match="holds train and val, not classes"):
        scan(tmp_path)


def test_a_file_that_came_while_a_scan_waited_is_read(tmp_path, monkeypatch):
    root, cache, old = tmp_path / "set", tmp_path / "m.arrow", time.time() - 60
    draw(root, "0.jpg")
    original = scans.scanning_into

    @contextmanager
    def wait(cache):
        # as another scan into this cache would take its time, after this one has seen the root
        draw(root, "1.jpg")
        os.utime(root, (old, old))
        with original(cache):
            yield

    monkeypatch.setattr(scans, "scanning_into", wait)
    options = {"with_labels": False, "cache": cache, "unchanged": "folder"}
    assert len(scan(root, **options)) == 2
    monkeypatch.undo()
    assert len(scan(root, **options)) == 2


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["cat", "dgo"], "classes names 'dgo', and there is no such folder; did you mean dog?"),
        (["cat", "DOG"], "classes names 'DOG', and there is no such folder; did you mean dog?"),
        (["x", "y"], "classes names 'x', and there is no such folder; there are cat, dog"),
        (["cat", "cat"], "classes names 'cat' twice"),
        ("cat", "it takes a list of class names"),
        ([0, 1], "it takes a list of class names"),
    ],
)
def test_classes_that_make_no_sense(tmp_path, classes, message):
    draw(tmp_path, "cat/0.jpg", "dog/0.jpg")
    with pytest.raises(dp.DaliPipesError) as caught:
        scan(tmp_path, classes=classes)
    assert message in str(caught.value)


def test_classes_of_tables_shards_and_saved_manifests(tmp_path):
    draw(tmp_path, "0.jpg", "1.jpg")
    (tmp_path / "val.csv").write_text("path,label\n0.jpg,dog\n1.jpg,cow\n")
    manifest = dp.Manifest.open(tmp_path / "val.csv", classes=["ant", "cow", "dog"], progress=False)
    assert manifest.classes == ["ant", "cow", "dog"] and manifest.labels.tolist() == [2, 1]
    dp.Manifest.open(tmp_path / "val.csv", progress=False).save(tmp_path / "val.arrow")
    again = dp.Manifest.open(tmp_path / "val.arrow", classes=["ant", "cow", "dog"])
    assert again.labels.tolist() == [2, 1] and again.fingerprint == manifest.fingerprint
    with pytest.raises(
        dp.ManifestError,
        match=(
            r"1 classes that are none of the 2 given as classes, such as 'cow'; did you mean "
            r"cows\?"
        ),
    ):
        dp.Manifest.open(tmp_path / "val.csv", classes=["cows", "dog"], progress=False)
    (tmp_path / "numbers.csv").write_text("path,label\n0.jpg,1\n1.jpg,0\n")
    numbers = dp.Manifest.open(tmp_path / "numbers.csv", classes=["cat", "dog"], progress=False)
    assert numbers.classes == ["cat", "dog"] and numbers.labels.tolist() == [1, 0]
    with pytest.raises(dp.ManifestError, match="class number 1, and classes names 1"):
        dp.Manifest.open(tmp_path / "numbers.csv", classes=["cat"], progress=False)


@pytest.mark.slow
def test_from_torch_keeps_the_data_sets_own_classes(tmp_path):
    from torch.utils.data import DataLoader
    from torchvision.transforms import v2

    draw(tmp_path, ".ipynb_checkpoints/x.jpg", "cat/0.jpg", "dog/0.jpg", "dog/.hidden.jpg")
    steps = v2.Compose(
        [v2.Resize((8, 8)), v2.ToImage(), v2.ToDtype(dtype=torch.float32, scale=True)]
    )
    theirs = ImageFolder(tmp_path, steps)
    assert theirs.classes == [".ipynb_checkpoints", "cat", "dog"]
    loader = dp.from_torch(
        DataLoader(theirs, batch_size=4), dp.TorchConfig(num_workers=0), check=False
    )
    (labels,) = [labels.tolist() for _, labels in loader]
    assert labels == [label for _, label in theirs.samples] == [0, 1, 2, 2]


@pytest.mark.parametrize("name", ["cat", "train.jpg", "a.b", "..x"[2:], "MACOSX"])
def test_other_names_are_no_housekeeping(name):
    assert not is_housekeeping(name)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["images/cat/0.jpg", "images/dog/0.jpg"],
            "its only folder, images, holds folders and no image; did you mean",
        ),
        (
            ["ILSVRC/Data/CLS-LOC/train/a/0.jpg", "ILSVRC/Annotations/x.xml"],
            "its only folder, ILSVRC, holds folders and no image",
        ),
        (
            ["cat/train/0.jpg", "cat/val/0.jpg", "dog/train/0.jpg"],
            "its folder cat holds train and val, splits of one class",
        ),
    ],
)
def test_what_lies_one_level_down_is_no_class(tmp_path, names, message):
    for name in names:
        draw(tmp_path, name) if name.endswith("jpg") else (tmp_path / name).parent.mkdir(
            parents=True
        )
    with pytest.raises(dp.ManifestError) as caught:
        scan(tmp_path)
    assert message in str(caught.value)
    assert len(scan(tmp_path, classes=[names[0].split("/")[0]])) >= 1


def test_shards_below_the_folder_are_named(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train-0.tar").touch()
    with pytest.raises(dp.ManifestError, match=r"shards lie in .*/data; name this folder"):
        scan(tmp_path)


@pytest.mark.parametrize("beside", [None, ".ipynb_checkpoints", "@eaDir"])
def test_masks_of_several_splits_are_not_read_as_one(tmp_path, beside):
    for split in ("training", "validation"):
        draw(tmp_path, f"images/{split}/0.jpg", f"masks/{split}/0.png")
    if beside:
        (tmp_path / "images" / beside).mkdir()
    with pytest.raises(
        dp.ManifestError, match=r"splits are not read as one; .*/images/training and"
    ):
        dp.Manifest.from_masks(tmp_path / "images", tmp_path / "masks", progress=False)
