"""Preparing in this process, and looking at what came of it."""

import hashlib
import json
import multiprocessing
import time
from pathlib import Path

import psutil

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.tools.preparation.config import PrepareConfig
from dali_pipes.tools.preparation.run import prepare


def config(folder, out, **options) -> PrepareConfig:
    """Of the training images in `folder`, without a comparison of pixels."""
    transforms = {
        "transform": dp.TrainTransform(size=96),
        "eval_transform": dp.EvalTransform(size=96, resize=110),
    }
    return PrepareConfig(
        data=DataConfig(train=str(folder)),
        out=str(out),
        **{"agreement_images": 0} | transforms | options,
    )


def prepared(folder, out, **options) -> Path:
    prepare(config(folder, out, **options))
    return Path(out) / "train"


def scan(folder) -> dp.Manifest:
    return dp.Manifest.scan(folder, progress=False)


def digests(folder) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in Path(folder).rglob("*")
        if file.is_file()
    }


def result(out, split="train") -> dict:
    found = json.loads((Path(out) / "prepared.json").read_text())["splits"][split]["result"]
    assert {"date", "hardware", "versions", "data", "commit", "overrides"} == {
        *found.pop("provenance")
    }
    return found


def killed(until, folder, out, **options) -> None:
    """Starts preparing in a process of its own, and kills it as soon as `until()`; its workers have
    to end as well.
    """
    process = multiprocessing.get_context("fork").Process(
        target=prepared, args=(folder, out), kwargs=options
    )
    process.start()
    leader = psutil.Process(process.pid)
    try:
        wait_for(lambda: until() or not process.is_alive())
        assert process.is_alive(), "it was over before it could be killed"
        workers = leader.children(recursive=True)
        assert workers
    finally:
        process.kill()
        process.join()
    wait_for(
        lambda: (
            not any(
                worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE
                for worker in workers
            )
        )
    )


def wait_for(condition, seconds=60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)
