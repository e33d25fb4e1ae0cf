"""Images behind URLs: in a bucket of an S3 server and on a web server, both on this machine."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from s3_server import s3_server
from web_server import web_server

import dali_pipes as dp

from .pictures import Cases, encoded, opened, picture, put, put_parquet, put_tar, samples
from .shards import scan

URL = "s3://images/data"


@contextlib.contextmanager
def serving() -> Iterator[tuple[Cases, dict[str, str]]]:
    """The cases, and what stands for the addresses of the servers."""
    _write()
    with (
        s3_server({"data": Path("store")}) as proxy,
        web_server("store") as (web, _),
        web_server("store", length=False, listing=False) as (poor, _),
        web_server("store", refuse=403) as (closed, _),
    ):
        proxy.every = 10**9  # no faults
        places = {proxy.url: "S3", web: "WEB", poor: "POOR", closed: "CLOSED"}
        yield _cases_of_s3() | _cases_of_web(web, poor, closed), places


def _write() -> None:
    put({f"store/classes/{'cat' if n % 2 else 'dog'}/{n}.jpg": picture(n) for n in range(3)})
    put(
        {
            "store/classes/cat/in/9.png": picture(9, "PNG", turned=6),
            "store/classes/cat/broken.jpg": "no image",
            "store/classes/cat/note.txt": "x",
            "store/classes/.thumbs/1.jpg": picture(5),
            "store/classes/beside.jpg": picture(6),
            "store/flat/1.jpg": picture(1),
            "store/shards/classes.json": json.dumps(["cat", "dog", "eel"]),
            "store/shards/beside.jpg": picture(7),
            "store/text/a.parquet": "no table",
            "store/list.csv": "path,label\nflat/1.jpg,cat\n",
        }
    )
    for split in ("train", "val"):
        put({f"store/splits/{split}/cat/1.jpg": picture(1)})
        put_tar(f"store/mixed/{split}-0.tar", samples([1]))
    for shard in range(2):
        put_tar(f"store/shards/a-{shard:02d}.tar", samples([2 * shard, 2 * shard + 1]))
    put_tar("store/indexed/a.tar", samples([0, 1]))
    put({"store/cut/a.tar": Path("store/indexed/a.tar").read_bytes()[:3000]})
    put_parquet("store/hf/train-00000-of-00001.parquet", encoded([0, 1, 2]), label=[0, 1, 2])


def _cases_of_s3() -> Cases:
    def s3(name: str, **options: object):
        return lambda: opened(f"{URL}/{name}", **options)

    return {
        "S3, class folders": s3("classes"),
        "S3, class folders as classes= orders them": s3("classes", classes=["dog", "cat"]),
        "S3, class folders without labels": s3("classes", with_labels=False),
        "S3, class folders, strict": s3("classes", strict=True),
        "S3, images side by side": s3("flat"),
        "S3, an image": s3("flat/1.jpg"),
        "S3, splits": s3("splits"),
        "S3, tars": s3("shards"),
        "S3, tars of a pattern": s3("shards/*-01.tar"),
        "S3, tars of a pattern in braces": scan(f"{URL}/shards/a-{{00..01}}.tar"),
        "S3, tars of a pattern in braces, some missing": s3("shards/a-{00..03}.tar"),
        "S3, tars of two splits": s3("mixed"),
        "S3, a tar that is cut off": s3("cut"),
        "S3, a tar that is not there": s3("shards/b.tar"),
        "S3, Parquet": s3("hf"),
        "S3, Parquet that is none": s3("text"),
        "S3, a table": s3("list.csv"),
        "S3, a folder that is not there": s3("nowhere"),
        "S3, a bucket that is not there": lambda: opened("s3://nobody/train"),
        "S3, an index": _index,
        "S3, an index as classes= orders it": s3("indexed", classes=["1", "0"]),
        "S3, an index for others": s3("indexed", with_labels=False),
    }


def _index() -> dp.Manifest:
    opened(f"{URL}/indexed").save_index()
    return opened(f"{URL}/indexed")


def _cases_of_web(web: str, poor: str, closed: str) -> Cases:
    return {
        "web, class folders": lambda: opened(f"{web}/classes"),
        "web, a tar": lambda: opened(f"{web}/shards/a-00.tar"),
        "web, tars": lambda: scan(f"{web}/shards")(),
        "web, tars of a pattern in braces": lambda: scan(f"{web}/shards/a-{{00..01}}.tar")(),
        "web, Parquet": lambda: opened(f"{web}/hf/train-00000-of-00001.parquet"),
        "web, a tar that is not there": lambda: opened(f"{web}/shards/b.tar"),
        "web, a folder that is not there": lambda: opened(f"{web}/nowhere"),
        "web, a signed address": lambda: opened(f"{web}/shards/a-00.tar?signature=x"),
        "web without sizes": lambda: opened(f"{poor}/shards/a-00.tar"),
        "web without lists": lambda: opened(f"{poor}/shards"),
        "web without permission": lambda: opened(f"{closed}/shards/a-00.tar"),
    }
