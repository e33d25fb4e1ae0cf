import pytest

import dali_pipes as dp
from dali_pipes.measure.workload import Workload


@pytest.fixture
def saved(manifest, tmp_path):
    manifest.save(tmp_path / "m.parquet")
    return str(tmp_path / "m.parquet")


@pytest.fixture
def work(saved):
    """Small work: 37 images, batches of 8, 32 pixels."""
    return Workload(saved, dp.TrainTransform(size=32), 8, 0)
