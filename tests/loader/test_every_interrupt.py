"""Ctrl-C at every moment at which Python looks for signals; its traceback is kept, as a notebook
keeps it.
"""

import signal
import sys
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch

import dali_pipes as dp
from dali_pipes.measure.arms import SyntheticConfig

# where something is changed for a while; what makes the batch is left out, for it takes thousands
# of steps
PLACES = (
    "contextlib",
    "threading.py",
    "loader/work.py",
    "loader/loader.py",
    "loader/resume.py",
    "loader/statistics.py",
    "system/",
    "torch/",
    "_ufunc_config",
)
SIGNALS = signal.SIGINT, signal.SIGALRM, signal.SIGTERM


def interrupted_at(moment, use):
    """The KeyboardInterrupt that came out of `use`, or None if it ended before that moment; all
    handlers of signals are as before.

    Python looks for signals at the beginning of a function, where a generator goes on, and after a
    function of C.
    """
    count = 0

    def strike(frame, event, argument):
        nonlocal count
        if event not in ("call", "c_return") or not any(
            each in frame.f_code.co_filename for each in PLACES
        ):
            return
        count += 1
        if count == moment:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    try:
        sys.setprofile(strike)
        use()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.setprofile(None)
    return None if count < moment else KeyboardInterrupt()


def modes():
    kinds = (
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_device(),
    )
    return *kinds, tuple(np.geterr().items()), tuple(map(signal.getsignal, SIGNALS))


@pytest.fixture
def handlers():
    """A program that answers signals."""
    before = [signal.signal(each, lambda number, frame: None) for each in SIGNALS[1:]]
    yield
    for each, handler in zip(SIGNALS[1:], before, strict=True):
        signal.signal(each, handler)


@contextmanager
def every_mode():
    with (
        np.errstate(all="raise"),
        torch.inference_mode(),
        torch.autocast("cpu"),
        torch.device("meta"),
    ):
        yield


def build(manifest):
    return dp.build_loader(
        manifest, SyntheticConfig(), transform=dp.TrainTransform(size=8), batch_size=2
    )


USES = {
    "next": lambda loader, batches: next(batches),
    "iter": lambda loader, batches: iter(loader),
    "set_epoch": lambda loader, batches: loader.set_epoch(3),
    "load_state_dict": lambda loader, batches: loader.load_state_dict(loader.state_dict()),
}


# in a destructor Python ignores it
@pytest.mark.few
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("around", [ExitStack, every_mode])
@pytest.mark.parametrize("use", USES)
def test_a_loader_works_on_after_it(manifest, handlers, use, around):
    few, kept, moment = manifest.subset(np.arange(4)), [], 0
    with build(few) as loader, around():
        before = modes()
        while True:
            batches, moment = iter(loader), moment + 1
            if (
                interrupt := interrupted_at(
                    moment, lambda batches=batches: USES[use](loader, batches)
                )
            ) is None:
                break
            kept.append(interrupt)
            assert modes() == before, moment
            loader.set_epoch(0)
            iter(loader)
            assert len(next(iter(loader))) == 2
    assert len(kept) > 5
