"""Functions that users name as module:function."""

import json
import re
import sys

import pytest

from dali_pipes import ConfigError
from dali_pipes.system.functions import import_function


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working directory, from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_a_function_of_the_working_directory_or_of_a_file_is_taken(here):
    text = "def make(size=3):\n    return size\n\nclass Maker:\n    make = staticmethod(make)\n"
    (here / "my_train.py").write_text(text)
    (here / "deep").mkdir()
    (here / "deep/my_other.py").write_text("def make():\n    return 4\n")
    assert import_function("my_train:make")() == import_function("my_train:Maker.make")() == 3
    assert import_function("./deep/my_other.py:make")() == 4


def test_the_working_directory_is_searched_last_and_kept_only_if_needed(here, monkeypatch):
    found = here / "found"
    found.mkdir()
    for folder, value in ((here, 3), (found, 4)):
        (folder / "my_steps.py").write_text(f"def make():\n    return {value}\n")
    (here / "my_helper.py").write_text(
        "def make():\n    import my_later\n    return my_later.NINE\n"
    )
    (here / "my_later.py").write_text("NINE = 9\n")
    monkeypatch.syspath_prepend(found)
    before = [*sys.path]

    assert import_function("my_steps:make")() == 4
    with pytest.raises(ConfigError):
        import_function("no_such:make")
    assert sys.path == before

    # a module of the working directory imports others from there, also later
    assert import_function("my_helper:make")() == 9
    assert sys.path == [*before, str(here)]


def test_what_is_written_in_c_is_taken_with_a_signature_or_without(here):
    assert import_function("time:monotonic")() > 0
    assert import_function("builtins:dict")() == {}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_train", "'my_train' names no function"),
        (".my_train:make", ".my_train:make: a module is named from the top"),
        ("..:make", "..:make: a module is named from the top"),
        ("my_train:none", "/my_train.py has no function none"),
        ("sys:none", "sys:none: the module sys has no function none"),
        ("my_folder:none", "my_folder:none: the module my_folder has no function none"),
        ("no_such:make", "there is no module no_such in "),
        ("my_folder.no.deep:make", "there is no module my_folder.no.deep in "),
        ("my_folder..deep:make", "there is no module my_folder..deep in "),
        ("~no_such_user/x.py:make", "there is no file "),
        ("json.mine:make", f"there is no module json.mine in {json.__file__}"),
        ("./sys.py:make", "the name sys is taken by the module sys; rename your file"),
        ("my_train:needs", "my_train:needs is called without arguments (missing"),
    ],
)
def test_what_cannot_be_called_is_named(here, name, message):
    (here / "my_train.py").write_text("def needs(size):\n    return size\n")
    (here / "sys.py").write_text("def make():\n    return 4\n")
    (here / "my_folder").mkdir()
    (here / "json").mkdir()
    (here / "json/mine.py").write_text("def make():\n    return 4\n")
    with pytest.raises(ConfigError, match=re.escape(message)):
        import_function(name)


def test_an_error_of_the_module_itself_comes_out_as_it_is(here):
    (here / "my_broken.py").write_text("import no_such_package\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        import_function("my_broken:make")
