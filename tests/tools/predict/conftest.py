"""A small prediction: 37 images of 32 pixels in batches of 4, two batches a file, so 5 files."""

import json

import pyarrow.dataset
import pytest
import torch

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.tools.predict.config import PredictConfig
from dali_pipes.tools.predict.run import predict
from dali_pipes.training.config import ModelConfig
from dali_pipes.training.network.build import build_model

EVAL = dp.EvalTransform(size=32, resize=36)
NETWORK = "shufflenet_v2_x0_5"


@pytest.fixture(scope="session")
def network():
    torch.manual_seed(0)
    return build_model(NETWORK, 7).eval()


@pytest.fixture
def config(thumbnails, network, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    thumbnails.save(tmp_path / "set.arrow")
    torch.save(network.state_dict(), tmp_path / "weights.pt")

    def make(**options):
        return PredictConfig(
            **{
                "data": DataConfig(val=str(tmp_path / "set.arrow")),
                "transform": EVAL,
                "loader": dp.DaliConfig(device="cpu", num_threads=1),
                "model": ModelConfig(
                    name=None if "function" in options else NETWORK, channels_last=False
                ),
                "checkpoint": None if "function" in options else "weights.pt",
                "batch_size": 4,
                "part_batches": 2,
                "threads": 1,
                "out": str(tmp_path / "out"),
            }
            | options
        )

    yield make
    torch.set_num_threads(threads)


@pytest.fixture
def run(config, capsys):
    """Predicts, and returns the rows in the order of the files, and the line of JSON."""

    def go(**options):
        chosen = config(**options)
        predict(chosen)
        rows = pyarrow.dataset.dataset(chosen.out, format="parquet").to_table().to_pylist()
        return rows, json.loads(capsys.readouterr().out)

    return go


def contents(folder):
    """The bytes of every file; but for what a process that is killed as it comes may leave, which
    readers leave out.
    """
    return {
        file.name: file.read_bytes()
        for file in sorted(folder.iterdir())
        if not file.name.startswith("._predict")
    }
