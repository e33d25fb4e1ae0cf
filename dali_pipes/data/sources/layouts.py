"""Names the data sets of other programs, before anything of them is read.

A folder of YOLO looks like one with the classes images and labels, and the bytes of an archive look
like a broken table. No layout is guessed by the name of one folder: it is recognized by what its
own program needs. docs/inputs.md says what to do with each.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain, filterfalse, islice, product
from pathlib import Path
from urllib.parse import unquote

from dali_pipes.data.image_files.headers import IMAGE_EXTENSIONS
from dali_pipes.data.shards.addresses import is_remote, is_web
from dali_pipes.data.sources.names import is_housekeeping, is_pattern, split_of
from dali_pipes.data.sources.shards import is_shard
from dali_pipes.data.table import saved
from dali_pipes.errors import ManifestError

_LOOKED_AT = 500  # entries of a folder below the root
_SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "http", "https")
_IMAGE = "one image"

# Names of files and folders, in lower case, and what they are. Those in the first table say so of
# the folder that they are in, whatever is beside them; of a file the first row that fits says it.
_MARKERS = (
    (
        r"data_batch_\d(\.bin)?|cifar-100?-(batches-)?(py|bin|python|binary)",
        "CIFAR as its authors packed it",
    ),
    (r".*idx[13]-ubyte(\.gz)?", "MNIST's idx format, raw pixels of all images in one file"),
    (r"data\.mdb", "an LMDB database"),
    (r".*\.mds(\.(br|bz2|gz|snappy|zstd))?", "Mosaic's MDS format of the streaming package"),
    (r"chunk-\d+-\d+(\.\w+)?\.bin", "litData's format of chunks"),
    (r"obj\.(names|data)", "Darknet's layout of YOLO"),
    (r"(dataset_dict|state)\.json", "a data set that save_to_disk of Hugging Face wrote"),
)
_FILES = (
    *_MARKERS,
    # a table, which is read
    (r".*\.(csv|tsv|txt)\.(gz|bz2|zst|lz4)", ""),
    (
        r".*\.(tar\.(gz|bz2|xz|zst|lz4)|t(gz|bz2|xz))",
        "a compressed tar, whose images cannot be read one by one",
    ),
    (r".*\.(zip|7z|rar|gz|bz2|xz|zst)", "a compressed archive"),
    (r".*\.beton", "a file of FFCV"),
    (r".*\.(h5|hdf5|he5)", "an HDF5 file"),
    (
        r".*\.(npz|npy|pkl|pickle|pt|pth|mat|safetensors|joblib)",
        "an array or a pickled object, not encoded images",
    ),
    (r".*\.(rec|idx)", "MXNet's RecordIO"),
    (r".*\.(mdb|sqlite|sqlite3|db)", "a database"),
    (r".*\.(xlsx|xls|ods)", "a spreadsheet"),
    (r".*\.xml", "an XML file, as Pascal VOC has one for each image"),
    (r".*\.ya?ml", "a YAML file, as YOLO describes a data set in"),
    (r".*\.(jsonl|ndjson)", "a file of JSON lines"),
    (r".*\.(mp4|avi|mov|mkv|webm|mpg|mpeg|m4v|wmv|flv)", "a video"),
    (rf".*({'|'.join(map(re.escape, IMAGE_EXTENSIONS))}|\.(gif|hei[cf]|avif|jp2|jxl))", _IMAGE),
)
# folders beside one of images, the endings of what is in them, and whose layout that is
_IMAGES = r"images?|imgs?|jpegimages|leftimg8bit"
_MASKS = "images and masks", (".png", ".gif")
_COCO = "annotations", "COCO's layout", (".json",)
_NOTES = (
    ("labels", "YOLO's layout", (".txt",)),
    ("annotations?", "Pascal VOC's layout", (".xml",)),
    _COCO,
    (r"masks?|annotations?|labels|gt|gtfine|ground_truth", *_MASKS),
    (r"segmentations|segmentationclass|trimaps", *_MASKS),
)
# folders of known data sets in which layouts are looked for, besides those of splits
_PARTS = re.compile(r"voc\d{4}|vocdevkit|.*lmdb|raw")


def refuse_other_layouts(
    source: str | os.PathLike[str],
    with_labels: bool = True,
    entries: Iterable[tuple[str, bool]] | None = None,
) -> None:
    """Raises ManifestError if a source belongs to another program or does not exist.

    Args:
        with_labels: whether images need a label; if not, a folder is refused only if its images are
            not files of their own.
        entries: entries of the folder, as `list_entries` returns them; None: it is listed here.
    """
    text = os.fspath(source)
    _refuse_address(text)
    if is_remote(text) or is_pattern(source):
        return

    path = Path(text)
    if path.is_dir():
        _refuse_folder(_Tree(path, entries=entries), with_labels)
    elif path.is_file():
        _refuse_file(path)
    elif not path.exists() and path.suffix not in (".csv", ".parquet", ".json", saved.MAPPED):
        # for those formats the reader says what it needs
        nearest = next(folder for folder in Path(os.path.abspath(path)).parents if folder.exists())
        raise ManifestError(f"{path}: no such folder or file; {nearest} is there")


def refuse_other_objects(url: str, names: Iterable[str]) -> None:
    """Raises ManifestError if the objects below a URL belong to another program."""
    _refuse_folder(_Tree(url, names), True)


def no_classes_error(root: Path) -> ManifestError:
    """Returns the error of a folder without subfolders, shards and Parquet files."""
    files = _Tree(root).look()[1]
    start, do = f"{root}: no class folders in it", "put the images of each class into a subfolder"
    if not any(map(_has_image_name, files)):
        return ManifestError(f"{start}{'' if files else ', it is empty'}; {do}")
    return ManifestError(
        f"{start}, only images side by side; {do}; without labels it is taken as it is "
        "(with_labels=False)"
    )


def local_path(source: str | Path) -> str | Path:
    """Returns the source with ~ replaced by the home folder, and the URL of a local file as a path.

    file:// is a store like others for what stores have: it stays a URL for shards, Parquet files
    and images in class folders.
    """
    text = os.fspath(source)
    # no shell replaces ~ in a program or in a YAML file; a file may have that name
    if text.startswith("~") and not os.path.lexists(text):
        return Path(text).expanduser() if isinstance(source, Path) else os.path.expanduser(text)  # noqa: PTH111

    if text.startswith("file:/"):
        path = Path(
            "/" + unquote(text.removeprefix("file:").removeprefix("//localhost")).lstrip("/")
        )
        # file:/… with one slash is no URL to `is_remote`, so it becomes a path whatever is there
        if not text.startswith("file://") or (
            path.is_file() and not is_shard(path) and path.suffix != ".parquet"
        ):
            return path
        if path.is_dir():
            _refuse_folder(_Tree(path), True)
    return source


def _refuse_address(text: str) -> None:
    scheme, _, rest = text.partition(":")
    right = f"{scheme.lower()}://"
    why = None

    # WebDataset's URLs may be commands, and fsspec's may be chains
    if scheme == "pipe":
        why = "shards from a command (pipe:) are not read; give their URL or folder"
    elif "::" in text and is_remote(text):
        why = "several URLs in one are not read; open each, and join them with Manifest.concat"
    # a file may have a name such as s3:notes
    elif scheme.lower() not in _SCHEMES or os.path.lexists(text):
        return
    elif is_web(text) and re.search(r"\?[^/*{}]*=[^/*{}]*\Z", text):
        why = "what a URL asks for after ? is no part of a name; give the URL without it"
    elif not text.startswith(right):
        why = f"is not a URL; write {right}{rest.lstrip('/')}"
    elif scheme == "hf" and not find_spec("huggingface_hub"):
        why = "is on Hugging Face's hub; pip install huggingface_hub, or download it"
    if why:
        raise ManifestError(f"{text}: {why}")


def _refuse_file(path: Path) -> None:
    if not is_shard(path) and path.suffix != ".parquet" and (what := _find([path.name], _FILES)):
        _refuse(path, what)


def _refuse_folder(tree: "_Tree", with_labels: bool) -> None:
    folders, files = tree.look()
    # shards and Parquet files are read, whatever is beside them
    if not folders and any(is_shard(name) or name.endswith(".parquet") for name in files):
        return

    for part in _parts(tree):
        place = _join(os.fspath(tree.root), part)
        what = _find(chain(*tree.look(part)), _MARKERS)
        # without labels a folder of another program is read if its images are files
        if what := what or (_layout_in(tree, part) if with_labels else ""):
            _refuse(place, what)

    # the user may have named the folder of images itself
    root = tree.root
    if with_labels and isinstance(root, Path) and root.name == "images":
        what = _layout_in(_Tree(root.parent), "")
        if what:
            _refuse(root, f"a part of {what}")

    if not folders and not any(map(_has_image_name, files)):
        for name in files:
            if (what := _find([name], _FILES)) not in ("", _IMAGE):
                _refuse(f"{root}/{name}", what)


def _refuse(place: str | os.PathLike[str], what: str) -> None:
    place = os.fspath(place)
    raise ManifestError(f"{place}: is {what}; docs/inputs.md says what to give instead")


def _find(names: Iterable[str], table: Iterable[tuple[str, str]]) -> str:
    """Returns what a file or folder with one of these names is; "": not of a known program."""
    lower = [name.lower() for name in names]
    found = (what for name, what in table if any(re.fullmatch(name, each) for each in lower))
    return next(found, "")


def _parts(tree: "_Tree") -> Iterator[str]:
    """Yields the folders in which a layout may begin."""
    yield ""
    for name in tree.look()[0]:
        if split_of(name) or _PARTS.fullmatch(name.lower()):
            yield name
            inner = tree.look(name)[0] if name == "VOCdevkit" else []
            yield from (_join(name, year) for year in inner)


def _layout_in(tree: "_Tree", part: str) -> str:
    folders = {name.lower(): name for name in tree.look(part)[0]}
    # COCO's folders of images have the names of splits, or any
    rows = _NOTES if any(re.fullmatch(_IMAGES, name) for name in folders) else (_COCO,)
    if splits := "|".join(map(re.escape, filter(split_of, folders))):
        rows = (*rows, (rf"({splits})(_masks?|_labels|annot)", *_MASKS))
    for (pattern, what, endings), name in product(rows, folders):
        if re.fullmatch(pattern, name) and tree.holds_only(_join(part, folders[name]), endings):
            return f"{what}, with {endings[0]} files in {folders[name]}"
    return ""


class _Tree:
    """The folders and files below one place, without housekeeping.

    The place is a folder of this machine, or the names of objects are given.
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
        # a store lists objects only: their folders are the parts of their names
        for name in objects:
            parts = name.split("/")
            for depth, part in enumerate(parts):
                folders, files = self._listed.setdefault("/".join(parts[:depth]), (set(), set()))
                (files if depth == len(parts) - 1 else folders).add(part)

    def look(self, path: str = "") -> tuple[list[str], list[str]]:
        """Returns the names of folders and of files; none if the path is no folder."""
        if path not in self._listed:
            names: tuple[set[str], set[str]] = set(), set()
            if isinstance(self.root, Path):
                with suppress(OSError), os.scandir(self.root / path) as entries:
                    for entry in islice(entries, _LOOKED_AT if path else None):
                        names[0 if entry.is_dir() else 1].add(entry.name)
            self._listed[path] = names
        folders, files = self._listed[path]
        return sorted(filterfalse(is_housekeeping, folders)), sorted(
            filterfalse(is_housekeeping, files)
        )

    def holds_only(self, path: str, endings: tuple[str, ...]) -> bool:
        """Whether a folder and those in it have files of this kind, and no image of another."""
        names = self._names(path, depth=2)
        others = [name for name in names if not name.lower().endswith(endings)]
        return len(others) < len(names) and not any(map(_has_image_name, others))

    def _names(self, path: str, depth: int) -> list[str]:
        folders, names = self.look(path)
        for folder in folders[:8] if depth else ():
            names += self._names(f"{path}/{folder}", depth - 1)
        return names


def _join(*parts: str) -> str:
    return "/".join(filter(None, parts))


def _has_image_name(name: str) -> bool:
    return name.lower().endswith(IMAGE_EXTENSIONS)
