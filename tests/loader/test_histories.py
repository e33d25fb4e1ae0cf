"""What people do to a loader, in any order: whatever happened before, it goes on exactly where it
says, and leaves nothing behind.

DALI_PIPES_EXAMPLES is the number of histories for each backend; 1,000 in all were run with 200.
"""

import gc
import os
import signal
import sys
import threading
import time
import warnings

import numpy as np
import psutil
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dali_pipes as dp

EXAMPLES = int(os.environ.get("DALI_PIPES_EXAMPLES", 12))
BATCH, STEPS = 4, 5
CONFIGS = {
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=2),
    "graph": dp.DaliConfig(device="cpu", num_threads=2, resize="dali"),
    "torch_0": dp.TorchConfig(num_workers=0),
    "torch_2": dp.TorchConfig(num_workers=2),
}
DEEDS = st.one_of(
    st.tuples(st.just("take"), st.integers(1, 6)),
    st.tuples(st.just("begin")),
    st.tuples(st.just("begin_in_thread")),
    st.tuples(st.just("fail_in_the_loop"), st.integers(1, 3)),
    st.tuples(st.just("interrupt"), st.sampled_from(["next", "iter", "first"]), st.floats(0, 0.03)),
    st.tuples(
        st.just("race"),
        st.sampled_from(["iter", "set_epoch", "load_state_dict"]),
        st.floats(0, 0.01),
    ),
    st.tuples(st.just("take_from_a_stale_one")),
    st.tuples(st.just("set_epoch"), st.integers(0, 4)),
    st.tuples(st.just("save")),
    st.tuples(st.just("load")),
    st.tuples(st.just("close")),
    st.tuples(st.just("drop")),
    st.tuples(st.just("fork")),
)


class History:
    """A loader, and where it should be."""

    def __init__(self, manifest, config):
        self.manifest, self.config = manifest, config
        self.known = {}
        self.loader = None
        next(iter(self.build_anew()))
        self.loader = self.batches = None
        self.expected(0, 0)
        self.left = left()  # with what libraries open once
        self.build_anew()

    def build(self):
        transform = dp.TrainTransform(size=16)
        return dp.build_loader(
            self.manifest,
            self.config,
            transform=transform,
            batch_size=BATCH,
            seed=3,
            on_bad_sample="substitute",
        )

    def build_anew(self):
        self.loader, self.batches, self.stale, self.saved = self.build(), None, None, None
        self.place, self.abandoned = (0, 0), False
        return self.loader

    def expected(self, epoch, step):
        """Ids and images, as a loader that nobody has disturbed delivers them."""
        if (epoch, step) not in self.known:
            with self.build() as reference:
                reference.set_epoch(epoch)
                for number, batch in enumerate(reference):
                    self.known[epoch, number] = (
                        batch.ids.tolist(),
                        batch.labels.tolist(),
                        batch.images.clone(),
                    )
        return self.known[epoch, step]

    def where(self):
        state = self.loader.state_dict()
        return state["epoch"], state["samples"] // BATCH

    def check(self, batch, place):
        ids, labels, images = self.expected(*place)
        assert (batch.ids.tolist(), batch.labels.tolist()) == (ids, labels) and torch.equal(
            batch.images, images
        )

    def after(self, place):
        epoch, step = place
        return (epoch, step + 1) if step + 1 < STEPS else (epoch + 1, 0)

    def delivered(self):
        self.place = self.after(self.place)
        self.abandoned = self.place[1] > 0

    def begun(self):
        """What iter() does to the place."""
        if self.abandoned:
            self.place, self.abandoned = (self.place[0] + 1, 0), False

    def begin(self):
        self.stale, self.batches = self.batches, iter(self.loader)
        self.begun()

    def begin_in_thread(self):
        found = []
        thread = threading.Thread(target=lambda: found.append(iter(self.loader)))
        thread.start()
        thread.join()
        (self.batches,), self.stale = found, self.batches
        self.begun()

    def take(self, count):
        if self.batches is None:
            self.begin()
        for _ in range(count):
            epoch = self.place[0]
            try:
                batch = next(self.batches)
            except StopIteration:
                self.batches = None
                return
            self.check(batch, self.place)
            self.delivered()
            if self.place[0] != epoch:
                with pytest.raises(StopIteration):
                    next(self.batches)
                self.batches = None
                return

    def fail_in_the_loop(self, count):
        try:
            self.batches = None
            before = self.place, self.abandoned
            for number, batch in enumerate(self.loader):
                if number == 0:
                    self.place, self.abandoned = before
                    self.begun()
                self.check(batch, self.place)
                self.delivered()
                if number + 1 == count:
                    raise ValueError("in the loop")
        except ValueError:
            pass

    def interrupt(self, what, delay):
        """Ctrl-C after a while: what was being done is done or it is not."""
        if what == "next" and self.batches is None:
            self.begin()
        if what == "first":
            self.begin()
        before, abandoned = self.place, self.abandoned
        done = interrupted(
            (lambda: iter(self.loader)) if what == "iter" else (lambda: next(self.batches, None)),
            delay,
        )
        now = self.where()
        if what == "iter":
            begun = (before[0] + 1, 0) if abandoned else before
            assert now in (before, begun) and (done is INTERRUPTED or now == begun)
            self.place, self.abandoned, self.batches = now, abandoned and now == before, None
            return
        assert now in (before, self.after(before))
        if done is not INTERRUPTED:
            assert now != before
            self.check(done, before)
        if now != before:
            self.delivered()
        if done is INTERRUPTED or self.place[1] == 0:
            # whether Ctrl-C came before the iterator was asked is not known
            self.stale = self.batches = None

    def race(self, what, delay):
        """A thread asks for a batch while this one begins another epoch or goes elsewhere."""
        if self.batches is None:
            self.begin()
        before, batches, found = self.place, self.batches, []

        def ask():
            try:
                found.append(next(batches, None))
            except RuntimeError as error:
                found.append(error)

        thread = threading.Thread(target=ask)
        state = self.loader.state_dict()
        thread.start()
        time.sleep(delay)
        if what == "iter":
            self.batches = iter(self.loader)
        elif what == "set_epoch":
            self.loader.set_epoch(before[0] + 2)
        else:
            self.loader.load_state_dict(state)
        thread.join()
        if isinstance(found[0], RuntimeError):
            assert "abandoned" in str(found[0])
        else:
            self.check(found[0], before)
        if what == "load_state_dict":
            self.place, self.abandoned = before, False
        self.place, self.abandoned = self.where(), False
        if what != "iter":
            assert self.place == {"set_epoch": (before[0] + 2, 0), "load_state_dict": before}[what]
            self.batches = None

    def take_from_a_stale_one(self):
        if self.stale is not None and self.batches is not self.stale:
            with pytest.raises((RuntimeError, StopIteration)):
                next(self.stale)

    def set_epoch(self, epoch):
        self.loader.set_epoch(epoch)
        if self.abandoned or epoch != self.place[0]:
            self.place, self.abandoned, self.batches = (epoch, 0), False, None

    def save(self):
        self.saved = self.loader.state_dict(), self.place
        assert self.where() == self.place

    def load(self):
        if self.saved:
            self.loader.load_state_dict(self.saved[0])
            self.place, self.abandoned, self.batches = self.saved[1], False, None

    def close(self):
        batches = self.batches
        self.loader.close()
        for use in (lambda: iter(self.loader), lambda: next(batches or iter(self.loader))):
            with pytest.raises((RuntimeError, StopIteration)):
                use()
        self.build_anew()

    def drop(self):
        assert self.loader.bad_samples == [] and self.loader.stats().retries == 0
        self.loader = self.batches = self.stale = None
        nothing_is_left(self.left)
        self.build_anew()

    def fork(self):
        if "tensorflow" in sys.modules:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            try:
                next(iter(self.loader))
            except RuntimeError as error:
                os._exit(0 if "build a loader in the process" in str(error) else 2)
            os._exit(1)
        until = time.monotonic() + 60
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
            time.sleep(0.01)
        if ended == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert ended != (0, 0) and os.waitstatus_to_exitcode(ended[1]) == 0


INTERRUPTED = object()


def interrupted(deed, delay):
    """What a function returns; INTERRUPTED if Ctrl-C came first."""
    armed = True

    def strike(*_):
        if armed:
            signal.raise_signal(signal.SIGINT)

    before = (
        signal.signal(signal.SIGALRM, strike),
        signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        signal.setitimer(signal.ITIMER_REAL, delay + 1e-6)
        found = deed()
        armed = False
    except KeyboardInterrupt:
        armed = False
        found = INTERRUPTED
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before[0])
    signal.signal(signal.SIGINT, before[1])
    return found


def left():
    me = psutil.Process()
    return me.num_threads(), len(me.children()), me.num_fds()


def nothing_is_left(before):
    """By the last reference alone: the collector does not run."""
    threads, children, descriptors = before
    # TensorFlow, which another test has imported, starts threads when it likes, and keeps them
    more = 2 if "tensorflow" in sys.modules else 0

    def is_left():
        now = left()
        return now[0] > threads + more or now[1] > children or now[2] > descriptors

    until = time.monotonic() + 60
    while is_left() and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_left(), f"{before} before, now {left()}"


@pytest.fixture
def few(thumbnails):
    return thumbnails.subset(np.arange(BATCH * STEPS))


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_any_history_of_uses(few, name):
    assert threading.current_thread() is threading.main_thread()

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(DEEDS, min_size=3, max_size=14))
    def live(deeds):
        gc.collect()
        gc.disable()
        try:
            history = History(few, CONFIGS[name])
            for deed, *arguments in deeds:
                getattr(history, deed)(*arguments)
            history.take(2)
            history.drop()
        finally:
            gc.enable()

    live()
