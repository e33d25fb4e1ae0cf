"""What a run needs at least, and that what cannot fit is refused with the numbers."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import dali_pipes as dp
from dali_pipes.backends.dali.backend import HOST_MEMORY_PADDING
from dali_pipes.backends.registry import estimate_loader_memory
from dali_pipes.errors import ConfigError
from dali_pipes.system.memory import GIB, Need, check_fits, free_memory, memory_left
from dali_pipes.training.network.build import build_model
from dali_pipes.training.network.memory import model_needs, saved_bytes

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
SIZES = np.full((10, 2), 500)
TRANSFORM = dp.TrainTransform(size=100)
BATCH = 8 * 3 * 100 * 100 * 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "vit_b_16"])
def test_activations_are_what_a_real_forward_pass_keeps(name):
    module = build_model(name, 10)
    own, kept = (
        {each.untyped_storage().data_ptr() for each in [*module.parameters(), *module.buffers()]},
        {},
    )

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = cross_entropy(module(torch.zeros(2, 3, 224, 224)), torch.zeros(2, dtype=torch.int64))
    real = sum(each.untyped_storage().nbytes() for each in kept.values())
    assert loss.requires_grad and saved_bytes(module, 2, (224, 224)) == pytest.approx(real, rel=0.1)
    assert saved_bytes(module, 4, (224, 224)) == pytest.approx(
        2 * saved_bytes(module, 2, (224, 224)), rel=0.05
    )
    assert all(each.device.type == "cpu" and each.grad is None for each in module.parameters())


def test_batches_ahead_and_weights_are_counted():
    torch_needs = list(
        estimate_loader_memory(
            dp.TorchConfig(num_workers=3, prefetch_factor=4), TRANSFORM, 8, SIZES, CPU
        )
    )
    assert [(need.where, need.bytes) for need in torch_needs] == [
        ("shm", 12 * BATCH),
        ("host", BATCH),
    ]
    (alone,) = estimate_loader_memory(dp.TorchConfig(num_workers=0), TRANSFORM, 8, SIZES, CPU)
    assert alone.bytes == BATCH
    (dali,) = estimate_loader_memory(
        dp.DaliConfig(device="cpu", resize="dali", prefetch_queue_depth=5), TRANSFORM, 8, SIZES, CPU
    )
    assert (dali.where, dali.bytes) == ("host", 5 * BATCH)
    (finished,) = estimate_loader_memory(
        dp.DaliConfig(device="cpu", prefetch_queue_depth=5), TRANSFORM, 8, SIZES, CPU
    )
    assert (finished.where, finished.bytes) == ("host", 3 * BATCH)
    weights, gradients = model_needs(build_model("resnet18", 1000), 2, True, 4, 0)
    assert (weights.bytes, gradients.bytes) == (4 * 11_689_512 * 4, 11_689_512 * 4)
    _, activations = model_needs(build_model("resnet18", 1000), 2, True, 4, GIB)
    assert activations.bytes == GIB  # gradients come while these go


def test_a_network_that_needs_its_numbers_is_not_refused():
    class Choosing(torch.nn.Module):
        def forward(self, images):
            return images.mean((2, 3)) if images.sum() > 0 else images.amax((2, 3))

    assert saved_bytes(Choosing(), 2, (8, 8)) == 0


def test_on_a_gpu_batches_lie_there():
    batches, decoded, *_ = estimate_loader_memory(
        dp.DaliConfig(decode="whole"), TRANSFORM, 8, SIZES, GPU
    )
    assert (batches.where, batches.bytes) == ("gpu", 4 * BATCH)
    assert (decoded.where, decoded.bytes) == ("gpu", 8 * 500 * 500 * 3)
    ahead, _ = estimate_loader_memory(
        dp.TorchConfig(num_workers=1, prefetch_factor=2), TRANSFORM, 8, SIZES, GPU
    )
    assert ahead.bytes == 2 * BATCH // 4  # uint8, normalized on the GPU


@pytest.mark.parametrize(
    "config", [dp.DaliConfig(), dp.DaliConfig(resize="dali"), dp.TorchConfig(num_workers=2)]
)
def test_where_the_loader_decodes_is_where_its_memory_is_counted(monkeypatch, config):
    """Batches that arrive on the CPU are decoded there, also on a machine with a GPU."""
    without = list(estimate_loader_memory(config, TRANSFORM, 8, SIZES, CPU))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert list(estimate_loader_memory(config, TRANSFORM, 8, SIZES, CPU)) == without
    assert {need.where for need in without} <= {"host", "shm"}


def test_on_a_gpu_the_decoders_buffers_are_counted(monkeypatch):
    """One on the GPU and two page-locked ones for each thread and the caller."""
    config = dp.DaliConfig(
        num_threads=7, hw_decoder_load=0.75, device_memory_padding=5 * 2**20, decode="force_region"
    )
    _, device, host = estimate_loader_memory(config, TRANSFORM, 8, SIZES, GPU)
    assert (device.where, device.bytes) == (
        "gpu",
        8 * 5 * 2**20,
    ) and "8 decoder threads" in device.what
    assert (host.where, host.bytes) == ("host", 8 * 2 * 8 * 2**20)
    with pytest.raises(ConfigError, match="make num_threads smaller"):
        check_fits([host], {"host": 100 * 2**20})
    (alone,) = estimate_loader_memory(
        dp.DaliConfig(device="cpu", num_threads=7), TRANSFORM, 8, SIZES, GPU
    )
    assert alone.where == "host"
    monkeypatch.setattr("dali_pipes.backends.config.available_cpus", lambda: 15)
    _, device, *_ = estimate_loader_memory(
        dp.DaliConfig(decode="force_region"), TRANSFORM, 8, SIZES, GPU
    )
    assert device.bytes == 16 * 16 * 2**20


@pytest.mark.parametrize(
    ("device", "dtype", "of_a_pixel"),
    [("cpu", "fp16", 4), ("gpu", "fp16", 2), ("gpu", "bf16", 4), ("cpu", "uint8", 1)],
)
def test_dalis_queue_holds_what_dali_puts_out(device, dtype, of_a_pixel):
    transform = dp.TrainTransform(size=10, dtype=dtype)
    queue, *_ = estimate_loader_memory(
        dp.DaliConfig(device=device, resize="dali", prefetch_queue_depth=3),
        transform,
        8,
        SIZES,
        GPU,
    )
    assert queue.bytes == 3 * 8 * 10 * 10 * 3 * of_a_pixel


def test_the_paddings_are_those_of_dali():
    """Nothing but the schema of its decoders says so."""
    from nvidia.dali import backend

    for decoder in ("decoders__Image", "decoders__ImageSlice"):
        schema = backend.GetSchema(decoder)
        assert (
            int(schema.GetArgumentDefaultValueString("host_memory_padding")) == HOST_MEMORY_PADDING
        )
        assert (
            int(schema.GetArgumentDefaultValueString("device_memory_padding"))
            == dp.DaliConfig().device_memory_padding
        )


def test_what_cannot_fit_is_refused_with_the_numbers():
    needs = [
        Need("6 batches", "shm", 3 * GIB, "batch_size"),
        Need("weights", "host", 1 * GIB, "the model"),
        Need("x", "gpu", 9 * GIB, "model"),
    ]
    check_fits(needs, {"host": 4 * GIB, "shm": 3 * GIB})
    with pytest.raises(
        ConfigError,
        match=(
            r"at least 4\.00 GiB of memory, and 3\.50 GiB are free \(6 batches: 3\.00 GiB; "
            r"weights"
        ),
    ):
        check_fits(needs, {"host": int(3.5 * GIB), "shm": 3 * GIB})
    with pytest.raises(
        ConfigError, match=r"make batch_size smaller, or /dev/shm larger \(docker --shm-size\)"
    ):
        check_fits(needs, {"host": 4 * GIB, "shm": 1 * GIB})
    with pytest.raises(ConfigError, match="on the GPU"):
        check_fits(needs, {"gpu": 8 * GIB})


def test_ranks_share_what_is_free():
    one, four = free_memory(), free_memory(4)
    assert 0 < four["host"] < one["host"] <= memory_left() * 1.1 and four["shm"] < one["shm"]
