"""What each part asks of the project's jobs: options that these understand."""

import contextlib
import importlib
import io
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from gpu_check.bench import Bench, PartError
from gpu_check.config import GpuCheckConfig
from gpu_check.grid import FANCY
from gpu_check.parts import ARMS, PARTS, TRAINED
from omegaconf import OmegaConf

import dali_pipes as dp
from dali_pipes.measure.arms import DaliNativeConfig
from dali_pipes.measure.workload import to_dict

GRID = [
    {"loader": to_dict(loader), "batch_size": 256, "images_per_s": 9.0}
    for loader in (
        dp.TorchConfig(decoder="torchvision", num_workers=24),
        dp.DaliConfig(num_threads=12, hw_decoder_load=0.35, decode="whole"),
        dp.DaliConfig(
            num_threads=11,
            hw_decoder_load=0.15,
            jpeg_fancy_upsampling=False,
            hybrid_huffman_threshold=300_000,
        ),
        DaliNativeConfig(num_threads=10, hybrid_huffman_threshold=1, decode="auto"),
    )
]


class Asked(Bench):
    """Composes the configuration as the job would, and runs nothing."""

    def program(self, part, words, options, limit, statuses=(0,)):
        words = [*words, f"data.train={self.images}", *options, "--cfg", "job", "--resolve"]
        with patch.object(sys, "argv", words), contextlib.redirect_stdout(io.StringIO()) as shown:
            importlib.import_module(words[0]).main()
        return shown.getvalue()


@pytest.mark.few
@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("part", ["doctor", "loader", "resnet50", "corun", "diagnose", "resnet18"])
def test_options_are_understood(part, dry_run):
    bench = Asked(GpuCheckConfig(dry_run=dry_run), "m.parquet", "/images", Path("/details"), 16)
    asked = PARTS[part][1](bench, {"grid": {"result": GRID}}, 100.0)
    assert "batch_size: 256" in asked
    if part in ("doctor", "diagnose"):
        return
    few = part in ("corun", "resnet18")
    arms = (
        {"synthetic", "dali"}
        if few
        else {"torch_torchvision", *(ARMS if part == "loader" else TRAINED)}
    )
    assert all(f"- {arm}\n" in asked for arm in arms) and "- torch\n" not in asked
    assert "restart: false" in asked and "minutes: 1.33" in asked
    assert ("num_workers: 24" in asked) == (part != "corun")
    assert ("num_threads: 8" in asked) == (part == "corun")
    if part == "loader":
        _each_has_its_own_settings(OmegaConf.create(asked).loaders)
    assert ("dtype: fp16" in asked) == (not dry_run)


def _each_has_its_own_settings(loaders):
    """A yardstick that was not in the grid has those of the arm that decodes alike."""
    found = {
        arm: (loaders[arm].num_threads, loaders[arm].hw_decoder_load, loaders[arm].decode)
        for arm in FANCY
    }
    assert found == {
        "dali": (12, 0.35, "whole"),
        "dali_native_fancy": (12, 0.35, "whole"),
        "dali_fastest": (11, 0.15, "auto"),
        "dali_native": (10, 0.65, "auto"),
    }
    assert {arm: loaders[arm].jpeg_fancy_upsampling for arm in FANCY} == FANCY
    thresholds = [loaders[arm].hybrid_huffman_threshold for arm in FANCY]
    assert thresholds == [1_000_000, 1_000_000, 300_000, 1]


def test_a_comparison_that_cannot_end_in_time_is_not_begun():
    bench = Asked(GpuCheckConfig(), "m.parquet", "/images", Path("/details"), 16)
    with pytest.raises(PartError, match="30 s are too little for a comparison"):
        PARTS["loader"][1](bench, {}, 30.0)
