"""Pages that a tool makes, and pages of the book, as a reader sees them: in Chromium, on a laptop
and on a phone, light and dark.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browser import (  # noqa: F401  browser is a fixture
    SCHEMES,
    WIDTHS,
    Unavailable,
    browser,
    find_chromium,
    leave_out,
)
from later import later
from made_up_runs import made_result, save_benchmark

benchmark = later("dali_pipes.tools.benchmark.page")
DOCS = Path(__file__).parents[1] / "docs"
BOOK = ("index", "from_torch", "diagnose", "api")
# the first time on a machine, Chromium is installed
pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

# text that scrolls in a frame of its own, is not to be seen, or is for readers of the text only
CLEAN = """
<div style="overflow-x: auto"><p style="width: 3000px; text-align: right">far away</p></div>
<details><summary>more</summary><pre style="overflow: auto">{long}</pre></details>
<p style="display: none; color: white">hidden</p>
<p style="position: fixed; left: -500px; width: 400px">a drawer</p>
<svg viewBox="0 0 100 20" width=100><text x=5 y=15 fill="black">text</text></svg>
<p style="background: #202020; color: #eeeeee">light on dark, äöü, дом, →, ×, …, 1 × 2</p>
""".format(long="long " * 500)
# what is planted, and the fault that is to be found
PLANTED = {
    "a wide picture": (
        "<div style='width: 2000px; height: 9px'></div>",
        "overflow: the page is 20",
    ),
    "a table without a frame": (
        f"<table><tr>{'<td>a cell with text' * 40}</table>".replace(
            "<td>", "<td style='white-space: nowrap'>"
        ),
        "overflow: the page is ",
    ),
    "a box that is too narrow": (
        "<div style='width: 50px; overflow: hidden; white-space: nowrap'>a long sentence</div>",
        "cut off: ",
    ),
    "a box that is too low": (
        "<div style='height: 30px; overflow: hidden'>one<br>two<br>three</div>",
        "cut off: ",
    ),
    "a label beyond its chart": (
        "<svg viewBox='0 0 100 20' width=100><text x=80 y=15>images/s</text></svg>",
        "cut off: ",
    ),
    "text left of the page": ("<p style='margin-left: -90px'>a sentence</p>", "cut off: "),
    # of the last plane for private use, which no font has
    "a letter that no font has": ("<p>one \U0010fffd letter</p>", "missing glyph: U+10FFFD"),
    "gray on white": ("<p style='color: #808080'>gray</p>", "contrast: 3.95 to 1"),
    "a label as pale as its chart": (
        "<svg viewBox='0 0 100 20' width=100><text x=5 y=15 fill='#ccc'>ms</text></svg>",
        "contrast: 1.61 to 1",
    ),
    "a transparent word": ("<p style='opacity: 0.4'>faint</p>", "contrast: 2.85 to 1"),
    "an error of a script": ("<script>undefined.x</script>", "error: "),
    "an error on the console": ("<script>console.error('planted')</script>", "error: planted"),
    "a picture of another machine": (
        "<img alt='' src='http://127.0.0.1:9/a.png'>",
        "network: http://127.0.0.1:9/a.png",
    ),
    "a font of another machine": (
        "<style>@font-face { font-family: far; src: url(http://127.0.0.1:9/a.woff2) } "
        "p { font-family: far }</style><p>text</p>",
        "network: http://127.0.0.1:9/a.woff2",
    ),
}


def one_round():
    """What a quick look has that other results have not: no interval, no control."""
    result = made_result(2000.0)
    for arm in result["arms"].values():
        for ratio in arm["ratio"].values():
            ratio |= {"low": None, "high": None, "claim": "no interval"}
    return {"arms": result["arms"], "control": None, "protocol": {"pairs": 1, "cpus": 2}}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Every page that the package makes, and of the book those of `BOOK`."""
    root = tmp_path_factory.mktemp("pages")
    for name, changes in {"benchmark": {}, "one round": one_round()}.items():
        (root / name).mkdir()
        save_benchmark(root / name, **changes)
        benchmark.write_page(root / name)

    # the whole book takes several times as long
    chosen = ",".join(["README.md", *(f"{name}.md" for name in BOOK if name != "index")])
    command = [sys.executable, "-m", "sphinx", "-Q", "-D", f"include_patterns={chosen}"]
    subprocess.run([*command, DOCS, root / "book"], check=True, timeout=120)
    reports = {
        folder.name: folder / "report.html" for folder in root.iterdir() if folder.name != "book"
    }
    return reports | {f"book: {name}": root / "book" / f"{name}.html" for name in BOOK}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_reader_sees_all_of_every_page(browser, pages, width, scheme):  # noqa: F811
    faults = {name: browser.faults(page, width, scheme) for name, page in pages.items()}
    assert {name: found for name, found in faults.items() if found} == {}


@pytest.mark.parametrize("width", WIDTHS)
def test_the_ratio_of_a_comparison_is_seen_without_scrolling(browser, pages, width):  # noqa: F811
    with browser.open(pages["benchmark"], width, "light") as window:
        seen = window.locator("tr", has_text="dali").first.locator("td").nth(2)
        assert seen.inner_text() == "2.00 [2.00, 2.00]"
        box = seen.bounding_box()
    assert box["x"] + box["width"] <= width and box["y"] + box["height"] <= WIDTHS[width]


@pytest.fixture
def plant(tmp_path):
    def write(body, head="<meta name=viewport content='width=device-width'>"):
        page = tmp_path / "page.html"
        style = "<style>body { background: white; color: black; }</style>"
        page.write_text(f"<!doctype html><meta charset=utf-8>{head}{style}<body>{body}")
        return page

    return write


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_as_it_should_be_is_no_fault(browser, plant, width):  # noqa: F811
    assert browser.faults(plant(CLEAN), width, "light") == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(browser, plant, name):  # noqa: F811
    body, fault = PLANTED[name]
    found = browser.faults(plant(f"{body}<p>all else is well"), 1366, "light")
    assert any(each.startswith(fault) for each in found), found
    kinds = {each.partition(":")[0] for each in found}
    # the console tells as well that a file could not be had
    assert kinds - {"error"} == {fault.partition(":")[0]} - {"error"}


def test_a_page_that_is_made_for_large_windows_only(browser, plant):  # noqa: F811
    assert browser.faults(plant("text", head=""), 390, "light") == [
        "overflow: the page is 980 pixels wide, and the window 390"
    ]


def test_a_color_that_is_wrong_in_the_dark_only(browser, plant):  # noqa: F811
    page = plant(
        "<style>:root { color-scheme: light dark } body { background: Canvas; color: #333 }</style>"
        "text"
    )
    assert browser.faults(page, 1366, "light") == []
    assert [fault.partition(":")[0] for fault in browser.faults(page, 1366, "dark")] == ["contrast"]


def test_without_chromium_the_tests_are_skipped_by_name_and_fail_in_ci(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="there is no chromium here, and only root"):
        find_chromium()

    monkeypatch.delenv("FAIL_WITHOUT_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no chromium"):
        leave_out("no chromium")
    monkeypatch.setenv("FAIL_WITHOUT_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="no chromium"):
        leave_out("no chromium")
