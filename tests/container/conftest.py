"""The image, built once, and what looks at it."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from container import engine as engines
from container.engine import CONFINED, REPO

IMAGE = "localhost/dali_pipes:test"


@pytest.fixture(scope="session")
def engine():
    folder = Path(tempfile.mkdtemp(prefix="dali_pipes_image_"))
    folder.chmod(0o755)
    engine = engines.Engine("none", folder)
    try:
        engine = engines.find(folder)
        yield engine
    except engines.Unavailable as error:
        engine.command = "podman" if (folder / "storage").exists() else "none"
        pytest.skip(str(error))
    finally:
        engines.free(engine)


@pytest.fixture(scope="session")
def image(engine):
    engine.build(IMAGE, REPO, "--build-arg=REVISION=0123abc")
    yield IMAGE
    if engine.command == "docker":
        engine("rmi", "--force", IMAGE)


@pytest.fixture(scope="session")
def data(engine, image_folder):
    """The images, for anyone to read."""
    copy = shutil.copytree(image_folder, engine.folder / "data")
    subprocess.run(["chmod", "-R", "a+rX", copy], check=True)
    return copy


@pytest.fixture(scope="session")
def runs(engine):
    folder = engine.folder / "runs"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def run(engine, image, data, runs):
    """Runs a command of the image on a read-only root, without a network, with the images at /data
    and a folder at /runs.
    """

    def go(*command, options=(), status=0):
        mounts = [f"--volume={data}:/data:ro", f"--volume={runs}:/runs"]
        done = engine("run", *CONFINED, *mounts, *options, image, *command, check=False)
        assert done.returncode == status, (
            f"{done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        return done

    return go


@pytest.fixture(scope="session")
def tools(tmp_path_factory):
    """The folder of programs of requirements/container.txt."""
    if not shutil.which("uv"):
        pytest.skip("uv is not installed")
    environment = tmp_path_factory.mktemp("tools") / "venv"
    subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, environment], check=True)
    install = ["uv", "pip", "install", "--quiet", "--python", environment, "--require-hashes"]
    done = subprocess.run(
        [*install, "--requirement", REPO / "requirements/container.txt"],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    if done.returncode:
        pytest.skip(f"the tools cannot be had: {done.stderr.strip().splitlines()[-1]}")
    yield environment / "bin"
    shutil.rmtree(environment)
