"""Writes shards as tasks of a Ray cluster, or of Ray on this machine alone.

`write_all` takes the place of `shards.write_here`; a task writes one shard (`write_shard`).
"""

import logging
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import ray

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import PreparationError
from dali_pipes.system.progress import track
from dali_pipes.tools.preparation.encode import Encoding
from dali_pipes.tools.preparation.shards import Shard, WrittenShard, write_shard

_ANSWER_S = 10  # how long the cluster may take to accept a connection
_RETRIES = 5  # how often a task is run again after its worker or machine was lost


def write_all(
    source: Manifest, encoding: Encoding | None, shards: list[Shard], what: str
) -> Iterator[WrittenShard]:
    """Writes the shards on the cluster at RAY_ADDRESS, or on this machine if that is not set.

    Yields what was written, in order.

    Raises:
        PreparationError: a machine does not see the folders, or a task was lost too often.
    """
    # a Ray that the caller has started runs on afterwards
    started, address = not ray.is_initialized(), os.environ.get("RAY_ADDRESS")
    handler = signal.getsignal(signal.SIGTERM)  # Ray sets its own, and does not restore this one
    _check_answers(address)

    try:
        if started:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=False,
            )
        yield from track(_run_tasks(source, encoding, shards), what, len(shards))
    except (ray.exceptions.RayError, OSError) as error:
        # Ray's error of a task carries the exception that the task raised
        cause = getattr(error, "cause", None) or error
        why = " ".join(str(cause).split())[:300]
        raise PreparationError(
            f"engine=ray: {why}; start again, and it continues from here"
        ) from None
    finally:
        if started:
            ray.shutdown()
            if signal.getsignal(signal.SIGTERM) is not handler:
                signal.signal(signal.SIGTERM, handler)


def _check_answers(address: str | None) -> None:
    """Raises a PreparationError if nothing answers at the address; Ray would wait for minutes."""
    # "auto" and "local" have no port; the host of an IPv6 address is in brackets: [::1]:6379
    host, _, port = (address or "").rpartition("/")[2].rpartition(":")
    if port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        except OSError as error:
            raise PreparationError(
                f"RAY_ADDRESS={address}: no Ray answers there ({error}); correct it, or leave "
                "it out"
            ) from None


def _run_tasks(
    source: Manifest, encoding: Encoding | None, shards: list[Shard]
) -> Iterator[WrittenShard]:
    """Starts a task for each shard, and yields what was written, in order.

    Only as many tasks are started ahead as keep all cores busy, so a run that is stopped has little
    to do again.
    """
    write = ray.remote(num_cpus=1, max_retries=_RETRIES)(_write)
    # put there once: an argument would be sent again with every task
    shared = ray.put(source)
    cores: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]

    ahead = 2 * max(1, int(cores.get("CPU", 1)))
    pending = [write.remote(shared, encoding, shard) for shard in shards[:ahead]]

    # None starts no further task: the last tasks are only waited for
    for shard in shards[ahead:] + [None] * min(ahead, len(shards)):
        yield ray.get(pending.pop(0))
        if shard:
            pending.append(write.remote(shared, encoding, shard))


def _write(source: Manifest, encoding: Encoding | None, shard: Shard) -> WrittenShard:
    for needed in (shard.aside.parent, *([] if source.is_fetched else [Path(source.root)])):
        if not needed.exists():
            raise OSError(
                f"{socket.gethostname()} does not see {needed}; engine=ray needs folders that "
                "all machines share"
            )
    return write_shard(source, encoding, shard)
