"""`Manifest`: one row for each image of a data set, from whatever describes the set.

- `open` takes any source, as `scan` (folders, shards), `from_table`, `from_coco` or `load` do one
  kind. `from_masks` takes a folder of images and one of masks, and `from_hf` a data set of Hugging
  Face's `datasets`. All take the options of `SourceOptions`; the readers of sources/ do the work.
- `save`, `load` and `save_index` keep a manifest in a file or beside the images.
- `subset`, `filter` and `split` choose samples, `concat` and `mix` join manifests, and
  `map_classes` and `with_classes` change classes. Each returns a new manifest (sets/).

What is known of each image is in image_table.py, where its bytes are in places.py, and what is
known of all in facts.py.
"""

import inspect
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.checks import LARGEST_SEED, check_choice, check_names, describe_value
from dali_pipes.data.composed import composed
from dali_pipes.data.doubts import doubt
from dali_pipes.data.expression import Rows
from dali_pipes.data.facts import MODES, Mix
from dali_pipes.data.image_files.headers import PIXEL_LIMIT
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.mask_values import MaskValues
from dali_pipes.data.objects import TARGET, Targets
from dali_pipes.data.omissions import describe
from dali_pipes.data.own_columns import COLUMN
from dali_pipes.data.sets import choosing, joining
from dali_pipes.data.sets.classes import give_classes, renumber
from dali_pipes.data.sets.same_images import number_files
from dali_pipes.data.sources.coco.reader import read_coco
from dali_pipes.data.sources.hugging_face_sets import read_dataset
from dali_pipes.data.sources.index import write_index
from dali_pipes.data.sources.masks import read_masks
from dali_pipes.data.sources.opening import open_source
from dali_pipes.data.sources.options import KINDS, SourceOptions, check_column, taken_by
from dali_pipes.data.sources.scans import read_images
from dali_pipes.data.sources.tables import read_table
from dali_pipes.data.table import saved
from dali_pipes.data.table.schema import further_columns
from dali_pipes.errors import ConfigError, OptionError
from dali_pipes.options import check_arguments, propose_name

M = TypeVar("M", bound="Manifest")
P = ParamSpec("P")
S = TypeVar("S")

log = logging.getLogger(__name__)


def _reader(
    name: str,
    read: Callable[[S, SourceOptions], ImageTable],
    options_of: Callable[P, SourceOptions],
    kinds: Collection[str] = tuple(KINDS),
    others: Collection[str] = (),
) -> "classmethod[Manifest, Concatenate[S, P], Manifest]":
    """A class method that reads a source, which `read` describes.

    Args:
        options_of: makes the options of the method's arguments besides the source. It has names of
            its own for `others` of `SourceOptions`.
        kinds: of source; the method has the options that one of them takes.
    """

    @wraps(read)
    def call(*args: Any, **options: Any) -> "Manifest":
        try:
            given = signature.bind(*args, **options).arguments
        except TypeError as error:  # with the name that the user has called
            raise TypeError(f"Manifest.{name}(): {error}") from None

        cls, source = given.pop("cls"), given.pop("source")
        try:
            asked = cast(Callable[..., SourceOptions], options_of)(**given)
        except OptionError as error:
            # here it is an argument of this method
            raise ConfigError(*error.parts) from None

        manifest: Manifest = cls.of(read(source, asked))
        manifest.tell_omissions()
        return manifest

    # help() and inspect show the options by their names, and `check_arguments` goes by them
    cls = inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)
    own = [cls, *list(inspect.signature(read).parameters.values())[:1]]
    if options_of is not SourceOptions:
        own += inspect.signature(options_of).parameters.values()
    names = {each.name for each in own} | set(others)
    own += [
        each
        for option, each in inspect.signature(SourceOptions).parameters.items()
        if option not in names and not taken_by(option).isdisjoint(kinds)
    ]
    parameters = [each for each in own if each.kind is not inspect.Parameter.VAR_KEYWORD]
    signature = inspect.Signature(parameters, return_annotation=Self)
    vars(call)["__signature__"] = signature
    call.__name__, call.__qualname__, call.__module__ = name, f"Manifest.{name}", __name__
    checked = check_arguments(workers=(1, 2**12), max_pixels=(1, PIXEL_LIMIT))(call)
    return cast(Any, classmethod(checked))


# Where a method has names or defaults of its own for an option, or for fields of `targets`.
def _of_scan(*, unchanged: str = "file", **options: Any) -> SourceOptions:
    return SourceOptions(unchanged=unchanged, **options)


def _of_table(*, root: str | Path | None = None, **options: Any) -> SourceOptions:
    return SourceOptions(images=root, **options)


def _of_coco(
    *,
    root: str | Path | None = None,
    bad_objects: str = "drop",
    flip_pairs: Sequence[Sequence[str]] | None = None,
    annotated: str | None = None,
    **options: Any,
) -> SourceOptions:
    targets = Targets(bad_objects=bad_objects, flip_pairs=flip_pairs, annotated=annotated)
    return SourceOptions(images=root, targets=targets, **options)


def _of_masks(
    masks: str | Path,
    *,
    mask_values: Mapping[int, int] | None = None,
    annotated: str | None = None,
    **options: Any,
) -> SourceOptions:
    targets = Targets(mask_values=mask_values, annotated=annotated)
    return SourceOptions(masks=masks, targets=targets, **options)


def _of_dataset(
    *, image: str | None = None, label: str | None = None, **options: Any
) -> SourceOptions:
    for name, column in (("image", image), ("label", label)):
        if column is not None:
            check_column(name, column)
    if image is not None and image == label:
        raise ConfigError(f"image and label are both {image!r}; name two columns")
    named = {"path_column": image, "label_column": label}
    options |= {name: value for name, value in named.items() if value is not None}
    return SourceOptions(**options)


@dataclass(frozen=True, eq=False, repr=False)
class Manifest(ImageTable):
    """The images of one data set, in the order of torchvision's ImageFolder or of the shards.

    Sample ids number the usable images from 0. An image with a problem has no id and is never
    loaded. `from_rows` makes a manifest of an Arrow table.

    Attributes:
        is_told: whether what is left out of the images has been logged (`tell_omissions`).
    """

    is_told: bool = False

    @classmethod
    @check_arguments()
    def of(cls, images: ImageTable, *, is_told: bool = False) -> Self:
        """A manifest of the images that a reader of sources/ has read."""
        manifest = cls.__new__(cls)
        # with the values that the images have computed
        vars(manifest).update(vars(images), is_told=is_told)
        return manifest

    # Each kind of source has a file in sources/, which describes it.
    open = _reader("open", open_source, SourceOptions)
    scan = _reader("scan", read_images, _of_scan, ["images"])
    from_table = _reader("from_table", read_table, _of_table, ["csv", "parquet"], ["images"])
    from_coco = _reader("from_coco", read_coco, _of_coco, ["coco"], ["images", "targets"])
    from_masks = _reader("from_masks", read_masks, _of_masks, ["masks"], ["targets"])
    from_hf = _reader(
        "from_hf", read_dataset, _of_dataset, ["dataset"], ["path_column", "label_column"]
    )

    @classmethod
    @check_arguments()
    def load(cls, file: str | Path) -> Self:
        """Opens a manifest that `save` wrote.

        The file is data: nothing in it is ever executed.

        An Arrow file is mapped, not read: opening takes no longer for many images than for few, and
        all processes of a machine share its pages. Rows are checked as they are taken out; `verify`
        checks all of them. A Parquet file is read and checked at once, by each process.

        Raises:
            ManifestError: the file is missing, damaged, or not a manifest; or an earlier version
                wrote it, and a scan has other classes now, or turns its TIFFs.
        """
        return cls.of(saved.load(file))

    def with_classes(self, classes: Sequence[str]) -> Self:
        """The same samples with these classes, such as the training images', and their numbers.

        Raises:
            ManifestError: an image has a class that is none of them.
        """
        return give_classes(self, classes)

    @check_arguments()
    def save(self, file: str | Path) -> None:
        """Writes the manifest, completely or not at all.

        NAME.arrow is for `load` to map; any other name is written as Parquet, which is smaller.

        Raises:
            ManifestError: a file of that name exists and is not a manifest; it is left unchanged.
        """
        saved.save(self, file)

    def save_index(self) -> str:
        """Writes index.arrow beside the images, such as in their bucket; returns its path or URL.

        `open` finds it there, for those who ask for the options that these images were read
        with, such as targets, or for none.

        Raises:
            ManifestError: it cannot be written there, or would hold no image.
        """
        return write_index(self)

    def verify(self) -> None:
        """Reads all of a mapped file, and checks what `load` does not check.

        Raises:
            ManifestError: its rows cannot be of images, or do not have its fingerprint.
        """
        saved.verify(self)

    @check_arguments()
    def tell_omissions(self, strict: bool = False) -> None:
        """Logs in one line what is left out of how many and what is in doubt, once for each
        manifest.

        Args:
            strict: whether an image or an object that is left out or in doubt is an error.

        Raises:
            OmissionError: `strict`, and something is left out or in doubt.
        """
        if strict:
            self.refuse_omissions()

        # the first rank of each machine logs it for all
        if self.is_told or int(os.environ.get("LOCAL_RANK", 0)):
            return

        # the class is frozen, and this is nothing of its images
        vars(self)["is_told"] = True
        if self.omissions:
            # files that nobody takes for images are no reason for a warning
            lost = any(not omission.is_allowed for omission in self.omissions)
            text = describe(self.root, len(self), self.omissions)
            log.log(logging.WARNING if lost else logging.INFO, "%s", text)

    def __repr__(self) -> str:
        return (
            f"Manifest({str(self.root)!r}: {len(self):,} images, {len(self.classes):,} "
            f"classes, {len(self.problems):,} problems)"
        )

    def without_columns(self, names: Sequence[str]) -> Self:
        """The same samples without some columns of the table, or the targets "text" and "mask".

        Raises:
            ConfigError: there is no such column.
        """
        wanted = check_names("names", names, "names of columns")
        every = [
            name.partition(":")[2]
            for name in further_columns(self.rows.whole)
            if name not in (TARGET + "mask_offset", TARGET + "mask_bytes")
        ]
        if self.has_target("mask_bytes"):
            every.append("mask")
        # accents may be written in two ways
        known = {composed(name): name for name in every}
        names = [known.get(name, name) for name in wanted]
        if unknown := [name for name in wanted if name not in known]:
            raise ConfigError(
                f"there is no column {unknown[0]!r} to leave out among "
                f"{', '.join(known) or 'none'}{propose_name(unknown[0], known)}"
            )
        targets = [
            TARGET + name
            for name in ("text", "mask", "mask_offset", "mask_bytes")
            # a mask that is in a shard has its place in two more columns
            if name.split("_")[0] in names
        ]
        left_out = {*targets, *(COLUMN + name for name in names)}
        changed = self.map_tables(
            lambda table: table.drop_columns(
                [name for name in table.column_names if name in left_out]
            )
        )

        # an index with these rows would not be what its options say
        changed = changed.with_facts(reading={})
        return changed.with_facts(mask_values=MaskValues({}, False)) if "mask" in names else changed

    def subset(self, ids: NDArray[np.int64]) -> Self:
        """A manifest of these samples only, numbered anew in the given order.

        Raises:
            ConfigError: there is no such id, or these are not ids.
        """
        # lists, ranges and tensors are taken too
        ids = np.asarray(ids)
        if ids.ndim != 1:
            raise ConfigError(
                f"subset takes a list of sample ids, not {ids.ndim} dimensions; of one image "
                "manifest.subset([ID])"
            )

        if ids.dtype.kind not in "iu" and ids.size:
            raise ConfigError(
                f"subset takes sample ids, not {ids.dtype}; of a mask np.flatnonzero makes ids"
            )

        ids = ids.astype(np.int64)
        if ids.size and not (ids.min() >= 0 and ids.max() < len(self)):
            raise ConfigError(
                f"subset: ids run from 0 to {len(self) - 1}, and one is "
                f"{ids.min() if ids.min() < 0 else ids.max()}"
            )
        return self.select(ids)

    def filter(self, expression: str) -> Self:
        """The samples that match an expression such as "width >= 224 and class in ('cat', 'dog')".

        docs/targets.md describes the form.

        Columns are the table's own, and each image's label, height, width, bytes, orientation,
        format, path and member.

        Raises:
            ConfigError: it is no such expression, or there is no such column.
        """
        if not isinstance(expression, str):
            raise ConfigError(
                f"filter is {describe_value(expression)}; it takes an expression as text, such as "
                "'width >= 224'"
            )
        matches = self._cells.match(expression).to_numpy(zero_copy_only=False)
        return choosing.choose(self, np.flatnonzero(matches))

    @check_arguments(seed=(0, LARGEST_SEED))
    def split(
        self,
        fractions: Mapping[str, float],
        *,
        by: str | None = None,
        stratify: str | None = None,
        seed: int = 0,
    ) -> dict[str, Self]:
        """Divides the samples into parts at random; each part keeps the order of the ids.

        Samples of the same file stay in one part.

        Args:
            fractions: name and share of each part, such as {"train": 0.9, "val": 0.1}.
            by: a column whose equal values stay in one part, such as a patient; the sizes are then
                as near to the shares as they can be. A part may then lack classes, which is said.
            stratify: a column, such as "label", of whose every value each part gets its share.
            seed: the same seed gives the same parts, on any machine.

        Raises:
            ConfigError: the fractions are not shares of 1, there is no such column, or `by` and
                `stratify` are both given.
        """
        if by is not None and stratify is not None:
            raise ConfigError("split takes by or stratify, not both; leave out one")
        if stratify is not None:
            column = self._cells.column(stratify)
            if pa.types.is_floating(column.type):
                raise ConfigError("stratify is a column of fractions; name one with few values")
            strata = choosing.group_numbers("stratify", column)
            files = number_files(self)
            chosen = choosing.choose_of_strata(fractions, files, strata, seed)
        elif by is not None:
            groups = choosing.group_numbers("by", self._cells.column(by))
            chosen = choosing.choose_parts(fractions, groups, seed)
        else:
            chosen = choosing.choose_parts(fractions, number_files(self), seed)

        parts = {name: choosing.choose(self, ids) for name, ids in chosen.items()}
        lacking = choosing.find_lacking(self, chosen) if by is not None else {}
        for name, classes in lacking.items():
            parts[name] = parts[name]._doubt_classes(classes, str(by))
        return parts

    def _doubt_classes(self, lacking: list[str], by: str) -> Self:
        """Says that a part has no image of these classes, since `by` keeps images together."""
        # a patient may have one disease; but who names the labels wants each part to have them all
        is_label = by in ("label", "class")
        what = f"classes that other parts have and this one lacks, since by={by!r} keeps " + (
            "each class in one part; stratify='label' gives each part its share of every class"
            if is_label
            else f"each value of {by} in one part"
        )
        found = doubt(what, lacking, len(lacking), "doubt" if is_label else "note")
        log.log(
            logging.WARNING if is_label else logging.INFO,
            "%s",
            describe(self.root, len(self), [found]),
        )
        return replace(self.with_facts(doubts=[found]), is_told=True)

    @classmethod
    def concat(cls, manifests: Sequence[Self], *, classes: str = "join") -> Self:
        """Joins manifests: their samples one after the other, under the nearest common folder.

        Args:
            classes: "join" makes classes of the same name one; "apart" keeps the classes of each,
                in the order of `manifests`.

        Raises:
            ManifestError: some are in another store, or labels, columns or targets mean different
                things.
        """
        check_choice("classes", classes, ("join", "apart"))
        manifests = _check_manifests(manifests)

        images = joining.concat(manifests, classes == "apart")
        told = [
            {doubt.kind for doubt in each.facts.doubts or ()} for each in manifests if each.is_told
        ]
        found = {doubt.kind for doubt in images.facts.doubts or ()}
        # unless it is only found where they are together, as an image that is in two of them
        is_told = len(told) == len(manifests) and found <= set().union(*told)
        return cls.of(images, is_told=is_told)

    @classmethod
    def mix(
        cls,
        sources: Mapping[str, tuple[Self, float]],
        *,
        mode: str = "stratified",
        classes: str = "join",
    ) -> Self:
        """Joins sources as `concat` does, to be drawn by shares.

        Each source has its own epochs and its own order. The manifest gets a column `source` with
        the number of each sample's source.

        Args:
            sources: the images and their share by name, such as {"imagenet": (imagenet, 0.7),
                "mine": (mine, 0.3)}.
            mode: "stratified": every global batch has the shares, rounded up or down, in a random
                order; "proportional": they vary from batch to batch, and hold over 4,096 samples.
            classes: as for `concat`.

        Raises:
            ConfigError: the shares are not positive numbers.
            ManifestError: as for `concat`; or there is a column `source` already.
        """
        check_choice("mode", mode, MODES)

        # first, since it refuses what is no mapping to pairs, which are unpacked below
        shares = joining.read_shares(sources)

        # the column `source` says which images a share is of
        numbered = [
            manifest.map_tables(partial(joining.add_source, number=number))
            for number, (manifest, _) in enumerate(sources.values())
        ]
        joined = cls.concat(numbered, classes=classes)
        return joined.with_facts(mixture=Mix(mode, shares))

    def map_classes(self, names: Mapping[str, str]) -> Self:
        """Renames classes; classes that get the same name become one, and others keep their names.

        Raises:
            ConfigError: there is no class of a name that is given, or the names are no mapping.
        """
        pairs = names.items() if isinstance(names, Mapping) else [(None, None)]
        if not all(isinstance(name, str) for pair in pairs for name in pair):
            raise ConfigError(
                f"names is {describe_value(names)}; it takes old and new names, such as "
                '{"tabby cat": "cat"}'
            )
        names = {composed(name): new for name, new in names.items()}
        for name in names:
            self._cells.class_numbers(name)  # raises for a class that there is not
        # names that are equal now become one class, as those of two sets that are joined
        merged, numbers = joining.join_classes(
            [[names.get(composed(name), name) for name in self.classes]], False
        )
        return renumber(self, numbers[0], merged)

    @property
    def _cells(self) -> Rows:
        return Rows(self.rows, self.classes)

    @property
    def category_ids(self) -> list[Any] | None:
        """The id of each class in its COCO file; None where that is not known.

        In the list, a class that is not in the file has None.
        """
        return self.facts.category_ids

    @property
    def samples(self) -> pa.Table:
        """The usable images by id, which are `table` without the others."""
        return self.rows.table()


def _check_manifests(manifests: Iterable[M]) -> list[M]:
    """The manifests that are to be joined, one at least.

    Raises:
        ConfigError: they are something else.
    """
    other: Any = manifests
    # texts and mappings can be iterated too, but hold no manifests
    if isinstance(manifests, Iterable) and not isinstance(manifests, (str, Mapping)):
        manifests = list(manifests)
        other = next((value for value in manifests if not isinstance(value, Manifest)), None)
    if other is not None:
        raise ConfigError(
            f"concat is given {describe_value(other)}; it takes a list of manifests: "
            "Manifest.concat([one, other])"
        )

    if not manifests:
        raise ConfigError("concat joins at least one manifest, and there is none")
    return list(manifests)
