import os
from pathlib import Path

import dali_pipes.cpus
from dali_pipes.cpus import available_cpus


def test_affinity_counts():
    all_of_them = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(all_of_them)})
        assert available_cpus() == 1
    finally:
        os.sched_setaffinity(0, all_of_them)


def test_the_tightest_quota_of_the_cgroup_and_those_above_it_counts(tmp_path, monkeypatch):
    group = tmp_path / "a/b"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("max 100000\n")
    (tmp_path / "a/cpu.max").write_text("150000 100000\n")
    (tmp_path / "cgroup").write_text("0::/a/b\n")
    monkeypatch.setattr(
        dali_pipes.cpus,
        "Path",
        lambda first, *rest: {"/proc/self/cgroup": tmp_path / "cgroup", "/sys/fs/cgroup": tmp_path}[first].joinpath(*rest),
    )
    assert dali_pipes.cpus._cgroup_quota() == 1.5
    monkeypatch.setattr(dali_pipes.cpus.os, "sched_getaffinity", lambda _: set(range(8)))
    assert available_cpus() == 1
    (tmp_path / "a/cpu.max").write_text("max 100000\n")
    assert available_cpus() == 8


def test_no_cgroup_is_no_limit(monkeypatch):
    monkeypatch.setattr(dali_pipes.cpus, "Path", lambda *_: Path("/nowhere"))
    assert dali_pipes.cpus._cgroup_quota() is None
