import json

import pytest
from later import later
from made_up_runs import made_result
from rich.console import Console

results = later("dali_pipes.tools.benchmark.sweep")


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


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 1}', '{"arms": {}}'])
def test_what_is_no_result_is_refused(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(results.ResultError):
        results.load_result(tmp_path)
    with pytest.raises(results.ResultError, match="no result of a benchmark"):
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
