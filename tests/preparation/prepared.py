"""Preparing in this process, and looking at what came of it."""

import hashlib
import json
from pathlib import Path

import dali_pipes as dp
from dali_pipes.config import DataConfig
from dali_pipes.preparation.config import PrepareConfig
from dali_pipes.preparation.run import prepare


def config(folder, out, **options) -> PrepareConfig:
    """Of the training images in `folder`, without a comparison of pixels."""
    transforms = {
        "transform": dp.TrainTransform(size=96),
        "eval_transform": dp.EvalTransform(size=96, resize=110),
        "loader": dp.DaliConfig(device="cpu"),
    }
    return PrepareConfig(data=DataConfig(train=str(folder)), out=str(out), **{"agreement_images": 0} | transforms | options)


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
    return json.loads((Path(out) / "prepared.json").read_text())["splits"][split]["result"]
