"""The files and values of a live data set's samples.

Data sets of torchvision and timm over a folder have lists of them (`listed_samples`), which costs
nothing; others are run for every sample (`label_pass.py`). `DataSetSamples.manifest` then scans the
files.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import ConcatDataset, Subset

from dali_pipes.adapters.from_torch.recording.containers import Place
from dali_pipes.adapters.from_torch.structure import PictureSlot
from dali_pipes.adapters.transforms.reading import NotConvertibleError, is_of
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.objects import NO_TARGETS, SECOND, TYPES, Targets
from dali_pipes.data.reader import Extent
from dali_pipes.data.sources.extents import read_extents
from dali_pipes.errors import ManifestError

_SHOWN = 5  # most files that an error lists
_LABEL_KEYS = ("label", "labels", "target", "targets")
_MOST_CLASSES = 100_000  # a larger number is no class


@dataclass(frozen=True, slots=True)
class DataSetSamples:
    """The samples in the data set's own order.

    Attributes:
        paths: the file of each sample, or the part of a file that it is.
        labels: class numbers; None: the samples have none.
        parts: the data sets that the samples come from, whose transforms must be alike.
        masks: the file of each sample's mask; empty: there are none.
        seconds: the file of each sample's second picture; empty: there are none.
        annotated: whether masks are those of "stored" or of "upright" images, as in `Targets`.
    """

    paths: Sequence[Place]
    labels: list[int] | None
    parts: list[Any] = field(default_factory=list)
    masks: Sequence[Place] = ()
    annotated: str = "stored"
    seconds: Sequence[Place] = ()

    def manifest(
        self, cache_dir: str | Path | None = None, since_ns: int | None = None
    ) -> Manifest:
        """Returns a manifest with one row per sample, whose id is the sample's index.

        Args:
            cache_dir: folder in which the scan of exactly these files is kept, and from which it is
                taken the next time.
            since_ns: when the data set began to be run; None: it was not run.

        Raises:
            NotConvertibleError: some files would be left out, or were written by the data set.
        """
        # the name of the saved scan holds a hash of exactly these files and labels;
        # surrogateescape, since a path need not be UTF-8
        of_masks = (*map(_describe, self.masks), self.annotated) if self.masks else ()
        of_seconds = ("second", *map(_describe, self.seconds)) if self.seconds else ()
        key = hashlib.sha256(
            "\0".join(
                chain(map(_describe, self.paths), map(str, self.labels or ()), of_masks, of_seconds)
            ).encode(errors="surrogateescape")
        )
        file = Path(cache_dir, f"from_torch-{key.hexdigest()[:16]}.arrow") if cache_dir else None
        is_kept = file is not None and file.exists()
        manifest = Manifest.load(file) if file and is_kept else self._scan()
        if since_ns and not is_kept:
            _refuse_written(manifest, since_ns)

        # a sample that is left out would shift the ids of all that come after it
        if problems := manifest.problems:
            shown = "".join(f"\n  {path}: {why}" for path, why in problems[:_SHOWN])
            more = f"\n  … and {len(problems) - _SHOWN:,} more" if len(problems) > _SHOWN else ""
            what = f"{len(problems):,} of {len(self.paths):,} images"
            instead = (
                "convert or remove them, and leave them out of the data set "
                f"(docs/inputs.md):{shown}{more}"
            )
            raise NotConvertibleError(what, "our decoders do not take them", instead)

        if self.seconds and not is_kept:
            manifest = self._with_seconds(manifest)
        if file and not is_kept:
            manifest.save(file)
        return manifest

    def _scan(self) -> Manifest:
        beside = *self.masks, *self.seconds
        if not all(isinstance(place, str) for place in (*self.paths, *beside)):
            if beside:
                raise NotConvertibleError(
                    "the data set",
                    "its images or masks are in files with others",
                    "write each to a file of its own, or to shards (docs/objects.md#tars)",
                )
            extents = [Extent(place) if isinstance(place, str) else place for place in self.paths]
            return Manifest.of(read_extents("the data set", extents, self.labels))

        # the table is in another folder, from which relative paths would be read
        columns: dict[str, Any] = {"path": [os.path.abspath(str(place)) for place in self.paths]}
        if self.labels is not None:
            columns["label"] = self.labels
        targets = NO_TARGETS
        if self.masks:
            columns["mask"] = [os.path.abspath(str(place)) for place in self.masks]
            targets = Targets(mask="mask", annotated=self.annotated)
        with tempfile.NamedTemporaryFile(suffix=".parquet") as table:
            pq.write_table(pa.table(columns), table.name)

            try:
                return Manifest.from_table(
                    table.name, with_labels=self.labels is not None, targets=targets
                )
            # the temporary file's name would tell the user nothing
            except ManifestError as error:
                problem = str(error).replace(f"{table.name}: ", "")
                raise NotConvertibleError(
                    "the data set", problem, "its samples must be images with class numbers from 0"
                ) from None

    def _with_seconds(self, manifest: Manifest) -> Manifest:
        """The samples, which are all usable, with their second pictures."""
        files = [os.path.abspath(str(place)) for place in self.seconds]
        named = [os.path.relpath(os.fsencode(file), os.fsencode(manifest.root)) for file in files]
        column = pa.array(named, TYPES["second"])
        images = manifest.images.map_tables(
            lambda table: table.append_column(SECOND, column[: len(table)])
        )
        return Manifest.of(images, is_logged=True)


def _refuse_written(manifest: Manifest, since_ns: int) -> None:
    """Refuses files that the data set writes while it makes a sample, such as one file that it
    writes anew for each sample.
    """
    # some archives give files times in the future
    times = manifest.samples["mtime_ns"].to_numpy()
    written = np.flatnonzero((times >= since_ns) & (times <= time.time_ns()))
    if len(written):
        raise NotConvertibleError(
            "the data set",
            f"{manifest.extent(int(written[0]))} was written while samples were made, so it may "
            "not hold this sample later",
            "write the images before (about 3 lines), and only open them in __getitem__",
        )


def _describe(place: Place) -> str:
    """A place as text that is another one for each place, and for each version of its file."""
    return place if isinstance(place, str) else repr(tuple(place))


def listed_samples(dataset: Any) -> DataSetSamples | None:
    """Returns the samples of a data set of torchvision or timm over a folder, in its order, from
    its own list; None: it has none, or does more than open these files and apply a transform.
    """
    # exact types, since a subclass may do anything
    if type(dataset) is Subset:
        whole = listed_samples(dataset.dataset)
        if whole is None or whole.labels is None:
            return None
        return DataSetSamples(
            [whole.paths[at] for at in dataset.indices],
            [whole.labels[at] for at in dataset.indices],
            whole.parts,
        )

    if type(dataset) is ConcatDataset:
        joined = DataSetSamples([], [])
        for part in map(listed_samples, dataset.datasets):
            if part is None:
                return None
            joined = DataSetSamples(
                [*joined.paths, *part.paths],
                (joined.labels or []) + (part.labels or []),
                joined.parts + part.parts,
            )
        return joined

    pairs = _timm_samples(dataset) if is_of(dataset, "timm.data") else _folder_samples(dataset)
    numbers = (int, np.int64)  # default_collate makes int64 of these
    plain = all(
        isinstance(path, (str, Path)) and type(label) in numbers and label >= 0
        for path, label in pairs
    )
    if not pairs or not plain:
        return None
    return DataSetSamples(
        [str(path) for path, _ in pairs], [int(label) for _, label in pairs], [dataset]
    )


def _folder_samples(dataset: Any) -> list[tuple[str, int]]:
    """Returns (path, label) of torchvision's DatasetFolder, and of what behaves like it."""
    from torchvision.datasets import DatasetFolder, folder

    samples: Any = getattr(dataset, "samples", None)
    # a subclass is fine as long as it changes nothing in how samples are made
    own = any(
        getattr(type(dataset), method, None) is not getattr(DatasetFolder, method, None)
        for method in ("__getitem__", "__getitems__", "__len__")
    )
    if own or not isinstance(samples, list) or getattr(dataset, "target_transform", None):
        return []
    return samples if dataset.loader in (folder.default_loader, folder.pil_loader) else []


def _timm_samples(dataset: Any) -> list[tuple[str, int]]:
    """Returns (path, label) of timm's ImageDataset over a folder."""
    from timm.data.dataset import ImageDataset
    from timm.data.readers.reader_image_folder import ReaderImageFolder

    if type(dataset) is not ImageDataset or type(dataset.reader) is not ReaderImageFolder:
        return []
    # with other options a sample is something else than an image in RGB and a class number
    plain = (
        dataset.input_img_mode == "RGB"
        and not dataset.load_bytes
        and dataset.additional_features is None
        and dataset.target_transform is None
    )
    return dataset.reader.samples if plain else []


def skeletons_of(first: Any, listed: DataSetSamples) -> list[Any]:
    """The skeletons of listed samples: they are like the first one, each with its own label.

    Raises:
        NotConvertibleError: the label of the first one is not the one in the list.
    """
    labels = listed.labels or []
    pair = isinstance(first, tuple) and len(first) == 2
    if not pair or _label_in(first) != labels[0]:
        raise NotConvertibleError(
            "the data set",
            "its samples are not pictures with the labels that it lists",
            "give it a __getitem__ that returns them",
        )
    return [(first[0], label) for label in labels]


def labels_in(skeletons: Sequence[Any]) -> list[int] | None:
    """Returns the class number of each sample, which is the second value of a tuple or is under a
    usual key; None: some sample has none.
    """
    numbers = list(map(_label_in, skeletons))
    if any(each is None or not 0 <= each < _MOST_CLASSES for each in numbers):
        return None
    return [each for each in numbers if each is not None]


def _label_in(skeleton: Any) -> int | None:
    value = None
    if isinstance(skeleton, (tuple, list)) and len(skeleton) > 1:
        value = skeleton[1]
    elif isinstance(skeleton, dict):
        value = next((skeleton[key] for key in _LABEL_KEYS if key in skeleton), None)

    if isinstance(value, torch.Tensor) and value.ndim == 0 and not value.is_floating_point():
        return int(value)
    # True and False are ints in Python
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    return None


def are_pairs(skeletons: Sequence[Any]) -> bool:
    """Whether default_collate turns samples with these skeletons into a list of images and int64
    labels, which is what our own batches have.
    """
    return all(
        type(each) in (tuple, list)
        and len(each) == 2
        and isinstance(each[0], PictureSlot)
        and (
            type(each[1]) in (int, np.int64)
            or (
                isinstance(each[1], torch.Tensor)
                and each[1].ndim == 0
                and each[1].dtype == torch.int64
            )
        )
        for each in skeletons
    )
