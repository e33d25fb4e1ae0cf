import os
import signal

import pytest

from dali_pipes.training.supervision import SIGNALS, Interrupt


@pytest.fixture
def handled():
    """The signals that a launcher's own handler got."""
    seen = []
    before = {
        each: signal.signal(each, lambda number, frame: seen.append(number)) for each in SIGNALS
    }
    yield seen
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("each", SIGNALS)
def test_a_signal_is_noted_and_passed_on_only_when_asked(handled, each):
    with Interrupt() as interrupt:
        assert interrupt.signal is None
        os.kill(os.getpid(), each)
        assert interrupt.signal == each and handled == []
        interrupt.pass_on()
        assert handled == [each]
    os.kill(os.getpid(), each)
    assert handled == [each, each]


def test_the_first_of_several_counts(handled):
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.signal == signal.SIGUSR1


def test_a_second_ctrl_c_ends_the_run_at_once(handled):
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_after_the_first_ctrl_c_pythons_own_handler_is_not_called():
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        interrupt.pass_on()


def test_a_signal_nobody_handled_is_passed_to_nobody():
    with Interrupt() as interrupt:
        interrupt.pass_on()
        os.kill(os.getpid(), signal.SIGTERM)
        interrupt.pass_on()
    assert interrupt.signal == signal.SIGTERM
