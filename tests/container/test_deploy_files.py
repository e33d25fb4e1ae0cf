"""The Dockerfile and the files of docs/deploy, each against the schema of what reads it."""

import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
DEPLOY = REPO / "docs/deploy"
pytestmark = pytest.mark.container

CHECKS = {
    "compose.yaml": ["check-jsonschema", "--builtin-schema", "vendor.compose-spec"],
    "kubernetes-job.yaml": ["kubernetes-validate", "--strict"],
    "kubeflow-trainjob.yaml": ["python", str(Path(__file__).with_name("check_trainjob.py"))],
}


def check(tools, name, file):
    program, *options = CHECKS[name]
    return subprocess.run(
        [tools / program, *options, file], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", CHECKS)
def test_a_file_is_what_its_reader_takes(tools, name):
    done = check(tools, name, DEPLOY / name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "word", "mistyped"),
    [
        ("compose.yaml", "shm_size", "shm-size"),
        ("kubernetes-job.yaml", "args", "arg"),
        ("kubeflow-trainjob.yaml", "numNodes", "nodes"),
    ],
)
def test_a_mistyped_word_is_found(tools, tmp_path, name, word, mistyped):
    text = (DEPLOY / name).read_text()
    assert text.count(f" {word}:") == 1
    (tmp_path / name).write_text(text.replace(f" {word}:", f" {mistyped}:"))
    assert check(tools, name, tmp_path / name).returncode != 0


def test_every_file_is_checked():
    scripts = ["slurm-apptainer.sbatch", "slurm-prepare.sh"]
    assert {file.name for file in DEPLOY.iterdir()} == {*CHECKS, *scripts}
    for script in scripts:
        subprocess.run(["bash", "-n", DEPLOY / script], check=True)


def test_the_dockerfile_passes_its_linter(tools):
    done = subprocess.run(
        [tools / "hadolint", REPO / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
