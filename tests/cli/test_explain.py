"""Mistakes that Hydra and OmegaConf find, besides those of tests/cli/test_command.py: in one line,
with the names that the user wrote.
"""

import pytest

HELP = "; --help shows the options"


@pytest.fixture
def mistake(command, tmp_path):
    """`mistake("preview", "seed=null")` returns the line with which a job ends; a mapping of files
    to texts is the user's own folder of configurations.
    """

    def run(*words, files=()):
        for name, text in dict(files).items():
            (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "mine" / name).write_text(text)
        done = command(*words, *(["--conf", tmp_path / "mine"] if files else []))
        (line,) = done.stderr.splitlines()
        assert done.returncode == 2 and done.stdout == ""
        return line.removeprefix("error: ")

    return run


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("batch_size=null", "batch_size is null; it takes whole numbers"),
        ("transform.flip=often", "transform.flip is 'often'; it takes numbers"),
        ("data.demo=maybe", "data.demo is 'maybe'; it takes true or false"),
        ("data.classes=cat", "data.classes: a list needs brackets: 'data.classes=[…]'"),
    ],
)
def test_a_value_of_another_kind(mistake, word, message):
    option = word.partition("=")[0]
    assert mistake("preview", word) == f"{message}; --help {option} explains it"


@pytest.mark.slow
@pytest.mark.parametrize("word", ["transform.scale=[small,1]", "optimizer.lr_scale={head: low}"])
def test_a_value_in_a_list_or_mapping_is_explained_with_all_of_it(mistake, word):
    option = word.partition("=")[0]
    assert mistake("train", word).endswith(f"; --help {option} explains it")


def test_an_option_that_a_group_has_not(mistake):
    assert mistake("train", "optimizer.rate=1") == (
        "there is no option optimizer.rate; --help optimizer shows the options"
    )


@pytest.mark.parametrize("word", ["+experiment=quick", "+model=resnet18"])
def test_a_group_that_is_there_is_not_added(mistake, word):
    group = word.partition("=")[0][1:]
    message = f"{word}: this job has {group} already; write {word[1:]}"
    assert mistake("train", word, "data=demo") == message


@pytest.mark.parametrize("word", ["experiment=quik", "cluster=slum"])
def test_an_experiment_or_a_cluster_that_does_not_exist(mistake, word):
    assert mistake("train", word, "data=demo").startswith(f"there is no {word}; did you mean ")


@pytest.mark.slow
def test_a_mistake_in_a_file_names_it(mistake):
    files = {"experiment/mine.yaml": "# @package _global_\nbatch_size: many\n"}
    line = mistake("preview", "experiment=mine", files=files)
    assert line.startswith("In 'experiment/mine': ")
    assert "batch_size is 'many'; it takes whole numbers" in line


def test_a_file_that_a_file_names_and_that_is_missing(mistake):
    files = {"experiment/mine.yaml": "# @package _global_\ndefaults: [/loader/none@loader]\n"}
    line = mistake("preview", "experiment=mine", files=files)
    assert line.startswith("In 'experiment/mine': Could not load 'loader/none'")
    assert "search path" not in line and line.endswith("names another folder")


@pytest.mark.parametrize(
    ("job", "word", "group"),
    [
        ("preview", "optimizer=sgd", "optimizer"),
        ("scan", "experiment=quick", "experiment"),
    ],
)
def test_a_group_that_the_job_has_not(mistake, job, word, group):
    assert mistake(job, word) == f"there are no options {group}=NAME for this job{HELP}"


def test_a_group_in_another_place(mistake):
    line = mistake("train", "transform@other=eval")
    meant = "; did you mean transform or transform@eval_transform?"
    assert line == f"there are no options transform@other=NAME for this job{meant}{HELP}"


@pytest.mark.slow
def test_a_group_that_an_experiment_adds_is_none_that_is_missing(mistake):
    """The other one is."""
    text = "# @package _global_\ndefaults:\n  - /optimizer@extra: sgd\n"
    words = ["experiment=mine", "optimizer@extra=adamw", "model=resnet18"]
    line = mistake("preview", *words, files={"experiment/mine.yaml": text})
    assert line == f"there are no options model=NAME for this job{HELP}"


def test_a_sweep_over_a_function_needs_a_flag(mistake):
    line = mistake("preview", "batch_size=choice(8,16)")
    assert line == f"Sweep parameters 'batch_size=choice(8,16)' requires --multirun{HELP}"


@pytest.mark.few
@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["data.train=/x/${q}"], "data.train: ${q}"),
        (["data.train=/x/${data.none}"], "data.train: ${data.none}"),
        (["data.root=/x", "data.train=${.root}/${.q}"], "data.train: ${.q}"),
    ],
)
def test_a_reference_to_what_is_not_there(mistake, words, missing):
    assert mistake("preview", *words).startswith(f"{missing} stands for another option, and ")


def test_a_reference_to_a_reference(mistake):
    """The first option that refers to nothing is named, not one that refers to it."""
    line = mistake("preview", "data.root=${q}", "data.train=${data.root}/x")
    assert "${q} stands for" in line or "'q' not found" in line
