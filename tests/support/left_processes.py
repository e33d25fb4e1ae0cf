"""Processes that a test has started, which end soon after what they belong to.

A DataLoader waits five seconds for each of its workers, and leaves one that takes longer to the
operating system.
"""

import time

import psutil

_SECONDS = 20


def children():
    """The process ids of all children of this process."""
    return {each.pid for each in psutil.Process().children(recursive=True)}


def wait_for_end(before):
    """Fails if there are still others than before after some seconds."""
    end = time.monotonic() + _SECONDS
    while children() - before and time.monotonic() < end:
        time.sleep(0.05)
    assert not children() - before
