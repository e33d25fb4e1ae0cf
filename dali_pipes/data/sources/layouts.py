"""Recognizes data sets of other programs, and says what each is and what to do with it.

A folder of YOLO looks like one with the classes images and labels, and the bytes of an archive look
like a broken table. So known layouts are named before anything is read. No layout is guessed by the
name of one folder: it is recognized by what its own program needs.

`refuse_other_layouts` looks at an address (`_refuse_address`), a file by its name, then by its
first bytes (`_refuse_file`), or a folder (`_refuse_folder`, with one `_find_…` function for each
layout in `_LAYOUTS`). `refuse_other_objects` looks at the list of objects in a store in the same
way.
"""

import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

from dali_pipes.data.image_files.headers import IMAGE_EXTENSIONS
from dali_pipes.data.shards.remote import is_remote, is_web
from dali_pipes.data.sources.names.housekeeping import is_housekeeping
from dali_pipes.data.sources.names.patterns import is_pattern
from dali_pipes.data.sources.names.splits import split_of
from dali_pipes.data.sources.shards import is_shard
from dali_pipes.data.table import saved
from dali_pipes.errors import ManifestError

_LOOKED_AT = 500  # entries of a folder below the root
_HEAD = 8192  # bytes that show what a file is
_SMALL_JSON = 2**22  # bytes; larger files are not read here
_TEXT_TABLES = (".csv", ".tsv", ".txt")
_SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "http", "https")

_AS_FILES = (
    "write each image as JPEG or PNG into a folder for its class, or pack them into .tar shards"
)
_ARCHIVE = ("a compressed archive", "unpack it and give the folder")
_TAR = ("is compressed, so its images cannot be read one by one", "unpack it to a .tar or to files")
_ARRAYS = ("an array or a pickled object, not encoded images", _AS_FILES)
_VIDEO = ("a video", "write its frames as images (ffmpeg) into a folder for each class")
_COCO_FORM = "convert it to one COCO JSON file (docs/inputs.md) and give that file"
_YOLO = ("YOLO's layout, images/ with labels/ of text files", f"{_COCO_FORM} with images=")
_VOC = ("Pascal VOC's layout, with an XML file for each image", _COCO_FORM)
_LMDB = ("an LMDB database", _AS_FILES)
_MDS = ("Mosaic's MDS format of the streaming package", _AS_FILES)
_LITDATA = ("litData's format of chunks", _AS_FILES)
_CIFAR = (
    "CIFAR as its authors packed it",
    (
        "run dali-pipes prepare source=cifar10 (or cifar100) archive=cifar-10-binary.tar.gz "
        "out=DIR, and give DIR/train"
    ),
)
_MNIST = ("MNIST's idx format, raw pixels of all images in one file", _AS_FILES)
_HUGGING_FACE = (
    "a data set that save_to_disk of Hugging Face's datasets wrote",
    'write it as Parquet, load_from_disk("…").to_parquet("train.parquet"), and give that file '
    "(images that are only paths need datasets.table.embed_table_storage first)",
)

_ONE_IMAGE = (
    "one image",
    "give a folder with a subfolder for each class, or a table with path,label",
)

# the ends of file names; what such a file is; what to do instead
_FILES: tuple[tuple[tuple[str, ...], tuple[str, str]], ...] = (
    ((".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4"), _TAR),
    ((".zip", ".7z", ".rar"), _ARCHIVE),
    ((".beton",), ("a file of FFCV", f"only FFCV reads it; {_AS_FILES}")),
    ((".h5", ".hdf5", ".he5"), ("an HDF5 file", _AS_FILES)),
    (
        (".npz", ".npy", ".pkl", ".pickle", ".pt", ".pth", ".mat", ".safetensors", ".joblib"),
        _ARRAYS,
    ),
    ((".mdb",), _LMDB),
    ((".mds", ".mds.zstd", ".mds.zst"), _MDS),
    ((".rec", ".idx"), ("MXNet's RecordIO", _AS_FILES)),
    ((".sqlite", ".sqlite3", ".db"), ("a database", _AS_FILES)),
    ((".xlsx", ".xls", ".ods"), ("a spreadsheet", "save it as CSV with a header path,label")),
    ((".xml",), ("an XML file, as Pascal VOC has one for each image", _COCO_FORM)),
    ((".yaml", ".yml"), ("a YAML file, as YOLO describes a data set in", _COCO_FORM)),
    (
        (".jsonl", ".ndjson"),
        ("a file of JSON lines", "write a table (CSV or Parquet) with path,label"),
    ),
    ((".mp4", ".avi", ".mov", ".mkv", ".webm", ".mpg", ".mpeg", ".m4v", ".wmv", ".flv"), _VIDEO),
    (
        (*IMAGE_EXTENSIONS, ".gif", ".heic", ".heif", ".avif", ".jfif", ".jpe", ".jp2", ".jxl"),
        _ONE_IMAGE,
    ),
)
# the first bytes of a file; what it is; what to do instead
_STARTS: tuple[tuple[bytes, tuple[str, str]], ...] = (
    (b"PK\x03\x04", _ARCHIVE),
    (b"\x1f\x8b", _ARCHIVE),
    (b"BZh", _ARCHIVE),
    (b"\xfd7zXZ", _ARCHIVE),
    (b"\x28\xb5\x2f\xfd", _ARCHIVE),
    (b"7z\xbc\xaf\x27\x1c", _ARCHIVE),
    (b"Rar!", _ARCHIVE),
    (b"\x89HDF", ("an HDF5 file", _AS_FILES)),
    (b"SQLite format 3", ("a database", _AS_FILES)),
    (b"PAR1", ("a Parquet file by its first bytes", "name it NAME.parquet")),
    (
        b"ARROW1",
        ("an Arrow file by its first bytes", "name it NAME.arrow if it is a saved manifest"),
    ),
    (b"\xff\xd8\xff", ("one image", "give a folder with a subfolder of images for each class")),
    (b"\x89PNG", ("one image", "give a folder with a subfolder of images for each class")),
)
# names of folders in lower case
_IMAGES = ("images", "image", "imgs", "img", "jpegimages")
_MASKS = (
    "masks",
    "mask",
    "annotations",
    "annotation",
    "labels",
    "gt",
    "ground_truth",
    "segmentations",
    "trimaps",
)


class _Tree:
    """The folders and files below one place, without housekeeping: of this machine, or of a list of
    objects.
    """

    def __init__(
        self,
        root: Path | str,
        objects: Iterable[str] = (),
        entries: Iterable[tuple[str, bool]] | None = None,
    ):
        self.root = root
        self._listed: dict[str, tuple[set[str], set[str]]] = {}

        if entries is not None:
            self._listed[""] = set(), set()
        for name, is_folder in entries or ():
            self._listed[""][0 if is_folder else 1].add(name)
        for name in objects:
            parts = name.split("/")
            for depth, part in enumerate(parts):
                folders, files = self._listed.setdefault("/".join(parts[:depth]), (set(), set()))
                (files if depth == len(parts) - 1 else folders).add(part)

    def look(self, path: str = "") -> tuple[list[str], list[str]]:
        """Returns the names of folders and of files; none if the path is no folder."""
        if isinstance(self.root, str):
            folders, files = self._listed.get(path, (set(), set()))
            return sorted(filter(_is_data, folders)), sorted(filter(_is_data, files))

        if path not in self._listed:
            found: tuple[set[str], set[str]] = set(), set()
            with suppress(OSError), os.scandir(self.root / path) as entries:
                for entry in islice(entries, _LOOKED_AT if path else None):
                    found[0 if entry.is_dir() else 1].add(entry.name)
            self._listed[path] = found
        folders, files = self._listed[path]
        return sorted(filter(_is_data, folders)), sorted(filter(_is_data, files))

    def has(self, path: str) -> bool:
        if isinstance(self.root, str):
            folder, _, name = path.rpartition("/")
            return name in self._listed.get(folder, (set(), set()))[1]
        return (self.root / path).is_file()

    def named(self, names: Iterable[str], path: str = "") -> str | None:
        """Returns the folder that has one of these names, in upper or lower case."""
        folders = {name.lower(): name for name in self.look(path)[0]}
        return next((folders[name] for name in names if name in folders), None)

    def holds(self, path: str, suffix: str) -> bool:
        """Whether a folder, or one of its subfolders, has files of this kind and no image."""
        folders, names = self.look(path)
        for folder in folders[:8]:
            names = [*names, *self.look(f"{path}/{folder}")[1]]

        lower = [name.lower() for name in names]
        return any(name.endswith(suffix) for name in lower) and not any(map(_is_image, lower))


def refuse_other_layouts(
    source: str | os.PathLike[str],
    with_labels: bool = True,
    entries: Iterable[tuple[str, bool]] | None = None,
) -> None:
    """Raises ManifestError if a source belongs to another program or does not exist, with what it
    is and what to do.

    Args:
        with_labels: whether images need a label; if not, a folder is refused only if its images are
            not files of their own.
        entries: entries of the folder, as `list_entries` returns them; None: it is listed here.
    """
    text = os.fspath(source)
    _refuse_address(text)

    path = Path(text)
    if is_remote(text) or is_pattern(source):
        return

    if path.is_dir():
        _refuse_folder(_Tree(path, entries=entries), with_labels)
    elif path.is_file():
        _refuse_file(path)
    elif not path.exists() and path.suffix not in (".csv", ".parquet", ".json", saved.MAPPED):
        # for those formats the reader says what it needs
        raise ManifestError(_describe_missing(path))


def refuse_other_objects(url: str, names: Iterable[str]) -> None:
    """Raises ManifestError if the objects below a URL belong to another program."""
    _refuse_folder(_Tree(url, names))


def local_path(source: str | Path) -> str | Path:
    """Returns the source with ~ replaced by the home folder, and the URL of a local file as a path.

    file:// is a store like others for what stores have: it stays a URL for shards, Parquet files
    and images in class folders.
    """
    text = os.fspath(source)
    if text.startswith("~") and not os.path.lexists(text):
        return Path(text).expanduser() if isinstance(source, Path) else os.path.expanduser(text)  # noqa: PTH111

    if text.startswith("file:/"):
        path = Path(
            "/" + unquote(text.removeprefix("file:").removeprefix("//localhost")).lstrip("/")
        )
        if not text.startswith("file://") or (
            path.is_file() and not is_shard(path) and path.suffix != ".parquet"
        ):
            return path
        if path.is_dir():
            _refuse_folder(_Tree(path))
    return source


def describe_no_classes(root: Path) -> str:
    """Returns why a folder without subfolders, shards and Parquet files is no data set, and what it
    may be.
    """
    _, files = _Tree(root).look()
    start = f"{root}: no class folders in it"
    images = [name for name in files if _is_image(name)]
    tables = [name for name in files if name.lower().endswith((".csv", ".tsv"))]

    if not files:
        return f"{start}, it is empty; give a folder with a subfolder of images for each class"
    if not images:
        given = f"; did you mean the table {root / tables[0]}?" if tables else ""
        return f"{start}; put the images of each class into a separate subfolder{given}"

    coco = [name for name in files if name.lower().endswith(".json") and _is_coco(root / name)]
    if coco or tables:
        file = root / (coco or tables)[0]
        both = (
            f"Manifest.open('{file}', images='{root}'), or data.train={file} "
            f"data.train_images={root}"
        )
        return f"{start}, only images side by side, and {file.name}, which may list them: {both}"
    if labels := _labels_of(root):
        return f"{start}: {_YOLO[0]} (the labels are in {labels}); {_YOLO[1]}{root}"

    meant = ""
    if len(_Tree(root.parent).look()[0]) > 1 or split_of(root.parent.name):
        meant = f"; did you mean {root.parent}, which holds the classes?"

    do = (
        "put the images of each class into a separate subfolder, or list them in a table "
        "(path,label)"
    )
    return f"{start}, only images side by side; {do}; dali-pipes predict takes it as it is{meant}"


def _refuse_address(text: str) -> None:
    scheme, _, rest = text.partition(":")
    if scheme == "pipe":
        do = "give the URL itself (s3://…), or copy the shards to a disk and give their folder"
        why = "shards from a command (pipe:) are not read, since they have no size"
        raise ManifestError(f"{text}: {why}; {do}")

    if "::" in text and is_remote(text):
        do = "open each, and join them with Manifest.concat"
        raise ManifestError(f"{text}: several URLs in one are not read; {do}")
    if scheme.lower() not in _SCHEMES or os.path.lexists(text):
        return
    if is_web(text) and (asks := re.search(r"\?[^/*{}]*=[^/*{}]*\Z", text)):
        why = "what a URL asks for at its end is no part of a name, and a signature in it ends"
        raise ManifestError(f"{text}: {why}; give the URL without {asks[0][:40]}")

    right = f"{scheme.lower()}://{rest.lstrip('/')}"
    if not rest.startswith("//") or scheme != scheme.lower():
        why = f"is not a URL, which begins with {scheme.lower()}://"
        raise ManifestError(f"{text}: {why}; write {right}")
    if scheme == "hf" and not find_spec("huggingface_hub"):
        download = "download it (hf download NAME --repo-type dataset) and give the local folder"
        do = f"{download}, or pip install huggingface_hub"
        raise ManifestError(f"{text}: is on Hugging Face's hub; {do}")


def _describe_missing(path: Path) -> str:
    full = Path(os.path.abspath(path))

    if path.is_symlink():
        there = f"a link to {path.readlink()}, which is gone"
        return f"{path}: no such folder or file: {there}; mend it"
    if re.match(r"[A-Za-z]:[\\/]|\\\\", os.fspath(path)):
        do = "give the path on this machine, such as /mnt/…"
        return f"{path}: no such folder or file: a path of Windows; {do}"

    nearest = next(folder for folder in full.parents if folder.exists())
    names = _Tree(nearest).look()
    has = ", ".join([*names[0], *names[1]][:5]) or "nothing"
    more = ", …" if len(names[0]) + len(names[1]) > 5 else ""
    return f"{path}: no such folder or file; {nearest} is there, and has {has}{more}"


def _refuse_file(path: Path) -> None:
    if is_shard(path) or path.suffix == ".parquet":
        return
    if path.suffix == saved.MAPPED:
        _refuse_arrow(path)
        return
    if path.suffix == ".json":
        _refuse_json(path)
        return

    if found := _kind_of_file(path.name):
        _refuse(path, *found)
    # a compressed table, which pyarrow reads, begins as an archive does
    if _without_compression(path.name) == path.name:
        _refuse_content(path)


def _kind_of_file(name: str) -> tuple[str, str] | None:
    lower = name.lower()
    if re.fullmatch(
        r"(data_batch_\d|test_batch)(\.bin)?|cifar-100?-(binary|python)\.tar\.gz", lower
    ):
        return _CIFAR
    if re.search(r"idx[13]-ubyte(\.gz)?\Z", lower):
        return _MNIST
    if re.fullmatch(r"chunk-\d+-\d+(\.\w+)?\.bin", lower):
        return _LITDATA

    found = next((kind for ends, kind in _FILES if lower.endswith(ends)), None)
    if (
        not found
        and lower.endswith((".gz", ".bz2", ".xz", ".zst"))
        and _without_compression(name) == name
    ):
        return _ARCHIVE
    return found


def _without_compression(name: str) -> str:
    """Returns train.csv for train.csv.gz, which pyarrow reads, and other names unchanged."""
    inner, _, ending = name.rpartition(".")
    return (
        inner
        if ending in ("gz", "bz2", "zst", "lz4") and inner.lower().endswith(_TEXT_TABLES)
        else name
    )


def _refuse_content(path: Path) -> None:
    if path.suffix.lower() in (".csv", ".tsv"):
        return  # csv_tables.py says what is wrong with the bytes of a table
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return  # the reader reports it

    for start, kind in _STARTS:
        if head.startswith(start):
            _refuse(path, *kind)
    if head[257:262] == b"ustar":
        _refuse(path, "a tar by its content", "name it NAME.tar")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return  # a table in UTF-16

    # text has hardly any control characters
    control = sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head)
    if b"\0" in head or control > len(head) // 50:
        kinds = "a CSV or Parquet table, COCO's JSON, or images in a .tar, .tfrecord or .parquet"
        _refuse(path, "a binary file of a kind that is not known", f"give {kinds}")

    line = head.decode("utf-8", "replace").lstrip("\ufeff\r\n").split("\n")[0].strip()
    images = "|".join(re.escape(extension) for extension in IMAGE_EXTENSIONS)
    if re.search(r"\bpath\b", line):
        return

    # Text files of other programs are recognized by their first line.
    if re.fullmatch(r"\d+( -?\d*\.?\d+(e-?\d+)?){4,}", line):
        _refuse(path, "a file of the labels of one image, as YOLO writes them", _COCO_FORM)
    if re.fullmatch(rf"\S.*({images})([ \t]+[-\d. \t]+)?", line, re.IGNORECASE):
        do = "write a CSV file with the header path,label and a comma in each line"
        _refuse(path, "a list of images without a header, as Caffe has them", do)


def _refuse_arrow(path: Path) -> None:
    near = {name.lower() for name in _Tree(path.parent).look()[1]}
    if not saved.is_manifest(path) and near & {"state.json", "dataset_info.json"}:
        _refuse(path, *_HUGGING_FACE)


def _refuse_json(path: Path) -> None:
    if path.name in ("state.json", "dataset_dict.json"):
        _refuse(path, *_HUGGING_FACE)
    near = _Tree(path.parent).look()[1]
    has_arrow = any(name == "state.json" or name.endswith(".arrow") for name in near)
    if path.name == "dataset_info.json" and has_arrow:
        _refuse(path, *_HUGGING_FACE)

    if path.name == "index.json" and (found := _chunk_library(near)):
        _refuse(path, *found)

    content = _small_json(path)
    if (
        isinstance(content, dict)
        and isinstance(content.get("shapes"), list)
        and "imagePath" in content
    ):
        _refuse(path, "labelme's file of one image", _COCO_FORM)

    if isinstance(content, dict) and "shards" in content:
        _refuse(path, *_MDS)
    if isinstance(content, dict) and "chunks" in content:
        _refuse(path, *_LITDATA)

    if isinstance(content, list) or (isinstance(content, dict) and "images" not in content):
        looks = (
            f"a list of {len(content):,}"
            if isinstance(content, list)
            else f"an object with {_list_names(content)}"
        )
        do = (
            "of images and labels write a table with path,label; of boxes all three lists of "
            "COCO's form"
        )
        what = f"not COCO's form, which needs the lists images and annotations, but {looks}"
        _refuse(path, what, do)


def _small_json(path: Path) -> object:
    with suppress(OSError, ValueError, RecursionError):
        if path.stat().st_size <= _SMALL_JSON:  # larger ones are read once, for COCO's form
            return json.loads(path.read_bytes())
    return None


def _is_coco(path: Path) -> bool:
    content = _small_json(path)
    # a large file is not read twice: it is taken for COCO's form, which its reader checks
    return (content is None and path.stat().st_size > _SMALL_JSON) or (
        isinstance(content, dict) and "images" in content
    )


def _list_names(names: Iterable[object]) -> str:
    return ", ".join(map(str, islice(names, 4))) or "nothing"


def _refuse_folder(tree: _Tree, with_labels: bool = True) -> None:
    folders, files = tree.look()
    if not folders and any(is_shard(name) or name.endswith(".parquet") for name in files):
        return

    for find in _LAYOUTS if with_labels else (_find_containers,):
        find(tree)
    if folders:
        return

    if any(map(_is_image, files)):
        return  # describe_no_classes says more about them
    for name in files:
        found = _kind_of_file(name)
        if (
            found
            and found not in (_TAR, _ONE_IMAGE)
            and not name.lower().endswith((".xml", ".jsonl", ".yaml", ".yml", ".db"))
        ):
            _refuse(f"{tree.root}/{name}", *found)


def _find_yolo(tree: _Tree) -> None:
    folders, files = tree.look()
    if {"obj.names", "obj.data"} & set(files):
        _refuse(tree.root, "Darknet's layout of YOLO", _COCO_FORM)

    # in the root, or in a folder for each split
    for part in ("", *(name for name in folders if split_of(name))):
        images, labels = tree.named(("images",), part), tree.named(("labels",), part)
        if images and labels and tree.holds(_join(part, labels), ".txt"):
            _refuse(_place_of(tree, part), _YOLO[0], f"{_YOLO[1]}{_place_of(tree, part)}/{images}")

    root = tree.root
    if (
        isinstance(root, Path)
        and root.name == "images"
        and _Tree(root.parent).holds("labels", ".txt")
    ):
        _refuse(root, f"a part of {_YOLO[0]}", f"{_YOLO[1]}{root}")


def _find_voc(tree: _Tree) -> None:
    years = [name for name in tree.look()[0] if re.fullmatch(r"VOC\d{4}|VOCdevkit", name)]
    # the root, VOC2012 or VOCdevkit in it, and the folders in these
    for part in (
        "",
        *years,
        *(_join(year, name) for year in years for name in tree.look(year)[0][:8]),
    ):
        notes, images = tree.named(("annotations", "annotation"), part), tree.named(_IMAGES, part)
        if (
            not notes
            or not images
            or not (tree.holds(_join(part, notes), ".xml") or images == "JPEGImages")
        ):
            continue

        masks = tree.named(("segmentationclass",), part)
        place = _place_of(tree, part)
        also = ""
        if masks:
            command = _masks_command(f"{place}/{images}", f"{place}/{masks}")
            also = f"; for masks: {command} data.missing=skip"
        _refuse(place, _VOC[0], f"{_VOC[1]}{also}")


def _find_coco(tree: _Tree) -> None:
    notes = tree.named(("annotations",))
    if not notes or not tree.holds(notes, ".json"):
        return

    files = [name for name in tree.look(notes)[1] if name.endswith(".json")]
    folders = [name for name in tree.look()[0] if name != notes]
    folders += [f"images/{name}" for name in tree.look("images")[0]]
    if not files or not folders:
        return

    # the file and the folder that belong together by their names, such as instances_val2017.json
    both = [
        (file, folder)
        for file in files
        for folder in folders
        if Path(folder).name in Path(file).stem
    ]
    preferred = [pair for pair in both if pair[0].startswith("instances")]
    file, folder = next(iter([*preferred, *both]), (files[0], folders[0]))

    file, images = f"{tree.root}/{notes}/{file}", f"{tree.root}/{folder}"
    do = f"give a file of annotations and its images: Manifest.open('{file}', images='{images}')"
    _refuse(tree.root, "COCO's layout", f"{do}, or data.train={file} data.train_images={images}")


def _find_masks(tree: _Tree) -> None:
    folders = tree.look()[0]
    lower = {name.lower(): name for name in folders}
    pairs = [
        (lower[one], lower[two])
        for one in _IMAGES
        for two in _MASKS
        if one in lower and two in lower
    ]

    # a folder of masks for each split, beside that of its images
    ends = ("_masks", "_mask", "_labels", "annot")
    pairs += [
        (name, name + end)
        for name in folders
        if split_of(name)
        for end in ends
        if name + end in folders
    ]

    found = [(images, _masks_of(tree, images, masks)) for images, masks in pairs]
    if {"leftImg8bit", "gtFine"} <= set(folders):  # Cityscapes, whose names from_masks knows
        found = [("leftImg8bit", "gtFine")]

    for images, there in found:
        if there:
            both = _masks_command(f"{tree.root}/{images}", f"{tree.root}/{there}")
            what = f"a folder of images and one of masks, {images} and {there}"
            _refuse(tree.root, what, f"give both, with a mask of the name of each image: {both}")


def _masks_of(tree: _Tree, images: str, masks: str) -> str | None:
    """Returns the folder of masks, or the folder in it, that has a mask named as an image."""
    endings = [*IMAGE_EXTENSIONS, *map(str.upper, IMAGE_EXTENSIONS)]
    for part in ("", *tree.look(masks)[0][:8]):
        for name in tree.look(_join(masks, part))[1][:20]:
            if not name.lower().endswith((".png", ".gif")):
                continue

            stem = Path(name).stem.removesuffix("_mask")
            # folders of splits are in both the images and the masks, or in the masks alone
            if any(tree.has(_join(images, part, stem + ending)) for ending in endings):
                return masks
            if part and any(tree.has(_join(images, stem + ending)) for ending in endings):
                return _join(masks, part)
    return None


def _find_containers(tree: _Tree) -> None:
    """Refuses what is in files of other libraries, here or in a folder for each split."""
    for part in ("", *filter(_may_hold_containers, tree.look()[0])):
        files = tree.look(part)[1]
        place = _place_of(tree, part)

        if "data.mdb" in files:
            _refuse(place, *_LMDB)
        if "index.json" in files and (found := _chunk_library(files)):
            _refuse(place, *found)

        if "dataset_dict.json" in files or (
            "state.json" in files and any(name.endswith(".arrow") for name in files)
        ):
            _refuse(place, *_HUGGING_FACE)
        if {"state.json", "dataset_info.json"} <= set(files):
            _refuse(place, *_HUGGING_FACE)

        # CIFAR-100's files are called train, test and meta
        if {"data_batch_1", "data_batch_1.bin"} & set(files) or {"train", "test", "meta"} <= set(
            files
        ):
            _refuse(place, *_CIFAR)

        if mnist := [name for name in files if _kind_of_file(name) == _MNIST]:
            _refuse(f"{place}/{mnist[0]}", *_MNIST)


def _may_hold_containers(folder: str) -> bool:
    return bool(
        split_of(folder)
        or re.search(r"lmdb\Z|\A(cifar-.*-(py|bin|python|binary)|raw)\Z", folder.lower())
    )


_LAYOUTS: tuple[Callable[[_Tree], None], ...] = (
    _find_yolo,
    _find_voc,
    _find_coco,
    _find_masks,
    _find_containers,
)


def _chunk_library(files: Iterable[str]) -> tuple[str, str] | None:
    """Returns the library whose chunks are beside an index.json; None: there are none."""
    names = list(files)
    if any(re.search(r"\.mds(\.\w+)?\Z", name) for name in names):
        return _MDS
    return _LITDATA if any(re.fullmatch(r"chunk-.*\.bin", name) for name in names) else None


def _labels_of(images: Path) -> Path | None:
    """Returns YOLO's folder of labels for a folder of images, which may be that folder itself."""
    parts = images.parts
    # YOLO finds the labels by replacing the folder images in a path by labels
    for place in (place for place, part in enumerate(parts) if part == "images"):
        labels = Path(*parts[:place], "labels", *parts[place + 1 :])
        if _Tree(labels).holds("", ".txt"):
            return labels

    for name in _Tree(images).look()[1][:_LOOKED_AT]:
        if _is_image(name) and (text := images / f"{Path(name).stem}.txt").is_file():
            return (
                images
                if re.match(r"\d+( -?\d*\.?\d+){4}\s", text.read_text(errors="replace")[:200])
                else None
            )
    return None


def _masks_command(images: str, masks: str) -> str:
    return (
        f"Manifest.from_masks('{images}', '{masks}'), or data.train={images} "
        f"data.train_masks={masks}"
    )


def _join(*parts: str) -> str:
    return "/".join(filter(None, parts))


def _place_of(tree: _Tree, part: str) -> str:
    return _join(os.fspath(tree.root), part)


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_EXTENSIONS)


def _is_data(name: str) -> bool:
    return not is_housekeeping(name)


def _refuse(place: str | os.PathLike[str], what: str, do: str) -> None:
    verb = "" if what.startswith("is ") else "is "
    raise ManifestError(f"{os.fspath(place)}: {verb}{what}; {do}")
