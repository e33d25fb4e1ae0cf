"""from_torch(): a loader that yields what a live DataLoader yields, whose pictures wait."""

import copy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from dali_pipes.adapters.lazy.finishing import draws_on_cpu
from dali_pipes.adapters.lazy.loader import Delivery, LazyLoader
from dali_pipes.adapters.lazy.random_numbers import own_numbers, seed_shared
from dali_pipes.backends.auto.config import AutoConfig
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.checks import LARGEST_SEED, check_choice
from dali_pipes.errors import ConfigError
from dali_pipes.loader.device import resolve_device
from dali_pipes.loader.mistakes import refuse_other_kinds
from dali_pipes.options import check_arguments
from dali_pipes.plan.plan import Rank


@check_arguments(seed=(0, LARGEST_SEED))
def from_torch(
    loader: Any,
    config: LoaderConfig | None = None,
    *,
    seed: int | None = None,
    check: bool = True,
    rank: Rank | None = None,
    device: str | torch.device = "auto",
    on_bad_sample: str = "raise",
) -> LazyLoader:
    """Returns a loader that yields what `loader` yields: equal batches for equal random states.

    The program's data set, transform, sampler and collate function run as they are, in its own
    workers. Only the pixels wait: files, sizes, crops and operations are noted, and the backend of
    `config` makes the pictures of a batch together. Code that looks at pixels gets the true ones,
    and `explain()` says where that is. docs/from_torch.md has the rest.

    Args:
        loader: a DataLoader, also one of a derived class; timm's PrefetchLoader or webdataset's
            WebLoader around one. It stays as it is, and usable.
        config: the backend; by default `AutoConfig()`, which finds whether training is faster with
            DALI, on the GPU or the CPU, or with the program's own workers.
        seed: None: random numbers are drawn as the program draws them. With a seed they depend on
            (seed, epoch, place in the epoch) alone, so batches are the same with any number of
            workers and ranks, and `load_state_dict` goes on in the middle of an epoch.
        check: compare some samples of each worker, its 1st, 10th, 100th, …, with what the program
            makes of true pictures, and the first pictures of the backend with the program's own.
            What differs is named, and does not wait any more. A comparison forks the worker, which
            takes 0.1 s, or more for a big data set.
        rank: this process's part, for a sampler that knows no ranks, with `seed`.
        device: where all tensors of a batch arrive: "cpu", "cuda", "cuda:1" …; "auto" takes the
            GPU if the backend or PyTorch can use one, or the device of a PrefetchLoader.
        on_bad_sample: "raise" raises the program's own error for a sample that cannot be made, and
            names it; "substitute" delivers another sample of the batch in its place and lists the
            bad one in `bad_samples`.

    Raises:
        ConfigError: `loader` is none, or ranks cannot share its order; the text names why.
    """
    config = AutoConfig() if config is None else config
    refuse_other_kinds(config=config, rank=rank)
    check_choice("on_bad_sample", on_bad_sample, ("raise", "substitute"))
    options: dict[str, Any] = {"seed": seed, "check": check, "rank": rank}
    options["on_bad_sample"] = on_bad_sample

    kind: Callable[..., LazyLoader] = LazyLoader
    inner = loader
    if _is_of(loader, "timm.data.loader", "PrefetchLoader"):
        inner = loader.loader
        options |= {"change": partial(_prefetch, loader, seed), "outer": loader}
        if device == "auto":
            device = loader.device
        elif torch.device(device).type != torch.device(loader.device).type:
            raise ConfigError(
                f"device is {device}, but timm's PrefetchLoader puts batches on {loader.device}; "
                "leave out device=, or make the PrefetchLoader for that one"
            )
    elif _is_of(loader, "webdataset.compat", "WebLoader"):
        inner = loader.pipeline[0]
        kind = partial(WebLazyLoader, loader)
    if not isinstance(inner, DataLoader):
        raise ConfigError(f"loader is {_describe(loader)}")

    target = resolve_device(device, config)
    return kind(inner, config, device=target, **options)


def _is_of(value: Any, module: str, name: str) -> bool:
    """Whether it is of a class, whose library is not imported for that."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def _describe(loader: Any) -> str:
    kind = f"a {type(loader).__module__.partition('.')[0]} {type(loader).__name__}"
    if isinstance(loader, LazyLoader):
        return "one of from_torch already"
    if isinstance(loader, type):
        return f"the class {loader.__name__}; pass on a DataLoader"
    if isinstance(loader, Dataset):
        return f"{kind}; pass on the DataLoader of it"
    return (
        f"{kind}; it takes a DataLoader, timm's PrefetchLoader or webdataset's WebLoader; pass on "
        "the DataLoader inside of it"
    )


# timm


def _prefetch(
    own: Any, seed: int | None, delivery: Delivery, batches: Iterator[Any]
) -> Iterator[Any]:
    """What timm's PrefetchLoader makes of batches, by its own code (timm/data/loader.py): it takes
    one ahead, normalizes on the device, and erases rectangles.
    """
    made = copy.copy(own)
    made.loader, made.stream = batches, None
    if seed is not None and own.random_erasing is not None:

        def erase(images: torch.Tensor) -> Any:
            # it is called right after the batch was taken
            with own_numbers(), draws_on_cpu():
                seed_shared(*delivery.key, "erasing")
                return own.random_erasing(images)

        made.random_erasing = erase
    return iter(made)


# webdataset


class WebLazyLoader(LazyLoader):
    """A lazy loader of a WebLoader's DataLoader, with the steps that follow it, such as `shuffle`
    and `batched`. These rearrange samples in this process.
    """

    def __init__(self, own: Any, *args: Any, **options: Any):
        super().__init__(*args, outer=own, **options)
        self._pipeline = copy.copy(own)
        # a function, which webdataset calls for each pass
        self._pipeline.pipeline = [self._begin, *own.pipeline[1:]]
        self._is_plain = len(own.pipeline) == 1 and own.repetitions == 1

    def _begin(self) -> Iterator[Any]:
        return super().__iter__()

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__() if self._is_plain else iter(self._pipeline)

    def __len__(self) -> int:
        return len(self._outer) if hasattr(self._outer, "__len__") else super().__len__()

    def state_dict(self) -> dict[str, Any]:
        if not self._is_plain and self._position.samples:
            raise ConfigError(
                "the steps of this WebLoader rearrange samples, so a state in the middle of an "
                "epoch does not say which were delivered; take it between two epochs"
            )
        return super().state_dict()
