import os
import signal

import pytest
from in_child import Child


def end(status):
    os._exit(status)


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def test_only_the_call_that_ends_the_process_fails():
    child = Child()
    first = child(os.getpid)
    assert child(os.getpid) == first != os.getpid()
    for function, arguments, status in ((end, (3,), 3), (crash, (), -signal.SIGSEGV)):
        with pytest.raises(
            AssertionError,
            match=rf"the process that did {function.__name__}.* ended with status {status}",
        ):
            child(function, *arguments)
        assert child(abs, -1) == 1
    child.close()
