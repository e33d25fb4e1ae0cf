import copy
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from later import later
from made_up_runs import made_result
from rich.console import Console

results = later("dali_pipes.tools.benchmark.compare")


@pytest.fixture
def save(tmp_path):
    def write(name, result):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "result.json").write_text(json.dumps(result))
        return tmp_path / name

    return write


@pytest.fixture
def console():
    return Console(record=True, width=160)


def test_runs_of_the_same_work_stand_side_by_side(save, console):
    other = made_result(2000.0)
    other["provenance"]["hardware"]["gpu"] = "A GPU"
    results.compare([save("one", made_result()), save("other", other) / "result.json"], console)
    message = console.export_text()
    assert "A CPU, 2 cores" in message and "A GPU, 2 cores" in message and "2026-11-21" in message
    assert message.count("torch") == 2 and "2.00 [2.00, 2.00]" in message
    assert "1: " in message and "2: " in message


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ({"batch_size": 128}, r"batch_size \(64 and 128\)"),
        ({"workload": "train"}, r"workload \(loader and train\)"),
        ({"transform": {"kind": "TrainTransform", "size": 96}}, r"size \(224 and 96\)"),
    ],
)
def test_other_work_is_refused_by_name(save, console, work, message):
    with pytest.raises(results.CompareError, match=message):
        results.compare([save("one", made_result()), save("other", made_result(**work))], console)


def test_other_images_are_refused(save, console):
    other = copy.deepcopy(made_result())
    other["provenance"]["data"]["fingerprint"] = "def"
    with pytest.raises(results.CompareError, match="did not do the same work: images"):
        results.compare([save("one", made_result()), save("other", other)], console)


def test_transforms_of_different_kinds_are_refused(save, console):
    kinds = [
        {"kind": "TrainTransform", "size": 224, "scale": [0.08, 1]},
        {"kind": "EvalTransform", "size": 224, "resize": 256},
    ]
    with pytest.raises(
        results.CompareError, match=r"kind .* scale \(.* and None\), resize \(None and 256\)"
    ):
        results.compare(
            [save(kind["kind"], made_result(transform=kind)) for kind in kinds], console
        )


def test_the_picture_of_the_readme_is_drawn_from_its_result(tmp_path):
    docs = Path(__file__).parents[3] / "docs"
    results.draw(docs / "benchmarks/loaders_cpu_8_pairs_2026-11-23/fp32_64", tmp_path / "chart.svg")
    drawn = ElementTree.parse(tmp_path / "chart.svg")
    assert {"torch", "dali_cpu", "tfdata"} <= set(" ".join(drawn.getroot().itertext()).split())


def test_a_run_without_a_second_arm_has_no_picture(save, tmp_path):
    result = made_result()
    del result["arms"]["dali"]
    with pytest.raises(results.CompareError, match="no arm was measured against torch"):
        results.draw(save("one", result), tmp_path / "chart.svg")


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 1}', '{"arms": {}}'])
def test_what_is_no_result_is_refused(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(results.CompareError):
        results.load_result(tmp_path)
    with pytest.raises(results.CompareError, match="no result of a benchmark"):
        results.load_result(tmp_path / "nowhere")


def test_a_sweep_shows_the_options_in_which_its_runs_differ(save, console, tmp_path):
    for threads in (1, 2):
        result = made_result(1000.0 * threads)
        result["provenance"]["overrides"] = [
            "data.train=/my/images",
            "~hydra",
            f"loader.num_threads={threads}",
        ]
        save(f"sweep/{threads}", result)
    results.collect_sweep(tmp_path / "sweep", console)
    message = console.export_text()
    assert "loader.num_threads" in message and "data.train" not in message and "2 runs" in message
    assert (tmp_path / "sweep/sweep.txt").read_text().count("dali") == 2
