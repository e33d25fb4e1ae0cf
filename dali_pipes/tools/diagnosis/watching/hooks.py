"""What is replaced in libraries so that the loops of a user's program are seen.

`list_hooks` returns a change for each module. The hooks of tf.data and Keras are in
tensorflow_hooks.py, those of libraries that bring their own training loop in libraries.py.
"""

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from dali_pipes.tools.diagnosis.watching import libraries, tensorflow_hooks
from dali_pipes.tools.diagnosis.watching.frames import program_frame
from dali_pipes.tools.diagnosis.watching.imports import Hook
from dali_pipes.tools.diagnosis.watching.watch import Watch


def list_hooks(watch: Watch) -> dict[str, Hook]:
    """Returns, by module, what to do with it once it has been imported."""
    return (
        libraries.hooks(lambda: watch.examined is not None)
        | tensorflow_hooks.hooks(watch)
        | watch.files.hooks()
        | {
            "torch.utils.data.dataloader": lambda module: _watch_dataloaders(module, watch),
            "dali_pipes.loader.loader": lambda module: _watch_iterations(module.Loader, watch),
            "dali_pipes.adapters.lazy.loader": lambda module: _watch_iterations(
                module.LazyLoader, watch
            ),
            "torch.optim.optimizer": lambda module: module.register_optimizer_step_post_hook(
                lambda optimizer, arguments, options: watch.count_step()
            ),
        }
        | _refuse_processes(watch.answers.fail)
    )


def _watch_dataloaders(module: Any, watch: Watch) -> None:
    """Watches PyTorch's DataLoader, with the place where the program builds each."""
    loaders = module.DataLoader

    def watched(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @wraps(original)
        def __iter__(self: Any) -> Any:
            return watch.begin(self, original)

        return __iter__

    def of_subclass(cls: Any, /, **options: Any) -> None:
        super(loaders, cls).__init_subclass__(**options)
        if "__iter__" in vars(cls):  # such as a loader whose workers outlive an epoch
            cls.__iter__ = watched(cls.__iter__)

    initialize = loaders.__init__

    @wraps(initialize)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        initialize(self, *arguments, **options)
        frame = program_frame(sys._getframe(1))
        # what the examination builds is none of the program's
        if frame is not None and not watch.own_work.runs:
            watch.note_built(self, Path(frame.f_code.co_filename).absolute(), frame.f_lineno)

    loaders.__init__ = __init__
    loaders.__iter__ = watched(loaders.__iter__)
    loaders.__init_subclass__ = classmethod(of_subclass)


def _watch_iterations(loaders: Any, watch: Watch) -> None:
    """Watches a class of dali_pipes' loaders."""
    original = loaders.__iter__

    @wraps(original)
    def __iter__(loader: Any) -> Any:
        return watch.begin(loader, original)

    loaders.__iter__ = __iter__


def _refuse_processes(fail: Callable[[str], NoReturn]) -> dict[str, Hook]:
    """Returns the hooks that refuse a program which trains in processes of its own.

    Args:
        fail: ends the program with the message.
    """
    return {
        "torch.distributed.distributed_c10d": lambda module: _refuse_groups(module, fail),
        "torch.multiprocessing.spawn": lambda module: _refuse_spawning(module, fail),
    }


def _refuse_groups(module: ModuleType, fail: Callable[[str], NoReturn]) -> None:
    original = module.init_process_group

    @wraps(original)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        # world_size is the fourth argument; torchrun gives it in the environment
        world = options.get("world_size", arguments[3] if len(arguments) > 3 else -1)
        if max(int(world), int(os.environ.get("WORLD_SIZE", 1))) > 1:
            fail(
                "the program trains in several processes (init_process_group); "
                "diagnose runs one: give it one device"
            )
        return original(*arguments, **options)

    places: list[Any] = [module, sys.modules["torch.distributed"]]
    for place in places:  # the package has its own name for it, if it was imported before
        if hasattr(place, "init_process_group"):
            place.init_process_group = init_process_group


def _refuse_spawning(module: ModuleType, fail: Callable[[str], NoReturn]) -> None:
    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        fail(
            "the program trains in processes of its own (torch.multiprocessing.spawn), where "
            "its loop is not seen; give diagnose a program that trains in its main process on "
            "one device"
        )

    module.spawn = module.start_processes = refuse  # type: ignore[attr-defined]
