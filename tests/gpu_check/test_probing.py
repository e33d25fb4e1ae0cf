"""The trials of decoding at the front of the check: which, and what becomes of one that crashes; on
the CPU.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gpu_check import probing
from gpu_check.probing import probed, regions_are_right, together, tried

import dali_pipes as dp
from dali_pipes.measure.workload import to_dict
from dali_pipes.system.child import ChildError
from dali_pipes.tools.doctor.decoding_check import IMAGES, ComparedDecoding
from dali_pipes.tools.doctor.images import KINDS, SIZES

MADE = len(KINDS) * len(SIZES) + 1
FINE = {
    "images": 60,
    "mean": 0.1,
    "far": {},
    "refused": [],
    "accepted": [],
    "cpu_ms": 0.4,
    "cpu_ms_on_cpu": 2.0,
}
FINE |= {
    "engine_load": 0.65,
    "nvjpg": 0.3,
    "sm": 0.2,
    "digest": "ab",
    "decodes": "…",
    "fallbacks": {},
}


def test_what_users_run_comes_first_and_every_way_to_decode_is_tried_once():
    every = list(tried(256))
    assert every[:3] == [
        (dp.DaliConfig(), 256),
        (dp.DaliConfig(exact=True), 256),
        (dp.DaliConfig(exact=True), 64),
    ]
    ways = [
        (config.decode, config.jpeg_fancy_upsampling, config.hw_decoder_load)
        for config, _ in every[3:]
    ]
    assert len(set(ways)) == len(ways) == 2 * 2 * 3 and {way[2] for way in ways} == {0, 0.65, 1}
    assert {way[:2] for way in ways[:4]} == {
        (decode, fancy) for decode in ("force_region", "whole") for fancy in (True, False)
    }
    # what no other part shows: the engine alone and the CUDA decoder alone; the mix of both is the
    # default, which came first
    assert [way[2] for way in ways] == [1.0] * 4 + [0.0] * 4 + [0.65] * 4
    assert [size for _, size in tried(1)][:3] == [1, 1, 1]


def test_made_and_real_images_lie_together(manifest, tmp_path):
    found = together(manifest, tmp_path / "few")
    assert len(found) == MADE + len(manifest)
    last = len(manifest) - 1
    name = Path(found.name(int(np.flatnonzero(found.labels == found.classes.index("real"))[-1])))
    assert (
        name.match(f"real/{last:06d}.jpg") and name.read_bytes() == manifest.path(last).read_bytes()
    )
    many = manifest.subset(np.arange(600) % len(manifest))
    assert len(together(many, tmp_path / "many")) == IMAGES


@pytest.mark.slow
def test_each_trial_is_written_as_it_comes_and_a_crash_costs_no_other(
    manifest, tmp_path, monkeypatch
):
    def trial(manifest, exif, config, batch_size, device, limit_s):
        if config.decode == "force_region":
            raise ChildError("crashed: its process ended with SIGSEGV")
        return ComparedDecoding(**FINE | {"accepted": ["b.jpg"]})

    monkeypatch.setattr(probing, "check_decoding", trial)
    found = probed(manifest, 64, tmp_path, 60.0, torch.device("cpu"))
    assert found == [
        json.loads(line) for line in (tmp_path / "probe.jsonl").read_text().splitlines()
    ]
    assert [row["loader"] for row in found] == [to_dict(config) for config, _ in tried(64)]
    assert found[0]["faults"] == [] and "b.jpg" in found[0]["doubts"][0]
    assert {row["error"] for row in found if row["loader"]["decode"] == "force_region"} == {
        "crashed: its process ended with SIGSEGV"
    }
    assert len(probed(manifest, 64, tmp_path / "two", 60.0, torch.device("cpu"), at_most=2)) == 2
    assert probed(manifest, 64, tmp_path / "no_time", 0.0, torch.device("cpu")) == []


def row(decode, fancy, **outcome):
    return {
        "loader": to_dict(dp.DaliConfig(decode=decode, jpeg_fancy_upsampling=fancy)),
        **({"faults": []} | outcome),
    }


@pytest.mark.parametrize(
    ("rows", "right"),
    [
        (None, []),
        ([row("auto", True), row("whole", True)], []),
        ([row("force_region", True), row("force_region", False)], [True, False]),
        ([row("force_region", True), row("force_region", True, error="crashed")], []),
        ([row("force_region", True, faults=["other pixels"]), row("force_region", False)], [False]),
    ],
)
def test_regions_are_right_only_if_every_trial_went_well(rows, right):
    assert regions_are_right({"probe": {"result": rows}}) == right
    assert regions_are_right({}) == []
