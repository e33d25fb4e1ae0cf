"""The ranks of one run: how they join, which device and how many CPU threads each has, what they
exchange, and how they end together.
"""

import logging
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from torch import nn
from torch.amp.grad_scaler import GradScaler

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.errors import ConfigError, DaliPipesError, RankError
from dali_pipes.plan.plan import Rank
from dali_pipes.system.cpus import available_cpus

T = TypeVar("T")


def launch(precision: str) -> Fabric:
    """Joins the other ranks, if torchrun or SLURM started several, and takes this rank's device.

    Args:
        precision: "fp32", "bf16" or "fp16".

    Raises:
        ConfigError: fewer GPUs than ranks on this machine, or ranks of mpirun or flux.
    """
    # On Intel's CPUs MKL may add in another order in every process, and the same run then ends in
    # other weights. This mode (Conditional Numerical Reproducibility) must be set before first use.
    os.environ.setdefault("MKL_CBWR", "AUTO")

    rank = Rank.from_env()
    world = rank.count
    # SLURM's ranks, under torchrun's names, with the first node's address
    if world > 1 and "RANK" not in os.environ:
        # in an allocation of SLURM mpirun's ranks may have the variables of a process of srun's
        slurm = [os.environ.get(name) for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")]
        if slurm != [str(rank.index), str(world)]:
            raise ConfigError(
                f"mpirun or flux has started {world} ranks, which do not know the address of the "
                "first; start them with torchrun or srun"
            )
        from submitit.helpers import TorchDistributedEnvironment

        TorchDistributedEnvironment().export(set_cuda_visible_devices=False)

    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    gpus = torch.cuda.device_count()
    if gpus and local_world > gpus:
        raise ConfigError(
            f"{local_world} ranks on this machine, but it has {gpus} GPUs; start one rank per GPU"
        )

    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)  # it logs every rank that joins

    device = "cuda" if gpus else "cpu"
    # named here, or Fabric would read SLURM's variables again
    plugins: list[Any] = [TorchElasticEnvironment() if world > 1 else LightningEnvironment()]
    if precision == "bf16":
        plugins.append(MixedPrecision("bf16-mixed", device))
    elif precision == "fp16":
        # gradients are scaled: Micikevicius et al., Mixed Precision Training (2018), section 3.2
        plugins.append(MixedPrecision("16-mixed", device, scaler=GradScaler(device)))

    fabric = Fabric(
        accelerator=device,
        devices=local_world,
        num_nodes=max(1, world // local_world),
        strategy="ddp" if world > 1 else "auto",
        precision="32-true" if precision == "fp32" else None,
        plugins=plugins,
    )
    fabric.launch()
    return fabric


def divide_cpus(fabric: Fabric, config: LoaderConfig) -> tuple[LoaderConfig, str]:
    """Gives every local rank its part of the CPU cores.

    PyTorch's number of threads is set here; the loader's is set in its config, unless it is given.

    Returns:
        The loader's config, and a sentence that says what was done.
    """
    # ranks share cores if they are on one node and are bound to the same ones
    mine = (os.uname().nodename, tuple(sorted(os.sched_getaffinity(0))))
    sharing = all_gather(fabric, mine).count(mine)
    cores = available_cpus()
    threads = max(1, cores // sharing)
    torch.set_num_threads(threads)

    config, option = config.on_cores(threads), config.cores_option
    shared = f" shared by {sharing} ranks" if sharing > 1 else ""
    loader = f", {option}={getattr(config, option)} for the loader" if option else ""
    return config, f"{cores} CPU cores{shared}: {threads} threads for PyTorch{loader}"


def share_buffers(fabric: Fabric, *modules: nn.Module) -> None:
    """Copies the running statistics of rank 0 to every rank.

    DDP copies them only when the next training step begins, so they differ at an evaluation.
    """
    if fabric.world_size > 1:
        for module in modules:
            for buffer in module.buffers():
                dist.broadcast(buffer, 0)


def all_gather(fabric: Fabric, value: T) -> list[T]:
    """Returns every rank's value, in the order of the ranks."""
    if fabric.world_size == 1:
        return [value]
    values: list[Any] = [None] * fabric.world_size
    dist.all_gather_object(values, value)
    return values


def on_all_ranks(fabric: Fabric, action: Callable[[], T]) -> T:
    """Calls `action` on every rank, and returns its result.

    Rank 0 calls it first, so that the others find what it has written.

    Raises:
        DaliPipesError: it failed on one of them. All of them end, and only rank 0 says why.
    """
    if fabric.world_size == 1:
        return action()

    result, error = None, cast(DaliPipesError | None, None)
    for turn in (True, False):  # rank 0, then the others
        if (fabric.global_rank == 0) == turn:
            try:
                result = action()
            except DaliPipesError as problem:
                error = problem
            except OSError as problem:
                # a full disk and an object store may name no file
                text = str(problem) or repr(problem)
                if problem.filename is not None:
                    text = f"{problem.filename}: {problem.strerror}"
                error = DaliPipesError(text)
        fabric.barrier()

    # one message for the run, and not one from each rank; the error itself and not its text, which
    # has Python's spelling of options
    errors = [(rank, failure) for rank, failure in enumerate(all_gather(fabric, error)) if failure]
    if not errors:
        return result  # type: ignore[return-value]

    rank, first = errors[0]
    if fabric.global_rank:
        sys.exit(first.status)
    if error and not rank:
        raise error
    raise RankError(rank, first)


class RankVotes:
    """Wishes of single ranks, which all ranks learn at the same step.

    They arrive one step late, so that no rank waits for them.
    """

    def __init__(self, fabric: Fabric):
        # gloo, since the votes are on the CPU: no rank waits for its GPU to read them
        self._group = dist.new_group(backend="gloo") if fabric.world_size > 1 else None
        self._pending: tuple[Any, torch.Tensor] | None = None

    def count(self, *wishes: bool) -> list[bool]:
        """Returns, for each wish, whether any rank had it.

        A single rank gets its own wishes back; several ranks get those of their previous call.
        """
        if self._group is None:
            return list(wishes)

        votes = torch.tensor(wishes, dtype=torch.int32, device="cpu")
        before = self.close()  # of the step before
        self._pending = dist.all_reduce(votes, dist.ReduceOp.MAX, self._group, async_op=True), votes
        return before or [False] * len(wishes)

    def close(self) -> list[bool]:
        """Waits for the votes that are still on their way."""
        if self._pending is None:
            return []

        work, votes = self._pending
        self._pending = None
        work.wait()
        return votes.bool().tolist()
