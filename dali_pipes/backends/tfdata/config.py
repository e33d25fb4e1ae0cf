"""The options of tf.data."""

from dataclasses import dataclass

from dali_pipes.backends.config import MAX_COUNT, Concurrency, LoaderConfig
from dali_pipes.checks import check_min
from dali_pipes.options import option


@dataclass(kw_only=True, slots=True)
class TfDataConfig(LoaderConfig):
    """TensorFlow's tf.data on the CPU. It takes as many threads as it likes (AUTOTUNE), up to
    `num_threads`.

    Attributes:
        num_threads: threads of its private pool; None: all cores that this process may use.
    """

    num_threads: int | None = option(None, check_min, 1, MAX_COUNT)

    @property
    def concurrency(self) -> Concurrency:
        return Concurrency(self.num_threads or 1, 1, 3)
