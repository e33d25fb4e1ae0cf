"""The command dali-pipes: which jobs there are, and one line for one that is not."""

import subprocess
import sys
from pathlib import Path

import pytest
from command import logging_kept

from dali_pipes.cli import jobs
from dali_pipes.cli.command import main
from dali_pipes.cli.own_program import program_options
from dali_pipes.errors import ConfigError

REPO = Path(__file__).parents[2]


@pytest.fixture
def command(monkeypatch):
    def go(*words):
        monkeypatch.setattr(sys, "argv", ["dali-pipes", *words])
        main()

    with logging_kept():
        yield go


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_help_lists_every_job_in_a_line(command, capsys, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "100")
    command(*words)
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("dali-pipes JOB ")
    assert [line.split()[0] for line in lines] == list(jobs.JOBS)
    assert all(line.startswith("    ") and line[-1] in ".?" and len(line) <= 100 for line in lines)


def test_a_narrow_terminal_has_no_line_that_it_breaks(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command("--help")
    _, _, jobs_of = capsys.readouterr().out.partition("\n\n")
    assert max(map(len, jobs_of.splitlines())) <= 80
    names = [line.split()[0] for line in jobs_of.splitlines() if line[4] != " "]
    assert names == list(jobs.JOBS)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("trian", "did you mean train? The jobs are train, benchmark, "),
        ("data.train=x", "The jobs are train, "),
        ("--verison", "did you mean --version? "),
    ],
)
def test_an_unknown_job_ends_in_one_line(command, capsys, job, message):
    with pytest.raises(SystemExit) as end:
        command(job)
    shown = capsys.readouterr()
    assert end.value.code == 2 and shown.out == ""
    assert (
        shown.err.startswith(f"error: {job}: no such job; {message}") and shown.err.count("\n") == 1
    )


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_program_without_a_message():
    command = f"{sys.executable} -m dali_pipes.cli --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("141\n", "")


@pytest.mark.parametrize("job", jobs.JOBS)
def test_every_job_has_its_configuration_and_an_example(job):
    assert job in jobs.DIRECT or (REPO / f"conf/{job}.yaml").exists()
    assert f"dali-pipes {job}" in jobs.JOBS[job].__doc__


def test_a_missing_extra_is_named(command, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.delitem(sys.modules, "dali_pipes.training.run", raising=False)
    monkeypatch.delitem(sys.modules, "dali_pipes.training.launch", raising=False)
    monkeypatch.setitem(sys.modules, "lightning.fabric", None)
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(SystemExit) as end:
        command("train", "data.train=/none")
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert (
        line.startswith("error: training needs lightning")
        and "pip install 'dali_pipes[train]'" in line
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lr=1"], "lr=1: before -- diagnose takes seconds="),
        (["rounds=1.5"], "whole numbers"),
        (["limit=0"], "above 0"),
        (["cold=1"], "true or"),
    ],
)
def test_words_before_a_program_are_options_of_diagnose(words, message):
    assert program_options(["rounds=2", "cold=true"]) == {
        "seconds": 1.5,
        "rounds": 2,
        "cold": True,
        "limit": 600.0,
        "out": "runs/diagnose",
    }
    with pytest.raises(ConfigError, match=message):
        program_options(words)


def test_ctrl_c_ends_a_job_that_hydra_does_not_run_in_one_line(command, monkeypatch, capsys):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setitem(jobs.JOBS, "index", interrupt)
    with pytest.raises(SystemExit) as end:
        command("index", "s3://x")
    assert (end.value.code, capsys.readouterr().err) == (130, "error: interrupted\n")
