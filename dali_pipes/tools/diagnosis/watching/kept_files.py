"""Keeps the files of a user's program as they are while its loop is examined.

A model that was trained on the same batches again and again must not replace the user's own. So
what the program writes to a file that was there before goes to a copy, which the program then reads
as if it were the file; and such a file is neither removed nor renamed. The functions that do so are
replaced before the program imports anything, so that no library has bound the original by name.

Libraries that write from C are changed where they take the path. They write weights, so their new
files go to a copy too.
"""

import builtins
import io
import os
import shutil
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from dali_pipes.tools.diagnosis.watching.imports import Hook

_NAMED = 4  # paths in a message
_WRITES = frozenset("wa+")
_NO_FILES = ("/proc/", "/sys/", "/dev/")
# Python's import system, which writes .pyc files, keeps the original functions
_OF_PYTHON = ("posix", "_frozen_importlib_external")


class KeptFiles:
    """Which files the program must not change, and where its writes go instead.

    Args:
        aside: an empty folder for the copies; the caller removes it.
        applies: whether what happens now is done by the loop that is examined.
    """

    def __init__(self, aside: Path, applies: Callable[[], bool]):
        self._aside, self._applies = aside, applies
        self._copies: dict[Path, Path] = {}
        self._kept, self._made = set[Path](), set[Path]()
        self._inside = threading.local()

    @property
    def kept(self) -> list[Path]:
        """The paths at which the program would have written, removed or renamed something."""
        return sorted(self._kept)

    @property
    def made(self) -> list[Path]:
        """The new files that the program has made meanwhile, as far as they are still there."""
        return sorted(path for path in self._made if path.is_file())

    def describe(self) -> str:
        """Says in a paragraph what was not written, and what was; empty if there is nothing."""
        lines = [
            f"\n{words}: {', '.join(map(str, paths[:_NAMED]))}"
            + (f" and {len(paths) - _NAMED} more\n" if len(paths) > _NAMED else "\n")
            for words, paths in (
                ("Held back while the loop was measured, nothing was changed there", self.kept),
                ("New files that the program has made meanwhile, of made-up training", self.made),
            )
            if paths
        ]
        return "".join(lines)

    def install(self) -> None:
        """Replaces what opens, removes and renames files, in every module that has it already."""
        changes: list[tuple[Any, Any]] = [
            (builtins.open, self._open),
            (os.open, self._open_by_flags),
            (os.truncate, self._truncate),
            *((seeing, self._see) for seeing in (os.stat, os.lstat)),
            *((removing, self._remove) for removing in (os.remove, os.unlink, os.rmdir)),
            (shutil.rmtree, self._remove),
            *((renaming, self._rename) for renaming in (os.rename, os.replace)),
            (os.mkdir, self._make_folder),
        ]
        replaced = {id(original): self._guard(original, change) for original, change in changes}
        replaced[id(io.FileIO)] = self._file_class(io.FileIO)

        for name, module in [*sys.modules.items()]:
            if isinstance(module, ModuleType) and name not in _OF_PYTHON:
                for attribute, value in [*vars(module).items()]:
                    if id(value) in replaced:
                        setattr(module, attribute, replaced[id(value)])

        # shutil and others look there for what a function takes
        for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            able |= {replaced[id(each)] for each in able if id(each) in replaced}

    def hooks(self) -> dict[str, Hook]:
        """Returns the changes of the libraries that write from C, by module."""
        tensorflow = "tensorflow.python"
        return {
            "torch._C": self._change_torch,
            "safetensors._safetensors_rust": self._change_safetensors,
            "h5py._hl.files": self._change_h5py,
            f"{tensorflow}.checkpoint.checkpoint": lambda module: self._write_nothing(
                module.Checkpoint, "save", "write"
            ),
            f"{tensorflow}.checkpoint.checkpoint_management": lambda module: self._write_nothing(
                module.CheckpointManager, "save"
            ),
            f"{tensorflow}.saved_model.save": lambda module: self._write_nothing(module, "save"),
        }

    def _guard(self, original: Callable[..., Any], change: Callable[..., Any]) -> Any:
        """Returns a function that calls `change` with the original and the arguments, if the loop
        that is examined calls it.
        """

        @wraps(original)
        def guarded(*arguments: Any, **options: Any) -> Any:
            # what is called from here is not the program's
            if getattr(self._inside, "is_on", False) or not self._applies():
                return original(*arguments, **options)

            self._inside.is_on = True
            try:
                return change(original, *arguments, **options)
            finally:
                self._inside.is_on = False

        return guarded

    # Where a path leads

    def _place(self, path: Any, folder: int | None = None) -> Path | None:
        """Returns the absolute path without links; None for what is no path.

        Args:
            folder: the descriptor of the folder in which a relative path begins.
        """
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        top = Path() if folder is None else Path(f"/proc/self/fd/{folder}")
        return (top / os.fsdecode(path)).resolve()

    def _entry(self, path: Any, folder: int | None = None) -> Path:
        """Returns the absolute path of what is removed or renamed: a link itself, not its file."""
        entry = Path(os.fsdecode(path))
        return (self._place(entry.parent, folder) or entry.parent) / entry.name

    def _is_kept(self, place: Path) -> bool:
        """Whether something is there that the program has not made meanwhile."""
        is_there = place.is_file() or place.is_dir() or place.is_symlink()
        return is_there and place not in self._made and not str(place).startswith(_NO_FILES)

    def _copy(self, place: Path, with_content: bool) -> Path:
        """Returns the copy that is written instead of a file."""
        self._kept.add(place)
        if place not in self._copies:
            self._copies[place] = self._aside / f"{len(self._copies)}_{place.name}"
            if with_content and place.is_file():
                shutil.copyfile(place, self._copies[place])
        return self._copies[place]

    def _opened(self, path: Any, writes: bool, with_content: bool, folder: Any = None) -> Any:
        """Returns what is opened when the program opens `path`.

        Args:
            with_content: whether it is not emptied.
        """
        place = self._place(path, folder)
        if place is None:
            return path
        if not writes or place in self._copies:
            return self._copies.get(place, path)

        if self._is_kept(place):
            return path if place.is_dir() else self._copy(place, with_content)
        if place.parent.is_dir():
            self._made.add(place)
        return path

    # Instead of Python's functions

    def _open(self, original: Any, file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        writes = not _WRITES.isdisjoint(mode) or "x" in mode
        # of a file that is there, an exclusive mode raises its error
        if not ("x" in mode and os.path.lexists(file)):
            file = self._opened(file, writes, "w" not in mode)
        return original(file, mode, *rest, **options)

    def _file_class(self, original: type[io.FileIO]) -> type[io.FileIO]:
        opened = self._guard(
            lambda file, mode: file,
            lambda _, file, mode: self._opened(file, not _WRITES.isdisjoint(mode), "w" not in mode),
        )

        class OfAny(type):
            # open(…, buffering=0) returns the original class
            def __instancecheck__(cls, instance: Any) -> bool:
                return isinstance(instance, original)

        class FileIO(original, metaclass=OfAny):  # type: ignore[valid-type, misc]
            def __init__(self, file: Any, mode: str = "r", *rest: Any, **options: Any):
                super().__init__(opened(file, mode), mode, *rest, **options)

        return FileIO

    def _open_by_flags(self, original: Any, path: Any, flags: int, *rest: Any, **at: Any) -> Any:
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC))
        if not (flags & os.O_EXCL and os.path.lexists(self._entry(path, at.get("dir_fd")))):
            path = self._opened(path, writes, not flags & os.O_TRUNC, at.get("dir_fd"))
        # a copy that does not begin with the content is not there yet
        is_new = writes and path in self._copies.values()
        return original(path, flags | os.O_CREAT if is_new else flags, *rest, **at)

    def _truncate(self, original: Any, path: Any, length: int) -> None:
        original(self._opened(path, writes=True, with_content=True), length)

    def _see(self, original: Any, path: Any, **options: Any) -> Any:
        place = self._place(path, options.get("dir_fd")) if self._copies else None
        return original(self._copies.get(place, path) if place else path, **options)

    def _remove(self, original: Any, path: Any, *rest: Any, **options: Any) -> None:
        entry = self._entry(path, options.get("dir_fd"))
        if entry in self._copies or self._is_kept(entry):
            self._kept.add(entry)
        else:
            original(path, *rest, **options)

    def _rename(self, original: Any, source: Any, target: Any, **at: Any) -> None:
        old = self._entry(source, at.get("src_dir_fd"))
        new = self._entry(target, at.get("dst_dir_fd"))

        # what the program has written is read under the new name; the user's file keeps its own
        content = self._copies.pop(old, old)
        if content == old and self._is_kept(old):
            self._kept |= {old, new}
        elif content != old or (self._is_kept(new) and content.is_file()):
            self._copies.pop(new, None)
            shutil.move(content, self._copy(new, with_content=False))
        else:
            original(source, target, **at)
            moved = {place for place in self._made if place.is_relative_to(old)}
            self._made = self._made - moved | {new / place.relative_to(old) for place in moved}

    def _make_folder(self, original: Any, path: Any, *rest: Any, **at: Any) -> None:
        place = self._place(path, at.get("dir_fd"))
        # the program takes it for removed
        if place in self._kept and place and place.is_dir():
            return
        original(path, *rest, **at)
        self._made |= {place} if place else set()

    # Instead of functions in C

    def _of_weights(self, path: Any, with_content: bool = False) -> Any:
        """Returns the path to which weights are written instead, whether there is a file or not."""
        place = self._place(path)
        # an error about the folder is the program's
        if not place or place in self._made or not place.parent.is_dir():
            return path
        copy = self._copy(place, with_content)
        return os.fsencode(copy) if isinstance(path, bytes) else str(copy)

    def _change_torch(self, module: Any) -> None:
        path_of = self._guard(lambda path: path, lambda _, path: self._of_weights(path))

        class PyTorchFileWriter(module.PyTorchFileWriter):
            def __init__(self, file: Any, *rest: Any, **options: Any):
                super().__init__(path_of(file), *rest, **options)

        module.PyTorchFileWriter = PyTorchFileWriter

        def save(original: Any, scripted: Any, path: Any, *rest: Any, **options: Any) -> Any:
            return original(scripted, self._of_weights(path), *rest, **options)

        script = module.ScriptModule
        for name in ("save", "_save_for_mobile"):
            setattr(script, name, self._guard(getattr(script, name), save))

    def _change_safetensors(self, module: Any) -> None:
        def serialize(
            original: Any, tensors: Any, filename: Any, *rest: Any, **options: Any
        ) -> Any:
            return original(tensors, self._of_weights(filename), *rest, **options)

        module.serialize_file = self._guard(module.serialize_file, serialize)

    def _change_h5py(self, module: Any) -> None:
        def open_file(original: Any, name: Any, mode: Any, *rest: Any, **options: Any) -> Any:
            is_new = mode in ("x", "w-") and not Path(os.fsdecode(name)).exists()
            if is_new or mode in ("w", "a", "r+"):
                name = self._of_weights(name, with_content=mode in ("a", "r+"))
            return original(name, "w" if is_new else mode, *rest, **options)

        module.make_fid = self._guard(module.make_fid, open_file)

    def _write_nothing(self, owner: Any, *names: str) -> None:
        """Makes functions of TensorFlow's, whose files are written in its graph, write nothing."""

        def skip(original: Any, *arguments: Any, **options: Any) -> str:
            paths = [each for each in arguments if isinstance(each, str | os.PathLike)]
            text = os.fspath(paths[0]) if paths else str(getattr(arguments[0], "directory", ""))
            self._kept.add(Path(text).absolute())
            return text

        for name in names:
            setattr(owner, name, self._guard(getattr(owner, name), skip))
