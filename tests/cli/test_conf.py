"""Where configurations are found: ours, and before them the user's own."""

import sys
from pathlib import Path

import pytest
from command import logging_kept

import dali_pipes as dp
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.cli import conf, hydra

REPO = Path(__file__).parents[2]
MINE = {
    "loader/torch.yaml": "defaults: [torch_schema, _self_]\nnum_workers: 7\n",
    "sampling/windows.yaml": "defaults: [repeated_schema, _self_]\ntimes: 5\n",
    "experiment/mine.yaml": "# @package _global_\nbatch_size: 5\n",
}
COPIED = ("train", "scan", "job")


@pytest.fixture
def mine(monkeypatch, tmp_path):
    """A user's folder with a loader of our name and an experiment of their own, and another working
    directory.
    """
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

    with logging_kept():
        yield go


@pytest.mark.slow
@pytest.mark.parametrize("how", [["--conf", "../mine"], ["--conf=../mine"], []])
def test_the_users_files_come_first_and_ours_fill_up(composed, mine, how):
    if not how:
        Path("conf").symlink_to(mine)
    config = composed("loader=torch", *how, "experiment=mine")
    assert (config.loader, config.batch_size) == (TorchConfig(num_workers=7), 5)
    assert composed(*how, "loader=dali").loader == DaliConfig()
    # likewise of options that are no files, and only as long as the user's folder is named
    assert composed(*how, "sampling=windows").sampling == dp.Repeated(times=5)
    assert composed("--conf", ".", "sampling=windows").sampling == dp.Windows()


@pytest.mark.parametrize("flag", ["--config-dir", "--cfg", "-cd", "-p"])
def test_help_refuses_flags_that_it_would_not_obey(composed, capsys, flag):
    with pytest.raises(SystemExit) as end:
        composed("--help", flag, "job")
    said = f"error: --help does not take {flag}, only options and --conf DIR\n"
    assert (end.value.code, capsys.readouterr().err) == (2, said)


def test_a_file_that_would_be_merged_with_a_built_in_option_is_refused(composed, mine, capsys):
    with pytest.raises(SystemExit):
        composed("--config-dir", str(mine), "sampling=windows")
    assert capsys.readouterr().err == (
        "error: sampling/windows.yaml has the name of a built-in option; give it another name, or "
        "name its folder by --conf, whose files replace ours\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--conf", "/none"], "--conf /none: no such folder"), (["--conf"], "--conf needs")],
)
def test_a_wrong_folder_ends_in_one_line(composed, mine, capsys, words, message):
    with pytest.raises(SystemExit) as end:
        composed("loader=torch", *words)
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line.startswith(f"error: {message}")


@pytest.fixture
def hydra_project(tmp_path):
    """A project that uses Hydra itself, with a primary file and options that have our names."""
    for name, text in {
        "train.yaml": "defaults:\n  - model: resnet50\n  - _self_\nlr: 0.1\n",
        "model/resnet50.yaml": "_target_: torchvision.models.resnet50\n",
        "data/folder.yaml": "_target_: their.Data\n",
    }.items():
        (tmp_path / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / name).write_text(text)
    return tmp_path / "conf"


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["train", "model=resnet50", "--cfg", "job"],
        ["train", "--help"],
        ["diagnose", "--cfg", "job"],
    ],
)
def test_the_folder_of_another_program_is_named_and_not_read(command, hydra_project, words):
    done = command(*words)
    assert done.returncode == 0 and "_target_" not in done.stdout
    assert done.stderr == (
        f"note: {hydra_project} is not read: nothing in it says that it is for dali_pipes; "
        f"to have it read, make an empty file {hydra_project}/.dali_pipes, "
        f"give --conf {hydra_project}, or put the files for dali_pipes into "
        f"{hydra_project}/dali_pipes\n"
    )


@pytest.mark.parametrize("words", [["model=resnet18"], ["--help"]])
@pytest.mark.parametrize("how", ["--conf", "marker"])
def test_a_folder_that_says_it_is_ours_is_read_and_named_where_it_cannot_work(
    command, hydra_project, words, how
):
    (hydra_project / "train.yaml").write_text("defaults:\n  - missing: this\n")
    if how == "marker":
        (hydra_project / ".dali_pipes").touch()
    done = command("train", *(["--conf", hydra_project] if how == "--conf" else []), *words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert (
        f"{hydra_project} comes before our own configurations, and --conf DIR names another folder"
    ) in done.stderr


def test_a_primary_file_that_is_not_ours_ends_in_one_line(command, hydra_project):
    (hydra_project / "train.yaml").write_text(
        "defaults:\n  - _self_\n  - override hydra/job_logging: none\nlr: 0.1\n"
    )
    done = command("train", "--conf", hydra_project)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert (
        done.stderr.startswith("error: train.yaml is not based on train_schema")
        and f"; {hydra_project} comes before" in done.stderr
    )


def test_the_folder_of_another_program_has_room_for_ours(installed):
    Path("conf").mkdir()
    Path("conf/train.yaml").write_text("lr: 0.1\n")
    assert conf.find_user_folder([]) == (None, [])
    Path("conf/dali_pipes").mkdir()
    assert conf.find_user_folder([]) == (Path.cwd() / "conf/dali_pipes", [])


@pytest.mark.parametrize(
    ("files", "ours"),
    [
        ({}, True),
        ({"loader/mine.yaml": "defaults:\n  - dali_schema\n  - _self_\n"}, True),
        ({"train.yaml": "defaults:\n  - train_schema\n", "model/mine.yaml": "name: mine\n"}, True),
        ({"train.yaml": "defaults:\n  - train_schema\n", "config.yaml": "lr: 0.1\n"}, False),
        # a copy of all our files
        ({f"{name}.yaml": (REPO / f"conf/{name}.yaml").read_text() for name in COPIED}, True),
        ({"job.yaml": "queue: short\n"}, False),
        ({"model/mine.yaml": "_target_: mine\n"}, False),
        # they are read only where one is asked for
        ({"experiment/mine.yaml": "# @package _global_\nbatch_size: 16\n"}, True),
        ({"experiment/mine.yaml": "lr: 1\n", "config.yaml": "lr: 0.1\n"}, False),
        ({"train.yaml": "defaults:\n  - base_schema\n"}, False),
    ],
)
def test_a_folder_is_ours_by_what_its_files_extend(monkeypatch, tmp_path, files, ours):
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    for name, text in files.items():
        Path("conf", name).parent.mkdir(exist_ok=True)
        Path("conf", name).write_text(text)
    assert (conf.find_user_folder([])[0], conf.find_foreign_folder()) == (
        (Path("conf").absolute(), None) if ours else (None, Path("conf").absolute())
    )


def test_the_folder_of_a_file_that_cannot_be_written_is_named_as_a_whole(command, image_folder):
    done = command(
        "scan",
        f"data.train={image_folder}",
        "data.cache_dir=null",
        "out=/proc/x.parquet",
        cwd="/proc",
    )
    assert (
        done.returncode == 2
        and done.stderr.splitlines()[-1] == "error: /proc/x.parquet: no such file or directory"
    )


def test_other_words_keep_their_order(mine):
    words = ["-m", "a=1,2", "--conf", "../mine", "~b", "--cfg", "job", "+c=[x y]"]
    assert conf.find_user_folder(words) == (
        Path("../mine").absolute(),
        ["-m", "a=1,2", "~b", "--cfg", "job", "+c=[x y]"],
    )


def test_a_checkout_uses_its_own_folders(monkeypatch, mine):
    assert conf.conf_folder() == REPO / "conf"
    assert conf.demo_images() == REPO / "data/demo"
    monkeypatch.chdir(REPO)
    assert conf.find_user_folder([]) == (None, [])


def test_an_installed_package_writes_to_the_working_directory(installed):
    assert conf.conf_folder() == installed / "conf"
    assert conf.demo_images() == Path.cwd() / "data/demo"
    assert conf.find_user_folder([]) == (None, [])
    Path("conf/loader").mkdir(parents=True)
    assert conf.find_user_folder([]) == (Path.cwd() / "conf", [])


@pytest.mark.slow
def test_the_pictures_of_a_sweep_lie_apart_and_a_runs_folder_is_hydras(
    command, image_folder, tmp_path
):
    words = [
        f"data.train={image_folder}",
        "data.cache_dir=null",
        "batch_size=8",
        "batches=1",
        "loader=torch",
        "loader.num_workers=0",
    ]
    assert (
        command(
            "preview", *words, "-m", "seed=0,1", f"out={tmp_path / 'seen'}", "transform.size=32"
        ).returncode
        == 0
    )
    assert sorted(str(each.relative_to(tmp_path)) for each in tmp_path.glob("seen/**/*.png")) == [
        "seen/0/batch.png",
        "seen/1/batch.png",
    ]
    assert (
        command(
            "preview", *words, f"hydra.run.dir={tmp_path / 'mine'}", "transform.size=32"
        ).returncode
        == 0
    )
    assert (tmp_path / "mine/batch.png").exists()
