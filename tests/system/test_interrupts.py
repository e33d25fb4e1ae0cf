import signal
import threading

import pytest

from dali_pipes.system.interrupts import delayed_signals


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_takes_effect_at_the_end_of_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt), delayed_signals():
        interrupt()
        done.append("all of it")
    assert done
    with pytest.raises(KeyboardInterrupt):
        interrupt()  # as before


def test_an_error_in_the_block_does_not_hide_it():
    with pytest.raises(KeyboardInterrupt) as caught, delayed_signals():
        interrupt()
        raise ValueError("in the block")
    assert isinstance(caught.value.__context__, ValueError)


def test_a_handler_of_the_program_is_called_with_what_came():
    received, before = [], signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        with delayed_signals():
            interrupt()
            assert not received
        assert received == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_is_not_pythons_is_left_alone(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        with delayed_signals():
            assert signal.getsignal(signal.SIGINT) == handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_change_no_handler():
    found = []

    def use():
        with delayed_signals():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]


def test_every_signal_waits_that_the_program_answers_and_a_second_one_does_not():
    def raise_timeout(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, raise_timeout)
    try:
        done = []
        with pytest.raises(TimeoutError), delayed_signals():
            signal.raise_signal(signal.SIGALRM)
            done.append("the first waits")
            signal.raise_signal(signal.SIGALRM)
            done.append("never")
        assert done == ["the first waits"] and signal.getsignal(signal.SIGALRM) is raise_timeout
    finally:
        signal.signal(signal.SIGALRM, before)
