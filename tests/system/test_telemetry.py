import subprocess
import sys
import time

import psutil
import pytest

from dali_pipes.system import telemetry
from dali_pipes.system.telemetry import Sampler, cgroup_cpu_seconds, cpu_seconds, throttled_seconds

BURN = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"


def test_cpu_of_this_process():
    before, start = cpu_seconds(), time.process_time()
    while time.process_time() - start < 0.3:
        pass
    assert 0.25 < cpu_seconds() - before < 1.0


def test_cpu_of_a_child_counts_while_it_lives_and_after():
    before = cpu_seconds()
    child = subprocess.Popen(
        [sys.executable, "-c", BURN + "\nprint(flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    child.stdout.readline()
    alive = cpu_seconds() - before
    child.communicate(b"\n")
    ended = cpu_seconds() - before
    assert 0.4 < alive <= ended + 0.02 and ended < 2


def watched(code, seconds=0.5, **options):
    """The samples of a process that runs this code, says a word, and waits."""
    command = [sys.executable, "-c", code + "\nprint(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with Sampler([process.pid], **options) as sampler:
            time.sleep(seconds)
        process.communicate(b"\n")
    return sampler


@pytest.mark.slow
def test_a_process_is_watched_from_outside():
    sampler = watched("x = bytearray(40 << 20)\n" + BURN, every_s=0.05)
    last = sampler.samples[-1]
    assert 0.4 < last["cpu_s"] < 2 and last["processes"] == 1 and last["threads"] >= 1
    assert 45 < last["rss_mib"] < 100 and 40 < last["pss_mib"] <= last["rss_mib"]
    assert last["at"] == pytest.approx(time.monotonic(), abs=5) and last["gpus"] == []


def test_children_count_and_shared_memory_counts_once():
    fork = (
        "import os, time\nx = bytearray(60 << 20)\nfor _ in range(3):\n  if not os.fork(): "
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", fork + "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with Sampler([process.pid], every_s=0.05) as sampler:
            time.sleep(0.3)
        children = psutil.Process(process.pid).children()
        for child in children:
            child.kill()
        process.communicate(b"\n")
    last = sampler.samples[-1]
    assert last["processes"] == 4
    assert last["rss_mib"] > 240 and 60 < last["pss_mib"] < 120


def test_the_pss_is_that_of_the_sample_it_was_taken_after(monkeypatch):
    """The program takes another sample, of what begins there, while the PSS is summed up."""
    sampler, measure = Sampler([psutil.Process().pid], every_s=60), psutil.Process.memory_full_info

    def measured(process):
        sampler.sample()
        return measure(process)

    monkeypatch.setattr(psutil.Process, "memory_full_info", measured)
    with sampler:
        pass
    first, *others = sampler.samples
    assert first["pss_mib"] > 0 and others and not any("pss_mib" in each for each in others)


@pytest.mark.slow
def test_the_cost_of_watching_is_measured_and_bounded():
    """At most 1 % of a core, however often it is asked to look."""
    sampler = watched("", seconds=6, every_s=0.001)
    assert 0 < sampler.cost <= 0.01
    assert len(sampler.samples) > 2


def test_a_process_that_ends_is_no_error():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        with Sampler([process.pid], every_s=0.01) as sampler:
            time.sleep(0.1)
    assert sampler.samples == []


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """A cgroup of version 2 with a quota, that holds what is written into cgroup.procs."""
    (tmp_path / "cpu.stat").write_text(
        "usage_usec 2500000\nuser_usec 1\nnr_throttled 3\nthrottled_usec 1500000\n"
    )
    monkeypatch.setattr(
        telemetry, "cgroup_folders", lambda controller="": [] if controller else [tmp_path]
    )
    return lambda *pids: (tmp_path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


def test_what_the_cgroup_says(cgroup):
    me = psutil.Process()
    cgroup(me.pid, me.ppid())
    assert throttled_seconds() == 1.5
    assert cgroup_cpu_seconds(me.pid) == 2.5


def test_the_cpu_time_of_a_cgroup_with_strangers_in_it_is_not_ours(cgroup):
    me = psutil.Process()
    cgroup(me.pid, 999_999)
    assert cgroup_cpu_seconds(me.pid) is None


def test_what_quotas_of_version_1_denied_at_all_levels(tmp_path, monkeypatch):
    (tmp_path / "job").mkdir()
    (tmp_path / "job/cpu.stat").write_text(
        "nr_periods 9\nnr_throttled 3\nthrottled_time 1500000000\n"
    )
    (tmp_path / "cpu.stat").write_text("nr_periods 9\nnr_throttled 1\nthrottled_time 250000000\n")
    folders = {"": [], "cpu": [tmp_path / "job", tmp_path]}
    monkeypatch.setattr(telemetry, "cgroup_folders", lambda controller="": folders[controller])
    assert throttled_seconds() == 1.75


def test_no_cgroup_says_nothing(monkeypatch):
    monkeypatch.setattr(telemetry, "cgroup_folders", lambda _="": [])
    assert throttled_seconds() is None and cgroup_cpu_seconds(psutil.Process().pid) is None
