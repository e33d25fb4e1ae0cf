"""The words of a command line: names of files need no quotes but the shell's, and ~ is the home
folder.
"""

import os
import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from later import later
from omegaconf import OmegaConf

from dali_pipes.cli.conf import JOBS, texts_of
from dali_pipes.cli.hydra import expand_homes, spell_word
from dali_pipes.cli.overrides import expand_home
from dali_pipes.cli.spelling import nested_options
from dali_pipes.options import quote

data = later("dali_pipes.training.data")
PARSER = OverridesParser.create()
HOME = str(Path.home())


def read(word, job="train", sweeps=False):
    return PARSER.parse_override(spell_word(word, job, sweeps)).value()


@pytest.mark.parametrize(
    "name",
    [
        "Größe",
        "写真",
        "a & b",
        "wow!",
        "a=b",
        "a, b",
        "(1)",
        "it's",
        'say "hi"',
        "a#b",
        "a;b",
        "<x>",
        "100 %",
        "$\\frac$",
        "x\\",
    ],
)
@pytest.mark.parametrize("option", ["data.train", "out", "checkpoint", "+data.root", "experiment"])
def test_names_of_files_need_no_quotes(option, name):
    text = name if option == "experiment" else f"/images/{name}"
    # of a group commas and spaces are Hydra's
    if option != "experiment" or not {",", " "} & set(name):
        assert read(f"{option}={text}") == text


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="~")))
def test_any_text_comes_back_from_quotes(text):
    assert PARSER.parse_override(f"option={quote(text)}").value() == text


@given(
    st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="~'\""), min_size=1)
)
def test_any_path_is_taken_as_it_is(text):
    assert read(f"data.train=/{text}") == f"/{text}"


@pytest.mark.parametrize("text", ["2024", "1e3", "true", "007", "0x10"])
def test_what_looks_like_a_number_stays_text(text):
    assert read(f"out={text}") == text


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("out=~", HOME),
        ("out=~/runs", f"{HOME}/runs"),
        ("out='~/runs'", f"{HOME}/runs"),
        ("data.train=~/{a,b}-*.tar", f"{HOME}/{{a,b}}-*.tar"),
        ("data.train={~/a,~/b}.tar", f"{{{HOME}/a,{HOME}/b}}.tar"),
        ("data.classes=[~/a,ö]", [f"{HOME}/a", "ö"]),
        ("hydra.run.dir=~/x", f"{HOME}/x"),
        ("data.train=/a~/b~", "/a~/b~"),
        ("out=./~", "./~"),
        ("out=~no_such_user/x", "~no_such_user/x"),
        ("data.filter=path != '~/x'", "path != '~/x'"),
    ],
)
def test_home(word, value):
    assert read(word) == value


def test_every_text_option_of_every_job_knows_home():
    for job in JOBS:
        for name, is_list in texts_of(job).items():
            if name != "data.filter":
                wanted = f"{HOME}/x"
                assert read(f"{name}=[~/x]" if is_list else f"{name}=~/x", job) == (
                    [wanted] if is_list else wanted
                ), (job, name)


def test_home_in_files_of_options():
    config = OmegaConf.create(
        {
            "data": {"train": "~/a", "val": None, "classes": ["~/b"]},
            "out": "${data.train}",
            "seed": 3,
            "x": "~/c",
        }
    )
    expand_homes(
        config, {"data.train": False, "data.val": False, "data.classes": True, "out": False}
    )
    found = OmegaConf.to_container(config, resolve=True)
    assert found == {
        "data": {"train": f"{HOME}/a", "val": None, "classes": [f"{HOME}/b"]},
        "out": f"{HOME}/a",
        "seed": 3,
        "x": "~/c",
    }


@pytest.mark.parametrize(
    "names",
    [
        ["a", "b.c", "d-e"],
        ["a=b,[c]", "grün", "red fox", "猫", "🐶 dog"],
        ["007", "1", "null", "True"],
        ["it's", 'say "hi", now', "back\\slash", "{x}", "${y}"],
    ],
)
def test_names_of_classes_that_an_error_proposes_can_be_pasted(names):
    (word,) = shlex.split(data.spell_classes(names))
    assert [str(each) for each in read(word)] == names


def test_commas_in_quotes_separate_no_parts():
    assert read("""data.classes=["a,ö", 'b,c' ,d'e,猫]""") == ["a,ö", "b,c", "d'e", "猫"]


def test_sweeps_keep_their_commas():
    swept = read("data.train=~/ö,/b c,/{x,y}", sweeps=True).list
    assert [getattr(each, "text", each) for each in swept] == [f"{HOME}/ö", "/b c", "/{x,y}"]
    assert spell_word("loader.num_threads=1,2", "train", sweeps=True) == "loader.num_threads=1,2"
    # as it is noted in a result
    assert spell_word("data.train=/images/train", "train") == "data.train=/images/train"
    assert expand_home("~" + os.environ.get("USER", "root") + "/x").endswith("/x")


def test_nested_options():
    config = {"data": {"train": 1, "deep": {"train": 2}}, "loader": {"num_threads": 3}, "train": 4}
    assert nested_options("train", config) == ["data.train", "data.deep.train"]
    assert nested_options("num_workers", config) == ["loader.num_workers of loader=torch"]
    arms = {"loaders": {"dali": {"decode": 1}, "dali_cpu": {"decode": 2}, "torch": {"decoder": 3}}}
    assert nested_options("decode", arms) == ["loaders.ARM.decode"]
    assert nested_options("num_workers", {}) == nested_options("nothing", config) == []


@pytest.mark.parametrize("words", [["--version"], ["scan", "--version"]])
def test_version(command, words):
    done = command(*words)
    assert (
        done.returncode == 0
        and done.stdout.startswith("dali-pipes ")
        and done.stdout.count("\n") == 1
    )
