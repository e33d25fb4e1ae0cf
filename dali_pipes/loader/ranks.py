"""Checks that all ranks of a run load the same images in the same way.

`build_loader` calls `compare_ranks`, which leaves a description of the loader in the store of
torch.distributed's process group, and compares it with those that other ranks have left there.
"""

import json
import logging
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from dali_pipes.errors import ConfigError
from dali_pipes.loader.resume import iter_changes
from dali_pipes.plan.plan import Plan, Rank

log = logging.getLogger(__name__)

# Most images of a data set: how many of their names have one checksum. Checksums tell where the
# ranks' images differ; larger data sets have none.
_BLOCKS = {4096: 1, 1_000_000: 256}
_GROUPS, _LOADERS = "dali_pipes/groups", "dali_pipes/loaders"  # keys in a group's store


@dataclass
class _Group:
    """A process group, as this rank knows it.

    Attributes:
        number: from 0, of the groups that its store has served.
        compared: how many loaders of this rank were compared in it.
    """

    number: int
    compared: int = 0


_groups: WeakKeyDictionary[Any, _Group] = WeakKeyDictionary()  # by their stores


def choose_rank(rank: Rank | None) -> Rank:
    """Returns the rank that was asked for, or one that loads all images, with a warning if several
    ranks were started.
    """
    if rank is not None:
        return rank

    started, mine = Rank.from_env().count, "Rank.from_env()"
    # torch.multiprocessing and Lightning set no variables that say which rank this is
    if started == 1 and dist.is_available() and dist.is_initialized():
        started, mine = dist.get_world_size(), "Rank(dist.get_rank(), dist.get_world_size())"
    if started > 1:
        log.warning(
            "%d ranks were started, and this loader was given none: each of them loads all "
            "images; for a part each, pass rank=dali_pipes.%s; for all on purpose, as to "
            "validate on one rank, rank=dali_pipes.Rank()",
            started,
            mine,
        )
    return Rank()


def compare_ranks(plan: Plan, options: dict[str, Any]) -> None:
    """Compares a loader with that of other ranks, if it has as many ranks as the process group.

    Loaders are counted on each rank: the first one of a rank is compared with the first ones of the
    others, and so on. So ranks build them in the same order, and one rank may build more than
    another at the end. A loader with `Rank()` is not counted.

    The first rank to come leaves in the group's store what it loads, and the others compare. No
    rank waits for another: one that builds a loader for itself alone does not hang, and if two
    ranks differ, the later one raises, which ends the run.

    Args:
        options: what decides the order of the samples and their pixels, as in a loader's state.

    Raises:
        ConfigError: this rank loads other images than another one, or in another way.
    """
    count = plan.rank.count
    if (
        count == 1
        or not dist.is_available()
        or not dist.is_initialized()
        or dist.get_world_size() != count
    ):
        return

    block = next((block for most, block in _BLOCKS.items() if len(plan.manifest) <= most), 0)
    description = {
        "rank": plan.rank.index,
        "images": len(plan.manifest),
        "steps": plan.steps,
        "block": block,
        "sums": plan.manifest.name_sums(block) if block else [],
        "options": options,
    }
    text = json.dumps(description)
    mine = json.loads(text)  # as it comes back from the store, with lists for tuples

    store = dist.distributed_c10d._get_default_store()
    if (group := _groups.get(store)) is None:
        # torchrun's store outlives a group: the ranks of the next one leave theirs elsewhere
        group = _groups[store] = _Group((store.add(_GROUPS, 1) - 1) // count)
    # written only if the key is not there yet, and returned as it is there then
    key = f"{_LOADERS}/{group.number}/{group.compared}"
    first = json.loads(store.compare_set(key, "", text))
    if first["options"] != mine["options"]:
        raise ConfigError(
            f"rank {mine['rank']} loads {_difference(plan, first, mine)} (loader "
            f"{group.compared + 1} of both); give all ranks the same data and options, and build "
            "their loaders in the same order, with rank=Rank() for one that a single rank builds"
        )
    group.compared += 1


def _difference(plan: Plan, first: dict[str, Any], mine: dict[str, Any]) -> str:
    other = first["rank"]
    if first["options"]["manifest"] == mine["options"]["manifest"]:
        changes = iter_changes(first["options"], mine["options"])
        named = [f"{name} {ours}, not {theirs}" for name, theirs, ours in changes]
        return f"in another way than rank {other}: {', '.join(named)}"

    images = (
        f"{mine['images']:,} images in {mine['steps']:,} steps, and rank {other} "
        f"{first['images']:,} in {first['steps']:,}"
    )
    # the first checksum that differs tells in which block the first image differs
    equal = sum(
        1
        for _ in takewhile(
            lambda both: both[0] == both[1], zip(first["sums"], mine["sums"], strict=False)
        )
    )

    if not mine["block"] or mine["block"] != first["block"] or equal == len(mine["sums"]):
        return images
    return f"{images}; they differ from {plan.manifest.name(equal * mine['block'])} on"
