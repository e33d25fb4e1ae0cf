"""Tables of paths: labels of all kinds, CSV of all dialects, and Parquet with own columns."""

import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import dali_pipes as dp

from .pictures import Cases, opened, picture, put

PATHS = ("i/0.jpg", "i/1.jpg", "i/2.jpg")
# the cells of the column `label`
LABELS = {
    "names": ("dog", "cat", "dog"),
    "names, cases and blanks": ("Dog", " dog ", "dog"),
    "names that look the same": ("\u00e9", "e\u0301", "x"),
    "names with NA": ("NA", "nan", "DE"),
    "numbers": ("2", "0", "1"),
    "numbers with gaps": ("5", "0", "7"),
    "numbers far apart": ("5000000", "0", "7"),
    "numbers, one negative": ("0", "-1", "1"),
    "numbers with zeros in front": ("001", "1", "002"),
    "numbers with NA": ("1", "NA", "0"),
    "numbers with a mark": ("1", "?", "0"),
    "whole fractions": ("1.0", "2.0", ""),
    "fractions": ("0.25", "1e3", "-2"),
    "fractions and a text": ("0.25", "much", "1.5"),
    "fractions with a comma": ("0,25", "1,5", "2,5"),
    "booleans": ("True", "false", "TRUE"),
    "dates": ("2024-01-02", "2024-01-01", "2024-01-02"),
    "several": ("a|b", "", "c|a"),
    "several, one twice": ("a|a", "b", "c"),
    "several numbers": ("3|0", "1", ""),
    "several fractions": ("0.5|1", "2|3", "1|1"),
    "one missing": ("dog", " ", "cat"),
    "all missing": ("", "", ""),
}
DIALECTS: dict[str, str | bytes] = {
    "semicolons": "path;label\ni/0.jpg;dog\ni/1.jpg;cat\n",
    "tabs": "path\tlabel\ni/0.jpg\tdog\ni/1.jpg\tcat\n",
    "bars": "path|label\ni/0.jpg|dog\ni/1.jpg|cat\n",
    "hashes": "path#label\ni/0.jpg#dog\n",
    "Windows": "path,label\r\ni/0.jpg,dog\r\ni/1.jpg,cat\r\n",
    "UTF-8 with a mark": "\ufeffpath,label\ni/0.jpg,k\u00e4fer\n",
    "UTF-16": "path,label\ni/0.jpg,k\u00e4fer\n".encode("utf-16"),
    "latin-1": "path,label\ni/0.jpg,k\u00e4fer\n".encode("latin-1"),
    "blanks and empty lines": " path , label ,age\n\ni/0.jpg,dog,1\n\n\ni/1.jpg,cat,2\n",
    "quotes": 'path,label,note\n"i/0.jpg","a, b","one\ntwo"\ni/1.jpg,"say ""x""",\n',
    "a quote without an end": 'path,label\ni/0.jpg,"dog\ni/1.jpg,cat\ni/2.jpg,eel\n',
    "a row too long": "path,label\ni/0.jpg,dog\ni/1.jpg,cat,eel\n",
    "a row too short": "path,label,age\ni/0.jpg,dog,1\ni/1.jpg,cat\n",
    "no header": "i/0.jpg,1\ni/1.jpg,2\n",
    "the list of Caffe": "i/0.jpg 1\ni/1.jpg 2\n",
    "only a header": "path,label\n",
    "nothing": "",
    "bytes": bytes(range(256)),
    "a column twice": "path,label,label\ni/0.jpg,dog,cat\n",
    "other names": "file,kind\ni/0.jpg,dog\ni/1.jpg,cat\n",
    "no labels": "path\ni/0.jpg\ni/1.jpg\n",
    "odd paths": (
        "path,label\n./i/0.jpg,a\n i/1.jpg ,a\ni\\2.jpg,b\ni/../i/0.jpg,b\ni/0.jpg,c\n"
        "i/9.jpg,c\n,c\ni,c\n../out.jpg,c\n"
    ),
    "absolute paths": "path,label\nROOT/i/0.jpg,a\nROOT/i/1.jpg,b\n",
    "no file is there": "path,label\nx/0.jpg,a\nx/1.jpg,b\n",
    "own columns": (
        "path,label,whole,holes,fraction,yes,day,note,id\n"
        "i/0.jpg,a,1,7,0.5,true,2024-01-01,first,001\n"
        "i/1.jpg,b,-2,,,false,2024-01-02,,002\n"
        "i/2.jpg,a,3,9,1e-3,true,,a \u00fc,x\n"
    ),
}
# the columns beside `path`
PARQUET = {
    "names": {"label": ["dog", None, "1"]},
    "numbers": {"label": [2, 0, 1]},
    "fractions": {"label": [0.5, float("nan"), 1.5]},
    "dictionary": {"label": pa.array(["b", "a", "b"]).dictionary_encode()},
    "dates": {"label": [datetime.date(2024, 1, day) for day in (1, 2, 1)]},
    "lists of numbers": {"label": [[3, 1], [], None]},
    "lists of names": {"label": [["b", "a"], ["c"], []]},
    "lists with one twice": {"label": [[1, 1], [0], [2]]},
    "lists of fractions": {"label": [[0.5, 1.0], [0.25, 2.0], [1.0, 3.0]]},
    "lists of fractions of two lengths": {"label": [[0.5], [0.25, 2.0], [1.0]]},
    "lists of whole fractions": {"label": [[1.0, 0.0], [2.0], []]},
    "own columns": {
        "label": ["a", "b", "a"],
        "small": pa.array([1, -2, 3], pa.int8()),
        "unsigned": pa.array([1, 2, 2**32 + 1], pa.uint64()),
        "holes": [7, None, 9],
        "double": [0.1, 2.0, float("inf")],
        "half": pa.array([0.5, 1, 2], pa.float32()).cast(pa.float16()),
        "yes": [True, False, True],
        "perhaps": [True, None, False],
        "note": ["x", None, "\u00fc"],
        "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
        "list": [[1.5], [], None],
        "names": [["x"], [], ["y"]],
        "day": [datetime.date(2024, 1, 1)] * 3,
        "time": [datetime.datetime(2024, 1, 1)] * 3,
        "price": [Decimal("1.50")] * 3,
        "kind": pa.array(["b", "a", "b"]).dictionary_encode(),
        "struct": [{"x": 1}] * 3,
        "nothing": pa.nulls(3),
    },
    "holes in large numbers": {"label": ["a"] * 3, "n": [20231101, None, 20231103]},
    "a number beyond int64": {"label": ["a"] * 3, "n": pa.array([1, 2, 2**63 + 1], pa.uint64())},
}


def write() -> Cases:
    put({f"i/{n}.jpg": picture(n, size=(40 + n, 32), turned=1 + 5 * (n == 1)) for n in range(3)})
    for name, cells in LABELS.items():
        lines = [f'{path},"{cell}"' for path, cell in zip(PATHS, cells, strict=True)]
        put({f"labels/{name}.csv": "\n".join(["path,label", *lines, ""])})
    for name, text in DIALECTS.items():
        text = text.replace("ROOT", str(Path.cwd())) if isinstance(text, str) else text
        put({f"{name}.csv": text})
    for name, columns in PARQUET.items():
        pq.write_table(pa.table({"path": list(PATHS), **columns}), f"{name}.parquet")
    put(
        {
            "list.tsv": DIALECTS["tabs"],
            "list.jsonl": '{"path": "i/0.jpg", "label": "dog"}\n',
            "elsewhere/list.csv": "path,label\n0.jpg,dog\n1.jpg,cat\n",
            "text.parquet": "path,label\n",
        }
    )
    return _cases_of_labels() | _cases_of_files()


def _cases_of_labels() -> Cases:
    def labels(name: str, **options: object):
        return partial(opened, f"labels/{name}.csv", images=".", **options)

    bar, regression = {"label_separator": "|"}, {"task": "regression"}
    return {
        **{f"labels, {name}": labels(name) for name in LABELS},
        "labels, several, split": labels("several", **bar),
        "labels, several, one twice, split": labels("several, one twice", **bar),
        "labels, several numbers, split": labels("several numbers", **bar),
        "labels, several fractions, split": labels("several fractions", **bar, **regression),
        "labels, whole fractions for classes": labels("whole fractions", task="classification"),
        "labels, whole fractions to predict": labels("whole fractions", **regression),
        "labels, numbers to predict": labels("numbers", **regression),
        "labels, an unknown task": labels("numbers", task="several"),
        "labels as classes= orders them": labels("names", classes=["dog", "eel", "cat"]),
        "labels, classes= lacks one": labels("names", classes=["dog"]),
        "labels, classes= of numbers": labels("numbers", classes=["2", "1", "0"]),
        "labels, classes= of fractions": labels("fractions", classes=["a", "b"]),
        "labels, none are read": labels("names", with_labels=False),
        "labels, strict": labels("one missing", strict=True),
    }


def _cases_of_files() -> Cases:
    def csv(name: str, **options: object):
        return partial(opened, f"{name}.csv", **options)

    return {
        **{f"CSV, {name}": csv(name) for name in DIALECTS},
        "CSV, latin-1, named": csv("latin-1", encoding="latin-1"),
        "CSV, an unknown encoding": csv("latin-1", encoding="latin-99"),
        "CSV, another separator named": csv("hashes", delimiter="#"),
        "CSV, a wrong separator named": csv("semicolons", delimiter="|"),
        "CSV, columns named": csv("other names", path_column="file", label_column="kind"),
        "CSV, a label column that is not there": csv("semicolons", label_column="kind"),
        "CSV, no labels, none are read": csv("no labels", with_labels=False),
        "CSV that is not there": csv("nowhere"),
        "TSV": lambda: opened("list.tsv"),
        "JSON lines": lambda: opened("list.jsonl"),
        "a table of a folder elsewhere": lambda: dp.Manifest.from_table(
            "elsewhere/list.csv", root="i", progress=False
        ),
        **{f"Parquet, {name}": partial(opened, f"{name}.parquet") for name in PARQUET},
        "Parquet, own columns, no labels": partial(
            opened, "own columns.parquet", with_labels=False
        ),
        "Parquet, lists of whole fractions for classes": partial(
            opened, "lists of whole fractions.parquet", task="classification"
        ),
        "Parquet that is none": lambda: opened("text.parquet"),
    }
