"""Docker where its engine runs, and else Podman of Debian's packages, which builds with Buildah.
Both take the same commands.
"""

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[2]
PACKAGES = ["podman", "buildah", "runc", "mmdebstrap"]
# measured: 31.5, four times the layer of the packages while it is written, and the rest for what
# other tests write meanwhile
NEEDED_GB = 34
# Nothing is written to the root, nothing is fetched, and the health is asked for by hand.
CONFINED = ["--rm", "--read-only", "--network=none", "--no-healthcheck"]
CANARY = f"canary-{uuid.uuid4()}"  # a secret of the build, which must not be found in what it makes


class Unavailable(Exception):
    """No engine can be had here; the text says why."""


@dataclass
class Engine:
    """A command line, the folder that it keeps everything in, and the base image that is built
    on.
    """

    command: str
    folder: Path
    base: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    build_options: list[str] = field(default_factory=list)

    def __call__(
        self, *words: str, check: bool = True, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            [self.command, *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        assert not check or done.returncode == 0, _explain_failure(words, done)
        return done

    def build(self, tag: str, context: Path = REPO, *options: str) -> str:
        """Returns what it prints."""
        done = self(
            "build", *self.build_options, *options, "--tag", tag, str(context), timeout=1800
        )
        return done.stdout + done.stderr

    def inspect(self, image: str) -> dict[str, Any]:
        return json.loads(self("image", "inspect", image).stdout)[0]


def _explain_failure(words: tuple[str, ...], done: subprocess.CompletedProcess[str]) -> str:
    """The last lines come first, because a report of CI cuts long messages at their end."""
    reason = "\n".join(done.stderr.splitlines()[-8:])
    full = "no space left on device" in done.stderr
    why = f"the disk was full: building the image takes {NEEDED_GB} GB\n" if full else ""
    return (
        f"{shlex.join(words[:1])} ended with status {done.returncode}:\n{why}{reason}\n\n"
        f"The whole command: {shlex.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    )


def find(folder: Path) -> Engine:
    """Raises Unavailable, with the reason, if there is no way to build and run an image here."""
    if (room := shutil.disk_usage(folder).free / 1e9) < NEEDED_GB:
        raise Unavailable(f"building the image takes {NEEDED_GB} GB, and {room:.0f} GB are free")
    base = re.search(r"^ARG BASE_IMAGE=(\S+)", (REPO / "Dockerfile").read_text(), re.MULTILINE)[1]
    if (
        shutil.which("docker")
        and subprocess.run(["docker", "pull", base], capture_output=True, check=False).returncode
        == 0
    ):
        return Engine("docker", folder, base, build_options=_secrets(folder, {}))
    return _podman(folder)


def _podman(folder: Path) -> Engine:
    if os.geteuid() or not shutil.which("apt-get"):
        raise Unavailable("there is no Docker, and Podman needs root and Debian's packages")
    if not all(map(shutil.which, PACKAGES)):
        install = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *PACKAGES]
        for command in (["apt-get", "update", "-qq"], install):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            if subprocess.run(
                command, env=environment, capture_output=True, check=False, timeout=600
            ).returncode:
                raise Unavailable(f"Debian's packages cannot be had: {shlex.join(command)} failed")
    (folder / "tmp").mkdir()
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/storage"\nrunroot = "{folder}/run"\n'
    )
    # Limits that a root without CAP_SYS_RESOURCE may set, and a runtime that knows old cgroups too.
    (folder / "containers.conf").write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    environment = {
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "TMPDIR": str(folder / "tmp"),
    }
    engine = Engine("podman", folder, environment=environment)
    engine.base = _debian(engine)
    done = engine("run", *CONFINED, engine.base, "true", check=False)
    if done.returncode:
        raise Unavailable(
            f"Podman cannot run a container here: {done.stderr.strip().splitlines()[-1]}"
        )
    cache = _uv_cache()
    own = ["--volume", f"{cache}:/media"] if cache else []
    engine.build_options = [
        "--isolation=chroot",
        "--format=docker",
        "--layers",
        "--pull=never",
        f"--build-arg=BASE_IMAGE={engine.base}",
        *own,
    ]
    engine.build_options += _secrets(folder, {"UV_CACHE_DIR": "/media"} if cache else {})
    return engine


def _debian(engine: Engine) -> str:
    """A base image of this machine's Debian, from the mirror that its apt uses."""
    targets = [
        "apt-get",
        "indextargets",
        "--format",
        "$(REPO_URI) $(CODENAME) $(COMPONENT)",
        "Created-By: Packages",
    ]
    listed = subprocess.run(targets, capture_output=True, text=True, check=True).stdout.split("\n")
    release = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text().splitlines()
        if "=" in line
    )
    codename = release["VERSION_CODENAME"].strip('"')
    mirror = next(
        (line.split()[0] for line in listed if line.split()[1:] == [codename, "main"]), None
    )
    if mirror is None:
        raise Unavailable(f"apt names no mirror of {codename}")
    archive, name = engine.folder / "base.tar", "localhost/base:test"
    command = [
        "mmdebstrap",
        "--variant=minbase",
        "--include=python3,python3-venv,ca-certificates",
        codename,
        str(archive),
        mirror,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        raise Unavailable(
            f"no base image could be made from {codename}: {done.stderr.strip().splitlines()[-1]}"
        )
    engine("import", str(archive), name)
    archive.unlink()
    return name


def _uv_cache() -> Path | None:
    """Wheels that are on this machine already."""
    if not shutil.which("uv"):
        return None
    cache = Path(
        subprocess.run(
            ["uv", "cache", "dir"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    return cache if cache.is_dir() else None


def _secrets(folder: Path, variables: dict[str, str]) -> list[str]:
    """How this machine finds PyPI, if that is said in the environment or by pip's configuration."""
    named = {
        name: value
        for name, value in os.environ.items()
        if name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
    }
    asked = subprocess.run(
        ["pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    if asked.returncode == 0 and asked.stdout.strip():
        named = {
            "PIP_INDEX_URL": asked.stdout.strip(),
            "UV_DEFAULT_INDEX": asked.stdout.strip(),
        } | named
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in (named | variables).items()]
    (folder / "index").write_text(f"# {CANARY}\n" + "".join(lines))
    options = [f"--secret=id=index,src={folder / 'index'}"]
    certificates = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    return [*options, f"--secret=id=ca,src={certificates}"] if certificates else options


def free(engine: Engine) -> None:
    """Gives the disk back."""
    if engine.command == "podman":
        engine("rm", "--all", "--force", "--volumes", check=False)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed([each for each in mounts if each.startswith(f"{engine.folder}/")]):
            subprocess.run(["umount", "--quiet", mount], capture_output=True, check=False)
    shutil.rmtree(engine.folder, ignore_errors=True)
