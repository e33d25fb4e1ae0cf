"""--help: what the job does, and every option in words."""

import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import gpu_check.config
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from dali_pipes.cli.conf import register

REPO = Path(__file__).parents[2]
JOBS = sorted({file.stem for file in (REPO / "conf").glob("*.yaml")} - {"job"})
GROUPS = {
    "data",
    "transform",
    "eval_transform",
    "loader",
    "loaders",
    "model",
    "optimizer",
    "schedule",
    "mixing",
    "search",
}


@pytest.fixture
def help_of(monkeypatch):
    monkeypatch.syspath_prepend(str(REPO / "scripts"))
    from dali_pipes.cli.help import help_text

    register()
    gpu_check.config.register()
    with initialize_config_dir(str(REPO / "conf"), version_base="1.3"):
        yield lambda *given: help_text("", compose(*given, return_hydra_config=True))


def sections(text):
    """The names that are explained, by section."""
    found, names = {}, set()
    for line in text.splitlines():
        if title := re.match(r"([\w.]+):", line):
            names = found.setdefault(title[1], set())
        elif option := re.match(r"    ([\w, ]+): ", line):
            names |= set(option[1].split(", "))
    return found


def options(prefix, config):
    """(section, name) of all that the command line can set, but for groups, which are sections."""
    for field in fields(OmegaConf.get_type(config)):
        child = config._get_node(field.name)
        if OmegaConf.is_config(child) and is_dataclass(OmegaConf.get_type(child)):
            yield from options(f"{prefix}.{field.name}".lstrip("."), child)
        elif field.name not in GROUPS:
            yield prefix or "Options", field.name


@pytest.mark.parametrize(
    ("job", "given"),
    [
        *((job, []) for job in JOBS),
        ("train", ["loader=torch", "transform=cifar", "optimizer=adamw"]),
        ("preview", ["loader=tfdata"]),
    ],
)
def test_every_option_is_explained(help_of, job, given):
    named = sections(help_of(job, given))
    with_defaults = compose(job, given)
    assert [
        (section, name)
        for section, name in options("", with_defaults)
        if name not in named.get(section, ())
    ] == []


@pytest.mark.slow
def test_what_a_user_sees():
    command = [sys.executable, "-m", "dali_pipes.cli", "train", "--help", "loader=torch"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPO).stdout
    assert (
        shown.startswith("Trains a network, or a task of yours")
        and "\ndali-pipes train experiment=demo_resnet18\n" in shown
    )
    assert (
        "\nloader: PyTorch's DataLoader on the CPU." in shown
        and "as many as the cores that this process may use" in shown
    )
    assert "\n    loader: dali, dali_cpu," in shown and "_schema" not in shown
    assert "\n  num_workers: null\n" in shown
    assert "None" not in shown, "on a command line it is null"
    assert "Hydra" not in shown
