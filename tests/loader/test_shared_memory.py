"""Batches of workers that cannot fit into /dev/shm are refused before a worker starts."""

import pytest

import dali_pipes as dp
from dali_pipes.system import memory

MIB = 2**20


def built(manifest, config, batch_size=64):
    return dp.build_loader(
        manifest,
        config,
        transform=dp.TrainTransform(size=64),
        batch_size=batch_size,
        last_batch="partial",
        device="cpu",
    )


@pytest.fixture(params=["free", "one of four ranks"])
def little(request, monkeypatch):
    """4 MiB of /dev/shm for this process."""
    there = 4 * MIB
    if request.param != "free":
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
        there *= 4
    usage = type("Usage", (), {"free": there})
    monkeypatch.setattr(memory.shutil, "disk_usage", lambda place: usage)


def test_too_many_batches_are_refused_by_name(thumbnails, little):
    with pytest.raises(dp.ConfigError, match=r"GiB in /dev/shm.*docker --shm-size"):
        built(thumbnails, dp.TorchConfig(num_workers=2, prefetch_factor=2))


@pytest.mark.parametrize(
    "config",
    [
        dp.TorchConfig(num_workers=0),
        dp.DaliConfig(device="cpu", num_threads=2),
        dp.TorchConfig(num_workers=1, prefetch_factor=1, decoder="pil"),
    ],
    ids=["no workers", "dali", "few"],
)
def test_what_fits_is_not(config, thumbnails, little):
    size = 8 if getattr(config, "num_workers", 0) else 64
    built(thumbnails, config, size).close()


def test_a_machine_without_it_is_not_asked(thumbnails, monkeypatch):
    def missing(place):
        raise FileNotFoundError(place)

    monkeypatch.setattr(memory.shutil, "disk_usage", missing)
    built(thumbnails, dp.TorchConfig(num_workers=1)).close()
