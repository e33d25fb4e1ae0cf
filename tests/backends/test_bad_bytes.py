"""Promise 4, its first half: bytes that are no image are an error with a name, and never the end of the process."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from gpu_backends import GPU_BACKENDS, needs_cuda

import dali_pipes as dp

BATCH_SIZE = 32  # decoders that start on garbage crash in batches of this size, though not in batches of 8
BAD = {
    "garbage": lambda good: os.urandom(5000),
    "header only": lambda good: good[:200],
    "empty": lambda good: b"",
    "truncated": lambda good: good[: len(good) // 2],
    "html": lambda good: b"<!doctype html><title>404</title>",
    "missing": None,
}
CONFIGS = {
    "dali_region": dp.DaliConfig(device="cpu"),
    "dali_whole": dp.DaliConfig(device="cpu", decode="whole"),
    "torch_pil": dp.TorchConfig(num_workers=1),
    "torch_torchvision": dp.TorchConfig(num_workers=1, decoder="torchvision"),
    "tfdata": dp.TfDataConfig(),
    "torchvision_gpu": dp.TorchvisionGpuConfig(),
}

FAIL_OFTEN = f"""
import json, sys
import dali_pipes as dp

manifest, config, told = dp.Manifest.load(sys.argv[1]), dp.DaliConfig(**json.loads(sys.argv[2])), []
for _ in range(int(sys.argv[3])):
    with dp.build_loader(manifest, config, transform=dp.TrainTransform(), batch_size={BATCH_SIZE}, shuffle=False) as loader:
        try:
            next(iter(loader))
        except dp.BadSampleError as error:
            told.append(sorted(path for _, path, _ in error.bad_samples))
print(json.dumps(told))
"""


@pytest.fixture
def scanned(image_folder, tmp_path):
    """A folder that was scanned while all was well."""
    shutil.copytree(image_folder, tmp_path / "set")
    return dp.Manifest.scan(tmp_path / "set", progress=False)


def spoil(path, fault) -> None:
    good = path.read_bytes()
    path.unlink()
    if BAD[fault]:
        path.write_bytes(BAD[fault](good))


@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("name", [*CONFIGS, *needs_cuda("dali_gpu", "dali_gpu_whole", "torchvision_on_gpu")])
@pytest.mark.usefixtures("torchvision_gpu_anywhere")
def test_a_file_that_went_bad_is_named(scanned, name, fault):
    spoil(scanned.path(11), fault)
    config = {**CONFIGS, **GPU_BACKENDS}[name]
    with dp.build_loader(scanned, config, transform=dp.TrainTransform(size=32), batch_size=5, shuffle=False) as loader:
        batches = iter(loader)
        delivered = [next(batches).ids.tolist() for _ in range(2)]
        with pytest.raises(dp.BadSampleError, match=scanned.path(11).name) as caught:
            next(batches)
    assert delivered == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert [(number, path) for number, path, _ in caught.value.bad_samples] == [(11, str(scanned.path(11)))]


@pytest.mark.parametrize(
    ("device", "decode", "threads"),
    [
        ("cpu", "region", 2),
        ("cpu", "region", 4),
        pytest.param("gpu", "region", 4, marks=pytest.mark.needs_cuda),
        pytest.param("gpu", "whole", 2, marks=pytest.mark.needs_cuda),
    ],
)
def test_fifty_pipelines_over_garbage_headers_and_empty_files_never_crash(scanned, tmp_path, device, decode, threads):
    """25 failing pipelines in each of two processes."""
    places = {8: "garbage", 10: "header only", 13: "empty"}
    for place, fault in places.items():
        spoil(scanned.path(place), fault)
    scanned.save(tmp_path / "m.parquet")
    config = json.dumps({"device": device, "decode": decode, "num_threads": threads})
    command = [sys.executable, "-c", FAIL_OFTEN, str(tmp_path / "m.parquet"), config, "25"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr[-2000:]}"
    assert json.loads(done.stdout) == [sorted(str(scanned.path(place)) for place in places)] * 25
