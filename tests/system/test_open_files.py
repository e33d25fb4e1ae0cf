"""The limit on open files is raised where it may be, named where it is used up, and no file is
blamed for it.
"""

import errno
import itertools
import os
import resource

import pytest
from in_child import Child

import dali_pipes as dp
from dali_pipes.system.open_files import allow_open_files, name_limit


@pytest.fixture
def in_child():
    """Of its own for each test, since a limit stays."""
    child = Child()
    yield child
    child.close()


def limited(soft, hard, need):
    """The limit after so many more files were asked for, and whether they may be open."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    allowed = allow_open_files(need)
    return allowed, resource.getrlimit(resource.RLIMIT_NOFILE)


def test_the_limit_is_raised_as_far_as_it_may_be(in_child):
    assert in_child(limited, 2000, 4000, 100) == (True, (2000, 4000))
    assert in_child(limited, 500, 4000, 1000) == (True, (4000, 4000))
    assert in_child(limited, 500, 900, 1000) == (False, (900, 900))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "x"),
        OSError(errno.ENFILE, "x"),
        RuntimeError("open failed: Too many open files"),
    ],
)
def test_an_error_of_the_limit_is_recognized_below_others(error):
    try:
        try:
            raise error
        except Exception as inner:
            raise ValueError("the batch") from inner
    except ValueError as outer:
        assert "ulimit -n" in name_limit(outer) and "lower batch_size" in name_limit(outer)
    assert not name_limit(OSError(errno.ENOENT, "x"))


def loaded(manifest, config, batch_size, files):
    """The sizes of the first batches of a process that may have so many files open."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    loader = dp.build_loader(
        manifest,
        config,
        transform=dp.TrainTransform(size=16),
        batch_size=batch_size,
        seed=0,
        device="cpu",
    )
    with loader:
        return [len(batch) for batch in itertools.islice(loader, 2)]


CONFIGS = {
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=2),
    "graph": dp.DaliConfig(device="cpu", num_threads=2, resize="dali"),
    "torch": dp.TorchConfig(num_workers=0),
}


@pytest.mark.parametrize("loader", CONFIGS)
def test_a_batch_of_more_files_than_may_be_open(in_child, loader, thumbnails):
    manifest = dp.Manifest.concat([thumbnails] * (1 + 600 // len(thumbnails)))
    assert in_child(loaded, manifest, CONFIGS[loader], 300, 280) == [300, 300]


def blamed(manifest):
    """What a batch says that has failed since no file can be opened any more."""
    loader = dp.build_loader(
        manifest,
        dp.TorchConfig(num_workers=0),
        transform=dp.TrainTransform(size=16),
        batch_size=4,
        seed=0,
        device="cpu",
    )
    with loader:
        iterator = iter(loader)
        next(iterator)
        opened = len(list(itertools.takewhile(bool, map(_is_open, range(64)))))
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened, 4096))
        try:
            list(itertools.islice(iterator, 8))
        except Exception as error:
            resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
            return type(error).__name__, error.__notes__, loader.bad_samples
        return None


def _is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def test_no_file_is_blamed_for_the_limit(in_child, thumbnails):
    _, notes, bad = in_child(blamed, thumbnails)
    assert bad == [] and "ulimit -n" in notes[-1]
