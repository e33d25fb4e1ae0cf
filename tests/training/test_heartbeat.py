"""The file that is touched as training moves, and the check of the container that looks at its
age.
"""

import os
import subprocess
import time
from pathlib import Path

import pytest

from dali_pipes.training.supervision import Heartbeat

HEALTHY = str(Path(__file__).parents[2] / "scripts/container/healthy")


def healthy(path, **environment):
    done = subprocess.run(
        ["sh", HEALTHY],
        env={**os.environ, "DALI_PIPES_HEARTBEAT": str(path), **environment},
        check=False,
    )
    return done.returncode == 0


@pytest.mark.slow
def test_every_batch_of_training_and_evaluation_is_a_beat(config, run, tmp_path, monkeypatch):
    beats, beat = [], Heartbeat.beat

    def counted(self):
        beat(self)
        beats.append((tmp_path / "heartbeat").exists())

    monkeypatch.setattr(Heartbeat, "beat", counted)
    run(config(heartbeat=str(tmp_path / "heartbeat"), epochs=1))
    # 37 images: four steps of 8, and one batch of at most 128 to evaluate
    assert beats == [True] * (4 + 1)
    assert not (tmp_path / "heartbeat").exists()


def test_it_is_gone_after_a_failure_too(tmp_path):
    with pytest.raises(ValueError), Heartbeat(str(tmp_path / "heartbeat")):
        assert (tmp_path / "heartbeat").exists()
        raise ValueError
    assert not (tmp_path / "heartbeat").exists()


def test_healthy_is_what_moves_and_what_does_not_train(tmp_path):
    path = tmp_path / "heartbeat"
    assert healthy(path)
    with Heartbeat(str(path)) as heartbeat:
        assert healthy(path)
        hour_ago = time.time() - 3600
        os.utime(path, (hour_ago, hour_ago))
        assert not healthy(path)
        assert healthy(path, DALI_PIPES_STALL_S="4000")
        assert list(heartbeat.watch(["a", "b"])) == ["a", "b"]
        assert healthy(path)


def test_no_path_is_no_file():
    with Heartbeat(None) as heartbeat:
        heartbeat.beat()
