"""Reads the files and labels of a live data set.

`read_samples` takes them from the data set's own lists, without opening an image;
`DataSetSamples.manifest` then scans the files.
"""

import hashlib
import os
import tempfile
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import ConcatDataset, Subset

from dali_pipes.adapters.from_torch.reading import NotConvertibleError, is_of, refuse_unless
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ManifestError

_SHOWN = 5  # most files that an error lists


@dataclass(frozen=True, slots=True)
class DataSetSamples:
    """The samples in the data set's own order.

    Attributes:
        parts: the data sets that they are from, whose transforms must be alike.
    """

    paths: list[str]
    labels: list[int]
    parts: list[Any] = field(default_factory=list)

    def manifest(self, cache_dir: str | Path | None = None) -> Manifest:
        """Returns a manifest with one row per sample, whose id is the sample's index.

        Args:
            cache_dir: folder in which the scan of exactly these files is kept, and from which it is
                taken the next time.

        Raises:
            NotConvertibleError: some files would be left out.
        """
        # surrogateescape: a path need not be UTF-8
        key = hashlib.sha256(
            "\0".join(chain(self.paths, map(str, self.labels))).encode(errors="surrogateescape")
        )
        file = Path(cache_dir, f"from_torch-{key.hexdigest()[:16]}.arrow") if cache_dir else None
        manifest = Manifest.load(file) if file and file.exists() else self._scan()

        if problems := manifest.problems:
            shown = "".join(f"\n  {path}: {why}" for path, why in problems[:_SHOWN])
            more = f"\n  … and {len(problems) - _SHOWN:,} more" if len(problems) > _SHOWN else ""
            what = f"{len(problems):,} of {len(self.paths):,} images"
            instead = (
                "convert or remove them, and leave them out of the data set "
                f"(docs/inputs.md):{shown}{more}"
            )
            raise NotConvertibleError(what, "our decoders do not take them", instead)

        if file and not file.exists():
            manifest.save(file)
        return manifest

    def _scan(self) -> Manifest:
        with tempfile.NamedTemporaryFile(suffix=".parquet") as table:
            pq.write_table(
                pa.table({"path": list(map(os.path.abspath, self.paths)), "label": self.labels}),
                table.name,
            )

            try:
                return Manifest.from_table(table.name)
            except ManifestError as error:
                problem = str(error).replace(f"{table.name}: ", "")
                raise NotConvertibleError(
                    "the data set", problem, "its samples must be images with class numbers from 0"
                ) from None


def read_samples(dataset: Any) -> DataSetSamples:
    """Returns the samples of a data set, in its order.

    Raises:
        NotConvertibleError: it does more than open image files and apply a transform.
    """
    # exact types, since a subclass may do anything
    if type(dataset) is Subset:
        whole = read_samples(dataset.dataset)
        return DataSetSamples(
            [whole.paths[at] for at in dataset.indices],
            [whole.labels[at] for at in dataset.indices],
            whole.parts,
        )

    if type(dataset) is ConcatDataset:
        joined = DataSetSamples([], [])
        for part in map(read_samples, dataset.datasets):
            joined = DataSetSamples(
                joined.paths + part.paths, joined.labels + part.labels, joined.parts + part.parts
            )
        return joined

    pairs = _timm_samples(dataset) if is_of(dataset, "timm.data") else _folder_samples(dataset)
    numbers = (int, np.int64)  # default_collate makes int64 of these
    plain = all(isinstance(path, (str, Path)) and type(label) in numbers for path, label in pairs)
    refuse_unless(
        pairs and plain,
        _name(dataset),
        "its samples are not paths with class numbers",
        "use build_loader with a table",
    )
    return DataSetSamples(
        [str(path) for path, _ in pairs], [int(label) for _, label in pairs], [dataset]
    )


def _name(dataset: Any) -> str:
    return f"the data set {type(dataset).__name__}"


def _folder_samples(dataset: Any) -> list[tuple[str, int]]:
    """Returns (path, label) of torchvision's DatasetFolder, and of what behaves like it."""
    from torchvision.datasets import DatasetFolder, folder

    name, table = (
        _name(dataset),
        ("write its paths and labels to a table, and use Manifest.from_table and build_loader"),
    )

    samples: Any = getattr(dataset, "samples", None)
    refuse_unless(
        isinstance(samples, list), name, "it has no list of samples, paths with labels", table
    )
    # a subclass is fine as long as it changes nothing in how samples are made
    for method in ("__getitem__", "__getitems__", "__len__"):
        own = getattr(type(dataset), method, None) is not getattr(DatasetFolder, method, None)
        refuse_unless(not own, name, f"it has a {method} of its own, which may do anything", table)

    plain = dataset.loader in (folder.default_loader, folder.pil_loader)
    refuse_unless(
        plain,
        name,
        f"it opens files with {getattr(dataset.loader, '__qualname__', dataset.loader)}",
        table,
    )
    _refuse_target_transform(dataset)
    return samples


def _timm_samples(dataset: Any) -> list[tuple[str, int]]:
    """Returns (path, label) of timm's ImageDataset over a folder."""
    from timm.data.dataset import ImageDataset
    from timm.data.readers.reader_image_folder import ReaderImageFolder

    folder = type(dataset) is ImageDataset and type(dataset.reader) is ReaderImageFolder
    refuse_unless(
        folder,
        _name(dataset),
        "only timm's ImageDataset over a folder can be read",
        "use build_loader with a Manifest",
    )

    plain = (
        dataset.input_img_mode == "RGB"
        and not dataset.load_bytes
        and dataset.additional_features is None
    )
    refuse_unless(
        plain,
        _name(dataset),
        "it yields other than RGB images with a label",
        "use build_loader with a Manifest",
    )
    _refuse_target_transform(dataset)
    return dataset.reader.samples


def _refuse_target_transform(dataset: Any) -> None:
    given = getattr(dataset, "target_transform", None)
    refuse_unless(
        given is None,
        "target_transform",
        "it may do anything to a label",
        "apply it to the batch's labels in your loop",
    )
