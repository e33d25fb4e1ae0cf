import json
from dataclasses import replace

import pytest

import dali_pipes as dp
from dali_pipes.benchmark.work import Work, plain
from dali_pipes.gpu_check import grid
from dali_pipes.gpu_check.grid import best_dali, best_torch, cells, search, work_of
from dali_pipes.nvml import NoGpu


@pytest.fixture
def work(manifest, tmp_path):
    manifest.save(tmp_path / "m.parquet")
    return Work(str(tmp_path / "m.parquet"), dp.TrainTransform(size=32), 8, 0)


def row(loader, rate, batch_size=256, **others):
    return {"loader": plain(loader), "batch_size": batch_size, "images_per_s": rate, **others}


ROWS = [
    row(dp.TorchConfig(num_workers=16), 3000.0),
    row(dp.TorchConfig(decoder="torchvision", num_workers=24), 4000.0),
    row(dp.DaliConfig(num_threads=8, decode="whole", hw_decoder_load=0.35), 20_000.0),
    row(dp.DaliConfig(num_threads=16), 19_000.0),
    row(dp.DaliConfig(num_threads=4), 99_000.0, batch_size=1024),
    row(dp.DaliConfig(num_threads=4, jpeg_fancy_upsampling=False), 98_000.0),
    row(dp.DaliConfig(num_threads=4, prefetch_queue_depth=4), 97_000.0),
    row(dp.DaliConfig(num_threads=4), 96_000.0, dtype="bf16"),
    {"loader": plain(dp.DaliConfig(num_threads=2)), "batch_size": 256, "error": "RuntimeError: no memory"},
]


def test_the_best_settings_are_those_of_the_same_work():
    parts = {"grid": {"result": ROWS}}
    assert best_dali(parts) == {"num_threads": 8, "hw_decoder_load": 0.35, "decode": "whole"}
    assert best_torch(parts) == ("torch_torchvision", 24)


@pytest.mark.parametrize("parts", [{}, {"grid": {"result": None}}, {"grid": {"result": ROWS[-1:]}}], ids=["not", "failed", "error"])
def test_without_a_grid_everything_stays_as_it_is(parts):
    assert best_dali(parts) == {} and best_torch(parts) == ("torch", None)


@pytest.mark.parametrize("gpu", [False, True])
def test_each_setting_is_tried_once(monkeypatch, gpu):
    monkeypatch.setattr(grid.torch.cuda, "is_available", lambda: gpu)
    found = [json.dumps(cell) for cell in cells(256, 16)]
    assert len(found) == len(set(found)) == 3 * 2 + 3 * 2 * (3 if gpu else 1)
    assert len(cells(256, 1)) < len(found)


def test_a_setting_that_fails_costs_no_other(work, tmp_path, monkeypatch):
    """The second is refused and ends the process; the third fails in it."""
    one, two = dp.DaliConfig(device="cpu", num_threads=1), dp.DaliConfig(device="cpu", num_threads=2)
    refused, failing = plain(dp.TorchConfig()) | {"num_workers": -1}, plain(dp.config.DaliNativeConfig(device="gpu"))
    todo = [{"loader": loader, "batch_size": 8} for loader in (plain(one), refused, failing, plain(two))]
    monkeypatch.setattr(grid, "cells", lambda *_: todo)
    found = search(work, 2, 60.0, tmp_path / "grid.jsonl")
    assert found == [json.loads(line) for line in (tmp_path / "grid.jsonl").read_text().splitlines()]
    first, refused, failed, last, *around = found
    assert first["images_per_s"] > 0 and last["images_per_s"] > 0 and last["cpu_s_per_1000_images"] > 0
    assert "num_workers is -1" in refused["error"]
    assert "no GPU" in failed["error"] and "images_per_s" not in failed
    assert [cell["batch_size"] for cell in around[:4]] == [2, 4, 16, 32]
    assert {cell["loader"]["jpeg_fancy_upsampling"] for cell in around[4:6]} == {True, False}
    assert [cell.get("dtype") for cell in around] == [None] * 6 + ["bf16", "fp32"]
    assert all(cell["images_per_s"] > 0 for cell in around)


def test_a_cell_may_have_a_dtype_of_its_own(work):
    cell = {"loader": plain(dp.DaliConfig()), "batch_size": 3}
    assert work_of(cell, work) == replace(work, batch_size=3)
    assert work_of(cell | {"dtype": "bf16"}, work) == replace(work, batch_size=3, transform=replace(work.transform, dtype="bf16"))


def test_a_gpu_that_cannot_be_asked_costs_no_cell(monkeypatch):
    def unknown(uuid):
        raise NoGpu("NVML: Not Found")

    monkeypatch.setattr(grid, "gpu_uuid", lambda: "GPU-1")
    monkeypatch.setattr(grid, "Gpu", unknown)
    assert grid._gpu() is None
    monkeypatch.setattr(grid, "Gpu", lambda uuid: uuid)
    assert grid._gpu() == "GPU-1"


def test_it_ends_in_time(work, tmp_path):
    assert search(work, 2, 5.0, tmp_path / "grid.jsonl") == []
    assert 1 <= len(search(work, 2, 14.0, tmp_path / "grid.jsonl")) < len(cells(8, 2)) + 8
