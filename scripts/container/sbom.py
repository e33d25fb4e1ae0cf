"""Lists what is in a container image, as a CycloneDX SBOM.

It has the Python packages with their licences, and the Debian packages of the base image.

python scripts/container/sbom.py dali_pipes > sbom.json     # ENGINE=podman for Podman; needs uv
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parents[2] / "requirements/container.txt"
# The tool is appended to the path, so that the image's own packages come first; it examines the
# image's Python from outside, in which the tool is not installed.
LIST_PACKAGES = """
import runpy, sys
sys.path.append("/tools")
sys.argv = ["cyclonedx-py", "environment", "--output-reproducible", "--output-format", "JSON"]
sys.argv.append(sys.executable)
runpy.run_module("cyclonedx_py", run_name="__main__")
"""


def inside(image: str, program: str, *arguments: str, tools: str | None = None) -> str:
    """Runs a program of the image, without a network, and returns what it prints.

    Args:
        tools: a folder that the program sees as /tools.
    """
    engine = os.environ.get("ENGINE", "docker")
    mount = ["--volume", f"{tools}:/tools:ro"] if tools else []
    options = [
        "run",
        "--rm",
        "--read-only",
        "--network=none",
        "--no-healthcheck",
        *mount,
        "--entrypoint",
        program,
    ]

    return subprocess.run(
        [engine, *options, image, *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def sbom(image: str) -> dict[str, Any]:
    version = inside(
        image, "python", "-c", "import sys; print(*sys.version_info[:2], sep='.')"
    ).strip()

    with tempfile.TemporaryDirectory() as tools:
        install = [
            "uv",
            "pip",
            "install",
            "--quiet",
            "--target",
            tools,
            "--python-version",
            version,
        ]

        subprocess.run([*install, "--require-hashes", "--requirement", str(LOCK)], check=True)
        # a temporary folder is closed to other users, and the image's user is another one
        Path(tools).chmod(0o755)
        found: dict[str, Any] = json.loads(
            inside(image, "python", "-c", LIST_PACKAGES, tools=tools)
        )

    debian = inside(
        image, "dpkg-query", "--show", "--showformat", "${Package} ${Version} ${Architecture}\n"
    )
    found["components"] += [_debian(*line.split()) for line in debian.splitlines()]
    return found


def _debian(name: str, version: str, architecture: str) -> dict[str, str]:
    purl = f"pkg:deb/debian/{name}@{version}?arch={architecture}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    print(json.dumps(sbom(sys.argv[1]), indent=1))
