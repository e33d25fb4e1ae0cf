"""Names the data sets of other programs, before anything of them is read.

A folder of YOLO looks like one with the classes images and labels, and the bytes of an archive look
like a broken table. No layout is guessed by the name of one folder: it is recognized by what its
own program needs. docs/inputs.md says what to do with each.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import filterfalse, islice, product
from pathlib import Path
from urllib.parse import unquote

from dali_pipes.data.image_files.headers import is_image
from dali_pipes.data.shards.addresses import is_remote, is_web
from dali_pipes.data.sources.names import is_housekeeping, is_pattern, split_of
from dali_pipes.data.sources.shards import is_shard
from dali_pipes.data.table import saved
from dali_pipes.errors import ManifestError

_LOOKED_AT = 500  # entries of a folder below the root
_SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "http", "https")
_IMAGE = "one image"

# What a file or folder of such a name is, and so the folder that it is in, whatever is beside it.
_MARKERS = {
    r"data_batch_\d(\.bin)?|cifar-100?-(batches-)?(py|bin|python|binary)": "CIFAR as its "
    "authors packed it",
    r".*idx[13]-ubyte(\.gz)?": "MNIST's idx format, raw pixels of all images in one file",
    r"data\.mdb": "an LMDB database",
    r".*\.mds(\.(br|bz2|gz|snappy|zstd))?": "Mosaic's MDS format of the streaming package",
    r"chunk-\d+-\d+(\.\w+)?\.bin": "litData's format of chunks",
    r"obj\.(names|data)": "Darknet's layout of YOLO",
    r"(dataset_dict|state)\.json": "a data set that save_to_disk of Hugging Face wrote",
}
# What a file with such an ending is; the first that fits says it.
_ENDINGS = {
    r"(csv|tsv|txt)\.(gz|bz2|zst|lz4)": "",  # a table, which is read
    r"tar\.(gz|bz2|xz|zst|lz4)|t(gz|bz2|xz)": "a compressed tar, whose images cannot be read "
    "one by one",
    r"zip|7z|rar|gz|bz2|xz|zst": "a compressed archive",
    r"beton": "a file of FFCV",
    r"h5|hdf5|he5": "an HDF5 file",
    r"npz|npy|pkl|pickle|pt|pth|mat|safetensors|joblib": "an array or a pickled object, not "
    "encoded images",
    r"rec|idx": "MXNet's RecordIO",
    r"mdb|sqlite|sqlite3|db": "a database",
    r"xlsx|xls|ods": "a spreadsheet",
    r"xml": "an XML file, as Pascal VOC has one for each image",
    r"ya?ml": "a YAML file, as YOLO describes a data set in",
    r"jsonl|ndjson": "a file of JSON lines",
    r"mp4|avi|mov|mkv|webm|mpg|mpeg|m4v|wmv|flv": "a video",
    r"gif|hei[cf]|avif|jp2|jxl": _IMAGE,
}
# whose layout it is, by the name of a folder beside one of images and the files that fill it
_COCO, _MASKS = "COCO's layout", "images and masks"
_LAYOUTS = {
    "YOLO's layout": (r"labels", (".txt",)),
    "Pascal VOC's layout": (r"annotations?", (".xml",)),
    _COCO: (r"annotations", (".json",)),
    _MASKS: (
        r"labels|annotations?|masks?|gt|gtfine|ground_truth|segmentations|segmentationclass|trimaps",
        (".png", ".gif"),
    ),
}
_IMAGES = re.compile(r"images?|imgs?|jpegimages|leftimg8bit")
_MASKS_OF_SPLIT = re.compile(r"(.+?)(?:_masks?|_labels|annot)")
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
        listed = {} if entries is None else {"": _sort(entries)}
        _refuse_folder(_Tree(path, listed), with_labels)
    elif path.is_file():
        _refuse_file(path)
    elif not path.exists() and path.suffix not in (".csv", ".parquet", ".json", saved.MAPPED):
        # for those formats the reader says what it needs
        nearest = next(folder for folder in Path(os.path.abspath(path)).parents if folder.exists())
        raise ManifestError(f"{path}: no such folder or file; {nearest} is there")


def refuse_other_objects(url: str, names: Iterable[str]) -> None:
    """Raises ManifestError if the objects below a URL belong to another program."""
    listed: dict[str, tuple[set[str], set[str]]] = {"": (set(), set())}
    # a store lists objects only: their folders are the parts of their names
    for name in names:
        parts = name.split("/")
        for depth, part in enumerate(parts):
            folders, files = listed.setdefault("/".join(parts[:depth]), (set(), set()))
            (files if depth == len(parts) - 1 else folders).add(part)
    _refuse_folder(_Tree(url, listed), True)


def local_path(source: str | Path) -> str | Path:
    """Returns the URL of a local file as a path, and any other source as it is.

    file:// is a store like others for what stores have: it stays a URL for shards, Parquet files
    and images in class folders.
    """
    text = os.fspath(source)
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
            _refuse_folder(_Tree(path, {}), True)
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
    if not is_shard(path) and path.suffix != ".parquet" and (what := _describe_file(path.name)):
        _refuse(path, what)


def _refuse_folder(tree: "_Tree", with_labels: bool) -> None:
    folders, files = tree.look()
    # shards and Parquet files are read, whatever is beside them
    if not folders and any(is_shard(name) or name.endswith(".parquet") for name in files):
        return

    for part in _list_parts(tree):
        what = _find_marker(name for names in tree.look(part) for name in names)
        # without labels a folder of another program is read if its images are files
        if what := what or (_find_layout(tree, part) if with_labels else ""):
            _refuse(_join(os.fspath(tree.root), part), what)

    # the user may have named the folder of images itself
    root = tree.root
    is_part = with_labels and isinstance(root, Path) and root.name == "images"
    if is_part and (what := _find_layout(_Tree(Path(root).parent, {}), "")):
        _refuse(root, f"a part of {what}")

    if not folders and not any(map(is_image, files)):
        for name in files:
            if (what := _describe_file(name)) not in ("", _IMAGE):
                _refuse(f"{root}/{name}", what)


def _refuse(place: str | os.PathLike[str], what: str) -> None:
    place = os.fspath(place)
    raise ManifestError(f"{place}: is {what}; docs/inputs.md says what to give instead")


def _find_marker(names: Iterable[str]) -> str:
    """Says what a folder is in which such names are; "": of no known program."""
    lower = [name.lower() for name in names]
    found = (what for mark, what in _MARKERS.items() if any(re.fullmatch(mark, n) for n in lower))
    return next(found, "")


def _describe_file(name: str) -> str:
    """Says what a file of this name is; "": it may be a table."""
    if what := _find_marker([name]):
        return what
    endings = (
        what for ending, what in _ENDINGS.items() if re.search(rf"\.({ending})\Z", name, re.I)
    )
    return next(endings, _IMAGE if is_image(name) else "")


def _list_parts(tree: "_Tree") -> Iterator[str]:
    """Yields the folders in which a layout may begin."""
    yield ""
    for name in tree.look()[0]:
        if split_of(name) or _PARTS.fullmatch(name.lower()):
            yield name
            inner = tree.look(name)[0] if name == "VOCdevkit" else []
            yield from (_join(name, year) for year in inner)


def _find_layout(tree: "_Tree", part: str) -> str:
    folders = {name.lower(): name for name in tree.look(part)[0]}
    has_images = any(map(_IMAGES.fullmatch, folders))

    for (what, (called, endings)), name in product(_LAYOUTS.items(), folders):
        of_split = _MASKS_OF_SPLIT.fullmatch(name) if what == _MASKS else None
        # COCO's folders of images have the names of splits, or any
        is_beside = ((has_images or what == _COCO) and re.fullmatch(called, name)) or (
            of_split and of_split[1] in folders and split_of(of_split[1])
        )
        if is_beside and tree.holds_only(_join(part, folders[name]), endings):
            return f"{what}, with {endings[0]} files in {folders[name]}"
    return ""


@dataclass
class _Tree:
    """The folders and files below one place, without housekeeping.

    Attributes:
        root: a folder of this machine, or a URL.
        listed: names of the folders and of the files in each folder, by its path below the root;
            what is not there yet is listed here, of a URL nothing.
    """

    root: Path | str
    listed: dict[str, tuple[set[str], set[str]]]

    def look(self, path: str = "") -> tuple[list[str], list[str]]:
        """Returns the names of folders and of files; none if the path is no folder."""
        if path not in self.listed:
            entries: list[tuple[str, bool]] = []
            if isinstance(self.root, Path):
                with suppress(OSError), os.scandir(self.root / path) as found:
                    some = islice(found, _LOOKED_AT if path else None)
                    entries = [(entry.name, entry.is_dir()) for entry in some]
            self.listed[path] = _sort(entries)
        folders, files = self.listed[path]
        return sorted(filterfalse(is_housekeeping, folders)), sorted(
            filterfalse(is_housekeeping, files)
        )

    def holds_only(self, path: str, endings: tuple[str, ...]) -> bool:
        """Whether a folder and those in it have files of this kind, and no image of another."""
        names = self._names(path, depth=2)
        others = [name for name in names if not name.lower().endswith(endings)]
        return len(others) < len(names) and not any(map(is_image, others))

    def _names(self, path: str, depth: int) -> list[str]:
        folders, files = self.look(path)
        inner = folders[:8] if depth else []
        return files + [name for each in inner for name in self._names(f"{path}/{each}", depth - 1)]


def _sort(entries: Iterable[tuple[str, bool]]) -> tuple[set[str], set[str]]:
    names: tuple[set[str], set[str]] = set(), set()
    for name, is_folder in entries:
        names[0 if is_folder else 1].add(name)
    return names


def _join(*parts: str) -> str:
    return "/".join(filter(None, parts))
