import errno
import subprocess
import sys

import pytest
import torch

from dali_pipes.system import files
from dali_pipes.training.checkpoint import CheckpointError, check_same, load, save
from dali_pipes.training.config import ModelConfig

STATE = {
    "name": "resnet18",
    "model_options": {},
    "task": "classification",
    "classes": ["cat"],
    "channels": 3,
    "options": {},
    "ema": None,
    "model": {"a": torch.arange(6.0)},
    "loader": {"epoch": 2, "samples": 64, "fingerprint": {"seed": 3}},
}


def test_what_is_saved_is_loaded(tmp_path):
    save(STATE, tmp_path / "last.pt")
    found = load(tmp_path / "last.pt")
    assert (
        torch.equal(found["model"]["a"], STATE["model"]["a"]) and found["loader"] == STATE["loader"]
    )
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_good_one(tmp_path):
    """A limit on the size of files stands for a disk that is full: the write fails in the
    middle.
    """
    save(STATE, tmp_path / "last.pt")
    program = (
        "import resource, signal, sys, torch, pathlib\n"
        "from dali_pipes.training.checkpoint import save\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n"
        "    save({'weights': {'a': torch.zeros(1_000_000)}}, pathlib.Path(sys.argv[1]))\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "last.pt")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("CheckpointError") and "could not be written" in done.stdout, (
        done.stderr
    )
    assert "(the disk took only a part of it, and may be full)" in done.stdout
    assert f"{tmp_path / 'last.pt'} is unchanged" in done.stdout
    assert torch.equal(load(tmp_path / "last.pt")["model"]["a"], STATE["model"]["a"])
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


def test_a_write_that_fails_at_the_end_leaves_the_last_good_one(tmp_path, monkeypatch):
    save(STATE, tmp_path / "last.pt")

    def no_space(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", no_space)
    with pytest.raises(
        CheckpointError,
        match=r"last\.pt: the checkpoint could not be written \(no space left on device\)",
    ):
        save({}, tmp_path / "last.pt")
    assert "a" in load(tmp_path / "last.pt")["model"]


@pytest.mark.parametrize("spoil", ["nothing", "half", "text", "other", "code"])
def test_what_is_no_checkpoint_is_refused(tmp_path, spoil):
    path = tmp_path / "last.pt"
    if spoil == "half":
        save(STATE, path)
        path.write_bytes(path.read_bytes()[:300])
    if spoil == "text":
        path.write_text("hello")
    if spoil == "other":
        torch.save({"state_dict": {}}, path)
    if spoil == "code":
        torch.save({"format": 1, "model": subprocess.Popen}, path)
    message = {
        "nothing": "no such checkpoint",
        "other": "not a checkpoint of format 1",
        "code": r"other objects than tensors \(\w+\.Popen\)",
    }.get(spoil, "not a whole checkpoint")
    with pytest.raises(CheckpointError, match=message) as caught:
        load(path)
    assert "weights_only" not in str(caught.value)


def test_a_checkpoint_of_other_classes_is_refused_with_both_lists(tmp_path):
    classes = [".ipynb_checkpoints", "cat", "dog"]
    state = {"name": "resnet18", "model_options": {}, "classes": classes, "channels": 3}
    with pytest.raises(CheckpointError) as caught:
        check_same(state, tmp_path / "last.pt", ModelConfig(name="resnet18"), ["cat", "dog"], 3)
    text = str(caught.value)
    assert (
        "it has [.ipynb_checkpoints, cat, dog], and the images [cat, dog]); data.classes=[…] "
        "gives the images"
    ) in text


@pytest.mark.parametrize(
    ("saved", "channels", "why"),
    [
        (3, 1, "of images of three channels, and transform.channels is 1; set transform.chan"),
        (1, 3, "of images of one channel, and transform.channels is 3; set"),
    ],
)
def test_a_checkpoint_of_other_channels_is_refused(tmp_path, saved, channels, why):
    state = {"name": "resnet26d", "model_options": {}, "classes": ["cat"], "channels": saved}
    model = ModelConfig(name="resnet26d")
    check_same(state, tmp_path / "last.pt", model, ["cat"], saved)
    with pytest.raises(CheckpointError, match=why):
        check_same(state, tmp_path / "last.pt", model, ["cat"], channels)
