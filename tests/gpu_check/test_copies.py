"""The ways into PyTorch's memory that gpu_check's part `copies` measures, on the CPU: no copy
there, but the same batches.
"""

import pytest
import torch
from gpu_check import copies as ways

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.tools.preview.run import PreviewConfig

TRANSFORM = dp.TrainTransform(size=48, dtype="fp16", memory_format="channels_last")
DEVICES = ["cpu", pytest.param("gpu", marks=[pytest.mark.needs_cuda, pytest.mark.gpu_pixels])]


def config(image_folder, loader, **options):
    return PreviewConfig(
        data=DataConfig(train=str(image_folder)),
        transform=TRANSFORM,
        loader=loader,
        batch_size=8,
        **options,
    )


@pytest.mark.parametrize("device", DEVICES)
def test_every_way_delivers_the_batches_of_the_loader(image_folder, manifest, device):
    """Of two epochs, so that memory is used anew; bit for bit, on a GPU with one decode engine."""
    loader = dp.DaliConfig(device=device, hw_decoder_load=0.0, resize="dali")
    work, steps = ways._work(config(image_folder, loader)), 2 * -(-len(manifest) // 8)
    options = {"transform": TRANSFORM, "batch_size": 8, "shuffle": True, "last_batch": "pad"}
    with dp.build_loader(manifest, loader, **options, device=work.device.type) as ours:
        expected = [batch for _ in range(2) for batch in ours]
    assert len(expected) == steps
    for name, way in ways.WAYS.items():
        with ways._batches(work, way) as batches:
            found = [next(batches) for _ in range(steps)]
        for one, other in zip(found, expected, strict=True):
            assert all(
                torch.equal(getattr(one, each), getattr(other, each)) for each in ("images", "ids")
            ), name
            assert one.images.dtype == torch.float16 and one.images.is_contiguous(
                memory_format=torch.channels_last
            ), name
            assert one.images.device == work.device, name


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_measured(image_folder, device):
    found = ways.copies(
        config(
            image_folder,
            dp.DaliConfig(device=device, hw_decoder_load=0.0, resize="dali"),
            batches=2,
        )
    )
    assert found["rounds"] == 1 and list(found["agreement"]) == list(ways.WAYS)
    assert all(
        each == {"same_ids": True, "max_difference": 0.0} for each in found["agreement"].values()
    )
    assert list(found["consumers"]) == (["reads"] if device == "cpu" else list(ways.CONSUMERS))
    for figures in (
        figures for consumer in found["consumers"].values() for figures in consumer.values()
    ):
        assert (
            0
            < figures["images_per_s_low"]
            <= figures["images_per_s"]
            <= figures["images_per_s_high"]
        )
        assert figures["cpu_s_per_1000_images"] > 0 and (figures["device_mib"] is None) == (
            device == "cpu"
        )


def test_another_order_or_other_pixels_would_be_seen(image_folder, monkeypatch):
    def other_plan(work):
        rows = work.plan.iter_from(epoch=1)
        return (batch for _, batch in work.backend.stream(rows))

    monkeypatch.setitem(ways.WAYS, "another plan", other_plan)
    agreement = ways._agreement(
        ways._work(config(image_folder, dp.DaliConfig(device="cpu", resize="dali")))
    )
    assert (
        agreement["another plan"]["same_ids"] is False
        and agreement["another plan"]["max_difference"] > 0
    )


def test_only_dalis_pipeline_has_these_ways(image_folder):
    with pytest.raises(dp.ConfigError, match="use loader=dali or loader=dali_cpu"):
        ways.copies(config(image_folder, dp.TorchConfig()))
