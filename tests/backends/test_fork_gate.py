"""A fork waits for the threads inside the gate, and threads for the fork."""

import os
import signal
import threading
import time

import pytest
from forks_while_finishing import finish_one

import dali_pipes as dp
from dali_pipes.backends.common import view_finisher
from dali_pipes.backends.common.fork_gate import GATE, ForkGate

pytestmark = pytest.mark.timeout(60)


def start(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def fork_and_use_the_gate():
    """The status of a child that goes through the gate and ends."""
    child = os.fork()
    if not child:
        with GATE:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def test_a_fork_waits_until_a_thread_is_outside():
    inside, goes = threading.Event(), threading.Event()
    seen = []

    def stay():
        with GATE:
            inside.set()
            goes.wait()
            seen.append("outside")

    staying = start(stay)
    inside.wait()
    forking = start(lambda: seen.append(fork_and_use_the_gate()))
    while not GATE._forks:
        time.sleep(0.001)
    assert forking.is_alive() and not seen

    goes.set()
    forking.join()
    staying.join()
    assert seen == ["outside", 0]


def test_a_thread_inside_enters_again_while_a_fork_waits_for_it():
    """TenCropTransform compiled a function inside the gate, and waited for the fork, which waited
    for it.
    """
    inside, goes = threading.Event(), threading.Event()
    seen = []

    def stay():
        with GATE:
            with GATE:
                inside.set()
                goes.wait()
                with GATE:
                    seen.append("again")
            # still inside: a fork comes about at the outermost end only
            time.sleep(0.05)
            seen.append("outside")

    staying = start(stay)
    inside.wait()
    forking = start(lambda: seen.append(fork_and_use_the_gate()))
    while not GATE._forks:
        time.sleep(0.001)
    goes.set()
    for thread in (forking, staying):
        thread.join(30)
        assert not thread.is_alive()
    assert seen == ["again", "outside", 0] and not GATE._inside


def test_threads_wait_for_a_fork_and_go_on_after_it():
    gate = ForkGate()
    gate.close()
    entered = threading.Event()

    def enter():
        with gate:
            entered.set()

    waiting = start(enter)
    assert not entered.wait(0.1)
    gate.open()
    waiting.join()
    assert entered.is_set()


def test_a_fork_comes_about_while_threads_go_in_and_out():
    ends = threading.Event()

    def come_and_go():
        while not ends.is_set():
            with GATE:
                time.sleep(0.001)

    threads = [start(come_and_go) for _ in range(4)]
    try:
        assert [fork_and_use_the_gate() for _ in range(5)] == [0] * 5
    finally:
        ends.set()
    for thread in threads:
        thread.join()


def test_several_threads_fork_at_once():
    statuses = []
    threads = [start(lambda: statuses.append(fork_and_use_the_gate())) for _ in range(4)]
    for thread in threads:
        thread.join()
    assert statuses == [0] * 4


def test_a_handler_that_forks_does_not_wait_for_the_thread_it_interrupted():
    statuses = []
    before = signal.signal(
        signal.SIGUSR1, lambda *arguments: statuses.append(fork_and_use_the_gate())
    )
    try:
        with GATE:
            os.kill(os.getpid(), signal.SIGUSR1)
            while not statuses:
                time.sleep(0.001)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert statuses == [0] and not GATE._inside


def test_functions_are_compiled_and_images_finished_inside(monkeypatch):
    """PyTorch takes locks in both."""
    inside = []
    script = view_finisher.torch.jit.script

    def compile_function(function, **options):
        if options:  # a function that the other one calls
            return script(function, **options)

        inside.append(bool(GATE._inside))
        compiled = script(function)

        def run(*arguments):
            inside.append(bool(GATE._inside))
            return compiled(*arguments)

        return run

    monkeypatch.setattr(view_finisher.torch.jit, "script", compile_function)
    view_finisher._compile_without_gil.cache_clear()
    try:
        finish_one(view_finisher.ViewFinisher(dp.TrainTransform(size=4)))
    finally:
        view_finisher._compile_without_gil.cache_clear()
    assert inside == [True, True]
