"""Training loops of libraries, which count their batches: while their loop is examined, they
neither end an epoch nor evaluate.

`hooks` gives a change for each module, to be made after its import, at the one place where the loop
decides that an epoch is over. A version that has no such place keeps its own loop, and the
examination ends with it.
"""

import builtins
import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import ModuleType
from typing import Any

IsExamining = Callable[[], bool]


def hooks(is_examining: IsExamining) -> dict[str, Callable[[ModuleType], None]]:
    """Returns, by module, what to do with it once it has been imported.

    Args:
        is_examining: whether a loop of this program is examined.
    """
    changes: dict[str, Callable[[Any, IsExamining], None]] = {
        "transformers.trainer": _never_end_hf_epochs,
        "transformers.trainer_callback": _only_train_hf,
    }

    # Lightning is published under two names, each with modules of its own
    for lightning in ("lightning.pytorch", "pytorch_lightning"):
        changes[f"{lightning}.loops.fetchers"] = _never_end_fetching
        changes[f"{lightning}.loops.training_epoch_loop"] = _never_end_lightning_epochs
        changes[f"{lightning}.trainer.trainer"] = _save_no_lightning_checkpoints

    def hook(change: Callable[[Any, IsExamining], None]) -> Callable[[ModuleType], None]:
        def apply(module: ModuleType) -> None:
            with contextlib.suppress(AttributeError):  # another version
                change(module, is_examining)

        return apply

    return {name: hook(change) for name, change in changes.items()}


def _answer_instead(owner: Any, name: str, is_examining: IsExamining, answer: Any) -> None:
    """Makes a method or property of a class give this answer while a loop is examined."""
    original = getattr(owner, name)
    if isinstance(original, property):
        read = original.fget
        assert read is not None
        setattr(owner, name, property(lambda self: answer if is_examining() else read(self)))
        return

    @wraps(original)
    def method(*arguments: Any, **options: Any) -> Any:
        return answer if is_examining() else original(*arguments, **options)

    setattr(owner, name, method)


def _save_no_lightning_checkpoints(module: Any, is_examining: IsExamining) -> None:
    # a model trained on the same batches again and again must not replace the user's
    _answer_instead(module.Trainer, "save_checkpoint", is_examining, None)


def _never_end_lightning_epochs(module: Any, is_examining: IsExamining) -> None:
    loop = module._TrainingEpochLoop
    _answer_instead(loop, "done", is_examining, False)
    _answer_instead(loop, "_should_check_val_fx", is_examining, False)


def _never_end_fetching(module: Any, is_examining: IsExamining) -> None:
    """Keeps a fetcher from being done: it is done after as many batches as its loader has, and
    Lightning would take each later batch for the last one.
    """
    original = module._DataFetcher.__next__

    @wraps(original)
    def __next__(self: Any) -> Any:
        batch = original(self)
        if is_examining():
            self.done = False
        return batch

    module._DataFetcher.__next__ = __next__


def _never_end_hf_epochs(module: Any, is_examining: IsExamining) -> None:
    """Gives Trainer's module a `range` that goes on: an epoch is `range(first, updates)` there."""

    def count_updates(*arguments: int) -> Any:
        updates = builtins.range(*arguments)
        # only that call: the whole module uses this `range`
        in_epoch = sys._getframe(1).f_code.co_name == "_run_epoch"
        return _lengthened(updates, is_examining) if in_epoch and len(arguments) == 2 else updates

    module.range = count_updates


def _lengthened(updates: range, is_examining: IsExamining) -> Iterator[int]:
    yield from updates
    # only the last update of an epoch may be of fewer batches; these numbers are beyond it
    last = updates.stop
    while is_examining():
        yield last
        last += 1


def _only_train_hf(module: Any, is_examining: IsExamining) -> None:
    """Keeps the callback that decides after each step from evaluating, saving or stopping; logging
    stays.
    """
    original = module.DefaultFlowCallback.on_step_end

    @wraps(original)
    def on_step_end(*arguments: Any, **options: Any) -> Any:
        control = original(*arguments, **options)
        if is_examining():
            control.should_evaluate = control.should_save = control.should_training_stop = False
        return control

    module.DefaultFlowCallback.on_step_end = on_step_end
