"""What the ranks of a run do together, seen from rank 0."""

import pytest
from later import later

import dali_pipes as dp
from dali_pipes.errors import OmissionError, RankError

launching = later("dali_pipes.training.launch")


class RankZero:
    """Rank 0 of two, of which only this one is there."""

    world_size, global_rank = 2, 0

    def barrier(self):
        pass


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(2, "No such file or directory", "/x"), "/x: No such file or directory"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (OSError("the store does not answer"), "the store does not answer"),
        (OSError(), "OSError()"),
        (dp.DaliPipesError(), ""),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_on_one_rank_ends_all_with_its_text(error, text, rank, monkeypatch):
    def fails():
        raise error

    # what this rank says is what rank 0 or rank 1 says
    others = [None, None]
    monkeypatch.setattr(
        "dali_pipes.training.launch.all_gather",
        lambda _, value: [*others[:rank], value, *others[rank + 1 :]],
    )
    with pytest.raises(dp.DaliPipesError) as caught:
        launching.on_all_ranks(RankZero(), fails)
    assert str(caught.value) == (f"rank 1: {text}" if rank else text)


def test_an_error_of_another_rank_stays_the_error_that_it_was(monkeypatch):
    """So the command line writes its options as its reader does, and ends with its status."""
    there = OmissionError("of rank 1")
    monkeypatch.setattr("dali_pipes.training.launch.all_gather", lambda *_: [None, there])
    with pytest.raises(RankError) as caught:
        launching.on_all_ranks(RankZero(), lambda: None)
    assert (caught.value.rank, caught.value.error, caught.value.status) == (1, there, 1)


@pytest.mark.parametrize("slurm", [None, "1"], ids=["alone", "in SLURM"])
def test_ranks_of_mpirun_are_refused_before_they_train_side_by_side(monkeypatch, slurm):
    for name in ("RANK", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    if slurm:
        # of the one process by which mpirun starts its ranks on a machine
        monkeypatch.setenv("SLURM_PROCID", "0")
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", slurm)
    with pytest.raises(
        dp.ConfigError, match=r"mpirun or flux has started 2 ranks.*torchrun or srun"
    ):
        launching.launch("fp32")
