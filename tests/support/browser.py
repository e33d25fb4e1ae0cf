"""Opens pages in Chromium, and says what a reader would see to be wrong with them."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

WIDTHS = {1366: 768, 390: 844}  # of a laptop and of a phone, with their heights
SCHEMES = ("light", "dark")
FAULTS = Path(__file__).with_name("page_faults.js").read_text()
PACKAGES = ("chromium", "fonts-dejavu-core")  # Debian's
# a page is not kept waiting for the network that it must not use, nor for a GPU
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


class Unavailable(Exception):
    """There is no Chromium here; says why."""


def find_chromium() -> str:
    """Returns the path of Chromium; as root on Debian it is installed if it is not there yet."""
    if found := shutil.which("chromium"):
        return found
    if os.geteuid() or not shutil.which("apt-get"):
        raise Unavailable("there is no chromium here, and only root can install Debian's")
    install = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *PACKAGES]
    for command in (["apt-get", "update", "-qq"], install):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=280
        )
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise Unavailable(f"{' '.join(command)} failed: {why}")
    found = shutil.which("chromium")
    assert found, "Debian's package has a chromium"
    return found


class Browser:
    """One process of Chromium, with a window for each width and each scheme."""

    def __init__(self, browser):
        self._windows = {
            (width, scheme): browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=scheme,
                # as a phone does, which shows a page that says nothing of its width at 980 pixels
                is_mobile=width < 500,
            )
            for width, height in WIDTHS.items()
            for scheme in SCHEMES
        }

    @contextmanager
    def open(self, page: Path | str, width: int, scheme: str) -> Iterator:
        """Opens a file or an address; `faults` of what is yielded are those that it told."""
        window = self._windows[width, scheme].new_page()
        window.faults = []
        window.on("pageerror", lambda error: window.faults.append(f"error: {error}"))
        window.on("console", lambda line: _hear(window.faults, line))
        window.on("request", lambda request: _note(window.faults, request.url))
        try:
            window.goto(page.as_uri() if isinstance(page, Path) else page)
            yield window
        finally:
            window.close()

    def faults(self, page: Path | str, width: int, scheme: str) -> list[str]:
        """Returns what is wrong with a page, a sentence each."""
        with self.open(page, width, scheme) as window:
            seen = window.evaluate(FAULTS, width)
            return window.faults + seen


def _hear(faults: list[str], line) -> None:
    if line.type == "error":
        faults.append(f"error: {line.text}")


def _note(faults: list[str], url: str) -> None:
    if not url.startswith(("file:", "data:")):
        faults.append(f"network: {url}")


def leave_out(reason: str) -> NoReturn:
    """Ends a test that cannot be run here: it is skipped by name, and fails in CI."""
    (pytest.fail if os.environ.get("FAIL_WITHOUT_BROWSER") == "1" else pytest.skip)(reason)


# not for the session: as long as it is open, no other test can start an event loop
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        path = find_chromium()
        from playwright.sync_api import sync_playwright
    except (Unavailable, ImportError) as error:
        leave_out(str(error))
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        try:
            yield Browser(chromium)
        finally:
            chromium.close()
