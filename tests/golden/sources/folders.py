"""Folders of images: classes, splits, odd names and files, and scans that go on from a cache."""

from functools import partial
from pathlib import Path

from built_files import EVERY
from turned_files import WAYS
from wide_images import write_wide

import dali_pipes as dp

from .pictures import Cases, opened, picture, put

# what takes long to encode
SPARED = ("400-megapixel PNG of 389 KB", "AVIF named .jpg", "WebP, lossless, orientation 6")
scan = partial(dp.Manifest.scan, progress=False)


def write() -> Cases:
    _write_classes()
    _write_splits()
    _write_names()
    _write_files()
    nowhere, classes = "nowhere", "classes"
    return {
        "class folders": lambda: opened(classes),
        "class folders, scanned": lambda: scan(classes),
        "class folders with a slash at the end": lambda: opened("classes/"),
        "class folders as classes= orders them": lambda: scan(classes, classes=["dog", "cat"]),
        "class folders, one without a folder": lambda: scan(classes, classes=["dog", "cow", "cat"]),
        "class folders, one not named": lambda: scan(classes, classes=["dog"]),
        "class folders, a misspelt one": lambda: scan(classes, classes=["dgo", "cat"]),
        "class folders, none of those": lambda: scan(classes, classes=["a", "b"]),
        "class folders, classes= is a text": lambda: scan(classes, classes="cat"),
        "class folders, one named twice": lambda: scan(classes, classes=["cat", "dog", "cat"]),
        "class folders without labels": lambda: scan(classes, with_labels=False),
        "class folders, few pixels allowed": lambda: scan(classes, max_pixels=1000),
        "class folders, strict": lambda: scan(classes, strict=True),
        "class folders, strict, nothing left out": lambda: scan("splits/train", strict=True),
        "class folders, an option's value": lambda: scan(classes, verify="some"),
        "class folders, an unknown option": lambda: scan(classes, shuffle=True),
        "class folders in a folder": lambda: opened("outer"),
        "class folders, one without images": lambda: opened("hollow"),
        "class folders, all without images": lambda: opened("hollow/cat"),
        "nested class folders": lambda: opened("nested"),
        "nested class folders without labels": lambda: opened("nested", with_labels=False),
        "splits": lambda: opened("splits"),
        "splits as classes": lambda: scan("splits", classes=["train", "val"]),
        "splits, one of them": lambda: opened("splits/val"),
        "splits by years": lambda: opened("years"),
        "splits in class folders": lambda: opened("turned around"),
        "a class that is called train": lambda: opened("traffic"),
        "images side by side": lambda: opened("flat"),
        "images side by side without labels": lambda: opened("flat", with_labels=False),
        "an image": lambda: opened("flat/1.jpg"),
        "nothing there": lambda: opened(nowhere),
        "an empty folder": lambda: opened("empty"),
        "an unknown kind of URL": lambda: opened("nobody://bucket/train"),
        "a half URL": lambda: opened("s3:/bucket/train"),
        "odd names": lambda: opened("names"),
        "names in the order of ImageFolder": lambda: opened("order"),
        "links": lambda: opened("links"),
        "housekeeping": lambda: opened("kept"),
        "orientations of JPEGs": lambda: opened("turns"),
        "orientations in every way": lambda: opened("ways"),
        "every odd file": lambda: opened("odd"),
        "images of 16 bits": lambda: opened("wide"),
        "images of 16 bits, asked for": lambda: opened("wide", bits=16),
        "images of 16 bits, of 12 bits": lambda: opened("wide", bits=12),
        "a cached scan after changes": _scan_again,
        "a cached scan of another purpose": lambda: opened(
            "changing", cache_dir="cached", with_labels=False
        ),
    }


def _write_classes() -> None:
    put(
        {
            f"classes/{'cat' if n % 2 else 'dog'}/{n}.jpg": picture(n, size=(40 + n, 32))
            for n in range(6)
        }
    )
    put(
        {
            "classes/cat/broken.jpg": "no image",
            "classes/cat/clip.gif": picture(60, "GIF"),
            "classes/cat/note.txt": "a note",
            "classes/dog/empty.png": b"",
            "classes/dog/movie.mp4": b"movie",
            "classes/.thumbs/1.jpg": picture(61),
            "classes/beside.png": picture(62, "PNG"),
            "outer/only/cat/1.jpg": picture(1),
            "hollow/cat/note.md": "none",
            "hollow/dog/1.jpg": picture(1),
            "hollow/cat/eel/note.md": "none",
            "nested/b/1.jpg": picture(1),
            "nested/b/10/1.jpg": picture(2),
            "nested/b/9/1.jpg": picture(3),
            "nested/b/9/deep/er/1.jpg": picture(4),
            "nested/b-/1.jpg": picture(5),
            "nested/B/2.jpg": picture(6),
            "flat/1.jpg": picture(1),
            "flat/2.png": picture(2, "PNG"),
            "flat/broken.jpg": "no image",
        }
    )
    Path("empty").mkdir()


def _write_splits() -> None:
    put({f"splits/{split}/{kind}/1.jpg": picture(1) for split in ("train", "val") for kind in "ab"})
    put({f"years/{split}2017/1.jpg": picture(1) for split in ("train", "val")})
    put(
        {
            f"turned around/{kind}/{split}/1.jpg": picture(1)
            for kind in "ab"
            for split in ("train", "val")
        }
    )
    put({f"traffic/{kind}/1.jpg": picture(1) for kind in ("bus", "car", "train")})


def _write_names() -> None:
    names = ("UPPER.JPG", "a.b.c.jpg", "a b.jpeg", "line\nend.jpg", "quote'\".jpg", "ä語😀.jpg")
    put({f"names/Klasse ä/{name}": picture(n) for n, name in enumerate(names)})
    put(
        {
            "names/Klasse ä/é composed.jpg": picture(10),
            "names/Klasse ä/é decomposed.jpg": picture(11),
            b"names/2nd/caf\xe9.jpg": picture(12),
            "names/2nd/.hidden.jpg": picture(13),
            "names/2nd/jpg": picture(14),
            "names/2nd/photo.jpg.txt": "x",
            "names/2nd/photo.heic": b"x",
            "names/2nd/x.JPE": picture(15),
            "names/2nd/x.jfif": picture(16),
            "names/2nd/-x.jpg": picture(17),
        }
    )
    put(
        {
            f"order/{name}": picture(n)
            for n, name in enumerate(
                (
                    *("b/a/1.jpg", "b/a-/1.jpg", "b/a.jpg", "b/B.jpg", "b/10.jpg", "b/9.jpg"),
                    *("A/1.jpg", "b/a/x/1.jpg"),
                )
            )
        }
    )
    put({"links/real/1.jpg": picture(1), "aside/2.jpg": picture(2), "aside/in/3.jpg": picture(3)})
    for name, target in {
        "real/2.jpg": "../../aside/2.jpg",
        "linked": "../aside",
        "real/loop": "../real",
        "real/gone.jpg": "nowhere.jpg",
    }.items():
        Path("links", name).symlink_to(target)
    put(
        {
            f"kept/{name}": picture(n)
            for n, name in enumerate(
                (
                    *("cat/1.jpg", "cat/@eaDir/1.jpg", "cat/._1.jpg", "cat/Thumbs.db"),
                    *("__MACOSX/cat/1.jpg", ".ipynb_checkpoints/1.jpg", "lost+found/x"),
                )
            )
        }
    )


def _write_files() -> None:
    put({f"turns/all/{turned}.jpg": picture(1, turned=turned) for turned in range(1, 9)})
    put({f"ways/all/{n:02d}.jpg": make(6) for n, (make, _) in enumerate(WAYS.values())})
    for number, (name, write_one) in enumerate(EVERY.items()):
        if name not in SPARED:
            folder = Path("odd", f"{number:03d} {name}")
            folder.mkdir(parents=True)
            write_one(folder / "x.jpg")
    Path("wide/all").mkdir(parents=True)
    write_wide(Path("wide/all"))
    put({f"changing/{kind}/{n}.jpg": picture(n) for kind in "ab" for n in range(2)})


def _scan_again() -> dp.Manifest:
    opened("changing", cache_dir="cached")
    put({"changing/b/3.jpg": picture(3, size=(20, 30)), "changing/c/1.jpg": picture(4)})
    Path("changing/a/0.jpg").unlink()
    return opened("changing", cache_dir="cached")
