"""Decoding alone: what the benchmark's limit measures."""

import pytest
import torch

import dali_pipes as dp
from dali_pipes.errors import ConfigError
from dali_pipes.measure.arms import DecodingConfig


def batches(manifest, **options):
    config = DecodingConfig(num_threads=2, **options)
    with dp.build_loader(
        manifest, config, transform=dp.TrainTransform(size=32), batch_size=8, device="cpu"
    ) as loader:
        return (
            loader.explain(),
            list(loader),
            [loader.plan.batch(0, step).ids for step in range(len(loader))],
        )


@pytest.mark.parametrize(
    ("decode", "said"),
    [("region", "planned regions only"), ("whole", "whole images, then cropped")],
)
def test_the_planned_images_are_decoded_and_dropped(manifest, decode, said):
    explained, made, planned = batches(manifest, decode=decode)
    assert said in explained and explained.endswith(
        "the images are dropped, and the batches are constant"
    )
    assert [batch.ids.tolist() for batch in made] == [ids.tolist() for ids in planned]
    assert all(
        torch.equal(batch.images, made[0].images) and batch.images.shape == (8, 3, 32, 32)
        for batch in made
    )


def test_a_file_that_cannot_be_decoded_is_named(tmp_path, manifest):
    import shutil

    shutil.copytree(manifest.root, tmp_path / "images")
    scanned = dp.Manifest.scan(tmp_path / "images", progress=False)
    broken = scanned.path(3)
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(dp.BadSampleError, match=broken.name):
        batches(scanned)


def test_it_is_the_cpus_work():
    with pytest.raises(ConfigError, match="device"):
        DecodingConfig(device="gpu")
