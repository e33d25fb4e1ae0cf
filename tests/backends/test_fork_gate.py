"""A fork waits for the threads inside the gate, and threads for the fork."""

import os
import signal
import threading
import time
from contextlib import ExitStack

import pytest
import torch
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
        with GATE, GATE:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def wait_for_a_fork():
    """Until a thread waits to fork."""
    while not GATE._forking:
        time.sleep(0.001)


def join(*threads):
    """Waits for the threads, and fails if one hangs."""
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


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
    wait_for_a_fork()
    assert forking.is_alive() and not seen

    goes.set()
    join(forking, staying)
    assert seen == ["outside", 0]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_thread_inside_goes_in_again_while_another_one_forks(depth):
    """And stays inside until it has left as often as it came."""
    inside, waited, seen = threading.Event(), threading.Event(), []

    def go_in_again():
        with GATE:
            inside.set()
            waited.wait()
            with ExitStack() as further:
                for _ in range(depth):
                    further.enter_context(GATE)
            seen.extend(GATE._inside)

    staying = start(go_in_again)
    inside.wait()
    forking = start(lambda: seen.append(fork_and_use_the_gate()))
    wait_for_a_fork()
    waited.set()
    join(staying, forking)
    assert seen == [staying.ident, 0] and not GATE._inside


def test_threads_that_fork_inside_do_not_wait_for_each_other():
    """Such as functions of the user's that start a program with a `preexec_fn`."""
    together, statuses = threading.Barrier(3), []

    def fork_inside():
        with GATE:
            together.wait()
            statuses.append(fork_and_use_the_gate())

    join(*[start(fork_inside) for _ in range(3)])
    assert statuses == [0] * 3 and not GATE._inside


def test_views_that_share_a_resize_are_made_while_another_thread_forks(monkeypatch):
    """Resizing compiles its function, which goes in again."""
    waits, goes_on, made = threading.Event(), threading.Event(), []
    view = view_finisher.ViewFinisher(dp.TenCropTransform(size=4, resize=8))
    compile_function = view_finisher._compile_without_gil

    def wait_and_compile(function):
        waits.set()
        goes_on.wait()
        return compile_function(function)

    monkeypatch.setattr(view_finisher, "_compile_without_gil", wait_and_compile)
    # the compiler itself takes a second
    monkeypatch.setattr(view_finisher.torch.jit, "script", lambda function: function)
    compile_function.cache_clear()
    try:
        places = torch.tensor([[8, 8, 0, 0, 0, 0, 0, 0, 4, 4]])
        regions = [torch.zeros(4, 4, 3, dtype=torch.uint8)]
        resizing = start(lambda: made.extend(view.resize(regions, places)))
        waits.wait()
        forking = start(fork_and_use_the_gate)
        wait_for_a_fork()
        goes_on.set()
        join(resizing, forking)
    finally:
        compile_function.cache_clear()
    assert made[0].shape == (8, 8, 3)


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
    join(waiting)
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
    join(*threads)


def test_several_threads_fork_at_once():
    statuses = []
    join(*[start(lambda: statuses.append(fork_and_use_the_gate())) for _ in range(4)])
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
