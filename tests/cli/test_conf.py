"""Where configurations are found: ours, and before them the user's own."""

import sys
from pathlib import Path

import pytest

from dali_pipes.backends.config import DaliConfig, TorchConfig
from dali_pipes.cli import conf, hydra

REPO = Path(__file__).parents[2]
MINE = {
    "loader/torch.yaml": "defaults: [torch_schema, _self_]\nnum_workers: 7\n",
    "experiment/mine.yaml": "# @package _global_\nbatch_size: 5\n",
}


@pytest.fixture
def mine(monkeypatch, tmp_path):
    """A user's folder with a loader of our name and an experiment of their own, and another working directory."""
    for name, text in MINE.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True)
        (tmp_path / "mine" / name).write_text(text)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "mine"


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """The package as a wheel leaves it, and a working directory."""
    monkeypatch.setattr(conf, "PACKAGE", tmp_path / "site-packages/dali_pipes")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return conf.PACKAGE


@pytest.fixture
def composed(monkeypatch):
    def go(*words):
        monkeypatch.setattr(sys, "argv", ["dali-pipes", *words])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        found = []
        hydra.run("preview", found.append, "")
        return found[0]

    return go


@pytest.mark.parametrize("how", [["--conf", "../mine"], ["--conf=../mine"], []])
def test_the_users_files_come_first_and_ours_fill_up(composed, mine, how):
    if not how:
        Path("conf").symlink_to(mine)
    config = composed("loader=torch", *how, "experiment=mine")
    assert (config.loader, config.batch_size) == (TorchConfig(num_workers=7), 5)
    assert composed(*how, "loader=dali").loader == DaliConfig()


@pytest.mark.parametrize(
    ("words", "message"), [(["--conf", "/none"], "--conf /none: no such folder"), (["--conf"], "--conf needs")]
)
def test_a_wrong_folder_ends_in_one_line(composed, mine, capsys, words, message):
    with pytest.raises(SystemExit) as end:
        composed("loader=torch", *words)
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line.startswith(f"error: {message}")


@pytest.mark.parametrize("words", [["model=resnet18"], ["--help"]])
def test_the_folder_of_another_program_is_named(command, tmp_path, words):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/train.yaml").write_text("defaults:\n  - missing: this\n")
    done = command("train", *words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert f"{tmp_path / 'conf'} comes before our own configurations, and --conf DIR names another folder" in done.stderr


def test_the_folder_of_a_file_that_cannot_be_written_is_named_as_a_whole(command, image_folder):
    done = command("scan", f"data.train={image_folder}", "data.cache_dir=null", "out=/proc/x.parquet", cwd="/proc")
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("error: /proc/.x.parquet.")


def test_other_words_keep_their_order(mine):
    words = ["-m", "a=1,2", "--conf", "../mine", "~b", "--cfg", "job", "+c=[x y]"]
    assert conf.users_folder(words) == (Path("../mine").absolute(), ["-m", "a=1,2", "~b", "--cfg", "job", "+c=[x y]"])


def test_a_checkout_uses_its_own_folders(monkeypatch, mine):
    assert conf.conf_folder() == REPO / "conf"
    assert (conf.tuned_loaders(None), conf.demo_images()) == (REPO / "conf/loader", REPO / "data/demo")
    assert conf.tuned_loaders(mine) == mine / "loader"
    monkeypatch.chdir(REPO)
    assert conf.users_folder([]) == (None, [])


def test_an_installed_package_writes_to_the_working_directory(installed):
    """The folder that `tune` makes is the user's own the next time."""
    assert conf.conf_folder() == installed / "conf"
    assert conf.demo_images() == Path.cwd() / "data/demo"
    assert conf.users_folder([]) == (None, [])
    assert conf.tuned_loaders(None) == Path.cwd() / "conf/loader" and not Path("conf").exists()
    conf.tuned_loaders(None).mkdir(parents=True)
    assert conf.users_folder([]) == (Path.cwd() / "conf", [])
