"""`ImagePlaces`: where the encoded bytes of each sample are."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_int
from dali_pipes.data.reader import Extent, Reader
from dali_pipes.data.shards.copies import copy_of
from dali_pipes.data.shards.parquet import has_groups
from dali_pipes.data.table.samples import Samples, Shards, number_shards
from dali_pipes.errors import ManifestError

# the columns of an `Extent`, in its order
_PLACE = ("offset", "bytes", "file_bytes", "mtime_ns")
_Numbers = NDArray[np.int64] | int


@dataclass(frozen=True, eq=False, repr=False)
class ImagePlaces:
    """The files of one data set, and where in them its samples are.

    Attributes:
        root: folder that the paths are relative to, or the URL of one, as text.
        rows: those of the usable images, by id.
    """

    root: Path | str
    rows: Samples

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def whole_files(self) -> bool:
        """Whether each image is a separate file on this machine."""
        return not self.is_fetched and self.rows.all_empty("member")

    @cached_property
    def shards(self) -> Shards:
        """The files that samples are in; made when it is first asked for."""
        return number_shards(self.rows, self.root)

    @cached_property
    def is_fetched(self) -> bool:
        """Whether images come from an object store."""
        # `absolute` keeps a URL as text, and makes a Path of a folder
        return isinstance(self.root, str)

    @cached_property
    def copied(self) -> bool:
        """Whether some images are read from copies of their files in the local cache."""
        if self.rows.all_empty("member"):
            return False
        # sets that were joined may have other kinds of files than the first sample's
        return self.is_fetched or has_groups(self.rows.column("path"))

    def path(self, sample_id: int) -> Path:
        """The file of one sample, or the shard that holds it.

        For a remote shard it is the local copy, which may not exist yet.
        """
        if isinstance(self.root, str):
            extent = self.extent(sample_id)
            return copy_of(extent.file, extent.stamp)
        return self.root / os.fsdecode(self.rows.text("path", self._row(sample_id)))

    def extent(self, sample_id: int) -> Extent:
        """The place of one sample's encoded bytes.

        Raises:
            ManifestError: the manifest names a path outside the root, or bytes outside the shard.
        """
        sample_id = self._row(sample_id)
        file = self._file(self.rows.text("path", sample_id))
        # `whole_files` is computed once, and saves looking up the name of each member
        if not (member := b"" if self.whole_files else self.rows.text("member", sample_id)):
            return Extent(file)

        offset, length, *stamp = (self.rows.number(name, sample_id) for name in _PLACE)
        # the rows of a mapped file are checked only as they are taken
        self._check_inside(offset, length, stamp[0])
        return Extent(file, os.fsdecode(member), offset, length, (stamp[0], stamp[1]))

    def name(self, sample_id: int) -> str:
        """The name of one sample in messages: its file, or SHARD/MEMBER."""
        return str(self.extent(sample_id))

    def relative_name(self, sample_id: int) -> str:
        """`name` without the root."""
        row = self._row(sample_id)
        path, member = (self.rows.text(name, row) for name in ("path", "member"))
        return os.fsdecode(path + b"/" + member if member else path)

    def read(self, sample_id: int) -> NDArray[np.uint8]:
        """Reads one sample's encoded bytes; to read many, use a `Reader`, which keeps shards open.

        Raises:
            OSError: they cannot be read, or the shard is not the one that was scanned.
        """
        return Reader(keep=1).read(self.extent(sample_id))

    def path_matrix(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """(N, L) uint8 absolute paths, padded with zeros, for DALI's `fn.io.file.read`.

        The images must be whole files.
        """
        prefix = os.path.join(os.fsencode(self.root), b"")
        matrix = self.rows.matrix("path", ids, prefix)
        # a path that begins with / would lead out of the root
        if matrix.shape[1] > len(prefix) and (matrix[:, len(prefix)] == ord("/")).any():
            raise self._strange_path()

        return matrix

    def _row(self, sample_id: int) -> int:
        """Returns the id if there is such a sample.

        It is called for every image, so the quick check comes first.
        """
        if type(sample_id) in (int, np.int64) and 0 <= sample_id < len(self):
            return sample_id
        return check_int("sample_id", sample_id, 0, len(self) - 1)

    def _file(self, path: bytes) -> str:
        # os.path.join would drop the root before an absolute path
        if path.startswith(b"/") or b"\0" in path:
            raise self._strange_path()
        return os.path.join(self.root, os.fsdecode(path))

    def check_places(self) -> None:
        """Checks the places of all samples.

        Raises:
            ManifestError: a path leads out of the root, or bytes are outside their shard.
        """
        for ids in self.rows.blocks():
            paths, lengths = self.rows.values("path", ids)
            # no NUL byte, and no path that begins with /, which would lead out of the root
            if (
                not paths.all()
                or (paths[(lengths.cumsum() - lengths)[lengths > 0]] == ord("/")).any()
            ):
                raise self._strange_path()

            packed = ids[self.rows.lengths("member", ids) > 0]
            offset, length, file_bytes, _ = (self.rows.numbers(name, packed) for name in _PLACE)
            self._check_inside(offset, length, file_bytes)

    def _check_inside(self, offset: _Numbers, length: _Numbers, file_bytes: _Numbers) -> None:
        # subtracted, since the sum of two numbers of a damaged manifest may be beyond int64
        negative = (offset < 0) | (length < 0) | (file_bytes < 0)
        if np.any(negative | (offset > file_bytes - length)):
            raise ManifestError(
                f"{self.root}: the manifest has images that reach beyond their shard; scan the "
                "images again"
            )

    def _strange_path(self) -> ManifestError:
        return ManifestError(
            f"{self.root}: the manifest has a path that is absolute or has a NUL byte; scan "
            "the images again"
        )
