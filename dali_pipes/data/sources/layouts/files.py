"""Refuses files of other programs, by their names and then by their first bytes."""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from dali_pipes.data.image_files.headers import IMAGE_EXTENSIONS
from dali_pipes.data.sources.layouts.descriptions import (
    ARCHIVE,
    ARRAYS,
    AS_FILES,
    CIFAR,
    COCO_FORM,
    HUGGING_FACE,
    LITDATA,
    LMDB,
    MDS,
    MNIST,
    ONE_IMAGE,
    TAR,
    VIDEO,
    refuse,
)
from dali_pipes.data.sources.layouts.tree import Tree
from dali_pipes.data.sources.shards import is_shard
from dali_pipes.data.table import saved

_HEAD = 8192  # bytes that show what a file is
_SMALL_JSON = 2**22  # bytes; larger files are not read here
_TEXT_TABLES = (".csv", ".tsv", ".txt")
# the ends of file names; what such a file is; what to do instead
_FILES: tuple[tuple[tuple[str, ...], tuple[str, str]], ...] = (
    ((".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4"), TAR),
    ((".zip", ".7z", ".rar"), ARCHIVE),
    ((".beton",), ("a file of FFCV", f"only FFCV reads it; {AS_FILES}")),
    ((".h5", ".hdf5", ".he5"), ("an HDF5 file", AS_FILES)),
    (
        (".npz", ".npy", ".pkl", ".pickle", ".pt", ".pth", ".mat", ".safetensors", ".joblib"),
        ARRAYS,
    ),
    ((".mdb",), LMDB),
    ((".mds", ".mds.zstd", ".mds.zst"), MDS),
    ((".rec", ".idx"), ("MXNet's RecordIO", AS_FILES)),
    ((".sqlite", ".sqlite3", ".db"), ("a database", AS_FILES)),
    ((".xlsx", ".xls", ".ods"), ("a spreadsheet", "save it as CSV with a header path,label")),
    ((".xml",), ("an XML file, as Pascal VOC has one for each image", COCO_FORM)),
    ((".yaml", ".yml"), ("a YAML file, as YOLO describes a data set in", COCO_FORM)),
    (
        (".jsonl", ".ndjson"),
        ("a file of JSON lines", "write a table (CSV or Parquet) with path,label"),
    ),
    ((".mp4", ".avi", ".mov", ".mkv", ".webm", ".mpg", ".mpeg", ".m4v", ".wmv", ".flv"), VIDEO),
    (
        (*IMAGE_EXTENSIONS, ".gif", ".heic", ".heif", ".avif", ".jfif", ".jpe", ".jp2", ".jxl"),
        ONE_IMAGE,
    ),
)
# the first bytes of a file; what it is; what to do instead
_STARTS: tuple[tuple[bytes, tuple[str, str]], ...] = (
    (b"PK\x03\x04", ARCHIVE),
    (b"\x1f\x8b", ARCHIVE),
    (b"BZh", ARCHIVE),
    (b"\xfd7zXZ", ARCHIVE),
    (b"\x28\xb5\x2f\xfd", ARCHIVE),
    (b"7z\xbc\xaf\x27\x1c", ARCHIVE),
    (b"Rar!", ARCHIVE),
    (b"\x89HDF", ("an HDF5 file", AS_FILES)),
    (b"SQLite format 3", ("a database", AS_FILES)),
    (b"PAR1", ("a Parquet file by its first bytes", "name it NAME.parquet")),
    (
        b"ARROW1",
        ("an Arrow file by its first bytes", "name it NAME.arrow if it is a saved manifest"),
    ),
    (b"\xff\xd8\xff", ("one image", "give a folder with a subfolder of images for each class")),
    (b"\x89PNG", ("one image", "give a folder with a subfolder of images for each class")),
)


def refuse_file(path: Path) -> None:
    if is_shard(path) or path.suffix == ".parquet":
        return
    # Arrow and JSON files may be ours, so what is in them or beside them decides
    if path.suffix == saved.MAPPED:
        _refuse_arrow(path)
        return
    if path.suffix == ".json":
        _refuse_json(path)
        return

    if kind := kind_of_file(path.name):
        refuse(path, *kind)
    # a compressed table, which pyarrow reads, begins as an archive does
    if _without_compression(path.name) == path.name:
        _refuse_content(path)


def kind_of_file(name: str) -> tuple[str, str] | None:
    lower = name.lower()
    # names that say more than their endings come first: CIFAR's is an archive too
    if re.fullmatch(
        r"(data_batch_\d|test_batch)(\.bin)?|cifar-100?-(binary|python)\.tar\.gz", lower
    ):
        return CIFAR
    if re.search(r"idx[13]-ubyte(\.gz)?\Z", lower):
        return MNIST
    if re.fullmatch(r"chunk-\d+-\d+(\.\w+)?\.bin", lower):
        return LITDATA

    known = next((kind for ends, kind in _FILES if lower.endswith(ends)), None)
    if (
        not known
        and lower.endswith((".gz", ".bz2", ".xz", ".zst"))
        and _without_compression(name) == name
    ):
        return ARCHIVE
    return known


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

    # files without an extension, or with a wrong one
    for start, kind in _STARTS:
        if head.startswith(start):
            refuse(path, *kind)
    # the magic number of a tar's first header
    if head[257:262] == b"ustar":
        refuse(path, "a tar by its content", "name it NAME.tar")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return  # a table in UTF-16

    # text has hardly any control characters
    control = sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head)
    if b"\0" in head or control > len(head) // 50:
        kinds = "a CSV or Parquet table, COCO's JSON, or images in a .tar, .tfrecord or .parquet"
        refuse(path, "a binary file of a kind that is not known", f"give {kinds}")

    line = head.decode("utf-8", "replace").lstrip("\ufeff\r\n").split("\n")[0].strip()
    images = "|".join(re.escape(extension) for extension in IMAGE_EXTENSIONS)
    # a table, whose header has the column path
    if re.search(r"\bpath\b", line):
        return

    # Text files of other programs are recognized by their first line.
    if re.fullmatch(r"\d+( -?\d*\.?\d+(e-?\d+)?){4,}", line):
        refuse(path, "a file of the labels of one image, as YOLO writes them", COCO_FORM)
    if re.fullmatch(rf"\S.*({images})([ \t]+[-\d. \t]+)?", line, re.IGNORECASE):
        do = "write a CSV file with the header path,label and a comma in each line"
        refuse(path, "a list of images without a header, as Caffe has them", do)


def _refuse_arrow(path: Path) -> None:
    near = {name.lower() for name in Tree(path.parent).look()[1]}
    if not saved.is_manifest(path) and near & {"state.json", "dataset_info.json"}:
        refuse(path, *HUGGING_FACE)


def _refuse_json(path: Path) -> None:
    if path.name in ("state.json", "dataset_dict.json"):
        refuse(path, *HUGGING_FACE)
    near = Tree(path.parent).look()[1]
    has_arrow = any(name == "state.json" or name.endswith(".arrow") for name in near)
    if path.name == "dataset_info.json" and has_arrow:
        refuse(path, *HUGGING_FACE)

    if path.name == "index.json" and (library := chunk_library(near)):
        refuse(path, *library)

    content = _small_json(path)
    if (
        isinstance(content, dict)
        and isinstance(content.get("shapes"), list)
        and "imagePath" in content
    ):
        refuse(path, "labelme's file of one image", COCO_FORM)

    if isinstance(content, dict) and "shards" in content:
        refuse(path, *MDS)
    if isinstance(content, dict) and "chunks" in content:
        refuse(path, *LITDATA)

    # JSON of another kind: what it looks like shows the user which file it is
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
        refuse(path, what, do)


def _small_json(path: Path) -> object:
    with suppress(OSError, ValueError, RecursionError):
        if path.stat().st_size <= _SMALL_JSON:  # larger ones are read once, for COCO's form
            return json.loads(path.read_bytes())
    return None


def is_coco(path: Path) -> bool:
    content = _small_json(path)
    # a large file is not read twice: it is taken for COCO's form, which its reader checks
    return (content is None and path.stat().st_size > _SMALL_JSON) or (
        isinstance(content, dict) and "images" in content
    )


def _list_names(names: Iterable[object]) -> str:
    return ", ".join(map(str, islice(names, 4))) or "nothing"


def chunk_library(files: Iterable[str]) -> tuple[str, str] | None:
    """Returns the library whose chunks are beside an index.json; None: there are none."""
    names = list(files)
    if any(re.search(r"\.mds(\.\w+)?\Z", name) for name in names):
        return MDS
    return LITDATA if any(re.fullmatch(r"chunk-.*\.bin", name) for name in names) else None
