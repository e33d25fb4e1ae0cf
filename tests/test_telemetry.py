import subprocess
import sys
import time

import numpy as np

from dali_pipes.telemetry import PeakMemory, cpu_seconds, memory_mib

BURN = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"


def test_cpu_of_this_process():
    before, start = cpu_seconds(), time.process_time()
    while time.process_time() - start < 0.3:
        pass
    assert 0.25 < cpu_seconds() - before < 1.0


def test_cpu_of_a_child_counts_while_it_lives_and_after():
    before = cpu_seconds()
    child = subprocess.Popen(
        [sys.executable, "-c", BURN + "\nprint(flush=True)\ninput()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    alive = cpu_seconds() - before
    child.communicate(b"\n")
    ended = cpu_seconds() - before
    assert 0.4 < alive <= ended + 0.02 and ended < 2


def test_memory_counts_shared_pages_once_and_children_too():
    before = memory_mib()
    held = np.ones(60 * 2**20, np.uint8)
    assert 55 < memory_mib() - before < 75
    with subprocess.Popen(
        [sys.executable, "-c", "x = bytearray(40 << 20); print(flush=True); input()"], stdin=-1, stdout=-1
    ) as child:
        child.stdout.readline()
        assert 95 < memory_mib() - before < 130
        child.communicate(b"\n")
    assert held[0] == 1


def test_the_peak_is_kept():
    with PeakMemory(every_s=0.01) as peak:
        held = np.ones(80 * 2**20, np.uint8)
        time.sleep(0.3)
        del held
    assert peak.mib > memory_mib() + 60
