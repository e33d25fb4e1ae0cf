"""README and docs: every link leads somewhere, every command is understood, and the tutorials'
Python runs.
"""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from command import composed
from hydra import compose, initialize_config_dir

import dali_pipes
from dali_pipes.cli import jobs
from dali_pipes.cli.command import function_option
from dali_pipes.cli.conf import register
from dali_pipes.cli.help import find_topic, help_text
from dali_pipes.cli.hydra import spell_word
from dali_pipes.cli.own_program import program_options
from dali_pipes.data.demo import make_demo_set
from dali_pipes.measure.arms import DataLoaderConfig
from dali_pipes.measure.arms.users_loader import UsersLoader

REPO = Path(__file__).parents[1]
PAGES = sorted([*REPO.glob("*.md"), *REPO.glob("docs/*.md"), *REPO.glob("docs/tutorials/*.md")])
NAMES = [str(page.relative_to(REPO)) for page in PAGES]
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"(?:dali-pipes|-m dali_pipes\.cli) +(\S+) *(.*)")
OWN = {
    "model": {"NAME": "resnet18"},
    "loader": {"…": "torch"},
}
SMALLER = {
    "batch_size=256": "batch_size=8",
    '"batch_size": 64': '"batch_size": 8',
    "batch_size=64": "batch_size=8",
    "size=224": "size=32",
}
SMALLER |= {f"num_workers={count}": "num_workers=0" for count in (2, 8)}
SMALLER |= {"RandomResizedCrop(224": "RandomResizedCrop(32", "range(90)": "range(2)"}
SMALLER |= {"epoch < 90": "epoch < 2"}


def anchors(page):
    titles = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_to_what_is_there(name):
    page = REPO / name
    prose = BLOCK.sub("", page.read_text())
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if link.startswith(("http", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_index():
    index = (REPO / "docs/README.md").read_text()
    named = {(REPO / "docs" / link).resolve() for link in re.findall(r"\]\(([^)#]+)\)", index)}
    assert named == {page for page in PAGES if page.is_relative_to(REPO / "docs")} - {
        REPO / "docs/README.md"
    }


def test_the_api_page_has_every_public_name_once():
    text = (REPO / "docs/api.md").read_text()
    names = re.findall(r"^\.\. (?:auto\w+|data):: dali_pipes\.(\w+)$", text, re.MULTILINE)
    assert sorted(names) == dali_pipes.__all__


def test_readme_is_read_in_minutes():
    text = (REPO / "README.md").read_text()
    assert len(text.splitlines()) <= 150


@pytest.mark.slow
@pytest.mark.skipif(
    not (Path(sys.prefix) / ".installed").exists(), reason="not in the environment of setup.sh"
)
def test_the_first_of_readmes_two_commands(tmp_path):
    """The other one runs this test."""
    first, second = (
        line.split("#")[0].split()
        for _, block in BLOCK.findall((REPO / "README.md").read_text())
        if block.startswith("bash scripts/quickstart.sh ")
        for line in block.splitlines()
        if line.startswith("bash scripts/")
    )
    assert second == ["bash", "scripts/test.sh"]
    # a smaller set than the one that it makes, which takes 100 CPU-s; without the plus signs
    # quickstart.sh would leave data=demo out
    demo = f"++data.root={make_demo_set(tmp_path / 'demo', train=200, val=10)}"
    shorter = [demo, "min_seconds=0.5", "max_warmup_seconds=1", f"out={tmp_path / 'runs'}"]
    done = subprocess.run([*first, *shorter], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (
        "Setting up" not in done.stderr
        and "dali" in done.stderr
        and "One pair, to be quick" in done.stderr
    )
    reports = tmp_path.glob("runs/*/report.html")
    assert [file.read_text()[:15] for file in reports] == ["<!doctype html>"]


def commands(page):
    """(job, words) of every command line of a page."""
    text = page.read_text()
    lines = [
        line
        for language, block in BLOCK.findall(text)
        if language == "bash"
        for line in block.replace("\\\n", "").splitlines()
    ]
    lines += re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
    for line in lines:
        if found := COMMAND.search(line):
            job, words = found[1], shlex.split(found[2], comments=True)
            if job in jobs.JOBS and job not in jobs.DIRECT:
                yield job, words


def given(word, job):
    """An option with a value that there is: of a sweep the first one, and something for what stands
    for a user's own.
    """
    raw = function_option(word)
    name, _, value = raw.partition("=")
    own = OWN.get(name, {}).get(value)
    if own is None:
        name, _, value = spell_word(raw, job).partition("=")
        own = OWN.get(name, {}).get(value, value)
    if name == "data.filter":
        return f"{name}={own}"
    return f"{name}={own if own.startswith(('[', '{')) else own.split(',')[0]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name, page in zip(NAMES, PAGES, strict=True) if list(commands(page))]
)
def test_every_command_is_understood(name):
    register()
    for job, words in commands(REPO / name):
        if "--" in words:  # a program of the user's own follows
            words, program = words[: words.index("--")], words[words.index("--") + 1 :]
            assert program
            if job == "diagnose":
                assert program_options(words)
                continue
        topic, words = find_topic(words)
        options = [given(word, job) for word in words if word != "-m"]
        with initialize_config_dir(str(REPO / "conf"), version_base="1.3"):
            if topic is not None:
                assert help_text("", compose(job, options, return_hydra_config=True), topic)
            else:
                assert composed(job, options)


@pytest.fixture
def python(image_folder, tmp_path, monkeypatch):
    """Runs the Python of a page, on few and small images."""

    def run(name, **names):
        monkeypatch.chdir(tmp_path)
        (code,) = [
            "\n".join(
                block
                for language, block in BLOCK.findall((REPO / name).read_text())
                if language == "python"
            )
        ]
        for old, new in {
            "/my/images": image_folder,
            "/imagenet/train": image_folder,
            **SMALLER,
        }.items():
            code = code.replace(old, str(new))
        exec(compile(code, name, "exec"), names)
        return names

    return run


def test_the_python_of_the_readme_runs(python, tmp_path):
    seen = []
    python(
        "README.md", torch=torch, train_step=lambda images, labels: seen.append((images, labels))
    )
    assert (
        len(seen) == 2 * 4
        and seen[0][0].shape == (8, 3, 32, 32)
        and seen[0][0].dtype == torch.float32
    )
    assert torch.load(tmp_path / "last.pt")["loader"]["epoch"] == 2


def test_the_tutorial_that_leads_from_a_dataloader_runs(python, capsys):
    names = python("docs/tutorials/from-a-dataloader.md")
    assert 0 < float(capsys.readouterr().out.split()[-1]) < 1 / 255 / 0.225
    with names["dp"].build_loader(
        names["manifest"], names["dp"].TorchConfig(num_workers=0), **names["options"]
    ) as loader:
        batches = iter(loader)
        assert not torch.equal(next(batches).ids, names["second"].ids) and torch.equal(
            next(batches).ids, names["second"].ids
        )


def test_a_dali_pipeline_is_an_arm_beside_the_loader_that_replaces_it(
    python, image_folder, monkeypatch
):
    names = python("docs/from_dali.md")
    assert names["images"].shape == (8, 3, 32, 32) and names["labels"].dtype == torch.int64

    (theirs,) = next(iter(names["make_iterator"]()))
    assert theirs["label"].dtype == torch.int32 and theirs["label"].shape == (8, 1)

    module = ModuleType("my_dali")
    module.make_iterator = names["make_iterator"]
    monkeypatch.setitem(sys.modules, "my_dali", module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    config = DataLoaderConfig(function="my_dali:make_iterator")
    images = dali_pipes.Manifest.scan(image_folder)
    with UsersLoader(images, config, dali_pipes.TrainTransform(), 8) as arm:
        for _ in range(2):
            epoch = [batch.images.shape for batch in arm]
            assert len(epoch) == len(arm) and set(epoch) == {(8, 3, 224, 224)}


def texts_of_the_package():
    """The texts of the source, with … for what is filled in."""
    for file in (REPO / "dali_pipes").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    part.value if isinstance(part, ast.Constant) else "…" for part in node.values
                )
                yield "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.mark.slow
def test_the_errors_of_the_faq_are_those_of_the_package():
    quoted = re.findall(r"^### `(.*)`$", (REPO / "docs/faq.md").read_text(), re.MULTILINE)
    texts = list(texts_of_the_package())
    missing = [text for text in quoted if not any(text in each for each in texts)]
    assert quoted and not missing
