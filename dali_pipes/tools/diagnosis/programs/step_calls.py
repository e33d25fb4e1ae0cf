"""What a training step calls that costs time on a GPU: reads that wait for it, copies that wait,
full precision.

`StepCalls` wraps methods of torch.Tensor for the first steps and counts who calls them. These calls
can be seen on a CPU as well.
"""

import functools
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

STEPS = 20  # steps that are looked at; in the rest of the measurement nothing is wrapped
_OFTEN = 0.5  # calls per step; a rarer one, such as for a log, costs little
_TORCH = str(Path(torch.__file__).parent)
# By method: how a person writes it. On a tensor of a GPU each of them needs its value, and so waits
# for all work that was launched before.
_READS = {
    "item": ".item()",
    "tolist": ".tolist()",
    "numpy": ".numpy()",
    "cpu": ".cpu()",
    "__float__": "float()",
    "__int__": "int()",
    "__bool__": "a condition",
    "__format__": "an f-string",
    "__repr__": "print()",
}
_COPIES = {"to": ".to()", "cuda": ".cuda()"}


class StepCalls:
    """Counts these calls over a program's first steps, except those that PyTorch makes itself.

    Args:
        is_step: whether what runs now is the step, and not the loader.
    """

    def __init__(self, is_step: Callable[[], bool] = lambda: True):
        self._is_step = is_step
        self._stack = ExitStack()
        self.steps = 0
        self.reads: Counter[tuple[str, str]] = Counter()  # key: what is called, and where
        self.copies: Counter[tuple[str, str]] = Counter()
        self.has_autocast = False
        self.parameters: set[tuple[str, torch.dtype]] = set()  # type of device, and dtype

    def start(self) -> None:
        """Counts calls from here on, until `STEPS` steps have been made."""
        for name, written in _READS.items():
            self._wrap(torch.Tensor, name, functools.partial(self._count_read, written))
        for name, written in _COPIES.items():
            self._wrap(torch.Tensor, name, functools.partial(self._count_copy, written))
        self._wrap(
            torch.autocast, "__enter__", lambda arguments, options: self._see_autocast(arguments[0])
        )
        handle = register_optimizer_step_post_hook(self._see_optimizer)
        self._stack.callback(handle.remove)

    def end_step(self) -> None:
        if self.steps >= STEPS:
            return
        self.steps += 1
        if self.steps == STEPS:
            self._stack.close()

    def watching(self, step: Callable[[Any], object]) -> Callable[[Any], object]:
        """Returns the same step, whose first calls are counted."""
        started = False

        @functools.wraps(step)
        def watched(batch: Any) -> object:
            nonlocal started
            if self.steps >= STEPS:
                return step(batch)
            if not started:
                self.start()
                started = True
            result = step(batch)
            self.end_step()
            return result

        return watched

    def remarks(self, pin_memory: bool) -> list[str]:
        """Returns what may cost time, with what to do instead; "possible", since none of it is
        measured here.

        Args:
            pin_memory: whether the loader puts batches into page-locked memory.
        """
        self._stack.close()
        if not self.steps:
            return []

        # the step runs where the parameters of its optimizer are
        on_gpu = any(device == "cuda" for device, _ in self.parameters)
        possible = "possible" if on_gpu else "possible on a GPU"
        remarks = list[str]()

        for written, place in self._often(self.reads):
            what = f"{written} in {place} makes each step wait for the GPU"
            remarks.append(f"{possible}: {what}; keep it a tensor, and read it once in some steps")
        copies = self._often(self.copies)
        for written, place in copies:
            what = f"{written} in {place} waits for its copy"
            remarks.append(
                f"{possible}: {what}; pin_memory=True in the DataLoader, and non_blocking=True "
                "there, let it overlap"
            )

        # a copy that is named has this advice already
        if on_gpu and not pin_memory and not copies:
            remarks.append(
                "possible: batches are not in page-locked memory, so copies to the GPU are "
                "slow; pin_memory=True"
            )

        if {dtype for _, dtype in self.parameters} == {torch.float32} and not self.has_autocast:
            what = "parameters are float32, and no autocast was seen"
            remarks.append(
                f"{possible}: {what}; torch.autocast('cuda', torch.bfloat16) around the "
                "forward pass may be faster"
            )

        looked = "calls that wait for the GPU, copies to it, and precision"
        remarks.append(
            f"{looked} were looked at in {self.steps} steps"
            + ("" if remarks else "; nothing was found")
        )
        return remarks

    def _often(self, counts: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
        return [key for key, count in counts.most_common(3) if count >= _OFTEN * self.steps]

    def _wrap(self, owner: Any, name: str, see: Callable[[Any, Any], None]) -> None:
        original = getattr(owner, name)
        own = name in vars(owner)

        @functools.wraps(original)
        def method(*arguments: Any, **options: Any) -> Any:
            if self._is_step():
                see(arguments, options)
            return original(*arguments, **options)

        setattr(owner, name, method)
        # a method that the class inherits is not its own: it is deleted again
        self._stack.callback(
            lambda: setattr(owner, name, original) if own else delattr(owner, name)
        )

    def _count(self, counts: Counter[tuple[str, str]], written: str) -> None:
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename == __file__:
            frame = frame.f_back

        file = frame.f_code.co_filename
        # PyTorch's own code calls these methods as well
        if not file.startswith(_TORCH):
            shown = (
                os.path.relpath(file)
                if Path(file).is_relative_to(Path.cwd())
                else file.rpartition("site-packages/")[2]
            )
            counts[written, f"{shown}:{frame.f_lineno}"] += 1

    def _count_read(self, written: str, arguments: Any, options: dict[str, Any]) -> None:
        self._count(self.reads, written)

    def _count_copy(self, written: str, arguments: Any, options: dict[str, Any]) -> None:
        """Counts a copy to a device; .to() with a dtype is no such copy."""
        # the device of .to() is an option or the first argument; .cuda() may have none
        target = options.get("device", arguments[1] if len(arguments) > 1 else "cuda")
        blocks = not options.get("non_blocking", any(value is True for value in arguments[2:]))
        if blocks and isinstance(target, (str, int, torch.device)):
            self._count(self.copies, written)

    def _see_autocast(self, context: Any) -> None:
        self.has_autocast |= bool(getattr(context, "_enabled", True))

    def _see_optimizer(self, optimizer: Any, arguments: Any, options: Any) -> None:
        if self._is_step():
            # a few of each group tell device and dtype
            self.parameters |= {
                (parameter.device.type, parameter.dtype)
                for group in optimizer.param_groups
                for parameter in group["params"][:8]
            }
