"""Whether all ranks of a run load the same images in the same way: they tell each other by the store of their process group."""

import json
import logging
import os
from collections import Counter
from itertools import takewhile
from typing import Any

import torch.distributed as dist

from dali_pipes.errors import ConfigError
from dali_pipes.loader.fingerprint import changes
from dali_pipes.plan.plan import Plan, Shard

log = logging.getLogger(__name__)

_BLOCKS = {4096: 1, 1_000_000: 256}  # by the most images, how many names have a sum of their own, which tells where ranks differ
_built: Counter[str] = Counter()  # loaders of this process that were compared, by what they are for


def choose_rank(shard: Shard | None) -> Shard:
    """The part that was asked for; all, with a warning where several ranks would each load all."""
    ranks = os.environ.get("WORLD_SIZE", "1")
    if shard is None and ranks.isdecimal() and int(ranks) > 1:
        log.warning(
            "%s ranks were started, and this loader was given none: each of them loads all images; for a part each, pass "
            "shard=dali_pipes.Shard.from_env(); for all on purpose, as to validate on one rank, shard=dali_pipes.Shard()",
            ranks,
        )
    return shard or Shard()


def compare_ranks(plan: Plan, options: dict[str, Any]) -> None:
    """Compares a loader with those that other ranks have built by now, where it is one of as many as the process group has.

    The first rank leaves what it loads in the group's store, and the others look at it. Nobody waits for anybody: a rank that
    builds a loader for itself alone does not hang, and of two ranks that differ the later one ends, and with it the run.

    Args:
        options: what decides the order of the samples and their pixels, as in a loader's state.

    Raises:
        ConfigError: this rank loads other images, or in another way.
    """
    count, rank = plan.shard.count, plan.shard.index
    if count == 1 or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() != count:
        return
    purpose = "training" if plan.transform.training else "evaluation"
    _built[purpose] += 1
    block = next((block for most, block in _BLOCKS.items() if len(plan.manifest) <= most), 0)
    mine = {"rank": rank, "images": len(plan.manifest), "steps": plan.steps, "block": block, "options": options}
    mine |= {"sums": plan.manifest.name_sums(block) if block else []}

    key, text = f"dali_pipes/{purpose}/{_built[purpose]}", json.dumps(mine)
    first = json.loads(dist.distributed_c10d._get_default_store().compare_set(key, "", text))
    if first["options"] != (mine := json.loads(text))["options"]:
        raise ConfigError(f"rank {rank} loads {_difference(plan, first, mine)}; give all ranks the same data and options")


def _difference(plan: Plan, first: dict[str, Any], mine: dict[str, Any]) -> str:
    other = first["rank"]
    if first["options"]["manifest"] == mine["options"]["manifest"]:
        named = [f"{name} {ours}, not {theirs}" for name, theirs, ours in changes(first["options"], mine["options"])]
        return f"in another way than rank {other}: {', '.join(named)}"

    images = f"{mine['images']:,} images in {mine['steps']:,} steps, and rank {other} {first['images']:,} in {first['steps']:,}"
    equal = sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(first["sums"], mine["sums"], strict=False)))
    if not mine["block"] or mine["block"] != first["block"] or equal == len(mine["sums"]):
        return images
    return f"{images}; they differ from {plan.manifest.name(equal * mine['block'])} on"
