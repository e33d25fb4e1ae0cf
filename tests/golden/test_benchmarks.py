"""What a benchmark says: the figures of trials that were measured once, and the sentences, tables
and pages that are made of committed results.

Of most results only the arms' figures were kept, and of these the text is held. Where the rounds
were kept, the ratios, their intervals and the claims are calculated from them again. The control of
those is the baseline against its own next round, since its trials of then were not kept.
"""

import html
import io
import json
import re
from pathlib import Path

import pytest
from golden import hold_to
from made_up import trial
from made_up_runs import save_benchmark
from rich.console import Console

from dali_pipes.measure.figures import result_figures
from dali_pipes.measure.printing import print_result
from dali_pipes.measure.stats import Ratio, claim, paired_ratio
from dali_pipes.measure.wording import caveats, comparison
from dali_pipes.tools.benchmark.page import write_page

HERE = Path(__file__).parent
BENCHMARKS = HERE.parents[1] / "docs/benchmarks"
PAIRS = "loaders_cpu_8_pairs_2026-11-23"
# results of a benchmark: CPU and GPU, with and without a control, beside training, a user's loader
RESULTS = (
    "gpu_h100_2026-11-25/loader.json",
    "gpu_h100_2026-11-25/resnet50.json",
    "gpu_h200_2026-11-27/four_cores.json",
    "gpu_h200_2026-11-27/loader.json",
    "gpu_h200_2026-11-27/resnet50.json",
    "gpu_h200_2026-11-27_graph/loader.json",
    "loaders_cpu_2cores_2026-11-23/result.json",
    *(f"{PAIRS}/{name}/result.json" for name in ("fp32_64", "fp32_256", "uint8_256")),
    "preset_cpu_2cores_2026-11-23/result.json",
)
COMPARED = ("images_per_s", "cpu_s_per_1000_images")


def read(name):
    return json.loads((BENCHMARKS / name).read_text())


def printed(result):
    text = io.StringIO()
    print_result(result, Console(file=text, width=120))
    return [line.rstrip() for line in text.getvalue().splitlines()] + caveats(result)


def claims(result):
    """Returns what may be claimed of each arm, given the intervals of the result."""
    control = result["control"]
    restarts = result["protocol"].get("restart", True)
    return {
        f"{name}, {figure}": claim(
            ratio_of(arm["ratio"][figure]), control and ratio_of(control[figure]), restarts
        )
        for name, arm in result["arms"].items()
        if name != result["baseline"] and arm.get("ratio")
        for figure in COMPARED
    }


def ratio_of(kept):
    return Ratio(kept["estimate"], kept["low"], kept["high"])


def list_trials(rates):
    """Yields the trials of rounds whose rates were kept, by arm; the first arm is the baseline."""
    for arm, figures in rates.items():
        for number, (rate, cpu) in enumerate(zip(*figures, strict=True), 1):
            yield trial(arm, number, rate=rate, cpu=cpu)
    baseline = next(iter(rates))
    for number, (rate, cpu) in enumerate(zip(*rates[baseline], strict=True), 1):
        yield trial(baseline, number - 1 or len(rates[baseline][0]), "control", rate=rate, cpu=cpu)


def kept_rounds():
    """Yields the rates and the CPU times of all rounds that were kept, by arm, with a name."""
    for name, run in read(f"{PAIRS}/pairs.json").items():
        arms = run["trials"].items()
        yield name, {arm: [figures[figure] for figure in COMPARED] for arm, figures in arms}

    # these have milliseconds an image, which are seconds a thousand
    targets = read("targets_cpu_2026-11-23/result.json")["trials"]
    for name, arms in {
        **targets,
        "parquet": read("parquet_cpu_2026-11-23/result.json")["trials"],
    }.items():
        yield name, {arm: columns(rounds) for arm, rounds in arms.items()}

    peers = read("peers_cpu_2cores_2026-11-23/result.json")["figures"]
    yield "peers", {arm: columns(each["trials"]) for arm, each in peers.items()}


def columns(rounds):
    names = ("images_per_s", "cpu_ms_per_image")
    return [[each[name] for each in rounds] for name in names]


def rounded(ratio):
    return {name: f"{value:.4f}" for name, value in ratio.items() if isinstance(value, float)}


def test_committed_results_are_put_into_the_same_words():
    results = {name: read(name) for name in RESULTS}
    found = {
        name: {"printed": printed(result), "claims": claims(result)}
        for name, result in results.items()
    }
    hold_to(HERE / "results.json", found)


@pytest.mark.slow
def test_the_rounds_of_then_have_the_same_ratios_and_claims():
    found = {}
    for name, rates in kept_rounds():
        baseline, *others = rates
        trials, count = list(list_trials(rates)), len(rates[baseline][0])
        by_restarts = [
            result_figures(trials, list(rates), baseline, restarts=restarts)
            for restarts in (True, False)
        ]
        control = by_restarts[0]["control"]
        found[name] = {"control": {each: rounded(control[each]) for each in COMPARED}}
        for arm in others:
            ratio, without = (figures["arms"][arm]["ratio"] for figures in by_restarts)
            found[name][arm] = {each: rounded(ratio[each]) for each in COMPARED} | {
                "says": comparison(arm, baseline, ratio, count),
                "claims without restarts": [without[each]["claim"] for each in COMPARED],
            }

    ratios = read("folklore_cpu_2cores_2026-11-21/result.json")["ratios"]
    for name, kept in ratios.items():
        ratio = paired_ratio(kept["before"], kept["after"])
        found[f"folklore: {name}"] = rounded(ratio.to_dict())
    hold_to(HERE / "rounds.json", found)


def test_a_result_of_these_rounds_is_printed_as_before():
    found = {}
    for name, rates in list(kept_rounds())[:2]:
        result = read(f"{PAIRS}/{name}/result.json")
        figures = result_figures(list(list_trials(rates)), list(rates), "torch")
        result |= figures | {"arms": {}}
        for arm, each in figures["arms"].items():
            result["arms"][arm] = {"failed": None, "skipped": None} | each
        found[name] = printed(result)
    hold_to(HERE / "printed.json", found)


@pytest.mark.slow
def test_the_page_of_a_result_says_the_same(tmp_path):
    save_benchmark(tmp_path)
    write_page(tmp_path)
    page = (tmp_path / "report.html").read_text()
    # of a chart its caption is another one with each chart
    for part in ("style", "script", "svg", "figure"):
        page = re.sub(rf"<{part}\b.*?</{part}>", "", page, flags=re.DOTALL)
    page = re.sub(r"</(tr|p|h\d|li|table|pre)>|<(tr|p|h\d|li|table|pre)\b[^>]*>", "\n", page)
    page = re.sub(r"</?t[dh][^>]*>", " | ", page)
    lines = [
        " ".join(line.split()) for line in html.unescape(re.sub("<[^>]*>", "", page)).splitlines()
    ]
    hold_to(HERE / "page.json", {"lines": [line for line in lines if line]})
