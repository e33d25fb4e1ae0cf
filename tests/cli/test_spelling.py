"""Options in errors and warnings: Python's spelling for its users, and the command line's own."""

import ast
import logging
import pickle
import re
from dataclasses import fields
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

import dali_pipes as dp
from dali_pipes.backends.dali import decoding
from dali_pipes.backends.registry import list_backends
from dali_pipes.cli.conf import conf_folder, register
from dali_pipes.cli.messages import print_warnings_on_stderr
from dali_pipes.cli.spelling import explain_in_options, spell
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ChoiceError, Mention, OptionError, RankError
from dali_pipes.measure.arms import DaliNativeConfig
from dali_pipes.plan.sampling import SAMPLINGS
from dali_pipes.plan.transforms import TRANSFORMS

PACKAGE = Path(dp.__file__).parent
CORE = [
    PACKAGE / folder
    for folder in ("plan", "backends", "loader", "measure/arms", "data", "adapters")
]
# the options of the group `data`, which only jobs have
OF_JOBS = [PACKAGE / "data" / f"{name}.py" for name in ("config", "images", "demo")]


def composed_config(job, *words):
    register()
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        return compose(job, list(words))


def explained(error, *words, job="preview"):
    return explain_in_options(error, job, composed_config(job, *words))


def test_an_option_has_the_name_of_its_reader(monkeypatch):
    versions = decoding.Versions((0, 10, 0), (12, 4, 0))
    monkeypatch.setattr(decoding, "installed_versions", lambda: versions)
    with pytest.raises(OptionError) as caught:
        decoding.choose(dp.DaliConfig(decode="region"), True)

    assert str(caught.value).startswith("DaliConfig.decode is region")
    assert str(caught.value).endswith(
        "set DaliConfig(decode='whole'), or DaliConfig(jpeg_fancy_upsampling=False), with other "
        "pixels; DaliConfig(decode='force_region') tries it anyway"
    )
    text = explained(caught.value, "loader=dali")
    assert text.startswith("loader.decode is region")
    assert text.endswith(
        "set loader.decode=whole, or loader.jpeg_fancy_upsampling=false, with other pixels; "
        "loader.decode=force_region tries it anyway"
    )


@pytest.mark.slow
def test_a_choice_has_the_name_of_its_reader():
    parts = ("makes images of one size, and ", Mention(dp.ViewsTransform), " more; use ")
    error = ChoiceError(dp.TorchConfig, *parts, Mention(dp.DaliConfig))
    assert str(error) == (
        "TorchConfig makes images of one size, and ViewsTransform more; use DaliConfig"
    )
    assert explained(error, "loader=torch", "transform=views") == (
        "loader=torch makes images of one size, and transform=views more; use loader=dali"
    )
    # an arm of the benchmark, which has a node of its own
    native = ChoiceError(DaliNativeConfig, "reads files")
    words = ["arms=[dali_native]"]
    assert explained(native, *words, job="benchmark") == "loaders.dali_native reads files"


@pytest.mark.parametrize(
    ("mention", "python", "command_line"),
    [
        (
            Mention(dp.Schedule, "schedule", {0: "balanced", 10: "uniform"}),
            "Schedule(schedule={0: 'balanced', 10: 'uniform'})",
            "sampling.schedule={0: balanced, 10: uniform}",
        ),
        (
            Mention(dp.ViewsTransform, "views", [{"name": "a", "flip": None}]),
            "ViewsTransform(views=[{'name': 'a', 'flip': None}])",
            "transform.views=[{name: a, flip: null}]",
        ),
        (Mention(dp.Targets, "text"), "Targets.text", "data.targets.text"),
        (Mention(dp.Rank, "index"), "Rank.index", "Rank.index"),  # no option of a command line
    ],
)
def test_values_are_written_as_their_reader_writes_them(mention, python, command_line):
    assert str(mention) == python
    assert spell(mention, composed_config("preview")) == command_line


def test_a_warning_of_a_job_names_options_as_its_command_line_does(monkeypatch, capsys):
    root = logging.Logger("root")
    monkeypatch.setattr(logging, "getLogger", lambda *_: root)
    print_warnings_on_stderr()
    record = ("dali_pipes.loader", logging.WARNING, "", 0, "raise %s", (), None)
    warning = root.makeRecord(*record)
    warning.args = (Mention(dp.Windows, "window_gb"),)
    assert warning.getMessage() == "raise Windows.window_gb"
    root.handle(warning)
    assert capsys.readouterr().err == "raise sampling.window_gb\n"


def test_an_error_of_another_rank_has_the_names_of_its_reader():
    error = OptionError(dp.DaliConfig, "decode is x; set ", Mention(dp.Windows, "window_gb", 2))
    there = pickle.loads(pickle.dumps(RankError(3, error)))
    assert str(there) == "rank 3: DaliConfig.decode is x; set Windows(window_gb=2)"
    assert explained(there, "loader=dali") == (
        "rank 3: loader.decode is x; set sampling.window_gb=2"
    )


def test_an_error_crosses_processes():
    error = ChoiceError(dp.Windows, "is for shards; use ", Mention(dp.Uniform))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is ChoiceError and str(again) == str(error) and again.parts == error.parts


@pytest.mark.few
@pytest.mark.parametrize(
    ("files", "python", "command_line"),
    [
        (
            {"t.csv": "path,label\n1.jpg,é\n".encode("latin-1")},
            "that it has: encoding=",
            "that it has: data.encoding=",
        ),
        ({"t.csv": b"file,label\n1.jpg,a\n"}, "with path_column=", "with data.path_column="),
        ({"t.csv": b"path,label\n1.jpg,1\n"}, "images= of open", "data.train_images= or"),
        ({"1.jpg": b""}, "(with_labels=False)", "(data.labels=false)"),
    ],
)
def test_an_argument_of_the_images_has_the_name_of_its_reader(
    files, python, command_line, tmp_path
):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)

    source = tmp_path / "t.csv" if "t.csv" in files else tmp_path
    with pytest.raises(dp.ManifestError) as caught:
        dp.Manifest.open(source)
    assert python.format(root=tmp_path) in str(caught.value)
    assert "data." not in str(caught.value)

    text = explained(caught.value)
    assert command_line.format(root=tmp_path) in text
    assert python.format(root=tmp_path) not in text


@pytest.mark.slow
def test_the_core_spells_no_option_as_a_command_line_does():
    """Its readers may be Python's; an `OptionError` is spelled anew for a command line."""
    groups = {
        "transform": TRANSFORMS.values(),
        "sampling": SAMPLINGS.values(),
        "loader": [*list_backends().values()],
        "data": [DataConfig],
    }
    options = [
        rf"{group}\.{field.name}\b"
        for group, classes in groups.items()
        for each in classes
        for field in fields(each)
    ]
    choices = r"\b(transform|sampling|loader)=[a-z]"
    pattern = re.compile("|".join([*sorted(set(options)), choices]))

    modules = [file for folder in CORE for file in folder.rglob("*.py") if file not in OF_JOBS]
    for module in modules:
        tree = ast.parse(module.read_text())
        spellings = [
            text
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Spelling"
            for text in ast.walk(node)
        ]
        docstrings = [
            node.body[0].value
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and isinstance(node.body[0], ast.Expr)
        ]
        texts = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in docstrings
            and node not in spellings
        ]
        assert not [text for text in texts if pattern.search(text)], module
