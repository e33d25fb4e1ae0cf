"""Checks that all ranks of a run load the same images in the same way.

`build_loader` calls `compare_ranks`, which leaves a description of the loader in the store of
torch.distributed's process group, and compares it with those that other ranks have left there.
"""

import json
import logging
import operator
import sys
import sysconfig
from collections import Counter
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist

from dali_pipes.errors import ConfigError
from dali_pipes.loader.fingerprint import iter_changes, with_defaults
from dali_pipes.plan.plan import Plan, Rank
from dali_pipes.plan.transforms import Transform

log = logging.getLogger(__name__)

# Most images of a data set: how many of their names have one checksum. Checksums tell where the
# ranks' images differ; larger data sets have none.
_BLOCKS = {4096: 1, 1_000_000: 256}
_LIBRARY_FOLDERS = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
_PACKAGE = str(Path(__file__).parents[1])
# how many loaders of this process were compared, by the place where they were built
_loader_counts: Counter[tuple[str, ...]] = Counter()


def choose_rank(rank: Rank | None) -> Rank:
    """Returns the rank that was asked for, or one that loads all images, with a warning if several
    ranks were started.
    """
    if rank is not None:
        return rank

    started = Rank.from_env().count
    if started > 1:
        log.warning(
            "%d ranks were started, and this loader was given none: each of them loads all "
            "images; for a part each, pass "
            "rank=dali_pipes.Rank.from_env(); for all on purpose, as to validate on one "
            "rank, rank=dali_pipes.Rank()",
            started,
        )
    return Rank()


def compare_ranks(plan: Plan, options: dict[str, Any], transform: Transform | None = None) -> None:
    """Compares a loader with those that other ranks have built until now, if it has as many ranks
    as the process group.

    A rank leaves in the group's store what it loads, unless another rank has left the same there
    for the same place of the program. Only loaders that were built at the same place must be equal:
    a single rank may have one more elsewhere, as for a further validation. No rank waits for
    another: one that builds a loader for itself alone does not hang, and if two ranks differ, the
    later one raises, which ends the run.

    Args:
        options: what decides the order of the samples and their pixels, as in a loader's state.
        transform: the one of these options; None: another function of images.

    Raises:
        ConfigError: this rank loads other images than another one, or in another way.
    """
    count, rank = plan.rank.count, plan.rank.index
    if (
        count == 1
        or not dist.is_available()
        or not dist.is_initialized()
        or dist.get_world_size() != count
    ):
        return

    # a program may build several loaders at one place, so their count is a part of it
    place = _find_place()
    _loader_counts[place] += 1
    block = next((block for most, block in _BLOCKS.items() if len(plan.manifest) <= most), 0)
    description = {
        "rank": rank,
        "places": [(_loader_counts[place], *place)],
        "images": len(plan.manifest),
        "steps": plan.steps,
    }
    description |= {
        "block": block,
        "sums": plan.manifest.name_sums(block) if block else [],
        "options": options,
    }
    mine = json.loads(
        json.dumps(description)
    )  # as it comes back from the store, with lists for tuples

    # "" stands for a key that is not in the store yet
    store, key, text = dist.distributed_c10d._get_default_store(), "dali_pipes/loaders", ""
    while True:
        known = json.loads(text or "[]")
        # The place comes first: what another rank loads elsewhere may be equal by mistake, such as
        # its validation loader.
        here = [
            other
            for other in known
            if other["rank"] != rank
            and any(_is_same(place, mine["places"][0]) for place in other["places"])
        ]
        if conflict := next((one for one in here if one["options"] != mine["options"]), None):
            raise ConfigError(
                f"rank {rank} loads {_difference(plan, transform, conflict, mine)}; give all ranks "
                "the same data and options"
            )
        if here:
            return

        # a further loader of this rank with equal options: only its place is added
        mine_before = (one for one in known if one["rank"] == rank)
        if again := next((one for one in mine_before if one["options"] == mine["options"]), None):
            again["places"] += mine["places"]
        else:
            known.append(mine)

        updated = json.dumps(known)
        # written only if the store still has what was read, and returned as it is there then
        stored = store.compare_set(key, text, updated).decode()
        if stored == updated:
            return
        text = stored  # another rank was faster: compare with what it has written


def _find_place() -> tuple[str, ...]:
    """The lines of the program that call this, the innermost first.

    Those of libraries are left out: they start the ranks, and maybe not all in the same way.
    """
    places: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame:
        file = frame.f_code.co_filename
        if file.startswith(_PACKAGE) or not file.startswith(_LIBRARY_FOLDERS):
            places.append(f"{Path(file).name}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(places)


def _is_same(one: list[Any], other: list[Any]) -> bool:
    """Whether two places are the same, as far as both are known: a rank that was started in another
    way may have fewer lines.
    """
    return all(map(operator.eq, one, other))


def _difference(
    plan: Plan, transform: Transform | None, first: dict[str, Any], mine: dict[str, Any]
) -> str:
    other = first["rank"]
    if first["options"]["manifest"] == mine["options"]["manifest"]:
        both = [first["options"], mine["options"]]
        if transform is not None:
            # options that are left out as long as they have their defaults
            both = [with_defaults(each, transform) for each in both]
        named = [f"{name} {ours}, not {theirs}" for name, theirs, ours in iter_changes(*both)]
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
