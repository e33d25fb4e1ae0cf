"""What each job is configured with: `dali-pipes JOB --cfg job`, also with each experiment, and each
option of each group.

Interpolations are kept as they are written, so that nothing is of this machine. `index` has no
config.
"""

import functools
from pathlib import Path

import pytest
import yaml
from built_in_options import list_options
from golden import hold_to
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from dali_pipes.cli import hydra

CONF = Path(__file__).parents[2] / "conf"
JOBS = ("train", "benchmark", "diagnose", "doctor", "scan", "preview", "prepare")
GROUPS = ("arm", "data", "loader", "model", "optimizer", "sampling", "schedule", "transform")
# choices that go through the command line: of a job that looks up what was chosen, and of a group
# that changes what Hydra does
CHOSEN = (
    ("train", "cluster=slurm", "loader=torch", "transform=views", "sampling=weighted"),
    ("benchmark", "loader=dali_cpu", "transform=eval", "experiment=quick"),
)


def differences(config, usual, place=""):
    """Yields what a config has otherwise than its job's usual one, by the place."""
    for name in {**usual, **config}:
        inner, value, other = f"{place}{name}", config.get(name, "nothing"), usual.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            yield from differences(value, other, f"{inner}.")
        elif name not in usual or value != other:
            yield inner, value


@pytest.mark.slow
def test_each_job_is_configured_as_before(command, monkeypatch):
    # the schemas of all jobs, which are the same each time
    monkeypatch.setattr(hydra, "register", functools.cache(hydra.register))

    def configured(*words):
        ended = command(*words, "--cfg", "job")
        assert ended.returncode == 0, ended.stderr
        return yaml.safe_load(ended.stdout)

    found = usual = {job: configured(job) for job in JOBS}
    experiments = [("train", f"experiment={name}") for name in list_options("experiment")]
    for job, *words in (*experiments, *CHOSEN):
        changed = dict(differences(configured(job, *words), usual[job]))
        found = {**found, " ".join([job, *words]): changed}

    hold_to(Path(__file__).with_name("configs.json"), found)


@pytest.mark.slow
def test_each_option_of_a_group_says_the_same(command):
    hydra.register()
    # all at once, each at a place of its own: composing takes half a second
    words = [f"+{group}@{group}.{name}={name}" for group in GROUPS for name in list_options(group)]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        options = OmegaConf.to_yaml(compose(None, words))

    hold_to(Path(__file__).with_name("options.json"), yaml.safe_load(options))
