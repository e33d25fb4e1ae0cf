import json
from dataclasses import replace

import pytest
from gpu_check import grid
from gpu_check.grid import best_dali, best_torch, cells, search, work_of

import dali_pipes as dp
from dali_pipes.backends.dali import decoding
from dali_pipes.measure.arms import DaliNativeConfig
from dali_pipes.measure.worker_process import ArmError
from dali_pipes.measure.workload import Workload, to_dict
from dali_pipes.system.nvml import NoGpu


@pytest.fixture
def work(manifest, tmp_path):
    manifest.save(tmp_path / "m.parquet")
    return Workload(str(tmp_path / "m.parquet"), dp.TrainTransform(size=32), 8, 0)


def row(loader, rate, batch_size=256, **others):
    return {"loader": to_dict(loader), "batch_size": batch_size, "images_per_s": rate, **others}


ROWS = [
    row(dp.TorchConfig(num_workers=16), 3000.0),
    row(dp.TorchConfig(decoder="torchvision", num_workers=24), 4000.0),
    row(dp.DaliConfig(num_threads=8, decode="whole", hw_decoder_load=0.3), 20_000.0),
    row(dp.DaliConfig(num_threads=16), 19_000.0),
    row(dp.DaliConfig(num_threads=8, preallocate_width_hint=6000), 99_000.0),
    row(
        dp.DaliConfig(num_threads=5, jpeg_fancy_upsampling=False, hybrid_huffman_threshold=1),
        97_000.0,
    ),
    row(dp.DaliConfig(num_threads=4, jpeg_fancy_upsampling=False), 96_000.0),
    row(DaliNativeConfig(num_threads=6, hw_decoder_load=1), 98_000.0),
    row(dp.DaliConfig(num_threads=4), 96_000.0, dtype="bf16"),
    {
        "loader": to_dict(dp.DaliConfig(num_threads=2)),
        "batch_size": 256,
        "error": "RuntimeError: no memory",
    },
]
DEFAULT = {
    "num_threads": None,
    "hw_decoder_load": None,
    "decode": "auto",
    "hybrid_huffman_threshold": 1_000_000,
}


def test_the_best_settings_are_those_of_the_same_work():
    parts = {"grid": {"result": ROWS}}
    best = DEFAULT | {
        "num_threads": 8,
        "hw_decoder_load": 0.3,
        "decode": "whole",
    }
    assert best_dali(parts) == best
    assert best_dali(parts, "dali_fastest") == DEFAULT | {
        "num_threads": 5,
        "hybrid_huffman_threshold": 1,
    }
    assert best_dali(parts, "dali_native") == DEFAULT | {
        "num_threads": 6,
        "hw_decoder_load": 1,
    }
    # there was no time for it: as the arm that decodes alike
    assert best_dali(parts, "dali_native_fancy") == best
    assert best_torch(parts) == ("torch_torchvision", 24)


@pytest.mark.parametrize(
    "parts",
    [{}, {"grid": {"result": None}}, {"grid": {"result": ROWS[-1:]}}],
    ids=["not", "failed", "error"],
)
def test_without_a_grid_everything_stays_as_it_is(parts):
    assert best_dali(parts) == {} == best_dali(parts, "dali_native") and best_torch(parts) == (
        "torch",
        None,
    )


@pytest.fixture
def made_up_gpu(monkeypatch):
    """One that is not there, with libraries that decode regions there rightly, or do not."""

    def set_up(sound):
        monkeypatch.setattr(grid.torch.cuda, "is_available", lambda: True)
        versions = decoding.Versions(
            (0, 8, 0) if sound else (0, 9, 0), (13, 2, 0) if sound else (12, 4, 0)
        )
        monkeypatch.setattr(decoding, "installed_versions", lambda: versions)

    return set_up


def decodes(found):
    return {cell["loader"]["decode"] for cell in found if cell["loader"]["kind"] == "DaliConfig"}


@pytest.mark.parametrize(
    ("sound", "regions", "expected"),
    [
        (True, [True], {"auto", "whole"}),
        (False, [], {"auto"}),
        (False, [False], {"auto"}),
        (False, [True], {"auto", "force_region"}),
    ],
)
def test_each_way_to_decode_is_tried_once_and_forced_regions_only_where_they_were_right(
    made_up_gpu, sound, regions, expected
):
    made_up_gpu(sound)
    found = cells(256, 16, regions)
    assert len({json.dumps(cell) for cell in found}) == len(found) == 2 * 2 + 3 * len(expected)
    assert decodes(found) == expected and len(cells(256, 1, regions)) < len(found)


def test_one_setting_at_a_time_around_the_best(made_up_gpu):
    """What is fastest of one list is what the next list starts from; the yardsticks start from the
    arm that decodes alike.
    """
    made_up_gpu(False)
    faster = {"hw_decoder_load": 0.3, "hybrid_huffman_threshold": 1, "preallocate_width_hint": 6000}
    found = [row(dp.DaliConfig(num_threads=8), 1000.0)]
    for cell in grid._around_the_best(found, [False]):
        rate = 1000.0 + sum(100 for name, value in faster.items() if cell["loader"][name] == value)
        found.append(
            cell | {"images_per_s": rate + 50 * (cell["loader"]["decode"] == "force_region")}
        )
    parts = {"grid": {"result": found}}
    expected = DEFAULT | {
        "num_threads": 8,
        "hw_decoder_load": 0.3,
        "hybrid_huffman_threshold": 1,
    }
    assert best_dali(parts) == expected == best_dali(parts, "dali_native_fancy")
    assert (
        best_dali(parts, "dali_fastest")
        == expected | {"decode": "force_region"}
        == best_dali(parts, "dali_native")
    )
    kinds = [(each["loader"]["kind"], each["loader"]["jpeg_fancy_upsampling"]) for each in found]
    assert {("DaliNativeConfig", True), ("DaliNativeConfig", False)} < set(kinds)
    planned = [
        each["loader"]
        for each in found
        if each["loader"]["kind"] == "DaliConfig" and each["loader"]["jpeg_fancy_upsampling"]
    ]
    assert {each["hw_decoder_load"] for each in planned} == {None, 0, 0.3, 1}
    assert {each["hybrid_huffman_threshold"] for each in planned} == {1_000_000, 300_000, 1}
    assert {
        (each["preallocate_width_hint"], each["preallocate_height_hint"]) for each in planned
    } == {(None, None), (6000, 6000)}
    assert len(found) <= 25
    assert [each.get("dtype") for each in found[-2:]] == ["bf16", "fp32"]


@pytest.mark.slow
def test_a_setting_that_fails_costs_no_other(work, tmp_path, monkeypatch):
    """The second is refused and ends the process; the third fails in it. What follows from the best
    is measured all the same.
    """
    one, two = (
        dp.DaliConfig(device="cpu", num_threads=1),
        dp.DaliConfig(device="cpu", num_threads=2),
    )
    refused, failing = (
        to_dict(dp.TorchConfig()) | {"num_workers": -1},
        to_dict(DaliNativeConfig(device="gpu")),
    )
    todo = [
        {"loader": loader, "batch_size": 8}
        for loader in (to_dict(one), refused, failing, to_dict(two))
    ]
    monkeypatch.setattr(grid, "cells", lambda *_: todo)
    found = search(work, 2, 90.0, tmp_path / "grid.jsonl")
    assert found == [
        json.loads(line) for line in (tmp_path / "grid.jsonl").read_text().splitlines()
    ]
    first, refused, failed, last, *around = found
    assert (
        first["images_per_s"] > 0 and last["images_per_s"] > 0 and last["cpu_s_per_1000_images"] > 0
    )
    assert "num_workers is -1" in refused["error"] and "crashed" not in refused
    assert "no GPU" in failed["error"] and "images_per_s" not in failed
    assert around[0]["loader"]["jpeg_fancy_upsampling"] is False
    assert [cell.get("dtype") for cell in around[-2:]] == ["bf16", "fp32"]
    assert [cell["error"] for cell in around if "error" in cell] == []
    assert all(cell["images_per_s"] > 0 for cell in around)


def test_a_process_that_cannot_begin_is_an_error(work, tmp_path, monkeypatch):
    """Not an empty result, which would look as if there had been no time."""
    (tmp_path / "torch.py").write_text(
        "raise ImportError('libcudnn.so.9: cannot open shared object file')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    with pytest.raises(ArmError, match=r"libcudnn\.so\.9"):
        search(work, 2, 30.0, tmp_path / "grid.jsonl")


def test_a_cell_may_have_a_dtype_of_its_own(work):
    cell = {"loader": to_dict(dp.DaliConfig()), "batch_size": 3}
    assert work_of(cell, work) == replace(work, batch_size=3)
    assert work_of(cell | {"dtype": "bf16"}, work) == replace(
        work, batch_size=3, transform=replace(work.transform, dtype="bf16")
    )


def test_a_gpu_that_cannot_be_asked_costs_no_cell(monkeypatch):
    def unknown(uuid):
        raise NoGpu("NVML: Not Found")

    monkeypatch.setattr(grid, "gpu_uuid", lambda: "GPU-1")
    monkeypatch.setattr(grid, "Gpu", unknown)
    assert grid._gpu() is None
    monkeypatch.setattr(grid, "Gpu", lambda uuid: uuid)
    assert grid._gpu() == "GPU-1"


@pytest.mark.slow
def test_it_ends_in_time(work, tmp_path):
    assert search(work, 2, 5.0, tmp_path / "grid.jsonl") == []
    assert 1 <= len(search(work, 2, 14.0, tmp_path / "grid.jsonl")) < len(cells(8, 2)) + 11
