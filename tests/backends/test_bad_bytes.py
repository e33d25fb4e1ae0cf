"""Promise 4, its first half: bytes that are no image are an error with a name, and never the end of the process."""

import json
import os
import shutil
import subprocess
import sys

import pytest

import dali_pipes as dp

RUN = """
import json, sys
import dali_pipes as dp

root, config, rounds = sys.argv[1], eval(sys.argv[2], {"dp": dp}), int(sys.argv[3])
manifest = dp.Manifest.load(root + "/m.parquet")
told = []
for _ in range(rounds):
    with dp.build_loader(manifest, config, transform=dp.TrainTransform(size=32), batch_size=8, shuffle=False) as loader:
        try:
            for batch in loader:
                pass
            told.append("nothing")
        except dp.BadSampleError as error:
            told.append(sorted(path.rsplit("/", 1)[-1] for _, path, _ in error.bad_samples))
print(json.dumps(told))
"""

BAD = {
    "garbage": lambda good: os.urandom(5000),
    "header only": lambda good: good[:200],
    "empty": lambda good: b"",
    "truncated": lambda good: good[: len(good) // 2],
    "html": lambda good: b"<!doctype html><title>404</title>",
    "missing": None,
}


@pytest.fixture
def scanned_folder(image_folder, tmp_path):
    """A folder that was scanned while all was well."""
    folder = tmp_path / "set"
    shutil.copytree(image_folder, folder)
    dp.Manifest.scan(folder, progress=False).save(folder / "m.parquet")
    return folder


def run(folder, config: str, rounds: int) -> list:
    command = [sys.executable, "-c", RUN, str(folder), config, str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize(
    "config", ["dp.DaliConfig(device='cpu')", "dp.DaliConfig(device='cpu', decode='whole')", "dp.TorchConfig(num_workers=1)"]
)
def test_a_file_that_went_bad_is_named(scanned_folder, fault, config):
    manifest = dp.Manifest.load(scanned_folder / "m.parquet")
    victim = manifest.path(11)
    good = victim.read_bytes()
    victim.unlink()
    if BAD[fault]:
        victim.write_bytes(BAD[fault](good))
    assert run(scanned_folder, config, 3) == [[victim.name]] * 3


@pytest.mark.parametrize("threads", [1, 3])
def test_fifty_pipelines_over_garbage_headers_and_empty_files_never_crash(scanned_folder, threads):
    """25 failing pipelines a process, all three faults in each batch they stand in; without the guard most processes end in SIGSEGV."""
    manifest = dp.Manifest.load(scanned_folder / "m.parquet")
    victims = []
    for place, fault in ((8, "garbage"), (10, "header only"), (13, "empty")):
        victim = manifest.path(place)
        victim.write_bytes(BAD[fault](victim.read_bytes()))
        victims.append(victim.name)
    assert run(scanned_folder, f"dp.DaliConfig(device='cpu', num_threads={threads})", 25) == [sorted(victims)] * 25
