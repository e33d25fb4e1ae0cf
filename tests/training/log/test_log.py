"""The files of a run that goes on after its process was killed."""

import pytest
from later import later

module = later("dali_pipes.training.log.log")

BEFORE = "epoch,step,loss,lr\r\n0,8,0.5,0.1\r\n0,9,0.4,0.1\r\n"


@pytest.mark.parametrize("rest", ["", "0", "0,", "0,10", "0,1034", "0,10,0.3", "0,10,0.3,0.1"])
def test_a_line_that_was_cut_off_is_dropped(tmp_path, rest):
    file = tmp_path / "steps.csv"
    file.write_bytes(f"{BEFORE}{rest}".encode())
    with module.Log(tmp_path, 1000) as log:
        log.step({"epoch": 1, "step": 1000, "loss": 0.25, "lr": 0.1})
    assert file.read_bytes().decode() == f"{BEFORE}1,1000,0.25,0.1\r\n"


def test_the_rows_of_an_earlier_process_are_in_the_file_at_all_times(tmp_path):
    file = tmp_path / "steps.csv"
    file.write_bytes(f"{BEFORE}0,10,0.3,0.1\r\n".encode())
    with module.Log(tmp_path, 10):
        assert file.read_bytes().decode() == BEFORE


def test_what_is_not_one_number_for_each_class_is_named_once(tmp_path):
    measured = {"f1": [0.5, 0.25], "bins": [1.0, 2.0, 3.0]}
    with module.Log(tmp_path) as log:
        for _ in range(2):
            log.classes(["cat", "dog"], measured, None)
    assert (tmp_path / "classes.csv").read_text().splitlines() == [
        "class,f1",
        "cat,0.5",
        "dog,0.25",
    ]
    said = (tmp_path / "train.log").read_text()
    assert said.count("classes.csv leaves out bins: not one number for each of the 2 classes") == 1
