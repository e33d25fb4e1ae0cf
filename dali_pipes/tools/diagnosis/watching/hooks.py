"""What is replaced in libraries so that the loops of a user's program are seen.

`install_hooks` changes the modules that have been imported already, and each later one right after
its import, before the program can use it. The hooks of tf.data and Keras are in
tensorflow_hooks.py, those of libraries that bring their own training loop in libraries.py.
"""

import importlib.abc
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from dali_pipes.tools.diagnosis.frames import program_frame
from dali_pipes.tools.diagnosis.watching import libraries, tensorflow_hooks
from dali_pipes.tools.diagnosis.watching.watch import Watch

Hook = Callable[[ModuleType], None]


def install_hooks(watch: Watch) -> None:
    hooks = _list_hooks(watch)
    for name in [hook for hook in hooks if hook in sys.modules]:
        hooks.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, AfterImport(hooks))


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module once it has been imported."""

    def __init__(self, hooks: dict[str, Hook]):
        self._hooks = hooks

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        hook = self._hooks.pop(name, None)
        if hook is None:
            return None

        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec), None)

        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then_hook(module: ModuleType) -> None:
                execute(module)
                hook(module)

            spec.loader.exec_module = execute_then_hook  # type: ignore[method-assign]
        return spec


def _list_hooks(watch: Watch) -> dict[str, Hook]:
    """Returns, by module, what to do with it once it has been imported."""
    return (
        libraries.hooks(lambda: watch.examined is not None)
        | tensorflow_hooks.hooks(watch)
        | {
            "torch.utils.data.dataloader": lambda module: _watch_dataloaders(module, watch),
            "dali_pipes.loader.loader": lambda module: _watch_iterations(module.Loader, watch),
            "dali_pipes.adapters.from_torch.convert": lambda module: _watch_iterations(
                module.ConvertedLoader, watch
            ),
            "torch.optim.optimizer": lambda module: module.register_optimizer_step_post_hook(
                lambda optimizer, arguments, options: watch.count_step()
            ),
            "torch.distributed.distributed_c10d": lambda module: _refuse_process_groups(
                module, watch
            ),
            "torch.multiprocessing.spawn": lambda module: _refuse_spawning(module, watch),
        }
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


def _refuse_process_groups(module: ModuleType, watch: Watch) -> None:
    original = module.init_process_group

    @wraps(original)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        # world_size is the fourth argument; torchrun gives it in the environment
        world = options.get("world_size", arguments[3] if len(arguments) > 3 else -1)
        if max(int(world), int(os.environ.get("WORLD_SIZE", 1))) > 1:
            watch.answers.fail(
                "the program trains in several processes (init_process_group); diagnose "
                "runs one: give it one device"
            )
        return original(*arguments, **options)

    places: list[Any] = [module, sys.modules["torch.distributed"]]
    for place in places:  # the package has its own name for it, if it was imported before
        if hasattr(place, "init_process_group"):
            place.init_process_group = init_process_group


def _refuse_spawning(module: ModuleType, watch: Watch) -> None:
    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        watch.answers.fail(
            "the program trains in processes of its own (torch.multiprocessing.spawn), where "
            "its loop is not seen; give diagnose a program that trains in its main process on "
            "one device"
        )

    module.spawn = module.start_processes = refuse  # type: ignore[attr-defined]
