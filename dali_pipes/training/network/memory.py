"""The memory of a training run: what it needs at least, whether that fits, and an explanation when
a GPU runs out of it.

`check_memory` is called before training, and `explain` after an OutOfMemoryError.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn.functional import cross_entropy

from dali_pipes.backends.registry import estimate_loader_memory
from dali_pipes.data.manifest import Manifest
from dali_pipes.system.gpu_memory import gpu_memory, release_unused_of_dali
from dali_pipes.system.memory import GIB, Need, check_fits, free_memory
from dali_pipes.training.config import TrainConfig


def check_memory(
    config: TrainConfig,
    images: Manifest,
    device: torch.device,
    network: nn.Module | None,
    programs: int = 1,
) -> None:
    """Checks that the memory a run needs at least is free.

    Only needs that are certain are counted, so a run that passes may still run out later.

    Args:
        device: the one that is trained on.
        network: with the weights that are trained; None: of a task of the user's, whose needs are
            known when it runs.
        programs: how many such runs there are at once on this machine.

    Raises:
        ConfigError: the run cannot fit; the text has the numbers.
    """
    needs = list(
        estimate_loader_memory(
            config.loader,
            config.transform,
            config.batch_size * config.accumulate,
            images.some_sizes,
            device,
        )
    )
    if network:
        needs += _network_needs(config, network)
    # the ranks of a machine share its memory
    check_fits(needs, free_memory(programs * int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


def _network_needs(config: TrainConfig, network: nn.Module) -> Iterator[Need]:
    states = 2 if config.optimizer.name in ("adamw", "lamb") else int(config.optimizer.momentum > 0)
    # a compiled network keeps what its compiler chooses, which nobody knows beforehand
    kept = (
        0
        if config.model.compile
        else saved_bytes(
            network, config.batch_size, config.transform.largest_shape, config.transform.channels
        )
    )
    kept //= 1 if config.precision == "fp32" else 2  # fp32 was measured
    return model_needs(network, states, config.ema_decay is not None, config.batch_size, kept)


def model_needs(
    module: nn.Module, optimizer_states: int, ema: bool, batch_size: int, kept: int
) -> Iterator[Need]:
    """Yields what a network needs: its weights with the optimizer's state and the average, and the
    larger of the activations and the gradients.

    Activations are freed as the gradients are made, so the two are never there in full together.

    Args:
        optimizer_states: tensors per weight, 1 for SGD with momentum, 2 for AdamW and LAMB.
        batch_size: images per forward pass.
        kept: bytes that the forward pass keeps, as from `saved_bytes`; 0: unknown.
    """
    where = "gpu" if torch.cuda.is_available() else "host"
    every = sum(parameter.nbytes for parameter in module.parameters())
    weights = sum(each.nbytes for each in module.parameters() if each.requires_grad)

    copies = 1 + optimizer_states + ema
    text = f"{copies} × the weights (optimizer, average)"
    if weights < every:
        text = f"the weights, and {copies - 1} × those that are trained (optimizer, average)"
    yield Need(text, where, (1 + ema) * every + optimizer_states * weights, "the model")

    if kept > weights:
        yield Need(
            f"activations of {batch_size} images", where, kept, "batch_size (and accumulate more)"
        )
    else:
        yield Need("gradients", where, weights, "the model")


def saved_bytes(
    module: nn.Module, batch_size: int, shape: tuple[int, int], channels: int = 3
) -> int:
    """Measures, without using memory, how many bytes the forward pass in fp32 keeps for the
    backward pass, not counting the weights.

    Returns 0 for a network that needs real values, as when its control flow depends on them.
    """
    kept: dict[int, Tensor] = {}
    # tensors without storage, but with the CPU's choice of kernels
    with contextlib.suppress(Exception), FakeTensorMode() as fake:
        named = [*module.named_parameters(), *module.named_buffers()]
        weights: dict[str, Tensor] = {name: fake.from_tensor(weight) for name, weight in named}
        own = {weight.untyped_storage()._cdata for weight in weights.values()}

        def keep(tensor: Tensor) -> Tensor:
            # by the storage: several tensors may be views of one, which is kept once
            if tensor.untyped_storage()._cdata not in own:
                kept[tensor.untyped_storage()._cdata] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            scores = torch.func.functional_call(
                module, weights, (torch.empty(batch_size, channels, *shape),)
            )
            cross_entropy(scores, torch.zeros(batch_size, dtype=torch.int64))
        return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    # an error was suppressed
    return 0


def explain(error: torch.OutOfMemoryError, snapshot: Path) -> str:
    """Explains which programs hold how much memory, and what needs less.

    Also writes the state of PyTorch's allocator to `snapshot`, for docs.pytorch.org/memory_viz.
    """
    # before anything is freed
    device = torch.device("cuda", torch.cuda.current_device())
    held = gpu_memory(device)
    torch.cuda.memory._dump_snapshot(str(snapshot))  # type: ignore[no-untyped-call]
    # what this frees shows how much DALI kept unused
    release_unused_of_dali()
    kept = torch.cuda.mem_get_info(device)[0] - held.free
    unused = f"DALI kept {kept / GIB:.1f} of them for later; " if kept > 0 else ""

    return (
        f"the GPU has no memory left ({str(error).split('. ')[0]}): of "
        f"{held.total / GIB:.1f} GiB {held}; {unused}"
        f"{held.free / GIB:.1f} are free. Take a smaller batch_size and accumulate more, "
        "precision=bf16, or a smaller "
        f"loader.prefetch_queue_depth. What PyTorch holds is in {snapshot}"
    )
