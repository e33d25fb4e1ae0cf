"""README says what the results and the pages say: its figures are theirs, its promises stand on
their pages, and its charts are drawn from the results.
"""

import importlib
import json
import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
README = (REPO / "README.md").read_text()
BENCHMARKS = REPO / "docs/benchmarks"
ARMS = {
    "cpu": "loaders_cpu_8_pairs_2026-11-23/fp32_64/result.json",
    "gpu": "gpu_h200_2026-11-27_graph/loader.json",
    "against the DataLoader": "gpu_h200_2026-11-27/loader.json",
    "resnet50": "gpu_h200_2026-11-27/resnet50.json",
    "four cores": "gpu_h200_2026-11-27/four_cores.json",
}


def arm(result, name):
    return json.loads((BENCHMARKS / ARMS[result]).read_text())["arms"][name]


def rate(result, name):
    return f"{arm(result, name)['images_per_s']:,.0f}"


def ratio(result, name, of, digits):
    estimate, low, high = (
        arm(result, name)["ratio"][of][end] for end in ("estimate", "low", "high")
    )
    return f"{estimate:.{digits}f} × [{low:.{digits}f}, {high:.{digits}f}]"


def figures():
    """README's figures, and what the results make of them."""
    compared, cpu = "against the DataLoader", "cpu_s_per_1000_images"
    learned = json.loads((BENCHMARKS / "gpu_h200_2026-11-27_graph/training.json").read_text())
    waits = json.loads((BENCHMARKS / "gpu_h200_2026-11-27_graph/waits.json").read_text())
    shares = [
        arm("resnet50", "dali")["ratio"]["images_per_s"]["estimate"],
        learned["summary"]["dali, default"]["ratio"],
        waits["exported"]["ratio"],
    ]
    costs = [round(100 * (1 - share)) for share in shares]
    plan = arm("gpu", "dali")["ratio"]["images_per_s"]["estimate"]
    few = arm("four cores", "dali")["ratio"]["images_per_s"]["estimate"]
    cpus = [arm("resnet50", name)["cpus"] for name in ("dali", "torch_torchvision")]
    assert 0.3 < cpus[0] / cpus[1] < 0.37, "a third of the cores"
    return [
        "PyTorch {}, plain DALI {}, dali_pipes {}".format(
            *(rate("cpu", name) for name in ("torch", "dali_native", "dali_cpu"))
        ),
        "PyTorch {}, plain DALI {}, dali_pipes {}".format(
            *(rate("gpu", name) for name in ("torch_torchvision", "dali_native_fancy", "dali"))
        ),
        f"its fastest one made {rate('gpu', 'dali_native')}",
        f"gave {ratio(compared, 'dali', 'images_per_s', 1)} the images/s for "
        f"{ratio(compared, 'dali', cpu, 2)} the CPU time",
        f"is {min(costs)} to {max(costs)} % slower",
        f"`dali` trains {few:.1f} times as fast (four rounds, no interval)",
        f"Plain DALI loads some {10 * round(10 * (1 / plan - 1))} % more images",
    ]


@pytest.mark.parametrize("figure", figures())
def test_a_figure_is_the_results(figure):
    assert figure in " ".join(README.split())


# each promise's page, and the sentences there that it stands on
PROMISES = {
    "The same pixels": ("pixels.md", "holds every backend on the CPU to it"),
    "The CPU only reads files": ("gpu-path.md", "the default decodes JPEGs on the GPU"),
    "Exact epochs": (
        "how-it-works.md",
        "Training leaves out what does not fill the last global batch",
        "resumes with the same samples, crops and draws: in mid-epoch, on another backend, or with "
        "another number of ranks at the same global batch size",
    ),
    "Bad files are named and survived": ("reliability.md", "names the file and the reason."),
    "No number without its provenance": ("result.md", "machine, versions, data and code"),
}


def test_every_promise_is_tried():
    section = README[README.index("## What it promises") : README.index("## Beside others")]
    assert re.findall(r"^\d\. \*\*(.+?)\.?\*\*", section, re.MULTILINE) == list(PROMISES)


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_stands_on_its_page(promise):
    page, *sentences = PROMISES[promise]
    text = " ".join((REPO / "docs" / page).read_text().split())
    assert [sentence for sentence in sentences if sentence not in text] == []


@pytest.mark.parametrize("chart", ["cpu", "gpu"])
def test_a_chart_is_drawn_from_the_result(chart, monkeypatch):
    monkeypatch.syspath_prepend(str(REPO / "docs"))
    drawn = importlib.import_module("draw_comparison").draw(chart)
    kept = (REPO / f"docs/comparison_{chart}.svg").read_text()
    assert texts(drawn) == texts(kept)
    assert len(widths(kept)) == 3 and widths(drawn) == widths(kept)


def texts(svg):
    return re.findall(r"<text[^>]*>([^<]+)<", svg)


def widths(svg):
    """Of the bars, as shares of the widest."""
    bars = re.findall(
        r'<path d="M ([\d.]+) [\d.]+ \nL ([\d.]+) [^"]*?z\n" clip-path[^>]*--c\d', svg
    )
    found = [float(end) - float(start) for start, end in bars]
    return [round(width / max(found), 2) for width in found]


def test_code_fits_a_laptop():
    blocks = re.findall(r"```\w*\n(.*?)```", README, re.DOTALL)
    assert max(len(line) for block in blocks for line in block.splitlines()) <= 80
