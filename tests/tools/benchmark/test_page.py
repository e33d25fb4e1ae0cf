import re
from functools import cache
from html.parser import HTMLParser

import pytest
from later import later
from made_up_runs import made_result, save_benchmark

pages = later("dali_pipes.tools.benchmark.page")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a run with an arm that failed, and words that HTML must not take for its own."""

    @cache
    def written():
        return write()

    def write(**changes):
        folder = tmp_path_factory.mktemp("run")
        save_benchmark(folder, **changes)
        pages.write_page(folder)
        return (folder / "report.html").read_text()

    return lambda **changes: write(**changes) if changes else written()


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def named(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def test_it_opens_offline(page):
    text = page()
    assert "http" not in text and "url(http" not in text and "@import" not in text
    tags = Tags(text)
    assert not tags.named("script") and not tags.named("link")
    assert all(
        image["src"].startswith("data:image/webp;base64,") and image["alt"]
        for image in tags.named("img")
    )


def test_the_table_and_the_ratio_come_first(page):
    text = page()
    assert text.index("<table>") < text.index("<h2>") < text.index("<figure>")
    assert ">2.00 ×</text>" in text


@pytest.mark.slow
def test_captions_are_of_what_is_drawn(page):
    interval = {"estimate": 2.0, "low": 1.9, "high": 2.1, "claim": "faster"}
    single = interval | {"low": None, "high": None}
    captions = []
    for ratio, control in ((interval, interval), (interval, None), (single, None)):
        arms = made_result(2000.0)["arms"]
        arms["dali"]["ratio"] = dict.fromkeys(arms["dali"]["ratio"], ratio)
        control = control and dict.fromkeys(arms["dali"]["ratio"], control)
        text = page(arms=arms, control=control)
        captions.append(re.search(r"<figcaption>(Speed.*?)</figcaption>", text)[1])
    assert captions == [
        "Speed against the baseline, with 95 % intervals. Band: the baseline against itself.",
        "Speed against the baseline, with 95 % intervals.",
        "Speed against the baseline.",
    ]


def test_it_shows_every_picture_that_is_promised(page):
    tags = Tags(page())
    # ratios, images/s, CPU
    assert len(tags.named("figure")) == 3
    assert all(svg["aria-label"] and "viewbox" in svg for svg in tags.named("svg"))
    assert len(tags.named("img")) == 3 + 3 + 3  # torch is the reference and has no difference


def test_it_is_the_same_when_it_is_written_again_and_no_id_is_there_twice(page):
    text = page(note="")
    assert text == page(note="")
    ids = re.findall(r'\bid="([^"]+)"', text)
    # the parts of a figure have the same names in all charts, and nothing refers to them
    referred = {name for name in re.findall(r"#([\w-]+)", text) if name in ids}
    assert referred and all(ids.count(name) == 1 for name in referred)


def test_its_colours_follow_light_and_dark(page):
    text = page()
    assert (
        "#ab" not in text and "var(--c0)" in text and "var(--c1)" in text and "light-dark(" in text
    )


def test_what_is_said_is_said_on_the_page(page):
    text = page()
    assert "dali against torch: 2.00 [2.00, 2.00]" in text  # without a control nothing is claimed
    assert "&lt;/h1&gt;&lt;script&gt;$x" in text
    assert "Not measured, no cgroup (v2): throttling" in text


def test_repeated_images_are_reported(page):
    assert "125 images, repeated to epochs of 5,000" in page()


def test_a_single_arm_has_a_page(page):
    alone = made_result()
    alone = {name: figures for name, figures in alone["arms"].items() if name == "torch"}
    text = page(
        arms=alone,
        agreement={"images": 0, "arms": {}, "note": "fewer than two arms follow the plan"},
    )
    assert "torch: 1,000 images/s" in text and "No pixels were compared" in text
