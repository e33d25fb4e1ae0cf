"""Shows that two checkouts make the same batches, bit for bit:

    python tests/support/same_bits.py BEFORE [AFTER] [--only REGEX]

BEFORE and AFTER are folders of checkouts; AFTER is this one unless it is given. A process of each,
which imports the dali_pipes of its checkout, makes the first batches of some hundred loaders: of
made-up images of every kind, by all transforms and augmentations, on each loader that a CPU has
(same_bits_cases.py). Of every tensor the bytes, dtype, shape and strides must be equal: images,
views, labels, ids and targets.

It ends with the number of equal cases and, of each that differs, the first tensor that does. The
status is 1 if any differs, or fails with an error; a process that ends, or takes longer than
`SECONDS` for a case, is one too. A case that one checkout refuses, by a ConfigError or since it
lacks a name, is listed with the error as "only before" or "only after", and does not change the
status.
"""

import argparse
import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from same_bits_cases import list_cases
from same_bits_images import write

REPO = Path(__file__).parents[2]
HERE = Path(__file__).parent
SECONDS = 120  # for one case, the start of the process among them


class Outcome(NamedTuple):
    """What comes of a case."""

    kind: str  # one of `KINDS`
    text: str = ""


EQUAL, DIFFERENT, FAILED = "equal", "different", "fails on both"
BEFORE, AFTER, REFUSED = "only before", "only after", "refused by both"
KINDS = (EQUAL, DIFFERENT, FAILED, BEFORE, AFTER, REFUSED)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?", default=REPO)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX")
    options = parser.parse_args(arguments)

    checkouts = [options.before, options.after]
    for checkout in checkouts:
        if not (checkout / "dali_pipes" / "__init__.py").is_file():
            parser.error(f"{checkout}: no checkout, since it has no dali_pipes")
    names = [name for name in list_cases() if options.only.search(name)]
    if not names:
        parser.error(f"--only: no case is named like {options.only.pattern}")

    outcomes = compare(checkouts, names)
    return report(outcomes)


def compare(checkouts: Sequence[Path], names: Sequence[str]) -> dict[str, Outcome]:
    """The outcome of each case."""
    outcomes: dict[str, Outcome] = {}
    cases = list_cases()
    with tempfile.TemporaryDirectory(prefix="same_bits") as folder, contextlib.ExitStack() as stack:
        root = Path(folder)
        write(root / "images", {cases[name].source for name in names})
        children = [
            stack.enter_context(contextlib.closing(Child(checkout, root, side)))
            for checkout, side in zip(checkouts, ("before", "after"), strict=True)
        ]
        for number, name in enumerate(names, start=1):
            for child in children:
                child.ask(name)
            outcomes[name] = judge([child.answer() for child in children])
            for child in children:
                shutil.rmtree(child.folder)
            show_progress(number, len(names), outcomes)
    return outcomes


class Child:
    """A process that makes cases with the dali_pipes of one checkout; after a case that ended it,
    another one.
    """

    def __init__(self, checkout: Path, root: Path, side: str):
        self.folder = root / side
        self._checkout, self._root = checkout.resolve(), root
        self._log = root / f"{side}.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, name: str) -> None:
        if self._process is None:
            self._process = self._start()
        self.folder.mkdir()
        (self.folder / "name.txt").write_text(name)
        # of a process that has ended, `answer` says so
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{self.folder}\n".encode())

    def answer(self) -> dict[str, Any]:
        """What same_bits_child.py says of the case, with the folder of its arrays."""
        process = self._process
        ready, _, _ = select.select([process.stdout], [], [], SECONDS)
        if ready and process.stdout.readline():
            return {**json.loads((self.folder / "result.json").read_text()), "at": self.folder}

        how = f"ended with status {process.wait()}" if ready else f"took more than {SECONDS} s"
        said = self._log.read_text(errors="replace").strip().splitlines()
        self.close()
        text = ": ".join([f"the process {how}", *said[-1:]])
        return {"tensors": {}, "error": {"text": text, "refused": False}}

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(map(str, (self._checkout, HERE)))
        program = HERE / "same_bits_child.py"
        with self._log.open("wb") as log:
            return subprocess.Popen(
                # -P: this folder is not searched before the checkout
                [sys.executable, "-P", program, self._checkout, self._root / "images"],
                cwd=self._root,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )

    def close(self) -> None:
        if self._process is not None:
            # its workers too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None


def judge(answers: Sequence[dict[str, Any]]) -> Outcome:
    """What two answers about one case come to."""
    before, after = answers
    errors = [answer["error"] for answer in answers]
    texts = [error["text"] if error else "" for error in errors]
    refused = [bool(error) and error["refused"] for error in errors]
    if all(refused):
        return Outcome(REFUSED, texts[0])
    if any(refused) and not all(errors):
        return Outcome(AFTER, texts[0]) if refused[0] else Outcome(BEFORE, texts[1])
    if any(errors):
        sides = zip(("before", "after"), texts, strict=True)
        text = "; ".join(f"{side}: {said or 'no error'}" for side, said in sides)
        return Outcome(FAILED if all(errors) else DIFFERENT, text)

    names = dict.fromkeys([*before["tensors"], *after["tensors"]])
    different = [
        name for name in names if _without_file(before, name) != _without_file(after, name)
    ]
    if not different:
        return Outcome(EQUAL)
    text = describe(different[0], before, after)
    return Outcome(DIFFERENT, f"{text} ({len(different)} of {len(names)} tensors differ)")


def _without_file(answer: dict[str, Any], name: str) -> dict[str, Any] | None:
    tensor = answer["tensors"].get(name)
    return tensor and {key: value for key, value in tensor.items() if key != "file"}


def describe(name: str, *answers: dict[str, Any]) -> str:
    """How a tensor differs."""
    tensors = [answer["tensors"].get(name) for answer in answers]
    if None in tensors:
        return f"{name.strip()}: only {'after' if tensors[0] is None else 'before'}"
    for what in ("dtype", "shape", "strides"):
        was, now = (tensor[what] for tensor in tensors)
        if was != now:
            return f"{name.strip()}: {what} was {was}, is {now}"

    was, now = (
        np.ascontiguousarray(np.load(answer["at"] / tensor["file"])).reshape(-1)
        for answer, tensor in zip(answers, tensors, strict=True)
    )
    bits = f"V{was.dtype.itemsize}"
    count = int((was.view(bits) != now.view(bits)).sum())
    largest = np.abs(was.astype(np.float64) - now.astype(np.float64)).max()
    return f"{name.strip()}: {count:,} of {was.size:,} values differ, by {largest:.6g} at most"


def show_progress(number: int, count: int, outcomes: dict[str, Outcome]) -> None:
    """Writes one line, which changes on a terminal; in a file a line for every 50 cases."""
    is_terminal = sys.stderr.isatty()
    if not is_terminal and number % 50 and number < count:
        return
    differ = sum(outcome.kind == DIFFERENT for outcome in outcomes.values())
    end = "\r" if is_terminal and number < count else "\n"
    print(f"{number} of {count} cases, {differ} differ", end=end, file=sys.stderr, flush=True)


def report(outcomes: dict[str, Outcome]) -> int:
    """Prints what came of the cases, and returns the status."""
    for kind in KINDS[1:]:
        for name, outcome in outcomes.items():
            if outcome.kind == kind:
                print(f"{kind}: {name}: {outcome.text}")
    counts = {kind: sum(each.kind == kind for each in outcomes.values()) for kind in KINDS}
    print(
        ", ".join(
            f"{kind}: {count}" for kind, count in counts.items() if count or kind in KINDS[:2]
        )
    )
    return 1 if counts[DIFFERENT] or counts[FAILED] else 0


if __name__ == "__main__":
    sys.exit(main())
