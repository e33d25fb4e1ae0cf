"""README's way to the package with pip, in a container that has nothing but Debian's Python."""

import os
import re
import ssl

import pytest
from container.engine import REPO

PIP_LINES = re.compile(r"## Begin\n.*?```bash\n(.*?)```", re.DOTALL)

pytestmark = [pytest.mark.release, pytest.mark.container, pytest.mark.timeout(3600)]


def test_the_pip_lines_of_readme_end_in_a_trained_step(engine, checkout):
    """A download of some gigabytes."""
    lines = PIP_LINES.search((REPO / "README.md").read_text())[1]
    done = engine(
        "run",
        "--rm",
        "--network=host",
        *_find_pypi(),
        f"--volume={checkout}:/checkout",
        "--workdir=/checkout",
        engine.base,
        "bash",
        "-c",
        f"set -euo pipefail\n{lines}",
        timeout=3500,
    )
    assert '"images"' in done.stdout.splitlines()[-1]


def _find_pypi():
    """How this machine finds PyPI: pip's own variables, and certificates."""
    named = [f"--env={name}" for name in os.environ if name.startswith("PIP_")]
    certificates = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    mount = f"--volume={certificates}:/etc/ssl/certs/ca-certificates.crt:ro"
    return [*named, mount] if certificates else named
