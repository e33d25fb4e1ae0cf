"""The command dali-pipes within the process of a test: a second less than a process for each."""

import logging
import subprocess
import sys
from contextlib import contextmanager

import pytest
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf, open_dict, read_write

from dali_pipes.cli.command import main


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """`command("scan", "data.train=…")` runs a job out of an empty folder and returns what
    subprocess.run would.
    """
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words, cwd=None):
        monkeypatch.chdir(cwd or tmp_path)
        monkeypatch.setattr(sys, "argv", ["dali-pipes", *map(str, words)])
        # a job adds the folder of a program that it is given
        monkeypatch.setattr(sys, "path", sys.path[:])
        capsys.readouterr()
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        return subprocess.CompletedProcess(words, status, *capsys.readouterr())

    with logging_kept():
        yield run


@contextmanager
def logging_kept():
    """A block after which logging is as it was; Hydra configures it for a job."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def composed(job, overrides):
    """The config that a job gets, where conf/benchmark.yaml looks up in Hydra's own what was
    chosen. Hydra must be initialized.
    """
    config = compose(job, overrides, return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    with read_write(config), open_dict(config):
        del config["hydra"]
    return OmegaConf.to_object(config)
