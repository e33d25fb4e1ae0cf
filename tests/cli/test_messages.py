"""How a program ends: in one line, also for a full disk."""

from pathlib import Path

import pytest

from dali_pipes.cli import messages
from dali_pipes.system.files import open_replacing


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(28, "No space left on device"),
            "no space left on device; free some, or write elsewhere than /x",
        ),
        (
            OSError("[Errno 28] Error writing bytes. Detail: No space left on device"),
            "no space left on device",
        ),
        (FileNotFoundError(2, "No such file or directory", "/y"), "/y: no such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_line(error, message):
    assert message in messages.explain_file_error(error, "/x")
    with pytest.raises(OSError, match="no file"):
        messages.explain_file_error(OSError("no file"))


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path, folder):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file") as raised:
        (tmp_path / folder).mkdir(parents=True)
    assert (
        f"{tmp_path / 'file'} is a file, and a folder is needed there; name another"
        in messages.explain_file_error(raised.value)
    )


def test_a_file_that_cannot_be_written_has_the_users_name_for_it(tmp_path):
    """Not that of the file beside it, which would replace it."""
    with (
        pytest.raises(OSError, match="No such file") as raised,
        open_replacing(Path("/proc/x.arrow")),
    ):
        pass
    assert messages.explain_file_error(raised.value) == "/proc/x.arrow: no such file or directory"
