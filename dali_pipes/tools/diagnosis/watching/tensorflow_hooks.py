"""What is replaced in TensorFlow and Keras so that loops over tf.data are seen.

A loop over a data set is watched as one over a DataLoader is. `model.fit(dataset)` has no loop that
could be watched: `train_on_batch` stands for its step.
"""

import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any, NoReturn

from dali_pipes.tools.diagnosis.watching.frames import place_of
from dali_pipes.tools.diagnosis.watching.watch import Watch


def hooks(watch: Watch) -> dict[str, Callable[[ModuleType], None]]:
    """Returns, by module, what to do with it once it has been imported."""
    return {
        "tensorflow.python.data.ops.dataset_ops": lambda module: _watch_datasets(module, watch),
        "keras.src.optimizers.base_optimizer": lambda module: _count_keras_steps(module, watch),
        "keras.src.backend.tensorflow.trainer": lambda module: _examine_keras_fit(module, watch),
    }


def _watch_datasets(module: Any, watch: Watch) -> None:
    """Watches the program's own loops over tf.data.

    TensorFlow's and Keras's loops are left alone: they hand their iterators to compiled functions.
    """
    original = module.DatasetV2.__iter__

    @wraps(original)
    def __iter__(dataset: Any) -> Any:
        asking = sys._getframe(1).f_code.co_filename
        is_own = "/site-packages/tensorflow/" in asking or "/site-packages/keras/" in asking
        return original(dataset) if is_own else watch.begin(dataset, original)

    module.DatasetV2.__iter__ = __iter__


def _count_keras_steps(module: Any, watch: Watch) -> None:
    """Counts the steps of Keras's optimizers.

    In a compiled function a step is counted once, when it is traced in its first step; that is
    enough.
    """
    original = module.BaseOptimizer.apply

    @wraps(original)
    def apply(optimizer: Any, *arguments: Any, **options: Any) -> Any:
        applied = original(optimizer, *arguments, **options)
        watch.count_step()
        return applied

    module.BaseOptimizer.apply = apply


def _examine_keras_fit(module: Any, watch: Watch) -> None:
    """Examines model.fit(dataset): its loop is compiled with the iterator, so train_on_batch stands
    for its step.
    """
    original = module.TensorFlowTrainer.fit

    @wraps(original)
    def fit(model: Any, x: Any = None, *arguments: Any, **options: Any) -> Any:
        import tensorflow

        if watch.own_work.is_elsewhere:
            return original(model, x, *arguments, **options)

        place = place_of(sys._getframe(1))
        if not isinstance(x, tensorflow.data.Dataset):
            kind = f"{type(x).__module__.split('.')[0]}.{type(x).__qualname__}"
            watch.answers.fail(
                f"{place}: model.fit was given a {kind}; diagnose watches fit only with a data "
                "set of tf.data"
            )
        return _drive_fit(watch, place, x, lambda batch: model.train_on_batch(*batch))

    module.TensorFlowTrainer.fit = fit


def _drive_fit(watch: Watch, place: str, dataset: Any, step: Callable[[Any], Any]) -> NoReturn:
    examined = watch.take_over_fit(place, dataset, step)
    while True:
        step(examined.next_batch())
