"""What a manifest leaves out of its source, and what in it most likely means something else than it
is read as: files, rows and objects, counted by kind, with the first names.

Scans collect pairs of kind and name, `count_by_kind` makes an `Omission` of each kind, and `merge`
adds up those of several folders. `describe` puts them into one line of the log, and `refuse` raises
them as an error.

The problem of an image, or of one of its objects, is a line of text in a manifest's file, which the
writer of the problem gives this form:

    KIND (details); what to do

The kind has no bracket and no semicolon, and nothing that differs from file to file: `kind_of` is
what comes before them. `add_detail` adds a detail to a problem, such as the name of a mask. What
follows from a problem, such as that the image can be used where no label is needed, is asked here,
by the words that its kind begins with.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from dali_pipes.errors import OmissionError

NO_LABEL = "no label"
_WITHOUT = f"{NO_LABEL}: no "


def without_label(of: str) -> str:
    """The problem of an image beside which nothing is that could be its label.

    Args:
        of: what a label would be, such as ".cls of this key".
    """
    return f"{_WITHOUT}{of}"


def unusable_label(why: str) -> str:
    """The problem of an image whose label makes no sense."""
    return f"{NO_LABEL}: {why}"


def is_without_label(problem: str) -> bool:
    """Whether nothing is beside an image that could be its label (`without_label`)."""
    return problem.startswith(_WITHOUT)


def is_of_label(problem: str) -> bool:
    """Whether an image can be used where no label is needed."""
    return problem.startswith(NO_LABEL)


def kind_of(problem: str) -> str:
    """What a problem has in common with others, without its details and advice."""
    return problem.partition(" (")[0].partition(";")[0]


def add_detail(problem: str, detail: str) -> str:
    """Adds what is of this file or object alone, before other details."""
    kind = kind_of(problem)
    rest = problem[len(kind) :]
    if rest.startswith(" ("):
        return f"{kind} ({detail}: {rest[2:]}"
    return f"{kind} ({detail}){rest}"


_SHOWN = 3  # names that are kept of a kind
_MOST_KINDS = 30
_LONGEST_EXTENSION = 12  # characters; a longer one, or a number, is taken for a part of the name
_UNITS = ("image", "object", "folder", "doubt", "file", "note")
_ALLOWED = ("file", "note")  # by strict, and told without a warning
# Files beside images that nobody takes for images: notes, labels, captions, programs.
_DOCUMENTS = (
    *(
        ".txt",
        ".md",
        ".rst",
        ".html",
        ".htm",
        ".pdf",
        ".json",
        ".jsonl",
        ".csv",
        ".tsv",
        ".xml",
        ".yaml",
        ".yml",
    ),
    *(
        # of this package: a cached scan or an index, and the lock of a cache
        ".arrow",
        ".lock",
        ".toml",
        ".ini",
        ".cfg",
        ".log",
        ".lst",
        ".names",
        ".caption",
        ".py",
        ".sh",
        ".ipynb",
        ".m",
    ),
)
_DOCUMENT_NAMES = (
    "readme",
    "license",
    "licence",
    "copying",
    "notice",
    "changelog",
    "makefile",
    # Spark and Hadoop write it beside the files of a finished job
    "_success",
)


class Omission(NamedTuple):
    """Files, rows or objects of one kind that a manifest does not use, or uses in doubt.

    Attributes:
        kind: why, in words that hold for all of them, such as "not an image, or its header is
            broken" or ".gif files"; of a doubt, what to do about it follows after a semicolon.
        number: how many there are.
        names: the names of the first few, relative to the root.
        unit: what is counted: "image" is an image or may be one; "object" is an annotation of an
            image that is used; "folder" is a folder that others take for a class; "file" is what
            nobody takes for an image, or an image beside the files that the source names. What is
            used is counted too: "doubt" is used, and most likely means something else than it is
            read as; "note" is used as it is meant, by a rule that one should know of.
    """

    @property
    def is_allowed(self) -> bool:
        """Whether `strict` allows it."""
        return self.unit in _ALLOWED

    kind: str
    number: int
    names: list[str]
    unit: str = "image"


def merge(omissions: Iterable[Omission]) -> list[Omission]:
    """Adds up omissions of the same kind; those of images come first, then by frequency."""
    # the same kind may come from many folders
    merged: dict[tuple[str, str], Omission] = {}
    for omission in omissions:
        known = merged.get(
            (omission.kind, omission.unit), Omission(omission.kind, 0, [], omission.unit)
        )
        names = (known.names + omission.names)[:_SHOWN]
        merged[omission.kind, omission.unit] = Omission(
            omission.kind, known.number + omission.number, names, omission.unit
        )

    ordered = sorted(
        merged.values(), key=lambda entry: (_UNITS.index(entry.unit), -entry.number, entry.kind)
    )
    if len(ordered) <= _MOST_KINDS:
        return ordered

    # keep the most frequent kinds of each unit, and one omission for the rest
    kept = []
    for unit in _UNITS:
        some = [entry for entry in ordered if entry.unit == unit]
        kept += some[:_MOST_KINDS] + (
            [_sum_kinds(some[_MOST_KINDS:])] if len(some) > _MOST_KINDS else []
        )

    return kept


def _sum_kinds(omissions: list[Omission]) -> Omission:
    """One omission that stands for many kinds."""
    names = [name for omission in omissions[:_SHOWN] for name in omission.names[:1]]
    return Omission(
        f"{len(omissions):,} other kinds",
        sum(omission.number for omission in omissions),
        names,
        omissions[0].unit,
    )


def count_by_kind(
    kinds_and_names: Iterable[tuple[str, str]], unit: str = "image"
) -> list[Omission]:
    """Counts the names of each kind, and keeps the first few."""
    counts: Counter[str] = Counter()
    names: dict[str, list[str]] = {}
    for kind, name in kinds_and_names:
        counts[kind] += 1
        if counts[kind] <= _SHOWN:
            names.setdefault(kind, []).append(name)
    return [Omission(kind, count, names[kind], unit) for kind, count in counts.items()]


def count_other_files(names: Iterable[str]) -> list[Omission]:
    """Counts files whose names are not those of images, by their extension."""
    documents: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for name in names:
        stem, dot, ending = name.rpartition("/")[2].lower().rpartition(".")
        extension = (
            dot + ending
            if stem and not ending.isdecimal() and len(ending) <= _LONGEST_EXTENSION
            else ""
        )

        # in a name without a dot, `ending` is all of it
        document = extension in _DOCUMENTS if extension else (stem or ending) in _DOCUMENT_NAMES
        kind = f"{extension} files" if extension else "files without an extension"
        (documents if document else others).append((kind, name))

    return count_by_kind(others) + count_by_kind(documents, "file")


def count_problems(problems: Iterable[tuple[str, str]], unit: str = "image") -> list[Omission]:
    """Counts problems of images or objects by kind.

    Args:
        problems: path and problem of each.
    """
    return count_by_kind(((kind_of(problem), path) for path, problem in problems), unit)


def describe(root: Path | str, used: int, omissions: Iterable[Omission]) -> str:
    """Says in one line what is left out, and of how many; "" if nothing is."""
    every = list(omissions)
    if not every:
        return ""

    images = used + sum(omission.number for omission in every if omission.unit == "image")

    said = {
        "image": f"{used:,} of {images:,} images are used; left out: ",
        "object": "objects left out of images that are used: ",
        "folder": "",
        "doubt": "in doubt: ",
        "file": "beside the images: ",
        "note": "note: ",
    }

    parts = [
        text + "; ".join(_describe_one(omission) for omission in every if omission.unit == unit)
        for unit, text in said.items()
        if any(omission.unit == unit for omission in every)
    ]

    return printable(f"{root}: {'. '.join(parts)}")


def printable(text: str) -> str:
    """Escapes what a terminal does not show as it is, so that the text stays one line.

    A file name may have line ends, escape sequences, and bytes that are not UTF-8.
    """
    if not text.isprintable():
        text = "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode()
            for character in text
        )
    return text


def _describe_one(omission: Omission) -> str:
    names = ", ".join(omission.names) + (", …" if omission.number > len(omission.names) else "")
    what, semicolon, advice = omission.kind.partition(";")
    named = f" ({names})" if omission.names else ""
    return f"{what}: {omission.number:,}{named}{semicolon}{advice}"


def refuse(root: Path | str, used: int, omissions: Iterable[Omission]) -> None:
    """Raises OmissionError if an image or an object is left out or in doubt."""
    # files that nobody takes for images, or that the user has not named, may be left out
    lost = [omission for omission in omissions if not omission.is_allowed]
    if lost:
        instead = (
            "strict allows nothing to be left out or in doubt; correct or remove them, or leave "
            "out strict"
        )
        raise OmissionError(f"{describe(root, used, lost)}; {instead}")


def read_omissions(omissions: object) -> list[Omission]:
    """Reads omissions out of a file; returns none if it holds something else."""
    if not isinstance(omissions, list):
        return []
    # a saved manifest may have been written by any program
    return [
        Omission(*omission)
        for omission in omissions
        if isinstance(omission, list) and _is_stored(omission)
    ]


def _is_stored(cells: list[object]) -> bool:
    if len(cells) != len(Omission._fields):
        return False
    kind, number, names, unit = cells
    texts = [kind, *names] if isinstance(names, list) else [None]
    return all(isinstance(text, str) for text in texts) and type(number) is int and unit in _UNITS


def merge_folders(records: Mapping[str, tuple[int, int, int, list[Omission]]]) -> list[Omission]:
    """Merges what the folders of a scan leave out.

    Args:
        records: by folder, with its omissions last, as `sources.rows.earlier` keeps them.
    """
    return merge(omission for *_, omissions in records.values() for omission in omissions)
