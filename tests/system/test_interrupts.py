import signal
import threading
from contextlib import suppress

import pytest

from dali_pipes.system import interrupts
from dali_pipes.system.interrupts import delayed_signals, interrupt_behind


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
    received, before = (
        [],
        signal.signal(signal.SIGINT, lambda number, frame: received.append(number)),
    )
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


def test_an_interrupt_is_found_behind_the_error_that_it_became():
    def fail():
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")

    with pytest.raises(RuntimeError) as caught:
        fail()
    assert isinstance(interrupt_behind(caught.value, None), KeyboardInterrupt)
    assert interrupt_behind(ValueError("of its own"), None) is None


def test_one_that_is_being_handled_already_is_not_behind_what_fails_now():
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as handled:
        with pytest.raises(ValueError, match="now") as caught:
            int("now")
        assert interrupt_behind(caught.value, handled) is None


def test_handlers_come_back_whenever_another_signal_interrupts_that(monkeypatch):
    """A handler that raises between the others' coming back leaves none of them behind."""

    def raise_timeout(*_):
        raise TimeoutError

    before = {
        each: signal.signal(each, raise_timeout)
        for each in (signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1)
    }
    put, left = interrupts._signal.signal, [0]

    def strike(number, handler):
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGALRM)
        return put(number, handler)

    try:
        for moment in range(1, 12):
            left[0] = moment
            monkeypatch.setattr(interrupts._signal, "signal", strike)
            with suppress(TimeoutError), delayed_signals():
                pass
            monkeypatch.undo()
            assert {signal.getsignal(each) for each in before} == {raise_timeout}
            with pytest.raises(KeyboardInterrupt):
                interrupt()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
