"""build_loader(): checks what a loader is made of, and builds it.

Arguments of the wrong kind are refused first (mistakes.py), then images and options that do not fit
together. The plan is made and compared with that of the other ranks (ranks.py), and the config
says which backend carries it out (backends/registry.py).
"""

import logging
import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from dali_pipes.backends.auto.config import AutoConfig
from dali_pipes.backends.backend import Backend, Job
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.pixels.functions import check_functions
from dali_pipes.backends.registry import estimate_loader_memory, load_backend
from dali_pipes.checks import LARGEST_SEED, check_choice
from dali_pipes.data.manifest import Manifest
from dali_pipes.loader.bad_samples import BadSamples
from dali_pipes.loader.batch import BatchTransform
from dali_pipes.loader.device import resolve_device
from dali_pipes.loader.fetching import check_room
from dali_pipes.loader.loader import Loader
from dali_pipes.loader.mistakes import DATALOADER_OPTIONS, refuse_other_kinds
from dali_pipes.loader.mixing import check_fits
from dali_pipes.loader.ranks import choose_rank, compare_ranks
from dali_pipes.loader.resume import fingerprint
from dali_pipes.loader.train_and_val import check_fit
from dali_pipes.options import check_arguments
from dali_pipes.plan.plan import LARGEST_BATCH, Plan, Rank
from dali_pipes.plan.sampling import Sampling, choose_sampling
from dali_pipes.plan.steps.lists import smallest_sizes
from dali_pipes.plan.steps.whole import WholeResize
from dali_pipes.plan.transforms import CenterCropTransform, EvalTransform, Transform
from dali_pipes.plan.transforms.base import check_flips, describe_small, views_of
from dali_pipes.system import memory
from dali_pipes.system.modes import in_own_modes

log = logging.getLogger(__name__)


@check_arguments(
    DATALOADER_OPTIONS,
    batch_size=(1, LARGEST_BATCH),
    seed=(0, LARGEST_SEED),
    max_bad_fraction=(0, 1),
)
@in_own_modes
def build_loader(
    manifest: Manifest,
    config: LoaderConfig | None = None,
    *,
    transform: Transform,
    batch_size: int,
    seed: int = 0,
    rank: Rank | None = None,
    shuffle: bool | None = None,
    sampling: Sampling | Mapping[str, Any] | str | None = None,
    last_batch: str | None = None,
    on_bad_sample: str = "raise",
    max_bad_fraction: float = 0.01,
    strict: bool = False,
    device: str | torch.device = "auto",
    batch_transform: BatchTransform | None = None,
) -> Loader:
    """Builds a loader of `manifest` with the backend that `config` belongs to. All other options
    mean the same for every backend.

    Args:
        config: the options of a backend; by default `AutoConfig()`, which finds the one that trains
            fastest.
        batch_size: images per batch and rank.
        rank: this process's part; by default all, with a warning under torchrun. `Rank.from_env()`
            reads it from torchrun or SLURM. Where the process group has as many ranks, they are
            compared: all must load the same images in the same way.
        shuffle: a new order each epoch; by default for training transforms only.
        sampling: which samples make an epoch and in which order, instead of `shuffle`: a Sampling,
            its name, or {"name": …} with its options (docs/sampling.md).
        last_batch: "drop", "partial", "pad" or "even" (see `Plan`); by default "drop" for training
            transforms, else "partial".
        on_bad_sample: "raise" stops at an image that cannot be decoded and names it; "substitute"
            delivers another image in its place and lists the bad one in `bad_samples`. The other
            image is of the same class or source where the sampling can give one, else of the same
            batch, or of the batches around it if that whole batch is bad.
        max_bad_fraction: the share of the images that may be bad: those that the scan found, and
            with "substitute" also those that are found while loading.
        strict: makes an error of images and objects that the scan left out; without it the log
            counts them in one line.
        device: where batches arrive: "cpu", "cuda", "cuda:1" …; "auto" takes the current GPU if
            there is one.
        batch_transform: changes each batch, on the device: MixUp, CutMix, RandomChoice, or your own
            function of a batch and its random numbers (docs/augmentation.md).

    Raises:
        ConfigError: options cannot work, or a GPU is asked for where there is none.
        ManifestError: the scan has left out more images than `max_bad_fraction` allows; or a class
            has another number than in the images that are trained on.
        OmissionError: `strict` is set, and the scan has left something out.
    """
    config = AutoConfig() if config is None else config
    refuse_other_kinds(
        manifest=manifest,
        config=config,
        transform=transform,
        rank=rank,
        sampling=sampling,
        batch_transform=batch_transform,
    )
    # own copies: what the caller sets later has no effect; replace() checks what was set until now
    config, transform = replace(deepcopy(config)), replace(deepcopy(transform))
    check_choice("on_bad_sample", on_bad_sample, ("raise", "substitute"))
    check_choice("last_batch", last_batch, (None, "partial", "drop", "pad", "even"))

    manifest.tell_omissions(strict)
    manifest.refuse_bad_images(max_bad_fraction)
    check_fit(manifest, transform.training)
    if not int(os.environ.get("LOCAL_RANK", 0)):
        _warn_of_turned(manifest, transform)
        for view in views_of(transform):
            _warn_of_small(manifest, view)

    plan = Plan(
        manifest,
        transform,
        batch_size,
        seed=seed,
        sampling=choose_sampling(sampling, shuffle, manifest, transform.training),
        rank=choose_rank(rank),
        last_batch=last_batch or ("drop" if transform.training else "partial"),
    )
    check_room(plan)
    transform.check(manifest)
    check_flips(manifest, transform)
    if batch_transform is not None:
        check_fits(batch_transform, manifest)

    backend, target = load_backend(config), resolve_device(device, config)
    config = config.on_cores()
    check_functions(transform, backend.functions_on(config.on_device(target), target))
    _check_shared_memory(config, transform, batch_size, manifest, target)

    def build_backend(transform: Transform, learned: Any) -> Backend:
        return backend(Job(transform, manifest, batch_size, target, len(plan), learned), config)

    compare_ranks(plan, fingerprint(plan, transform, batch_transform))
    bad = BadSamples(plan, transform, on_bad_sample == "substitute", max_bad_fraction)
    return Loader(plan, transform, build_backend, bad, batch_transform)


def _check_shared_memory(
    config: LoaderConfig,
    transform: Transform,
    batch_size: int,
    manifest: Manifest,
    target: torch.device,
) -> None:
    """Raises ConfigError if the batches of workers cannot fit into /dev/shm, which would end them
    without a word.
    """
    needs = estimate_loader_memory(config, transform, batch_size, manifest.some_sizes, target)
    free = memory.free_shared_memory(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    memory.check_fits([need for need in needs if need.where == "shm"], free)


def _warn_of_turned(manifest: Manifest, transform: Transform) -> None:
    """Warns of images that are taken as stored, and that the source's own library would turn."""
    if not manifest.facts.turned_by_source or transform.exif == "apply":
        return
    blocks = manifest.rows.blocks()
    turned = sum(int((manifest.take_orientations(ids) != 1).sum()) for ids in blocks)
    if turned:
        log.warning(
            "%s: datasets turns images by their EXIF tag, and this transform takes them as they "
            "are stored: %s; set exif='apply' in the transform to turn them",
            manifest.root,
            f"{turned:,}",
        )


def _warn_of_small(manifest: Manifest, view: Transform) -> None:
    """Warns of images that are smaller than a central crop, which has black around them."""
    if not isinstance(view, EvalTransform | CenterCropTransform) or view.pad_if_needed:
        return
    if isinstance(view.resize, int) and max(view.shape) <= view.resize:
        return  # none of their sides is shorter
    resized = [] if view.resize is None else [WholeResize(size=view.resize)]
    steps = [*(view.before if isinstance(view, CenterCropTransform) else ()), *resized]
    small = describe_small(view, manifest, view.shape, partial(smallest_sizes, steps))
    if small and not int(os.environ.get("LOCAL_RANK", 0)):
        log.warning(
            "%s: %s. They get black around them; set resize to the size or more, or pad_if_needed "
            "if that is meant",
            manifest.root,
            small,
        )
