"""What each part asks of the project's scripts: options that these understand."""

import subprocess
import sys
from pathlib import Path

import pytest

from dali_pipes.gpu_check.bench import ROOT, Bench, PartError
from dali_pipes.gpu_check.config import GpuCheckConfig
from dali_pipes.gpu_check.parts import ARMS, PARTS

GRID = [
    {"loader": {"kind": "TorchConfig", "decoder": "torchvision", "num_workers": 24}, "batch_size": 256, "images_per_s": 9.0},
    {
        "loader": {"kind": "DaliConfig", "num_threads": 12, "hw_decoder_load": 0.35, "decode": "whole"}
        | {"prefetch_queue_depth": 2, "jpeg_fancy_upsampling": True},
        "batch_size": 256,
        "images_per_s": 99.0,
    },
]


class Asked(Bench):
    """Composes the configuration as the script would, and runs nothing."""

    def script(self, part, script, options, limit, statuses=(0,)):
        command = [
            sys.executable,
            str(ROOT / "scripts" / script),
            f"data.train={self.images}",
            *options,
            "--cfg",
            "job",
            "--resolve",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("part", ["doctor", "loader", "resnet50", "copies", "corun", "diagnose", "resnet18"])
def test_options_are_understood(part, dry_run):
    bench = Asked(GpuCheckConfig(dry_run=dry_run), "m.parquet", "/images", Path("/details"), 16)
    asked = PARTS[part][1](bench, {"grid": {"result": GRID}}, 100.0)
    assert "batch_size: 256" in asked
    if part == "copies":
        assert "num_threads: 12" in asked and "hw_decoder_load: 0.35" in asked and "decode: whole" in asked
        assert ("batches: 4" in asked) == dry_run
    if part in ("doctor", "diagnose", "copies"):
        return
    few = part in ("corun", "resnet18")
    arms = {"synthetic", "dali"} if few else {"torch_torchvision", *ARMS}
    assert all(f"- {arm}\n" in asked for arm in arms) and "- torch\n" not in asked
    assert "restart: false" in asked and "minutes: 1.47" in asked
    assert ("num_workers: 24" in asked) == (part != "corun")
    assert asked.count("num_threads: 12") == (0 if part == "corun" else 2) and ("num_threads: 8" in asked) == (part == "corun")
    assert ("dtype: fp16" in asked) == (not dry_run)


def test_a_comparison_that_cannot_end_in_time_is_not_begun():
    bench = Asked(GpuCheckConfig(), "m.parquet", "/images", Path("/details"), 16)
    with pytest.raises(PartError, match="30 s are too little for a comparison"):
        PARTS["loader"][1](bench, {}, 30.0)
