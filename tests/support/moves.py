"""Proves that a commit only moves code: `python tests/support/moves.py OLD NEW`.

OLD and NEW are folders, or else commits of this repository (`HEAD~1`, or `HEAD:dali_pipes` for a
part of it). All definitions are compared, wherever they are: functions, methods by their class,
classes without their methods, and what else a module does. Comments, docstrings and a module's
imports may differ, and where a function's own imports come from. What is in another order is not
seen.

It ends with "only old: 0, only new: 0" and status 0, or with the names that differ and status 1.
"""

import argparse
import ast
import io
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

REPO = Path(__file__).parents[2]
Sources = Mapping[str, str]  # the text of each file of Python, by its name
Definition = tuple[str, str]  # a name, and all that is defined as text
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IMPORTS = (ast.Import, ast.ImportFrom)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old")
    parser.add_argument("new")
    names = parser.parse_args(arguments)

    old, new = (read_sources(name) for name in (names.old, names.new))
    gone, came = compare(old, new), compare(new, old)
    for sign, lines in (("-", gone), ("+", came)):
        for line in lines:
            print(sign, line)
    print(f"only old: {len(gone)}, only new: {len(came)}")
    return 1 if gone or came else 0


def read_sources(name: str) -> dict[str, str]:
    """Returns the files of Python of a folder, hidden ones excepted, or of a commit."""
    folder = Path(name)
    if folder.is_dir():
        files = {str(file.relative_to(folder)): file for file in folder.rglob("*.py")}
        return {
            place: file.read_text()
            for place, file in files.items()
            if not any(part.startswith(".") for part in Path(place).parts)
        }

    packed = subprocess.run(["git", "archive", name], cwd=REPO, capture_output=True)
    if packed.returncode:
        sys.exit(f"{name}: neither a folder nor a commit: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        return {
            member.name: archive.extractfile(member).read().decode()
            for member in archive
            if member.isfile() and member.name.endswith(".py")
        }


def compare(sources: Sources, others: Sources) -> list[str]:
    """Returns what only the first of two has: each definition's name, and its files."""
    # files that are in both as often cancel out, and most are
    copies, theirs = Counter(sources.values()), Counter(others.values())
    same = {text for text, count in copies.items() if theirs[text] == count}

    found, places = Counter[Definition](), defaultdict[Definition, list[str]](list)
    for file, text in sorted(sources.items()):
        for definition in list_definitions(text, file) if text not in same else ():
            found[definition] += 1
            places[definition].append(file)

    for file, text in others.items():
        if text not in same:
            found.subtract(list_definitions(text, file))

    return sorted(
        f"{definition[0]}  ({', '.join(dict.fromkeys(places[definition]))})"
        for definition in found.elements()
    )


def list_definitions(text: str, file: str = "") -> Iterator[Definition]:
    """Yields what a module defines and does."""
    tree = _without_docstrings(ast.parse(text, file))
    for node in ast.walk(tree):
        # a move changes where a function imports from, not what
        if isinstance(node, ast.ImportFrom):
            node.module, node.level = "", 0
    yield from _definitions(_without_imports(tree.body), "")


def _definitions(body: list[ast.stmt], inside: str) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _definitions(
                [each for each in node.body if isinstance(each, (*FUNCTIONS, ast.ClassDef))],
                f"{inside}{node.name}.",
            )
            node.body = [
                each for each in node.body if not isinstance(each, (*FUNCTIONS, ast.ClassDef))
            ]
        yield inside + _name(node), ast.dump(node)


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}"
    if isinstance(node, FUNCTIONS):
        return node.name
    first = ast.unparse(node).splitlines()[0]
    return first if len(first) <= 60 else f"{first[:60]}…"


def _without_imports(body: list[ast.stmt]) -> list[ast.stmt]:
    """Returns the statements without imports, also those under `if TYPE_CHECKING` and in `try`."""
    kept = []
    for node in body:
        if isinstance(node, (ast.If, ast.Try)):
            branches = [node, *getattr(node, "handlers", [])]
            parts = [
                (branch, part)
                for branch in branches
                for part in ("body", "orelse", "finalbody")
                if hasattr(branch, part)
            ]
            for branch, part in parts:
                setattr(branch, part, _without_imports(getattr(branch, part)))
            if not any(getattr(branch, part) for branch, part in parts):
                continue
        if not isinstance(node, IMPORTS):
            kept.append(node)
    return kept


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and ast.get_docstring(
            node, clean=False
        ):
            del node.body[0]
    return tree


if __name__ == "__main__":
    sys.exit(main())
