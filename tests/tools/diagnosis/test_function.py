"""dp.diagnose."""

import runpy

import pytest
import torch
from planted import Samples, computing, loader
from torch.utils.data import DataLoader, Subset, TensorDataset

import dali_pipes as dp


@pytest.mark.slow
def test_a_diagnosis_from_start_to_end(capsys):
    found = dp.diagnose(loader(Samples(sleep=0.01), workers=1), computing(0), seconds=0.2, rounds=1)
    message = capsys.readouterr().err
    assert (
        found.verdict.name in message
        and "loader alone" in message
        and "Where the time of training goes" in message
        and "Where an item of the loader spends" in message
        and found.figures.loader < found.figures.model
    )


def test_what_cannot_be_diagnosed():
    with pytest.raises(
        dp.ConfigError, match="list is not a torch DataLoader, nor a loader of dali_pipes"
    ):
        dp.diagnose([1, 2], print)
    with pytest.raises(dp.ConfigError, match="yields no batch"):
        dp.diagnose(DataLoader(TensorDataset(torch.zeros(3)), 4, drop_last=True), print)


@pytest.mark.slow
def test_a_diagnosis_begins_with_the_answer(capsys):
    found = dp.diagnose(loader(Samples(sleep=0.01), workers=1), computing(0), seconds=0.2, rounds=1)
    progress, said = capsys.readouterr().err.split("\n\n", 1)
    assert progress.splitlines()[0] == "the first batches"
    first = said.splitlines()[0]
    assert f"of the time for batches. {found.verdict.name} (" in first and "Do this: " in first
    assert (
        found.items is not None
        and found.items.parts[0].name == "time.sleep"
        and found.items.parts[0].waits
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_epochs_that_end_in_the_middle_of_a_measurement(context, persistent):
    """Workers are started in the thread that calls it; in another one they ended with it."""
    data = (
        Subset(Samples(sleep=0.0002), range(64))
        if persistent
        else TensorDataset(torch.zeros(64, 4))
    )
    short = DataLoader(
        data, 8, num_workers=1, multiprocessing_context=context, persistent_workers=persistent
    )
    found = dp.diagnose(short, lambda batch: None, seconds=0.1, rounds=1, show=False)
    # with workers that live on, one late batch elsewhere outweighs what the first ones take longer
    if not persistent:
        assert found.figures.start_share > 0.3
    assert (found.verdict.name == "start-bound") != persistent


def test_a_loader_of_ours_goes_on_where_it_was(thumbnails):
    options = {"transform": dp.EvalTransform(resize=32, size=32), "batch_size": 4}
    with dp.build_loader(thumbnails, dp.TorchConfig(num_workers=0), **options) as ours:
        batches = iter(ours)
        next(batches)
        place = ours.state_dict()
        found = dp.diagnose(ours, lambda batch: None, seconds=0.1, rounds=1, show=False)
        assert found.figures.loader > 0 and ours.state_dict() == place


@pytest.mark.slow
def test_what_the_limit_leaves_out_is_said(capsys):
    options = {"seconds": 0.3, "rounds": 3, "limit": 1}
    found = dp.diagnose(loader(Samples(sleep=0.005), workers=1), computing(0), **options)
    assert (
        len(found.rounds) == 1
        and "2 of 3 rounds" in found.left_out
        and any("num_workers=" in each for each in found.left_out)
    )
    assert (
        f"not tried, since the time was over: {'; '.join(found.left_out)}"
        in capsys.readouterr().err
    )
    assert (
        dp.diagnose(
            loader(Samples(), workers=0), computing(0.01), seconds=0.1, rounds=1, show=False
        ).left_out
        == ()
    )


@pytest.mark.slow
def test_the_lines_to_change_are_shown(tmp_path, capsys):
    program = (
        "import time, torch, dali_pipes as dp\nfrom torch.utils.data import DataLoader\n"
        "class Slow(torch.utils.data.Dataset):\n    __len__ = lambda self: 64\n"
        "    def __getitem__(self, index):\n        time.sleep(0.002)\n        return index\n"
        "found = dp.diagnose(DataLoader(Slow(), 4), lambda batch: None, seconds=0.1, rounds=1)\n"
    )
    file = tmp_path / "train.py"
    file.write_text(program)
    found = runpy.run_path(str(file))["found"]
    (first, *_) = [fix for fix in found.fixes if fix.patch]
    assert (
        f"+found = dp.diagnose(DataLoader(Slow(), 4, {first.what.replace(': ', '=')}), lambda"
    ) in first.patch
    assert f"  --- {file}" in capsys.readouterr().err
