"""Opens the manifest that a configuration names, and chooses the samples that are measured.

Training uses `open_images`; measurements also repeat, draw or read the images beforehand.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from dali_pipes.data.config import DataConfig
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Reader
from dali_pipes.data.shards.addresses import is_remote
from dali_pipes.data.sources.kinds import kind_of
from dali_pipes.data.sources.options import ALL_SPLITS, TABLES, SourceOptions, refuse
from dali_pipes.data.sources.split_column import SeveralSplitsError
from dali_pipes.errors import ConfigError, ManifestError, OptionError
from dali_pipes.system.progress import track

MIN_EPOCH_IMAGES = 5_000


def open_images(
    data: DataConfig,
    split: str,
    *,
    max_bad_fraction: float = 1.0,
    **options: Any,
) -> Manifest:
    """Opens the images of "train" or "val".

    Args:
        max_bad_fraction: the share of the images that may be unusable.
        options: verify, max_pixels and strict as for `Manifest.open`.

    Raises:
        ConfigError, ManifestError: no images are given, or none are there, or too many cannot be
            used.
    """
    source = data.source(split)
    if data.demo and source == f"{data.root}/{split}" and not Path(source).is_dir():
        raise ManifestError(
            f"{source}: the demo set is not there; dali-pipes scan data=demo data.root={data.root} "
            "makes it"
        )

    masks = getattr(data, f"{split}_masks")
    if masks and Path(source).is_file():
        raise ConfigError(
            f"data.{split}_masks is for a folder of images, and data.{split}={source} "
            f"is a file; leave out data.{split}_masks "
            "(data.targets.mask names a table's column of masks)"
        )

    taken = _keep_taken(data, split)
    manifest = _open_source(data, split, source, vars(taken) | options)
    manifest.refuse_bad_images(max_bad_fraction)

    # after the limit for bad images, which is about the whole set
    if data.filter is None:
        return manifest

    subset = manifest.filter(data.filter)
    if not len(subset):
        raise ConfigError(
            f"data.filter={data.filter!r}: none of the {len(manifest):,} images in {source} matches"
        )
    return subset


def _open_source(data: DataConfig, split: str, source: str, options: dict[str, Any]) -> Manifest:
    """Opens a source; of a table with a column of splits the rows of a job: those that its filter
    chooses, or else those of its own split. Where no row is of validation, those of test are.
    """
    # whoever filters has chosen the rows; a store is not asked for what it has
    if data.filter is not None and not is_remote(source) and _kind(data, split) in TABLES:
        return Manifest.open(source, **options | {"split": ALL_SPLITS})
    try:
        return Manifest.open(source, **options)
    except SeveralSplitsError as error:
        # raised before an image is read
        wanted = "test" if split == "val" and "val" not in error.splits else split
        if data.filter is not None:
            wanted = ALL_SPLITS
        return Manifest.open(source, **options | {"split": wanted})


def _keep_taken(data: DataConfig, split: str) -> SourceOptions:
    """Returns the options that the source of a split takes; the others, which the source of the
    other split takes, have their defaults.

    Raises:
        ConfigError: an option changes nothing in either.
    """
    options, untaken = _options_of(data, split), _list_untaken(data, split)
    other = "val" if split == "train" else "train"
    has_other = untaken and (getattr(data, other) or data.root)
    by_other = _list_untaken(data, other) if has_other else untaken
    by_none = {name: why for name, why in untaken.items() if name in by_other}
    # each split has its own
    if "images" in untaken:
        by_none = {f"{split}_images": untaken["images"]}
    refuse(by_none, "data.")

    return options.leave_out(untaken)


def _list_untaken(data: DataConfig, split: str) -> dict[str, str]:
    """Returns the options that the source of a split does not take, and why."""
    options = _options_of(data, split)
    # finding the kind of a source may ask a store
    if not options.list_given():
        return {}
    return options.list_untaken(data.source(split), _kind(data, split))


def _options_of(data: DataConfig, split: str) -> SourceOptions:
    known = {each.name for each in fields(SourceOptions)}
    named = {each.name for each in fields(data)} & known
    options = {name: getattr(data, name) for name in named} | {
        # in a configuration, [] stands for None
        "classes": list(data.classes) or None,
        "with_labels": data.labels,
        "images": getattr(data, f"{split}_images"),
        "masks": getattr(data, f"{split}_masks"),
    }
    try:
        return SourceOptions(**options)
    except OptionError as error:
        raise ConfigError(*error.parts) from None


def _kind(data: DataConfig, split: str) -> str:
    return "masks" if getattr(data, f"{split}_masks") else kind_of(data.source(split))


def sample_images(manifest: Manifest, images: int, seed: int) -> Manifest:
    """Chooses at most `images` samples at random.

    The images that cannot be used are left out, since they have been reported before.
    """
    if len(manifest) <= images:
        return manifest.subset(np.arange(len(manifest)))
    ids = np.random.default_rng(seed).choice(len(manifest), images, replace=False)
    return manifest.subset(np.sort(ids))


def repeat_epoch(manifest: Manifest) -> Manifest:
    """Repeats a small set up to `MIN_EPOCH_IMAGES` images.

    The cost of an epoch's start is then spread over as many batches as in training.
    """
    return manifest.subset(np.arange(max(len(manifest), MIN_EPOCH_IMAGES)) % len(manifest))


def warm_page_cache(manifest: Manifest) -> None:
    """Reads every image, so that it is in the page cache if that has room for it."""
    reader = Reader()
    with ThreadPoolExecutor(8) as pool:
        sizes = pool.map(
            lambda sample_id: len(reader.read(manifest.extent(sample_id))), range(len(manifest))
        )
        for _ in track(sizes, "reading the images into the page cache", len(manifest)):
            pass
