"""The same samples without some of their columns."""

from collections.abc import Sequence

from dali_pipes.checks import check_names
from dali_pipes.data.composed import composed
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.mask_values import MaskValues
from dali_pipes.data.objects import TARGET
from dali_pipes.data.own_columns import COLUMN
from dali_pipes.data.table.schema import further_columns
from dali_pipes.errors import ConfigError
from dali_pipes.options import propose_name


def drop_columns(images: ImageTable, names: Sequence[str]) -> ImageTable:
    """The same samples without some columns of their table, or the targets "text" and "mask".

    Raises:
        ConfigError: there is no such column.
    """
    wanted = check_names("names", names, "names of columns")
    every = [
        name.partition(":")[2]
        for name in further_columns(images.samples.whole)
        if name not in (TARGET + "mask_offset", TARGET + "mask_bytes")
    ]
    if images.has_target("mask_bytes"):
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
    changed = images.map_tables(
        lambda table: table.drop_columns([name for name in table.column_names if name in left_out])
    )

    # an index with these rows would not be what its options say
    changed = changed.with_facts(reading={})
    return changed.with_facts(mask_values=MaskValues({}, False)) if "mask" in names else changed
