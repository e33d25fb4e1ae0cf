"""Images to test on, and what becomes of tests that need a GPU."""

import contextlib
import gc
import os
import re
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

# before MKL's first use: what launch() does comes too late in a process of tests
os.environ.setdefault("MKL_CBWR", "AUTO")
# Threads of PyTorch's operators spin while they wait: on cores that another worker uses, a small
# network takes three times as much CPU time.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import pytest
import torch
from checkout import checkout  # noqa: F401  a fixture
from command import command  # noqa: F401  a fixture
from few import choose_few
from gpu_backends import decodes_with_dali_on_gpu
from hypothesis import settings
from PIL import Image
from process_state import find_changes, read_state

import dali_pipes as dp
from dali_pipes.data.demo import PATTERNS, draw_image

# 1: tests that need a GPU fail without one, 0: they are skipped; else left out
WITHOUT_CUDA = os.environ.get("FAIL_WITHOUT_CUDA")
LEFT_OUT, NOT_CHOSEN = pytest.StashKey[int](), pytest.StashKey[int]()
COUNTED = (LEFT_OUT, NOT_CHOSEN)
STATUS = pytest.StashKey[int]()
RUNNING = pytest.StashKey[ModuleType]()
TESTS = str(Path(__file__).parent)
FILES: dict[str, ModuleType] = {}  # the files of tests that were collected, by the module's name
# marks of tests that take far longer than others
LONG = ("slow", "browser", "cluster", "container")

settings.register_profile("busy", deadline=None)
settings.load_profile("busy")

# started in the background, where shells ignore Ctrl-C, which tests send
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# TensorFlow's log handler closes its stream, pytest's, when a job configures logging
with contextlib.suppress(ImportError):
    import absl.logging

    absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__


def pytest_addoption(parser):
    parser.addoption(
        "--few",
        type=int,
        metavar="COUNT",
        help="of tests that are marked few, run only COUNT parameter sets",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        # an address is another one in each of xdist's workers, which must name the same tests
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid} has an address in its name: give it an id")
        if item.get_closest_marker("compares_pixels") and decodes_with_dali_on_gpu(item):
            item.add_marker("gpu_pixels")
    _longest_files_first(items)
    if not torch.cuda.is_available() and WITHOUT_CUDA is None:
        on_gpu = [item for item in items if item.get_closest_marker("needs_cuda")]
        items[:] = [item for item in items if not item.get_closest_marker("needs_cuda")]
        config.stash[LEFT_OUT] = len(on_gpu)

    yield  # here pytest looks at the marks

    if count := config.option.few:
        chosen = choose_few(items, count)
        config.stash[NOT_CHOSEN] = len(items) - len(chosen)
        items[:] = chosen
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = [config.stash.get(key, 0) for key in COUNTED]


def pytest_collection_finish():
    """The modules of all tests hold a million objects, and each collection that a test asks for
    would look through them for a second.
    """
    gc.collect()
    # what is frozen is never collected, and the simulated GPU ends before the interpreter does
    if "SIMULATED_GPU" not in os.environ:
        gc.freeze()
    for name, module in list(sys.modules.items()):
        if name.startswith("test_") and str(getattr(module, "__file__", "")).startswith(TESTS):
            FILES[name] = module


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Of all files of tests only the test's own is a module, and those that it names. A program has
    no others, and `from_torch` looks through whatever the modules of a program hold.
    """
    own = getattr(item, "module", None)
    if own is None or item.config.stash.get(RUNNING, None) is own:
        return
    item.config.stash[RUNNING] = own
    named = {own.__name__, *re.findall(r"\btest_\w+", item.path.read_text())}
    for name, module in FILES.items():
        if name in named:
            sys.modules[name] = module
        else:
            sys.modules.pop(name, None)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    session.config.stash[STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """After the memory tests the simulated GPU may crash at the end of the interpreter; why
    is not known. What programs do at their end is tested in processes of their own.
    """
    if "SIMULATED_GPU" in os.environ and not os.environ.get("PYTEST_XDIST_WORKER"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash.get(STATUS, 1))


def _longest_files_first(items):
    """So that workers have short files left at the end, and none waits long for another."""
    seconds = Counter()
    for item in items:
        seconds[item.path] += 20 if any(map(item.get_closest_marker, LONG)) else 0.3
    items.sort(key=lambda item: -seconds[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    counts = getattr(node, "workeroutput", {}).get("left_out", (0, 0))
    for key, count in zip(COUNTED, counts, strict=True):
        node.config.stash[key] = count


def pytest_terminal_summary(terminalreporter, config):
    if count := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(
            f"{count} tests left out: no GPU here (FAIL_WITHOUT_CUDA=1 makes them fail)"
        )
    if count := config.stash.get(NOT_CHOSEN, 0):
        terminalreporter.write_line(f"{count} parameter sets left out: --few")


def pytest_runtest_setup(item):
    if item.get_closest_marker("needs_cuda") and not torch.cuda.is_available():
        end = pytest.fail if WITHOUT_CUDA == "1" else pytest.skip
        end("no GPU here (FAIL_WITHOUT_CUDA=1 makes this a failure)")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """pytest removes the folder of a test that passed; its name is not used again, since imports
    and caches know files by their paths.
    """
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    yield
    if folder:
        folder.mkdir(exist_ok=True)
    if _may_leave_files_open(item):
        gc.collect()


def _may_leave_files_open(item):
    """A test that ignores ResourceWarning runs programs as people write them. What they leave open
    is closed in its own teardown, where the warning is ignored: a later test would fail for it.
    """
    filters = [argument for mark in item.iter_markers("filterwarnings") for argument in mark.args]
    return "ignore::ResourceWarning" in filters


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One worker runs all tests of a file, whose fixtures are then made once, and all tests of the
    container, which share one image.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return "container" if nodeid.startswith("tests/container/") else nodeid.split("::")[0]

    config.option.loadscopereorder = False  # else the files with the most tests come first
    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def nothing_is_left_changed():
    """What a test changes of the process, it puts back; `monkeypatch` and `undo` do."""
    before = read_state()
    yield
    if changes := find_changes(before, read_state()):
        pytest.fail("left changed in the process: " + "; ".join(changes))


@pytest.fixture(autouse=True)
def no_launch_is_refused():
    """On the simulated GPU: DALI does not look at what a launch returns."""
    if "SIMULATED_GPU" not in os.environ:
        yield
        return
    from simulated_gpu.device import count

    before = count("refused")
    yield
    assert count("refused") == before, "a launch that a GPU would refuse: the output names it"


@pytest.fixture(scope="session")
def photograph_folder(tmp_path_factory) -> Path:
    """37 JPEGs in 5 classes: photographs-by-statistics of all sizes, some gray, progressive, 4:4:4,
    very small or very long.
    """
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(1)
    for number in range(37):
        name = sorted(PATTERNS)[number % 5]
        image = Image.fromarray(draw_image(name, rng))
        if number % 9 == 1:
            image = image.convert("L")
        if number % 9 == 2:
            image = image.resize((int(rng.integers(20, 90)), int(rng.integers(20, 90))))
        if number % 9 == 3:
            image = image.resize((600, 60) if number % 2 else (60, 600))
        folder = root / name / ("nested" if number % 4 == 0 else "")
        folder.mkdir(parents=True, exist_ok=True)
        image.save(
            folder / f"{number:03d}.jpg",
            quality=92,
            subsampling=number % 3,
            progressive=number % 9 == 4,
        )
    return root


@pytest.fixture(scope="session")
def image_folder(photograph_folder) -> Path:
    """The folder of `manifest`, which other folders of tests have of their own."""
    return photograph_folder


@pytest.fixture(scope="session")
def photographs(photograph_folder, tmp_path_factory) -> dp.Manifest:
    """Mapped, as what people train on is."""
    return dp.Manifest.scan(
        photograph_folder, cache=tmp_path_factory.mktemp("manifest") / "m.arrow", progress=False
    )


@pytest.fixture(scope="session")
def manifest(photographs) -> dp.Manifest:
    """What a test loads; in the folders data/ and loader/ the thumbnails."""
    return photographs


@pytest.fixture(scope="session")
def real_manifest(photographs) -> dp.Manifest:
    """The images that DALI_PIPES_IMAGES names, or else those made above."""
    named = os.environ.get("DALI_PIPES_IMAGES")
    return dp.Manifest.open(named, progress=False) if named else photographs


@pytest.fixture(scope="session")
def thumbnails(tmp_path_factory) -> dp.Manifest:
    """37 JPEGs of noise in 5 classes, at most 64 × 64 pixels, for tests of all but the pixels: far
    quicker to decode.
    """
    root = tmp_path_factory.mktemp("thumbnails")
    rng = np.random.default_rng(2)
    for number in range(37):
        height, width = rng.integers(32, 65, 2)
        folder = root / f"class {number % 5}" / ("nested" if number % 4 == 0 else "")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(
            folder / f"{number:03d}.jpg", quality=92
        )
    return dp.Manifest.scan(
        root, cache=tmp_path_factory.mktemp("manifest") / "m.arrow", progress=False
    )


@pytest.fixture
def scanned(thumbnails, tmp_path) -> dp.Manifest:
    """Thumbnails that the test may spoil, scanned while all was well."""
    shutil.copytree(thumbnails.root, tmp_path / "set")
    return dp.Manifest.scan(tmp_path / "set", cache=tmp_path / "set.arrow", progress=False)
