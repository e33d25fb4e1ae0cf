"""The file as Hydra composes it, and what becomes of one that is there already."""

import subprocess
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import dali_pipes as dp
from dali_pipes.cli.conf import register
from dali_pipes.errors import ConfigError
from dali_pipes.system.files import to_yaml
from dali_pipes.tools.tuning.run import command_line, tuned_file, write

REPO = Path(__file__).parents[3]
LOADERS = {
    "torch": dp.TorchConfig(
        num_workers=7, prefetch_factor=4, decoder="torchvision", multiprocessing_context="spawn"
    ),
    "dali": dp.DaliConfig(
        device="cpu", num_threads=3, hw_decoder_load=0.35, decode="whole", prefetch_queue_depth=4
    ),
    "default": dp.TorchConfig(),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "conf/loader").mkdir(parents=True)
    return tmp_path / "conf/loader"


@pytest.mark.few
@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("train", "torch"),
        ("benchmark", "torch"),
        ("tune", "torch"),
        *(("preview", name) for name in LOADERS),
    ],
)
def test_every_job_composes_it(folder, job, name):
    write(tuned_file(str(folder), "node-1.cluster"), LOADERS[name], ["message: 1.5 × [1.2, 1.8]"])
    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(REPO / "conf")):
        overrides = ["loader=tuned_node-1_cluster", f"hydra.searchpath=[file://{folder.parent}]"]
        assert OmegaConf.to_object(compose(job, overrides).loader) == LOADERS[name]


@pytest.mark.parametrize("job", ["train", "benchmark"])
def test_jobs_compose_it(command, folder, job):
    file = tuned_file(str(folder), "x")
    write(
        file,
        LOADERS["torch"],
        ["message", command_line(["data.train=/my images", "search.num_workers=[1,2]"])],
    )
    options = [
        "loader=tuned_x",
        f"hydra.searchpath=[file://{folder.parent}]",
        "--cfg",
        "job",
        "--package",
        "loader",
    ]
    composed = command(job, *options)
    assert composed.returncode == 0, composed.stderr
    assert composed.stdout.removeprefix("# @package loader\n") == to_yaml(LOADERS["torch"])
    message = (
        "# message\n# dali-pipes tune 'data.train=/my images' "
        "'search.num_workers=[1,2]'\ndefaults:\n"
    )
    assert file.read_text().startswith(message)


def test_git_does_not_see_it():
    ignored = subprocess.run(
        ["git", "check-ignore", "conf/loader/tuned_node-1.yaml"],
        cwd=REPO,
        capture_output=True,
        check=False,
    )
    assert ignored.returncode in (0, 128)  # 128: not a checkout


@pytest.mark.parametrize(
    ("host", "name"), [("a.b", "tuned_a_b"), ("../x/y", "tuned____x_y"), ("Gpu-01", "tuned_Gpu-01")]
)
def test_host_names_are_made_safe(tmp_path, host, name):
    assert tuned_file(str(tmp_path), host) == tmp_path / f"{name}.yaml"


def test_this_machine_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.node", lambda: "nöde 1")
    assert tuned_file(str(tmp_path), None).name == "tuned_n_de_1.yaml"
    monkeypatch.setattr("platform.node", lambda: "")
    with pytest.raises(ConfigError, match="host=NAME"):
        tuned_file(str(tmp_path), None)


def test_a_folder_that_is_not_there_is_made_with_the_file(tmp_path):
    file = tuned_file(str(tmp_path / "conf/loader"), "x")
    assert not (tmp_path / "conf").exists()
    write(file, LOADERS["torch"], [])
    assert file.exists()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        ConfigError, match=r"into=.*/file/loader: .*/file is no folder, or it cannot be written to"
    ):
        tuned_file(str(tmp_path / "file/loader"), "x")


def test_a_file_is_replaced_as_a_whole_or_left_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "tuned_x.yaml"
    write(file, LOADERS["torch"], ["old"])
    before = file.read_text()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write(file, LOADERS["dali"], ["new"])
    assert file.read_text() == before and list(tmp_path.iterdir()) == [file]
    monkeypatch.undo()
    write(file, LOADERS["dali"], ["new"])
    assert "dali_schema" in file.read_text() and list(tmp_path.iterdir()) == [file]


def test_what_is_reported_cannot_leave_its_comment(tmp_path):
    write(tmp_path / "x.yaml", LOADERS["dali"], ["two\nlines: {", "more"])
    assert (tmp_path / "x.yaml").read_text().startswith("# two lines: {\n# more\ndefaults:\n")
