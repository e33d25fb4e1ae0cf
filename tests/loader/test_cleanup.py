"""A loader leaves nothing behind, however it ends, and does not grow."""

import contextlib
import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from gpu_backends import needs_cuda
from make_shards import tar_shards
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

import dali_pipes as dp

CONFIGS = {
    "dali": dp.DaliConfig(device="cpu", num_threads=2),
    "torch": dp.TorchConfig(num_workers=2),
}
GPU_CONFIGS = {
    "dali_gpu": dp.DaliConfig(device="gpu", num_threads=2),
    "torch_to_gpu": dp.TorchConfig(num_workers=2),
}
EVERY_CONFIG = CONFIGS | GPU_CONFIGS
every_backend = pytest.mark.parametrize("name", [*CONFIGS, *needs_cuda(*GPU_CONFIGS)])
every_program = pytest.mark.parametrize("name", ["dali", "torch", *needs_cuda("dali_gpu")])

OPENED = """
import signal, sys
import dali_pipes as dp

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    configs = {
        "dali": dp.DaliConfig(device="cpu", num_threads=2),
        "torch": dp.TorchConfig(num_workers=2),
        "dali_gpu": dp.DaliConfig(device="gpu", num_threads=2),
    }
    manifest = dp.Manifest.load(sys.argv[1])
    options = {"transform": dp.TrainTransform(size=64), "batch_size": 8}
    loader = dp.build_loader(manifest, configs[sys.argv[2]], **options)
"""
ENDLESS = f"""{OPENED}
    with loader:
        while True:
            for batch in loader:
                print(loader.epoch, flush=True)
"""
CARELESS = f"""{OPENED}
    for _ in range(3):
        for batch in loader:
            pass
    batch = next(iter(loader))
    raise ValueError("never closed")
"""


def open_files() -> dict[str, str]:
    """By descriptor, what it is of."""
    found = {}
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the folder itself is closed again
            found[each.name] = str(each.readlink())
    return found


def left_behind() -> tuple[int, int, set[str]]:
    """Descendants, open files, and shared memory whose owner has ended."""
    me = psutil.Process()
    shared = {
        path.name
        for path in Path("/dev/shm").glob("torch_*")
        if not psutil.pid_exists(int(path.name.split("_")[1]))
    }
    return len(me.children(recursive=True)), me.num_fds(), shared


def use(manifest, config, error=None):
    with dp.build_loader(
        manifest, config, transform=dp.TrainTransform(size=32), batch_size=8
    ) as loader:
        for number, _ in enumerate(loader):
            if error and number == 1:
                raise error


@pytest.mark.slow
@every_backend
def test_leaving_the_block(manifest, name):
    use(manifest, EVERY_CONFIG[name])  # what libraries open once and keep
    children, files, shared = left_behind()
    for error in (None, ValueError("in the training step"), KeyboardInterrupt()):
        for _ in range(2):
            try:
                use(manifest, EVERY_CONFIG[name], error)
            except (ValueError, KeyboardInterrupt) as caught:
                assert caught is error
        assert left_behind()[0] <= children  # even while the traceback still holds the loader
        if error:
            error.__traceback__ = None
        # threads of multiprocessing's queues close the last pipes a moment later
        deadline = time.monotonic() + 60
        while (now := left_behind())[1] > files and time.monotonic() < deadline:
            time.sleep(0.05)
        assert now[1] <= files and now[2] <= shared


@pytest.mark.few(2)
@pytest.mark.slow
@every_program
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_mid_epoch(manifest, tmp_path, name, number):
    manifest.save(tmp_path / "m.parquet")
    (tmp_path / "endless.py").write_text(ENDLESS)
    shared = left_behind()[2]
    command = [sys.executable, str(tmp_path / "endless.py"), str(tmp_path / "m.parquet"), name]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    for _ in range(6):
        assert process.stdout.readline()
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, number)
    process.communicate(timeout=100)
    assert process.returncode != 0
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
    assert left_behind()[2] <= shared


@pytest.mark.few(1)
@pytest.mark.slow
@every_program
def test_a_program_that_never_closes_its_loader_ends(manifest, tmp_path, name):
    manifest.save(tmp_path / "files.parquet")
    dp.Manifest.open(tar_shards(manifest, tmp_path / "shards"), progress=False).save(
        tmp_path / "shards.parquet"
    )
    (tmp_path / "careless.py").write_text(CARELESS)
    for images in ("files", "shards", "files"):  # what could hang here is a race
        command = [
            sys.executable,
            str(tmp_path / "careless.py"),
            str(tmp_path / f"{images}.parquet"),
            name,
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=90)
        assert ended.returncode == 1 and ended.stderr.endswith("ValueError: never closed\n")


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_without_fork(manifest, context):
    config = dp.TorchConfig(num_workers=1, multiprocessing_context=context)
    with dp.build_loader(
        manifest, config, transform=dp.TrainTransform(size=32), batch_size=8
    ) as loader:
        assert [batch.ids.tolist() for batch in loader] == [
            loader.plan.batch(0, step).ids.tolist() for step in range(4)
        ]


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_memory_is_flat_over_many_epochs(photographs, name):
    """60 epochs; between the 10th and the last, resident memory of the process tree grows by less
    than 30 MiB.
    """
    me = psutil.Process()

    def resident():
        return (
            sum(process.memory_info().rss for process in [me, *me.children(recursive=True)]) / 2**20
        )

    with dp.build_loader(
        photographs, EVERY_CONFIG[name], transform=dp.TrainTransform(size=64), batch_size=8
    ) as loader:
        for epoch in range(60):
            for _ in loader:
                pass
            if epoch == 10:
                before = resident()
        assert resident() - before < 30


@pytest.mark.few(1)
@pytest.mark.slow
@every_backend
def test_a_loader_can_abandon_many_epochs(manifest, name):
    use(manifest, EVERY_CONFIG[name])
    before = psutil.Process().num_threads(), left_behind()[1]
    with dp.build_loader(
        manifest, EVERY_CONFIG[name], transform=dp.TrainTransform(size=32), batch_size=8
    ) as loader:
        for epoch in range(10):
            assert next(iter(loader)).ids.tolist() == loader.plan.batch(epoch, 0).ids.tolist()
    # the threads that make the next epoch's order end by themselves
    deadline = time.monotonic() + 60
    while psutil.Process().num_threads() > before[0] + 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert psutil.Process().num_threads() <= before[0] + 1 and left_behind()[1] <= before[1]


@pytest.fixture
def workers_kept_until_exit(monkeypatch):
    """The worker processes that PyTorch keeps until the program ends, by atexit, as it does where
    memory is page-locked.

    Without a GPU it locks none, so this keeps them in its place.
    """
    kept, begin = [], _MultiProcessingDataLoaderIter.__init__

    def begin_and_keep(iterator, loader):
        begin(iterator, loader)
        kept.extend(iterator._workers)

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "__init__", begin_and_keep)
    yield kept
    for worker in kept:  # what it does with them then
        _MultiProcessingDataLoaderIter._clean_up_worker(worker)


@pytest.mark.few(1)
@pytest.mark.parametrize("loaders", [5, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["torch", *needs_cuda("torch_to_gpu")])
def test_loaders_with_persistent_workers_leave_no_open_files(
    manifest, workers_kept_until_exit, name, loaders
):
    """As `train` builds and closes one for each validation; PyTorch's own DataLoader leaves two a
    worker (its issue 91252).
    """

    def use_briefly():
        with dp.build_loader(
            manifest, EVERY_CONFIG[name], transform=dp.TrainTransform(size=32), batch_size=8
        ) as loader:
            next(iter(loader))

    use_briefly()  # what libraries open once and keep
    files = open_files()
    for _ in range(loaders):
        use_briefly()
    # other threads of this process may have a file open for a moment, and a queue that refers to
    # itself is closed when it is collected
    deadline = time.monotonic() + 60
    while len(open_files()) > len(files) and time.monotonic() < deadline:
        time.sleep(0.1)
        gc.collect()
    assert len(open_files()) <= len(files), sorted(set(open_files().items()) - set(files.items()))
    assert len(workers_kept_until_exit) == 2 * (loaders + 1)


ENDS = ["dali", "dali_graph", "torch", "torch_inline"]


def config_of(name):
    more = {
        "dali_graph": dp.DaliConfig(device="cpu", num_threads=2, resize="dali"),
        "torch_inline": dp.TorchConfig(num_workers=0),
    }
    return {**CONFIGS, **more}[name]


def build(manifest, name):
    return dp.build_loader(
        manifest, config_of(name), transform=dp.TrainTransform(size=32), batch_size=8
    )


@pytest.mark.parametrize("name", ENDS)
def test_the_last_reference_ends_a_loader_without_the_collector(manifest, name):
    def running():
        return psutil.Process().num_threads(), len(psutil.Process().children(recursive=True))

    next(iter(build(manifest, name)))  # what libraries start once and keep
    gc.collect()
    gc.disable()
    try:
        before = running()
        for use in (
            lambda loader: next(iter(loader)),
            lambda loader: list(loader),
            lambda loader: None,
        ):
            loader = build(manifest, name)
            kept = use(loader)  # batches outlive it
            del loader
            until = time.monotonic() + 60
            while (
                any(now > then for now, then in zip(running(), before, strict=True))
                and time.monotonic() < until
            ):
                time.sleep(0.01)
            assert running() <= before, kept
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ENDS)
def test_a_closed_loader_is_not_revived(manifest, name):
    loader = build(manifest, name)
    batches = iter(loader)
    next(batches)
    loader.close()
    children = len(psutil.Process().children(recursive=True))
    for use in (lambda: next(batches), lambda: iter(loader)):
        with pytest.raises(RuntimeError, match=r"the loader is closed|left with an error"):
            use()
    assert len(psutil.Process().children(recursive=True)) == children


def test_a_loader_is_not_pickled_or_copied(manifest):
    with build(manifest, "torch_inline") as loader:
        for copied in (lambda: pickle.dumps(loader), lambda: copy.deepcopy(loader)):
            with pytest.raises(TypeError, match="build one in the process that uses it"):
                copied()


LOOKED_AT = """
import multiprocessing, os, sys
import dali_pipes as dp
from dali_pipes.measure.arms import SyntheticConfig

configs = {
    "dali": dp.DaliConfig(device="cpu", num_threads=2),
    "dali_graph": dp.DaliConfig(device="cpu", num_threads=2, resize="dali"),
    "torch": dp.TorchConfig(num_workers=2),
    "torch_inline": dp.TorchConfig(num_workers=0),
    "synthetic": SyntheticConfig(),
}
manifest = dp.Manifest.load(sys.argv[1])
options = {"transform": dp.TrainTransform(size=32), "batch_size": 2}
loader = dp.build_loader(manifest, configs[sys.argv[2]], **options)
for images, labels in loader:
    break
"""
FORKED = (
    LOOKED_AT
    + """
def build():
    return dp.build_loader(manifest, configs[sys.argv[2]], **options)

def work():
    uses = [lambda: next(iter(loader)), lambda: loader.set_epoch(3)]
    for use in (*uses, lambda: loader.load_state_dict(loader.state_dict())):
        try:
            use()
        except RuntimeError as error:
            assert "build a loader in the process that uses it" in str(error)
        else:
            sys.exit(5)
    loader.close()
    own = build()
    assert sum(len(batch) for batch in own) == len(manifest) // 2 * 2

# A child that is forked otherwise would end its parent's workers: Python's exit does that.
if sys.argv[2].startswith("torch"):
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 0
else:
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert sum(len(batch) for batch in loader) == len(manifest) // 2 * 2  # the parent's is as it was
"""
)


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["dali", "dali_graph", "torch", "torch_inline", "synthetic"])
def test_a_program_that_looks_at_one_batch_ends_well(manifest, tmp_path, name):
    run_program(manifest, tmp_path, LOOKED_AT, name, times=2)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["dali", "dali_graph", "torch", "torch_inline", "synthetic"])
def test_a_forked_child_builds_a_loader_of_its_own(manifest, tmp_path, name):
    run_program(manifest, tmp_path, FORKED, name)


def run_program(manifest, folder, text, name, times=1):
    manifest.save(folder / "m.parquet")
    (folder / "program.py").write_text(text)
    for _ in range(times):  # what fails here is a race
        command = [sys.executable, str(folder / "program.py"), str(folder / "m.parquet"), name]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
