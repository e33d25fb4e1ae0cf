"""Headers of the files of items: kept, read again, and errors that are no file's fault."""

import errno
import os
from pathlib import Path

import pytest
from PIL import Image

from dali_pipes.adapters.items import headers
from dali_pipes.adapters.items.headers import header_of
from dali_pipes.data import reader


@pytest.fixture
def path(tmp_path):
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    return str(tmp_path / "a.png")


class Failing:
    """read_header, which fails with these errors first."""

    def __init__(self, *errors):
        self.errors, self.calls, self.read = list(errors), 0, headers.read_header

    def __call__(self, path, **options):
        self.calls += 1
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number), path)
        return self.read(path, **options)


@pytest.fixture
def failing(monkeypatch):
    monkeypatch.setattr(reader, "PAUSE_S", 0)

    def fail(*errors):
        monkeypatch.setattr(headers, "read_header", found := Failing(*errors))
        return found

    return fail


def shown(path):
    header = header_of(path)
    return header.height, header.width, header.orientation, header.problem


def test_a_header_is_kept(path, failing):
    counted = failing()
    assert shown(path) == shown(path) == (20, 30, 1, None)
    assert counted.calls == 1
    Image.new("RGB", (31, 20)).save(path)
    assert header_of(path).width == 31
    assert header_of(Path(path).read_bytes()).width == 31


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_moment_without_the_file_server(path, failing, number):
    failing(number)
    assert shown(path) == (20, 30, 1, None)


def test_a_read_error_is_not_kept(path, failing):
    failing(errno.EIO, errno.EIO)
    assert header_of(path).problem == "input/output error"
    assert shown(path) == (20, 30, 1, None)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_the_process_lacks_is_no_files_fault(path, failing, number):
    failing(number, number)
    with pytest.raises(OSError, match=os.strerror(number)):
        header_of(path)


def test_a_missing_file_is_tried_once(path, failing, tmp_path):
    counted = failing()
    assert header_of(f"{path}.gone").problem == "no such file or directory"
    assert header_of(str(tmp_path)).problem == "is a directory"
    assert counted.calls == 1
