"""The job demo."""

from functools import partial

import pytest

from dali_pipes.data import demo


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "files"), [([], 20), (["objects=true"], 20 + 20 + 4)], ids=["classes", "objects"]
)
def test_it_makes_a_set_and_says_where(command, tmp_path, words, files):
    words = ["train=10", "val=10", f"out={tmp_path / 'set'}", *words]
    done = command("demo", *words)
    assert done.returncode == 0 and done.stdout == f"{tmp_path / 'set'}\n", done.stderr
    found = [each for each in tmp_path.glob("set/**/*") if each.is_file() and each.name[0] != "."]
    assert len(found) == files
    assert command("demo", *words).returncode == 0, "it is there already"


def test_a_folder_of_ones_own_is_left_alone(command, tmp_path):
    (tmp_path / "set/train").mkdir(parents=True)
    done = command("demo", f"out={tmp_path / 'set'}")
    assert done.returncode == 2 and "exists and is not a demo set" in done.stderr
    assert list((tmp_path / "set").iterdir()) == [tmp_path / "set/train"]


@pytest.mark.slow
def test_a_job_that_reads_the_set_makes_it_first(command, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "make_demo_set", partial(demo.make_demo_set, train=10, val=10))
    words = ("scan", "data=demo", f"data.root={tmp_path / 'demo'}", "split=val")
    done = command(*words)
    assert done.returncode == 0 and "making a demo set in" in done.stderr
    assert "making a demo set" not in command(*words).stderr
