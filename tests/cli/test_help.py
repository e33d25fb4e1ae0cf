"""--help: a job and its options on two screens, and every group of options in full."""

import functools
import re
import subprocess
import sys
from collections import Counter
from dataclasses import fields, is_dataclass
from pathlib import Path

import gpu_check.config
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from dali_pipes.cli import conf, jobs
from dali_pipes.cli.command import main
from dali_pipes.cli.conf import register
from dali_pipes.cli.help import ALL, OFTEN, OWN, find_topic, help_text
from dali_pipes.errors import ConfigError

REPO = Path(__file__).parents[2]
JOBS = sorted({file.stem for file in (REPO / "conf").glob("*.yaml")} - {"job"})
# what our files fill in, and nobody sets
FILLED_IN = ("overrides", "loader_name")
GIVEN = [
    *((job, []) for job in JOBS),
    ("train", ["loader=torch", "transform=cifar", "optimizer=adamw", "sampling=weighted"]),
    ("train", ["transform=simclr", "experiment=imagenet_resnet50"]),
    ("preview", ["loader=torch_auto"]),
]


@pytest.fixture
def help_of():
    """`help_of("train", ["loader=torch"], "loader")` returns the text for these words."""
    register()
    gpu_check.config.register()
    # it takes longer than the text does
    compose_once = functools.cache(lambda *words: compose(words[0], [*words[1:]], True))

    def go(job, given=(), topic="", width=100):
        words = jobs.describe(jobs.JOBS[job]) if job in jobs.JOBS else ""
        config = compose_once(job, *given, *([topic] if "=" in topic else []))
        return help_text(words, config, topic, width)

    with initialize_config_dir(str(REPO / "conf"), version_base="1.3"):
        yield go


def shown(text):
    """The options of a text, with the values that it shows."""
    return re.findall(r"^  ([\w.]+)=(\S*)", text, re.MULTILINE)


def groups_of(prefix, config):
    """The name of each group of options, and of each of its options."""
    for name in config:
        child = config._get_node(name)
        if OmegaConf.is_dict(child) and not child._is_none() and name != "hydra":
            yield from groups_of(f"{prefix}{name}.", child)
    if is_dataclass(schema := OmegaConf.get_type(config)):
        yield prefix, [f"{prefix}{field.name}" for field in fields(schema)]


@pytest.mark.slow
@pytest.mark.parametrize(("job", "given"), GIVEN)
def test_every_option_is_in_the_help_of_one_group_with_its_value(help_of, job, given):
    config = compose(job, given, return_hydra_config=True)
    groups = dict(groups_of("", config))
    names = {prefix.removesuffix(".") for prefix in groups}
    # groups of files and of groups are no options
    names |= {choice.split("@")[-1] for choice in config.hydra.runtime.choices}
    names |= {"loaders"} if job == "benchmark" else set()
    options = {
        option
        for prefix in groups
        for option in groups[prefix]
        if option not in {*names, *FILLED_IN}
    }

    in_groups = Counter()
    for prefix, own in groups.items():
        values = shown(help_of(job, given, prefix.removesuffix(".") or OWN))
        assert {name for name, _ in values} == set(own) & options
        in_groups.update(name for name, _ in values)

        for name, value in values:
            actual = OmegaConf.select(config, name, throw_on_resolution_failure=False)
            if isinstance(actual, int | float | bool):
                assert value == str(actual).lower(), name
            elif actual is None:
                assert value == "null" or value.startswith("$"), name
    assert in_groups == Counter(options)
    assert Counter(name for name, _ in shown(help_of(job, given, ALL))) == Counter(options)


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize(("job", "given"), GIVEN)
def test_a_job_fits_on_a_few_screens(help_of, job, given, width):
    text = help_of(job, given, width=width)
    assert len(text.splitlines()) <= 120
    # commands to copy stay in one line
    lines = [
        line for line in text.splitlines() if not line.startswith(("dali-pipes ", "torchrun "))
    ]
    assert max(map(len, lines)) <= width
    assert max(map(len, text.splitlines())) <= 100

    # each option of the job is in one line, and so is each group
    config = compose(job, given, return_hydra_config=True)
    own = {name for name, _ in shown(help_of(job, given, OWN))}
    lines = Counter(re.findall(r"^  ([\w.@]+)", text, re.MULTILINE))
    choices = {name for name in config.hydra.runtime.choices if not name.startswith("hydra/")}
    names = {*own, *(name for name in choices if "@loaders" not in name)}
    assert {name for name in names if lines[name] != 1} == set()


@pytest.mark.parametrize("job", jobs.DIRECT)
def test_jobs_without_hydra_fit_too(monkeypatch, capsys, job):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", ["dali-pipes", job, "--help"])
    with pytest.raises(SystemExit):
        main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 120 and max(map(len, lines)) <= 100


def test_all_about_a_group_wraps_to_the_width(help_of):
    lines = help_of("train", topic=ALL, width=80).splitlines()
    commands = ("dali-pipes ", "torchrun ")
    wide = [line for line in lines if len(line) > 80 and not line.startswith(commands)]
    assert wide == []


@pytest.mark.slow
def test_what_is_set_most_comes_first(help_of):
    """Each of these is an option, and a job begins with those that it has."""
    left = set(OFTEN)
    for job, given in GIVEN:
        first = [name for name, _ in shown(help_of(job, given))]
        schema = conf.JOBS.get(job)
        seldom = getattr(schema, "SELDOM", ())
        often = [
            name
            for name, _ in shown(help_of(job, given, ALL))
            if name in OFTEN and not name.startswith(seldom)
        ]
        of_groups = [name for name in OFTEN if name in often and "." in name]
        assert set(often) <= set(first)
        # where the images are, as far as the job is told it
        assert first[0] == (of_groups or first)[0]
        left -= set(often)
    assert not left


@pytest.mark.slow
def test_options_that_do_nothing_without_another_one_do_not_come_first(help_of):
    def first(job):
        return help_of(job).partition("Groups:")[0]

    assert "epochs=" not in first("diagnose") and "\n  epochs=" in help_of("diagnose")
    assert "pairs=" in first("benchmark") and "epochs=" in first("train")


def test_the_help_of_a_job_s_own_options_begins_with_its_name(help_of):
    assert help_of("train", topic=OWN).startswith("dali-pipes train.\n\n  function=null\n")


@pytest.mark.slow
def test_every_file_of_a_group_is_explained_by_its_first_comment(help_of):
    text = help_of("train", topic="experiment", width=80)
    for file in (REPO / "conf/experiment").glob("*.yaml"):
        assert f"\n  or {file.stem} " in text
    assert (
        "  or demo_resnet18            The demo set, learned within minutes on two CPU\n"
        "                              cores: data=demo makes it.\n"
    ) in text
    # files of one name differ from group to group, and a list is enough where none says anything
    assert "or simclr                   Random resized crop" in help_of("train", topic="transform")
    assert "\n    or auto, convnext_tiny, " in help_of("train", topic="model")


@pytest.mark.slow
def test_a_group_and_a_choice_and_an_option(help_of):
    torch = help_of("train", topic="loader=torch")
    assert torch.startswith("loader=torch: PyTorch's DataLoader on the CPU.")
    assert "\n  or dali_cpu                 DALI on the CPU, even where" in torch
    assert "_schema" not in torch and "@package" not in torch
    assert (
        "\n  loader.num_workers=null\n      worker processes; null: as many as the cores" in torch
    )

    assert help_of("train", ["transform=cifar"], "transform.size").startswith(
        "  transform.size=32\n      sides of the images in pixels"
    )
    # one text for both
    assert help_of("scan", topic="data.val").startswith("  data.train=null\n  data.val=null\n")
    assert help_of("train", topic="transform@eval_transform") == help_of(
        "train", topic="eval_transform"
    )
    assert "  eval_transform.size=96\n" in help_of("train", ["transform.size=96"], "eval_transform")
    assert help_of("train", topic="sampling").startswith("sampling=null: which samples make")
    assert "loaders.dali_native" in help_of("benchmark", topic="loaders")
    assert help_of("scan", topic="data").endswith("\n  data.targets: --help data.targets")
    # what is no group is only an option of the command line
    assert help_of("train", topic="seed=3").startswith("Trains a network")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topic", "meant"),
    [
        ("optimzer", "; did you mean optimizer?"),
        ("lr", "; did you mean optimizer.lr?"),
        ("batch_siz", "; did you mean batch_size?"),
        ("xyz", ""),
    ],
)
def test_an_unknown_group_is_refused_in_one_line(help_of, topic, meant):
    with pytest.raises(ConfigError) as error:
        help_of("train", topic=topic)
    assert str(error.value) == (
        f"--help {topic}: no group and no option has this name{meant}; --help lists them"
    )


@pytest.mark.parametrize(
    ("words", "topic", "others"),
    [
        ("--help optimizer loader=torch", "optimizer", "loader=torch"),
        ("loader=torch -h data.targets", "data.targets", "loader=torch"),
        ("--help loader=torch", "loader=torch", "loader=torch"),
        ("loader=torch --help", "", "loader=torch"),
        ("--help --resolve", "", "--resolve"),
        ("--help ~optimizer", "", "~optimizer"),
        ("optimizer seed=1", None, "optimizer seed=1"),
    ],
)
def test_the_word_behind_help_says_what_to_explain(words, topic, others):
    assert find_topic(words.split()) == (topic, others.split())


@pytest.mark.slow
def test_what_a_user_sees():
    def run(*words):
        command = [sys.executable, "-m", "dali_pipes.cli", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=REPO)

    short = run("train", "loader=torch", "--help")
    assert (short.returncode, short.stderr) == (0, "")
    assert (
        short.stdout.startswith("Trains a network, or a task of yours")
        and "\ndali-pipes train experiment=demo_resnet18\n" in short.stdout
    )
    assert "\n  loader=torch " in short.stdout and "\n  loader.num_workers=null " in short.stdout
    assert "None" not in short.stdout, "on a command line it is null"
    assert "Hydra" not in short.stdout

    group = run("train", "--help", "loader=torch", "batch_size=8")
    assert group.returncode == 0 and group.stdout.startswith("loader=torch: PyTorch's")

    unknown = run("train", "--help", "optimzer")
    assert (unknown.returncode, unknown.stdout, unknown.stderr) == (
        2,
        "",
        "error: --help optimzer: no group and no option has this name; did you mean optimizer?; "
        "--help lists them\n",
    )
