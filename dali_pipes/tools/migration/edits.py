"""The smallest change of a program that replaces its DataLoaders by our loaders.

`propose` takes where each DataLoader was made, and returns the diff. It reads source files and
writes none; what cannot be said for certain is said in words instead (`Proposal.notes`).
"""

import ast
import difflib
import io
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dali_pipes.measure.program_loaders import Origin, SourceCall

_PACKAGE = "dali_pipes"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# attributes of a DataLoader that our loaders do not have
_ABSENT = (
    *("num_workers", "collate_fn", "drop_last", "generator", "pin_memory"),
    *("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"),
    "worker_init_fn",
)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to become of a DataLoader.

    Attributes:
        origin: where the program made it.
        converts: whether `from_torch` takes it.
        is_wanted: whether it is to be replaced; one that is not may be, where another one is made
            by the same line.
    """

    origin: Origin
    converts: bool
    is_wanted: bool = True


@dataclass(slots=True)
class Proposal:
    """The change that is proposed.

    Attributes:
        diff: a unified diff of all files; "" if there is none.
        notes: what else is to be changed, a sentence each.
        texts: the new text of each file.
    """

    diff: str = ""
    notes: list[str] = field(default_factory=list)
    texts: dict[Path, str] = field(default_factory=dict)


def propose(wishes: Sequence[Wish], folder: Path) -> Proposal:
    """Returns the change that replaces the wanted DataLoaders by our loaders.

    Args:
        folder: the names of files below it are relative in the diff.
    """
    proposal, sources = Proposal(), dict[str, _Source | None]()
    for wish in wishes:
        if not (wish.converts and wish.is_wanted):
            continue
        others = [other.origin for other in wishes if not other.converts]
        if not _replace(wish.origin, others, sources):
            proposal.notes.append(_by_hand(wish.origin, folder))

    for name, source in sources.items():
        if source is None or not source.edits:
            continue
        path = Path(name)
        shown = str(path.relative_to(folder)) if path.is_relative_to(folder) else name
        proposal.texts[path] = source.changed()
        proposal.diff += _unified(source.text, proposal.texts[path], shown)
        proposal.notes += [f"{shown}:{note}" for note in source.notes]
    return proposal


def _replace(
    origin: Origin, refused: Iterable[Origin], sources: dict[str, "_Source | None"]
) -> bool:
    """Adds the edits for one DataLoader; returns False if no place for them is certain.

    The innermost call of the program is taken that makes no DataLoader which must stay as it is, or
    the innermost whose result the program has under a name.
    """
    shared = {call for other in refused for call in other.calls}
    is_value = origin.is_value

    for call in origin.calls:
        if call.file not in sources:
            sources[call.file] = _Source.read(call.file)
        source = sources[call.file]
        node = source.find(call) if source else None
        if source is None or node is None:
            return False

        if is_value and call not in shared:
            source.replace_value(node)
            return True
        # a name under which the program has it, where this call stands
        text = next((name.text for name in origin.names if name.is_in(call)), None)
        if text is not None and source.replace_name(node, text):
            return True

        # the caller gets it as well if it is returned at once
        statement = source.statement(node)
        is_value = is_value and isinstance(statement, ast.Return) and statement.value is node
    return False


def _by_hand(origin: Origin, folder: Path) -> str:
    where = origin.place(folder)
    if origin.library:
        return f"{where}: {origin.library} makes this DataLoader, so no line of the program does"
    return (
        f"{where}: where the program has this DataLoader, write "
        "loader = dali_pipes.from_torch(loader)"
    )


class _Source:
    """A file of the program, and its edits.

    Attributes:
        notes: sentences that begin with a line number.
    """

    def __init__(self, text: str, encoding: str):
        self.text, self._encoding = text, encoding
        self._data = text.encode()  # ast counts columns in bytes of UTF-8
        self._tree = ast.parse(text)
        self._parents = {
            child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)
        }
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

        self._alias, self._is_imported = self._find_alias()
        self.edits: dict[tuple[int, int, str], None] = {}  # first and last byte, and the new text
        self.notes: list[str] = []

    @classmethod
    def read(cls, file: str) -> "_Source | None":
        """Returns the file; None if there is none that Python could read."""
        try:
            data = Path(file).read_bytes()
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            return cls(data.decode(encoding), encoding)
        except (OSError, ValueError, SyntaxError, LookupError):
            return None

    def find(self, call: SourceCall) -> ast.Call | None:
        """Returns the call expression that a frame was at; None if that is not certain."""
        calls = [node for node in ast.walk(self._tree) if isinstance(node, ast.Call)]
        # no two calls end at the same place; where one begins, Python's versions do not agree
        ends = [node for node in calls if (node.end_lineno, node.end_col_offset) == call.end] or [
            node for node in calls if node.lineno <= call.line <= (node.end_lineno or 0)
        ]
        return ends[0] if len(ends) == 1 else None

    def statement(self, node: ast.AST) -> ast.stmt:
        while not isinstance(node, ast.stmt):
            node = self._parents[node]
        return node

    def replace_value(self, node: ast.Call) -> None:
        """Replaces what this call returns: in the next line if it has a name, else around it."""
        statement = self.statement(node)
        target = _target_of(statement, node)
        if target is None or not self._stands_alone(statement):
            self._edit(self._place(node), self._place(node), f"{self._alias}.from_torch(")
            self._edit(self._end(node), self._end(node), ")")
        else:
            self._add_after(statement, self._assignment(text := ast.unparse(target)))
            self._note_uses(text)
            self._follow_sampler(node, text)
        self._import()

    def replace_name(self, node: ast.Call, name: str) -> bool:
        """Replaces what the program has under this name, where it is assigned; returns False if
        that is not certain, as in a loop.
        """
        statement = self._naming(node, name)
        if statement is None or not self._stands_alone(statement):
            return False
        if any(isinstance(node, (ast.For, ast.While)) for node in self._around(statement)):
            return False
        self._add_after(statement, self._assignment(name))
        self._note_uses(name)
        self._import()
        return True

    def changed(self) -> str:
        """Returns the text with all edits.

        Raises:
            SyntaxError: the edits make no program of it.
        """
        data = self._data
        edits = sorted(self.edits, key=lambda edit: edit[:2])
        # from the end, so that earlier places stay valid, and of two at one place the later first
        for first, last, text in edits[::-1]:
            data = data[:first] + text.encode() + data[last:]
        # only for the SyntaxError, before the change is shown to anybody
        ast.parse(data.decode())
        return data.decode()

    def _assignment(self, name: str) -> str:
        return f"{name} = {self._alias}.from_torch({name})"

    def _edit(self, first: int, last: int, text: str) -> None:
        self.edits[first, last, text] = None

    def _place(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None, "as parsed"
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields what is around a node, up to its function."""
        while node in self._parents:
            node = self._parents[node]
            if isinstance(node, (*_FUNCTIONS, ast.Lambda)):
                return
            yield node

    def _stands_alone(self, statement: ast.stmt) -> bool:
        """Returns whether no other statement is on the lines of this one."""
        line = self._starts[statement.lineno - 1]
        assert statement.end_lineno is not None, "as parsed"
        rest = self._data[self._end(statement) : self._starts[statement.end_lineno]].strip()
        return not self._data[line : self._place(statement)].strip() and (
            not rest or rest.startswith(b"#")
        )

    def _add_after(self, statement: ast.stmt, text: str) -> None:
        line = self._starts[statement.lineno - 1]
        indent = self._data[line : self._place(statement)].decode()
        self._add_line(statement.end_lineno or 0, indent + text)

    def _add_line(self, after: int, text: str) -> None:
        """Adds a line after line number `after`; 0 is the top of the file."""
        lines = self._data.splitlines(keepends=True)
        ending = "\r\n" if self._data.find(b"\r\n") >= 0 else "\n"
        # the last line of a file may have no line break
        is_open = 0 < after <= len(lines) and not lines[after - 1].endswith((b"\n", b"\r"))
        at = self._starts[after]
        self._edit(at, at, ending + text if is_open else text + ending)

    def _find_alias(self) -> tuple[str, bool]:
        """Returns the name that the package has in this file, and whether the file imports it."""
        for node in self._tree.body:
            for alias in node.names if isinstance(node, ast.Import) else ():
                if alias.name == _PACKAGE:
                    return alias.asname or alias.name, True

        # `dp` may be a name of the program's own
        taken = {
            getattr(node, attribute, None)
            for node in ast.walk(self._tree)
            for attribute in ("id", "arg", "asname", "name")
        }
        return ("dp" if "dp" not in taken else _PACKAGE), False

    def _import(self) -> None:
        """Adds the import behind the imports with which the file begins."""
        if self._is_imported:
            return
        self._is_imported = True

        after = 0
        for node in self._tree.body:
            is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if isinstance(node, (ast.Import, ast.ImportFrom)) or (is_docstring and not after):
                after = node.end_lineno or 0
                continue
            # an edit of the module itself stands behind it
            is_edited = any(first < self._end(node) for first, _, _ in self.edits)
            if is_edited or isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                break

        # comments at the top say how to read or start the file
        lines = enumerate(self._data.splitlines())
        after = after or next((number for number, line in lines if not line.startswith(b"#")), 0)
        as_alias = "" if self._alias == _PACKAGE else f" as {self._alias}"
        self._add_line(after, f"import {_PACKAGE}{as_alias}")

    def _follow_sampler(self, node: ast.Call, name: str) -> None:
        """Lets the program set the epoch of our loader, where it sets that of the old sampler."""
        samplers = [word for word in node.keywords if word.arg in ("sampler", "batch_sampler")]
        if len(samplers) != 1 or not isinstance(samplers[0].value, (ast.Name, ast.Attribute)):
            return

        kind, sampler = samplers[0].arg, ast.unparse(samplers[0].value)
        here = self._function_of(node)
        for call in ast.walk(self._tree):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            if call.func.attr != "set_epoch" or ast.unparse(call.func.value) != sampler:
                continue
            owner = call.func.value
            # the loader has this name there: in the same function, as a global, or as an attribute
            if self._function_of(call) is here or here is None or name.startswith("self."):
                self._edit(self._place(owner), self._end(owner), f"{name}.{kind}")
            else:
                self.notes.append(
                    f"{call.lineno}: {sampler}.set_epoch sets the epoch of the old sampler only; "
                    f"call .{kind}.set_epoch of the loader"
                )

    def _function_of(self, node: ast.AST) -> ast.AST | None:
        while node in self._parents:
            node = self._parents[node]
            if isinstance(node, (*_FUNCTIONS, ast.Lambda)):
                return node
        return None

    def _naming(self, node: ast.Call, name: str) -> ast.stmt | None:
        """Returns the first statement from this call on that assigns the name."""
        here, first = self._function_of(node), self.statement(node).lineno
        statements = [
            statement
            for statement in ast.walk(here or self._tree)
            if isinstance(statement, (ast.Assign, ast.AnnAssign))
            and statement.lineno >= first
            and self._function_of(statement) is here
            and _assigns(statement, name)
        ]
        return min(statements, key=lambda statement: statement.lineno, default=None)

    def _note_uses(self, name: str) -> None:
        """Notes where the program uses attributes that our loader does not have."""
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Attribute) or node.attr not in _ABSENT:
                continue
            if ast.unparse(node.value) == name:
                self.notes.append(
                    f"{node.lineno}: our loader has no {node.attr}; take that line out, or keep "
                    "the DataLoader under another name for it"
                )


def _target_of(statement: ast.stmt, value: ast.Call) -> ast.expr | None:
    """Returns what a statement assigns this value to; None if that is more or less than a name."""
    if isinstance(statement, ast.AnnAssign) and statement.value is value:
        pairs: list[tuple[ast.expr, ast.expr]] = [(statement.target, value)]
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, assigned = statement.targets[0], statement.value
        if isinstance(target, ast.Tuple) and isinstance(assigned, ast.Tuple):
            pairs = [*zip(target.elts, assigned.elts, strict=False)]
        else:
            pairs = [(target, assigned)]
    else:
        return None

    targets = [target for target, assigned in pairs if assigned is value]
    return targets[0] if targets and _is_name(targets[0]) else None


def _assigns(statement: ast.Assign | ast.AnnAssign, name: str) -> bool:
    """Returns whether a statement assigns the name, or what holds it, as `loaders` of
    `loaders['train']`.
    """
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else statement.targets
    for target in targets:
        for part in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
            if name == (text := ast.unparse(part)) or name.startswith((f"{text}[", f"{text}.")):
                return True
    return False


def _is_name(node: ast.expr) -> bool:
    """Returns whether an expression can be written twice: it calls nothing."""
    if isinstance(node, ast.Subscript):
        return _is_name(node.value) and isinstance(node.slice, (ast.Constant, ast.Name))
    if isinstance(node, ast.Attribute):
        return _is_name(node.value)
    return isinstance(node, ast.Name)


def _unified(before: str, after: str, name: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), name, name
    )
    # as `patch` expects it where the last line of a file has no line break
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
