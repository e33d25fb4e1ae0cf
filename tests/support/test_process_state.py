import builtins
import os
import signal
import sys

import pytest
import torch
from process_state import find_changes, read_state


def replace_print(patch):
    patch.setattr(builtins, "print", lambda *values: None)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (replace_print, "builtins.print"),
        (lambda patch: patch.setenv("DALI_PIPES_LEFT", "1"), "os.environ['DALI_PIPES_LEFT']"),
        (lambda patch: patch.syspath_prepend("/left"), "sys.path['/left']"),
        (lambda patch: patch.chdir("/"), "Path.cwd()"),
        (lambda patch: patch.setattr(sys, "argv", ["left"]), "sys.argv"),
        (lambda patch: patch.setattr(torch.backends.cudnn, "benchmark", True), "cudnn.benchmark"),
    ],
)
def test_a_change_is_named(change, name):
    before = read_state()
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        (found,) = find_changes(before, read_state())
    assert name in found and " → " in found
    assert not find_changes(before, read_state())


def test_a_signal_that_is_caught_is_named():
    before, handler = read_state(), signal.signal(signal.SIGUSR1, lambda *_: None)
    (found,) = find_changes(before, read_state())
    signal.signal(signal.SIGUSR1, handler)
    assert found.startswith("signal.SIGUSR1: ")


def test_what_a_library_sets_at_its_first_import_counts_as_unchanged():
    before, path = read_state(), os.environ["PATH"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_LIBRARYS_OWN", "1")
        assert not find_changes(before, read_state())
        patch.delenv("PATH")
        assert find_changes(before, read_state()) == [f"os.environ['PATH']: {path!r} → 'missing'"]
