import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_pipes.data.range_file import open_part
from dali_pipes.data.reader import Extent, Reader


@pytest.fixture
def files(tmp_path):
    """Eight files of 1,000 random bytes each."""
    content = [os.urandom(1000) for _ in range(8)]
    for number, each in enumerate(content):
        (tmp_path / str(number)).write_bytes(each)
    return tmp_path, content


def part(folder, number, offset, length):
    stat = os.stat(folder / str(number))
    return Extent(
        str(folder / str(number)), "member", offset, length, (stat.st_size, stat.st_mtime_ns)
    )


def test_whole_files_and_parts(files):
    folder, content = files
    reader = Reader()
    assert reader.read(Extent(str(folder / "3"))).tobytes() == content[3]
    assert reader.read(part(folder, 3, 10, 20)).tobytes() == content[3][10:30]
    assert reader.read(part(folder, 3, 990, 10)).tobytes() == content[3][990:]
    assert len(reader.read(part(folder, 3, 500, 0))) == 0


def test_names_for_messages():
    assert (
        str(Extent("/a/b.jpg")) == "/a/b.jpg"
        and str(Extent("/a/b.tar", "x/1.jpg", 5, 6)) == "/a/b.tar/x/1.jpg"
    )


def test_nothing_beyond_the_end_is_made_up(files):
    folder, _ = files
    with pytest.raises(OSError, match="ends after 5 of 10 bytes"):
        Reader().read(part(folder, 0, 995, 10))


@pytest.mark.parametrize("change", ["longer", "touched", "gone"])
def test_a_file_that_changed_since_it_was_scanned_is_refused(files, change):
    folder, content = files
    extent = part(folder, 0, 10, 20)
    match change:
        case "longer":
            (folder / "0").write_bytes(content[0] + b"x")
            os.utime(folder / "0", ns=(0, extent.stamp[1]))
        case "touched":
            os.utime(folder / "0", ns=(0, extent.stamp[1] + 1))
        case "gone":
            (folder / "0").unlink()
    with pytest.raises(OSError, match=r"has changed since it was scanned|No such file"):
        Reader().read(extent)


def test_a_bounded_number_of_files_stays_open_and_none_after_close(files):
    folder, content = files
    before = psutil.Process().num_fds()
    reader = Reader(keep=3)
    for number in [*range(8), *range(8)]:
        assert reader.read(part(folder, number, 1, 5)).tobytes() == content[number][1:6]
        assert psutil.Process().num_fds() <= before + 3
    assert psutil.Process().num_fds() == before + 3
    reader.close()
    assert psutil.Process().num_fds() == before


def test_whole_files_are_closed_at_once(files):
    before = psutil.Process().num_fds()
    reader = Reader()
    reader.read(Extent(str(files[0] / "0")))
    with pytest.raises(IsADirectoryError):
        reader.read(Extent(str(files[0])))
    assert psutil.Process().num_fds() == before


def test_threads_that_push_each_others_files_out_read_what_they_asked_for(files):
    folder, content = files
    reader, extents = (
        Reader(keep=1),
        [part(folder, number, 100 * number, 100) for number in range(8)],
    )
    start = threading.Barrier(8)

    def read(number):
        start.wait()
        return all(
            reader.read(extents[number]).tobytes() == content[number][100 * number :][:100]
            for _ in range(300)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))


def test_another_process_opens_its_own(files):
    folder, content = files
    reader = Reader(keep=2)
    reader.read(part(folder, 0, 0, 1))
    assert (
        pickle.loads(pickle.dumps(reader)).read(part(folder, 0, 0, 9)).tobytes() == content[0][:9]
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END]),
            st.integers(-30, 30),
            st.integers(0, 40),
        ),
        max_size=8,
    )
)
def test_a_part_is_a_file_of_its_own(tmp_path_factory, moves):
    """Whatever is sought and read, it is what a file of just these bytes gives."""
    folder = tmp_path_factory.mktemp("part")
    content = np.arange(100, dtype=np.uint8).tobytes()
    (folder / "whole").write_bytes(content)
    (folder / "part").write_bytes(content[40:65])
    number = os.open(folder / "whole", os.O_RDONLY)
    try:
        with (
            BufferedReader(open_part(number, 40, 25).detach(), 16) as one,
            open(folder / "part", "rb") as two,
        ):
            for whence, to, count in moves:
                results = []
                for file in (one, two):
                    try:
                        results.append((file.seek(to, whence), file.read(count)))
                    except (ValueError, OSError):
                        results.append(None)
                assert results[0] == results[1]
    finally:
        os.close(number)
