"""The change that a fix of a DataLoader's options makes to a user's program, as a unified diff of
the lines that build the DataLoader.
"""

import ast
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# the first parameters of DataLoader, in their order
_POSITIONS = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
)


def patch_of(file: Path, options: dict[str, Any], line: int | None = None) -> str:
    """Returns the diff that gives these options to the DataLoader built in this file; "" if it
    cannot be said for certain.

    Args:
        options: None takes the option out, where the program has it.
        line: one of the lines of the call; None: the only call of a DataLoader in the file.
    """
    try:
        text = file.read_text()
        calls = [
            call
            for call in _calls(ast.parse(text))
            if line is None or call.lineno <= line <= (call.end_lineno or 0)
        ]
    except (OSError, ValueError, SyntaxError):
        return ""

    # **options may hold any of the options
    if len(calls) != 1 or any(keyword.arg is None for keyword in calls[0].keywords):
        return ""

    changed = _change(text, calls[0], options)
    if changed == text:
        return ""

    name = str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)
    return "\n".join(
        difflib.unified_diff(text.splitlines(), changed.splitlines(), name, name, n=0, lineterm="")
    )


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if name == "DataLoader":
                yield node


def _change(text: str, call: ast.Call, options: dict[str, Any]) -> str:
    data, starts = text.encode(), [0]  # ast counts columns in bytes
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(line: int | None, column: int | None) -> int:
        assert line is not None and column is not None, "a node of a parsed file has both ends"
        return starts[line - 1] + column

    edits, added = list[tuple[int, int, str]](), list[str]()
    arguments: dict[str | None, ast.expr] = dict(zip(_POSITIONS, call.args, strict=False))
    arguments |= {keyword.arg: keyword.value for keyword in call.keywords}
    for name, value in options.items():
        if name in arguments:
            node = arguments[name]
            # the value that DataLoader takes for an option that is left out
            neutral = False if name == "persistent_workers" else None
            written = repr(neutral if value is None else value)
            edits.append(
                (
                    place(node.lineno, node.col_offset),
                    place(node.end_lineno, node.end_col_offset),
                    written,
                )
            )
        elif value is not None:
            added.append(f"{name}={value!r}")

    if added:
        nodes = [*call.args, *(keyword.value for keyword in call.keywords)]
        last = max((place(node.end_lineno, node.end_col_offset) for node in nodes), default=None)
        if last is None:
            # in front of the closing parenthesis
            at, comma = place(call.end_lineno, call.end_col_offset) - 1, ""
        else:
            at, comma = last, ", "
            while (
                data[at : at + 1] == b")" and at < place(call.end_lineno, call.end_col_offset) - 1
            ):
                at += 1  # past parentheses around the last argument
        edits.append((at, at, comma + ", ".join(added)))

    # from the end, so that earlier places stay valid
    for first, end, written in sorted(edits, reverse=True):
        data = data[:first] + written.encode() + data[end:]
    return data.decode()
