import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

import dali_pipes.system.cpus
from dali_pipes.errors import ConfigError
from dali_pipes.system.cpus import (
    available_cpus,
    cgroup_folders,
    cpu_quota,
    cpus_near,
    format_cpus,
    parse_cpus,
    started_on,
)


def test_affinity_counts():
    all_of_them = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(all_of_them)})
        assert available_cpus() == 1
    finally:
        os.sched_setaffinity(0, all_of_them)


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """What /proc/self says of cgroups: the groups that this process is in, and what is mounted
    where.
    """
    monkeypatch.setattr(dali_pipes.system.cpus, "PROC", tmp_path)

    def write(groups, mounts):
        (tmp_path / "cgroup").write_text("".join(f"{line}\n" for line in groups))
        (tmp_path / "mountinfo").write_text(
            "22 27 0:21 / /proc rw - proc proc rw\n" + "".join(f"{line}\n" for line in mounts)
        )

    return write


def test_the_tightest_quota_of_the_cgroup_and_those_above_it_counts(tmp_path, proc, monkeypatch):
    top = tmp_path / "top"
    (top / "a/b").mkdir(parents=True)
    (top / "a/b/cpu.max").write_text("max 100000\n")
    (top / "a/cpu.max").write_text("150000 100000\n")
    proc(["0::/a/b"], [f"30 23 0:26 / {top} rw shared:4 - cgroup2 cgroup2 rw"])
    assert cpu_quota() == 1.5
    monkeypatch.setattr(dali_pipes.system.cpus.os, "sched_getaffinity", lambda _: set(range(8)))
    assert available_cpus() == 1
    (top / "a/cpu.max").write_text("max 100000\n")
    assert cpu_quota() is None and available_cpus() == 8


def test_a_quota_of_version_1_counts_beside_version_2(tmp_path, proc):
    top = tmp_path / "cpu,cpuacct"
    (top / "job").mkdir(parents=True)
    (tmp_path / "unified").mkdir()
    (top / "cpu.cfs_quota_us").write_text("-1\n")
    (top / "job/cpu.cfs_quota_us").write_text("250000\n")
    (top / "job/cpu.cfs_period_us").write_text("100000\n")
    mounts = [
        f"32 31 0:29 / {tmp_path}/unified rw - cgroup2 cgroup2 rw",
        f"33 31 0:30 / {tmp_path}/cpuset rw - cgroup cgroup rw,cpuset",
        f"34 31 0:31 / {top} rw,relatime - cgroup cgroup rw,cpu,cpuacct",
    ]
    proc(["5:cpuset:/", "4:cpu,cpuacct:/job", "0::/"], mounts)
    assert cpu_quota() == 2.5
    assert cgroup_folders("cpu") == [top / "job", top] and cgroup_folders() == [
        tmp_path / "unified"
    ]
    assert cgroup_folders("memory") == []


@pytest.mark.parametrize("root", ["/docker/42", "/docker/7"])
def test_a_container_sees_its_own_group_at_the_top(tmp_path, proc, root):
    (tmp_path / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    proc(["4:cpu:/docker/42"], [f"34 31 0:31 {root} {tmp_path} ro - cgroup cgroup rw,cpu"])
    assert cgroup_folders("cpu") == [tmp_path]
    assert cpu_quota() == 0.5 and available_cpus() == 1


def test_no_cgroup_is_no_limit(monkeypatch):
    monkeypatch.setattr(dali_pipes.system.cpus, "PROC", Path("/nowhere"))
    assert cgroup_folders() == [] and cpu_quota() is None


JOINS_AND_BURNS = """
import os, sys, time
from dali_pipes.system.cpus import available_cpus, cpu_quota
from dali_pipes.system.telemetry import throttled_seconds
before = throttled_seconds()
try:
    with open(sys.argv[1] + "/cgroup.procs", "w") as processes: processes.write(str(os.getpid()))
except OSError as error:
    sys.exit(f"cannot join: {error}")
end = time.monotonic() + 30
while throttled_seconds() in (None, before) and time.monotonic() < end: pass
print(cpu_quota(), available_cpus(), before, throttled_seconds())
"""


@pytest.fixture(params=["v1", "v2"])
def group_of_a_tenth_of_a_core(request):
    """A real cgroup below this process's own."""
    parents = cgroup_folders("cpu" if request.param == "v1" else "")
    if not parents:
        pytest.skip(f"no cgroup {request.param} with a CPU controller here")
    group = parents[0] / f"dali_pipes-{uuid.uuid4().hex}"
    limits = (
        {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "10000"}
        if request.param == "v1"
        else {"cpu.max": "10000 100000"}
    )
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup {request.param} can be made here: {error}")
    try:
        for name, value in limits.items():
            if not (group / name).exists():
                pytest.skip(f"this cgroup {request.param} has no CPU controller")
            (group / name).write_text(value)
        yield group
    finally:
        group.rmdir()


def test_a_real_quota_is_seen_and_so_is_what_it_denied(group_of_a_tenth_of_a_core):
    command = [sys.executable, "-c", JOINS_AND_BURNS, str(group_of_a_tenth_of_a_core)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.stderr.startswith("cannot join"):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    quota, cpus, before, after = done.stdout.split()
    assert float(quota) == 0.1 and cpus == "1"
    assert float(after) > (0 if before == "None" else float(before))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", {0}),
        ("0-3,8", {0, 1, 2, 3, 8}),
        (" 7 , 5-6\n", {5, 6, 7}),
        ("3-3", {3}),
        ("0-1,1-2", {0, 1, 2}),
    ],
)
def test_lists_of_cpus_are_read_and_written(text, cpus):
    assert parse_cpus(text) == cpus == parse_cpus(format_cpus(cpus))
    assert format_cpus({0, 1, 2, 3, 8}) == "0-3,8"


@pytest.mark.parametrize("text", ["", ",", "a", "3-1", "-1", "1-", "0x3", "1,,2", "1.5"])
def test_what_is_no_list_of_cpus_is_refused(text):
    with pytest.raises(ConfigError, match="no list of CPUs"):
        parse_cpus(text)


def test_threads_started_within_stay_on_the_cpus():
    mine, found = os.sched_getaffinity(0), []
    with started_on({min(mine), 4096}):
        thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
        thread.start()
    thread.join()
    assert found == [{min(mine)}] and os.sched_getaffinity(0) == mine
    with pytest.raises(ConfigError, match="none of them"), started_on({4096}):
        pass


def test_the_kernel_says_which_cpus_are_near_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(dali_pipes.system.cpus, "PCI_DEVICES", tmp_path)
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "local_cpulist").write_text("0-15,64-79\n")
    assert cpus_near(0, 0x3B, 0) == parse_cpus("0-15,64-79")
    assert cpus_near(0, 0x3C, 0) == frozenset()
