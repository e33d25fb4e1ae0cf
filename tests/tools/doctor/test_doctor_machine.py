"""Limits that are really set, each seen by the check that is about it."""

import multiprocessing
import os
import subprocess
import uuid
from types import SimpleNamespace

import psutil
import pytest

from dali_pipes.system.cpus import cgroup_folders
from dali_pipes.system.memory import memory_left
from dali_pipes.tools.doctor import machine
from dali_pipes.tools.doctor.machine import quota, shared_memory
from dali_pipes.tools.doctor.report import Finding, size


def in_a_process_with(limit, check):
    """The finding of a check after this call, which sets a limit for good, in a process of its
    own.
    """
    context = multiprocessing.get_context("fork")
    found, finding = context.Pipe(duplex=False)
    process = context.Process(target=lambda: (limit(), finding.send(check())))
    process.start()
    finding.close()
    answer = found.recv()
    process.join()
    return answer


@pytest.fixture
def tiny_shm(tmp_path, monkeypatch):
    """A tmpfs of 64 MiB, which is what a container gets by default."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    monkeypatch.setattr(machine, "SHM", tmp_path)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_tiny_shm(tiny_shm):
    finding = shared_memory(8, 256)
    assert (
        finding.status == "warning" and f"64.0 MiB of 64.0 MiB free in {tiny_shm}" in finding.found
    )
    assert (
        "8 workers of loader=torch need 588 MiB at batch_size=256" in finding.found
        and "--shm-size=1g" in finding.remedy
    )
    assert shared_memory(1, 64).status == "ok"
    (tiny_shm / "other").write_bytes(bytes(60 << 20))
    assert shared_memory(1, 64).status == "warning"


def test_shm_as_the_file_system_says_it(monkeypatch):
    monkeypatch.setattr(
        os,
        "statvfs",
        lambda _: SimpleNamespace(f_blocks=2**21, f_bfree=2**20, f_bavail=2**20, f_frsize=4096),
    )
    assert shared_memory(8, 256) == Finding("ok", "4.0 GiB of 8.0 GiB free in /dev/shm")
    assert (
        "need 9.2 GiB" in shared_memory(128, 256).found
        and "--shm-size=10g" in shared_memory(128, 256).remedy
    )


@pytest.mark.parametrize(
    ("allowed", "status", "found"),
    [
        (None, "ok", "no limit"),
        (
            4.0,
            "ok",
            "4 cores, no less than the 4 it may run on; kept from running for 1.5 s so far",
        ),
        (2.5, "warning", "2.5 of the 4 cores it may run on; kept from running for 1.5 s so far"),
    ],
)
def test_the_quota(monkeypatch, allowed, status, found):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setattr(machine, "cpu_quota", lambda: allowed)
    monkeypatch.setattr(machine, "throttled_seconds", lambda: 1.5)
    finding = quota()
    assert (finding.status, finding.found) == (status, found)
    assert ("OMP_NUM_THREADS=2" in finding.remedy) == (status == "warning")


@pytest.fixture(params=["v1", "v2"])
def new_group(request):
    """Makes a real cgroup with these limits, and returns what joins it."""
    made = []

    def make(controller, v1, v2):
        parents = cgroup_folders(controller if request.param == "v1" else "")
        if not parents:
            pytest.skip(f"no cgroup {request.param} with {controller} here")
        group = parents[0] / f"dali_pipes-{uuid.uuid4().hex}"
        try:
            group.mkdir()
        except OSError as error:
            pytest.skip(f"no cgroup {request.param} can be made here: {error}")
        made.append(group)
        for name, value in (v1 if request.param == "v1" else v2).items():
            if not (group / name).exists():
                pytest.skip(f"this cgroup {request.param} has no {controller}")
            (group / name).write_text(value)
        probe = subprocess.Popen(["sleep", "60"])
        try:
            (group / "cgroup.procs").write_text(str(probe.pid))
        except OSError as error:
            pytest.skip(f"no process can join a cgroup here: {error}")
        finally:
            probe.kill()
            probe.wait()
        return lambda: (group / "cgroup.procs").write_text(str(os.getpid()))

    yield make
    for group in made:
        group.rmdir()


def test_a_real_quota(new_group):
    join = new_group(
        "cpu",
        {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"},
        {"cpu.max": "50000 100000"},
    )
    finding = in_a_process_with(join, quota)
    assert (
        finding.status == "warning"
        and finding.found.startswith("0.5 of the ")
        and "OMP_NUM_THREADS=1" in finding.remedy
    )


def test_a_real_limit_of_memory(new_group):
    limit = str(400 * 2**20)
    join = new_group("memory", {"memory.limit_in_bytes": limit}, {"memory.max": limit})
    finding = in_a_process_with(join, machine.memory)
    assert finding.status == "warning" and "less than 4.0 GiB" in finding.remedy
    left, unit = finding.found.split()[:2]
    assert unit == "MiB" and 350 < float(left) <= 400


def test_page_cache_counts_as_free_and_shared_memory_does_not(tmp_path, monkeypatch):
    (tmp_path / "memory.limit_in_bytes").write_text("1000\n")
    (tmp_path / "memory.usage_in_bytes").write_text("900\n")
    (tmp_path / "memory.stat").write_text("cache 1\ntotal_cache 500\ntotal_shmem 100\n")
    monkeypatch.setattr(
        "dali_pipes.system.memory.cgroup_folders",
        lambda controller: [tmp_path] if controller else [],
    )
    assert memory_left() == 500


def test_without_a_limit_the_host_s_memory_counts(monkeypatch):
    monkeypatch.setattr("dali_pipes.system.memory.cgroup_folders", lambda controller: [])
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: SimpleNamespace(total=2**36, available=2**35)
    )
    assert machine.memory() == Finding("ok", "32.0 GiB left, of 64.0 GiB on this machine")


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1536, "1.5 KiB"),
        (2**20 * 200, "200 MiB"),
        (2**50, "1,048,576 GiB"),
    ],
)
def test_sizes(count, message):
    assert size(count) == message
